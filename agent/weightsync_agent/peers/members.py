"""Which source pods the plan names: a valid token proves who calls, not that it has a part in this. No I/O.

A plan comes to its readers at slightly different times, so a source that is not named yet is waited for; and one that
has just left still says how its writes ended, without which others would wait for it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from weightsync.errors import Refused
from weightsync.plan import Plan

WAIT_SECONDS = 10.0  # for a plan that others have read already: a plan file is looked at every 0.3 s, an API watched
KEPT_SECONDS = 600.0  # so long one that left is still listened to: more than any sync lasts
KEPT = 4096  # and no more of them


class Members:
    """The source pods of the plans of this agent's life. clock: seconds that only rise."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: frozenset[str] = frozenset()
        self._left: OrderedDict[str, float] = OrderedDict()  # uid -> when it was last named
        self._changed = asyncio.Condition()

    async def put(self, plan: Plan) -> None:
        """A new plan is in force."""
        named = frozenset(source.uid for source in plan.sources)
        async with self._changed:
            for uid in sorted(self._now - named):
                self._left[uid] = self._clock()
                self._left.move_to_end(uid)
            for uid in named & self._left.keys():
                del self._left[uid]
            while len(self._left) > KEPT:
                self._left.popitem(last=False)
            self._now = named
            self._changed.notify_all()

    async def joined(self, uid: str, seconds: float | None = None) -> None:
        """Return once the plan names ``uid`` as a source. Raises Refused where it does not in WAIT_SECONDS."""
        if uid in self._now:
            return
        async with self._changed:
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: uid in self._now), WAIT_SECONDS if seconds is None else seconds
                )
            except TimeoutError:
                raise self._stranger(uid) from None

    def known(self, uid: str) -> None:
        """Raises Refused unless the plan names ``uid`` as a source, or did so a short while ago."""
        since = self._left.get(uid)
        if uid not in self._now and (since is None or self._clock() - since > KEPT_SECONDS):
            raise self._stranger(uid)

    def _stranger(self, uid: str) -> Refused:
        return Refused(
            f"{uid[:128]} is no source of this plan, which names {len(self._now)}: "
            "does the WeightSync's trainer selector match its pod, and is its Publisher connected?",
            reason="NotInPlan",
            status=403,
        )
