"""Runs protocol.joiner.Joiner for one engine: asks neighbours, reads from a holder, lets the engine take it over."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import structlog

from weightsync.errors import PeerError, Refused, WeightSyncError
from weightsync.wire.v1 import (
    Accepted,
    Capabilities,
    Decided,
    Lease,
    LeaseEnd,
    LeaseRequest,
    MoreRequest,
    PassAnswer,
)
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.neighbours import Neighbours
from weightsync_agent.drivers.pull import Pulling, pull
from weightsync_agent.drivers.ranks import EngineRanks, StartRankWorker
from weightsync_agent.engines.base import PauseMode
from weightsync_agent.observability import metrics
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol.holders import Offer
from weightsync_agent.threads import given_up, to_its_end

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 5.0
RENEWALS = 3  # in the seconds of a lease: two of them may be lost
TICK = 0.001  # seconds: a timer may be early by less
# What is told of work that did not end as it should, by the state that waits for it.
FAILED: dict[j.JoinerState, Callable[[str], object]] = {
    j.JoinerState.SEEKING: j.AskFailed,
    j.JoinerState.LEASING: j.NotLeased,
    j.JoinerState.PULLING: j.PullBroke,
    j.JoinerState.APPLYING: j.NotApplied,
}
SILENT = 2  # stall timeouts beyond a sync's deadline, until its writers are taken for gone


class Engine(Protocol):
    """What is asked of the engine's driver."""

    def needs(self, silent_after: float) -> j.Needs | j.NeedsNothing:
        """Whether it needs a version. silent_after: seconds from a grant on in which its writers may be at work."""

    async def take(self, own: Decided | None, decided: Decided, coordinator: str, mode: PauseMode) -> None:
        """Seal what was pulled, or is sealed already, and commit it. own: what it was thought to have before."""


