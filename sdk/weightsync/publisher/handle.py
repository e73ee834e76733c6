"""What publish() returns: the two things that a trainer waits for, and what became of each engine."""

import threading
import time
from collections.abc import Callable

from weightsync.errors import PublishFailed, WeightSyncError
from weightsync.publisher.link import Link
from weightsync.publisher.outcome import Outcome

POLL = 20.0  # seconds of one long poll
GRACE = 10.0  # seconds that its answer may take beyond that
PATIENCE = 5.0  # seconds to go on dialling an agent that restarts
PACE = 0.2  # seconds between polls at least, where the agent answers sooner than asked


class PublishHandle:
    """One publish. It stays valid while newer ones run and after the Publisher was closed; any thread may wait.

    label: the caller's; version: the name that engines report while they serve it, None while it is not known
    (and for ever where the publish failed before the agent gave it one); notes: sentences that a user should know,
    such as which parameters are no copy of the checkpoint, mostly none.
    """

    def __init__(
        self,
        publish: str,
        connect: Callable[[float], Link],
        *,
        label: str = "",
        version: str = "",
        failure: WeightSyncError | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.label = label
        self.notes = notes
        self._publish = publish
        self._connect = connect
        self._version = version
        self._failure = failure
        self._copied = threading.Event()
        self._copied.set()  # publish() copies before it returns; a publish in the background would set it later
        self._asking = threading.Lock()
        self._outcome: Outcome | None = None if failure is None else _failed(failure)

    @property
    def version(self) -> str | None:
        """``<lineage>.<number>``, or None."""
        return self._version or None

    def copied(self, timeout: float | None = None) -> None:
        """Wait until the published tensors may change again. Raises TimeoutError after ``timeout`` seconds."""
        if not self._copied.wait(timeout):
            raise TimeoutError(f"publish {self._name} was not copied within {timeout} s")

    def outcome(self, timeout: float | None = None) -> Outcome:
        """Wait until every engine has its outcome. Raises TimeoutError after ``timeout`` seconds, nothing else.

        A publish that failed has status Failed with the reason. So has one whose agent cannot be reached any more
        (reason AgentUnavailable): what its engines serve is not known then, and a later call asks again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._asking.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            raise self._late(timeout)
        try:
            if self._outcome is None:
                try:
                    self._outcome = self._ask(deadline, timeout)
                except WeightSyncError as error:
                    return _failed(error)
                if self._outcome.version is not None:
                    self._version = self._outcome.version.name
            return self._outcome
        finally:
            self._asking.release()

    def raise_on_failure(self, timeout: float | None = None) -> Outcome:
        """outcome(), or PublishFailed that names each engine that is behind or failed, or why the publish failed.

        Engines that are gone, or superseded by a newer publish, are no failure; nor is it that none was there.
        """
        outcome = self.outcome(timeout)
        if outcome.status in ("Failed", "Incomplete"):
            raise PublishFailed(f"publish {self._name}: {outcome.describe()}")
        return outcome

    def _ask(self, deadline: float | None, timeout: float | None) -> Outcome:
        patience = PATIENCE if deadline is None else min(PATIENCE, max(deadline - time.monotonic(), 0.0))
        with self._connect(patience) as link:
            while True:
                began = time.monotonic()
                wait = POLL if deadline is None else min(POLL, max(deadline - began, 0.0))
                path = f"/v1/publishes/{self._publish}/outcome?wait={wait:.3f}"
                answer = link.get(path, Outcome, timeout=wait + GRACE)
                if answer.ended:
                    return answer
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise self._late(timeout)
                time.sleep(max(0.0, began + min(PACE, wait) - now))

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"publish {self._name} has no outcome for every engine after {timeout} s")

    @property
    def _name(self) -> str:
        return " ".join(filter(None, (self._version or self._publish or "(without version)", self.label)))


def _failed(error: WeightSyncError) -> Outcome:
    """The outcome of a publish that did not reach the engines."""
    return Outcome(ended=True, reason=error.reason, message=str(error))