class Joining:
    """One engine's. start: a reading worker of one of its ranks."""

    def __init__(
        self,
        uid: str,
        engine: Engine,
        ranks: EngineRanks,
        *,
        neighbours: Neighbours,
        client: PeerClient,
        start: StartRankWorker,
        ours: Capabilities,
        stall_seconds: float,
    ) -> None:
        self.machine = j.Joiner(uid)
        self._uid = uid
        self._engine = engine
        self._ranks = ranks
        self._neighbours = neighbours
        self._client = client
        self._start = start
        self._ours = ours
        self._stall = stall_seconds
        self._deadline = 60.0  # of a sync, until a plan says another
        self._mode: PauseMode = "Abort"
        self._work: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()  # cancelled, and their workers may not have ended yet
        self._again: asyncio.TimerHandle | None = None
        self._background = Background("joining")

    @property
    def hopes(self) -> bool:
        """The engine gets a version by itself: nobody need write to it meanwhile."""
        return self.machine.hopes

    def look(self) -> None:
        """See whether the engine needs a version."""
        needs = self._engine.needs(self._deadline + SILENT * self._stall)
        if isinstance(needs, j.Needs):
            self.machine.programs = {rank: t.program.digest for rank, t in self._ranks.targets.items()}
        self._feed(needs)

    @property
    def grows(self) -> Lease | None:
        """What it reads now, and may lend as it comes."""
        return self.machine.grows

    @property
    def applies(self) -> bool:
        """The engine is about to take over what was pulled, or does."""
        return self.machine.state is j.JoinerState.APPLYING

    async def end(self, why: str) -> None:
        """Somebody else fills the arenas: no worker of ours reads any more when this returns."""
        self._feed(j.NeedsNothing(why))
        await self._ended()

    async def _ended(self) -> None:
        while self._ending:
            await asyncio.wait(set(self._ending))

    # --- the machine ---

    def _feed(self, event: object) -> None:
        before = self.machine.state
        actions = self.machine.handle(event, time.monotonic())
        if self.machine.state is not before:
            log.info("join", was=before.name, now=self.machine.state.name, on=type(event).__name__)
        for action in actions:
            self._act(action)
        if self._again is not None:
            self._again.cancel()
        resting = self.machine.state is j.JoinerState.RESTING
        if resting and self.machine.hopes:  # a place may come free long before the engine is looked at again
            pause = max(0.0, self.machine.again_at - time.monotonic()) + TICK
            self._again = asyncio.get_running_loop().call_later(pause, self.look)

    def _act(self, action: object) -> None:
        match action:
            case j.Seek():
                self._do(self._seek())
            case j.AskLease(offer, aim):
                self._do(self._lease(offer, aim))
            case j.BeginPull(offer, lease):
                self._do(self._pull(offer, lease))
            case j.GiveBack(offer):
                self._background.spawn(self._leave(offer))
            case j.Apply(decided):
                self._do(self._apply(decided))
            case j.StopPull():
                if self._work is not None:
                    self._ending.add(self._work)
                    self._work.add_done_callback(self._ending.discard)
                    self._work.cancel()
            case j.Told(message):
                log.info("join", state=self.machine.state.name, why=message)
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _do(self, work: Coroutine[Any, Any, object]) -> None:
        """One piece of work at a time; its event comes once it has ended."""
        self._work = self._background.spawn(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await self._ended()
        except asyncio.CancelledError:
            work.close()
            raise
        try:
            event = await work
        except Exception as error:  # a bug: it must not stay where it is, with the coordinator waiting for it
            if not given_up():
                self._feed(FAILED[self.machine.state](f"{type(error).__name__}: {error}"))
            raise
        if given_up():  # a failure of its own hid that: its event is not for what runs by now
            raise asyncio.CancelledError
        self._feed(event)

    # --- its actions ---

    async def _seek(self) -> object:
        try:
            plan = await self._neighbours.plan(busy=self.machine.waits > 0)
            self._deadline, self._mode = float(plan.strategy.deadline_seconds), plan.strategy.pause_mode
            if plan.suspend:
                return j.AskFailed("the WeightSync is suspended")
            if plan.join_policy == "NextVersion" and self.machine.own is None:
                return j.AskFailed("joinPolicy is NextVersion: the next version that is published comes to it")
            if not self._may_read(plan.transfer.protocol):
                return j.AskFailed(
                    f"transfer.protocol is {plan.transfer.protocol}, and this agent reads over "
                    f"{self._ours.transport.upper()} (WEIGHTSYNC_TRANSPORT): the sources write the version"
                )
            told = await self._neighbours.told(plan)
            said, answered = (told.decided if told is not None else None), told is not None
            if answered and said is None:
                return j.Asked((), None, answered=True)
            feeders = frozenset(told.feeders) if told is not None else frozenset()
            offers = await self._neighbours.offers(plan, self.machine.programs, said, feeders)
        except WeightSyncError as error:
            return j.AskFailed(str(error))
        syncing, begins = (told.syncing, told.begins) if told is not None else (False, False)
        return j.Asked(offers, said, answered, self._neighbours.limit(plan), syncing, begins)

    def _may_read(self, protocol: str) -> bool:
        """A lease chooses no transport, as a grant does: readers take the one that their agent was started with."""
        return protocol == "Auto" or protocol == self._ours.transport.upper()

    async def _lease(self, offer: Offer, aim: Decided) -> object:
        try:
            return j.Leased(await self._ask_lease(offer, aim))
        except PeerError as error:
            return j.NotLeased(str(error), busy=error.reason == "Busy")

    async def _ask_lease(self, offer: Offer, aim: Decided) -> Lease:
        request = LeaseRequest(
            reader=self._uid, version=aim.version, programs=self.machine.programs, ours=self._ours,
            waits=True,
        )  # fmt: skip
        return await self._client.call(offer.address, "/v1/leases", Lease, request, seconds=ANSWER_SECONDS)

    async def _pull(self, offer: Offer, lease: Lease) -> object:
        began = time.monotonic()
        staying = asyncio.ensure_future(self._stay(offer, lease))
        how = Pulling(
            self._uid, self._start, partial(self._more, offer), stall=self._stall,
            deadline=self._deadline, fence=True,
        )  # fmt: skip
        reading = asyncio.ensure_future(pull(self._ranks, lease, how))
        try:
            await asyncio.wait({staying, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return j.PullBroke(f"{offer.address}: {staying.result()}")
            reading.result()
        except WeightSyncError as error:
            metrics.PULLS.labels(outcome=error.reason).inc()
            return j.PullBroke(f"{offer.address}: {error}")
        finally:
            for task in (staying, reading):
                task.cancel()
            await to_its_end(asyncio.gather(staying, reading, return_exceptions=True))
            self._background.spawn(self._leave(offer))  # nobody waits for a holder that is gone
        metrics.PULLS.labels(outcome="Pulled").inc()
        metrics.PULL_SECONDS.observe(time.monotonic() - began)
        return j.Pulled()

    async def _more(self, offer: Offer, request: MoreRequest) -> PassAnswer:
        return await self._client.persist(offer.address, "/v1/leases/more", PassAnswer, request, seconds=self._stall)

    async def _stay(self, offer: Offer, lease: Lease) -> str:
        """Ask for the lease again and again; returns the holder's reason once there is nothing to read any more."""
        while True:
            await asyncio.sleep(lease.seconds / RENEWALS)
            try:
                lease = await self._ask_lease(offer, lease.decided)
            except Refused as error:
                return str(error)
            except PeerError as error:  # its bytes tell whether it is there
                log.info("the lease was not prolonged", holder=offer.address, why=str(error))

    async def _leave(self, offer: Offer) -> None:
        try:
            await self._client.call(
                offer.address, "/v1/leases/end", Accepted, LeaseEnd(reader=self._uid), seconds=ANSWER_SECONDS
            )
        except PeerError as error:
            log.info("a holder did not learn that nobody reads; its lease ends by itself", why=str(error))

    async def _apply(self, decided: Decided) -> object:
        coordinator = self._neighbours.holder_of(decided.term)
        try:
            await self._engine.take(self.machine.own, decided, coordinator, self._mode)
        except WeightSyncError as error:
            return j.NotApplied(str(error))
        metrics.PULLED_VERSIONS.inc()
        return j.Applied()

    async def close(self) -> None:
        """End the reading workers."""
        if self._again is not None:
            self._again.cancel()
        await self._background.close()
