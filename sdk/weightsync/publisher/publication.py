"""One publish, from begin to copied: takes (name, tensor) pairs and never raises for what is wrong with them.

The first failure is remembered and ends copying and reporting; whatever comes after is only taken in, and gathered
where it is sharded over ranks. One rank that stopped would leave the others waiting in a collective for ever.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from weightsync.errors import InputError, WeightSyncError
from weightsync.publisher.intake import Intake
from weightsync.publisher.link import Link
from weightsync.publisher.replicas import OpenReplica, OpenReplicas
from weightsync.publisher.sender import Reports, Sender
from weightsync.wire.local import (
    BeginAnswer,
    BeginRequest,
    Copied,
    NamesReply,
    NamesReport,
    PublishFailure,
    Replica,
)

if TYPE_CHECKING:
    from weightsync.convert.replay import Replayer

log = logging.getLogger(__name__)

MESSAGE = 4096  # characters of a failure's message that the agent takes
LAST_WORDS = 10.0  # seconds that telling of a failure may take: the trainer waits for it with an exception in hand


class Progress(NamedTuple):
    """How far a publish has come: bytes that are in the arenas, of so many, and the seconds that copying took.

    On a first publish total counts all that the program knows.
    """

    copied: int = 0
    total: int = 0
    seconds: float = 0.0


class _Filling(NamedTuple):
    """An arena while it is filled. known: its buckets and owned names were told at begin."""

    replica: Replica
    opened: OpenReplica
    replayer: "Replayer"
    known: bool
    report: Callable[[list[tuple[int, str]]], None]

    def take(self, name: str, tensor: Any, *, kept: bool) -> None:
        """Copy one tensor, and report what became full. kept: it stays as it is until the input is exhausted."""
        if not self.known:
            # Nobody knew yet which pages this stage needs, so nobody has allocated them: a full volume must be an
            # error here, not a SIGBUS in the copy.
            self.opened.arena.prefault(self.replayer.extents(name))
        self.replayer.feed(name, tensor, self.report, kept=kept)

    def abandon(self) -> None:
        """Copies that still run are waited for: the arena is the agent's when this returns."""
        try:
            self.replayer.abandon()
        except InputError as error:
            log.warning("%s: %s", self.opened.path, error)


class Publication:
    """The steps in order: begin(), take() for each pair, agree(), settle(), then end() or interrupted(); failure
    says what went wrong.

    before: the names of the publish before, None where there was none. kept: the state dict that is given, where its
    tensors stay as they are until settle() returns.
    """

    def __init__(
        self,
        link: Link,
        sender: Sender,
        open_replicas: OpenReplicas,
        before: frozenset[str] | None,
        *,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = ""
        self.version = ""
        self.failure: WeightSyncError | None = None
        self.unexpected: BaseException | None = None
        self._link = link
        self._sender = sender
        self._open = open_replicas
        self._before = before
        self._reports: Reports | None = None
        self._fillings: list[_Filling] = []
        self._intake = Intake(self._knows, kept)
        self._seconds = 0.0

    def _knows(self, name: str) -> bool:
        return any(filling.replayer.knows(name) for filling in self._fillings)

    @property
    def names(self) -> list[str]:
        """Of the tensors, as they were given."""
        return self._intake.names

    @property
    def progress(self) -> Progress:
        """As it stands now; any thread may look."""
        replayers = [filling.replayer for filling in self._fillings]
        return Progress(sum(r.copied for r in replayers), sum(r.nbytes for r in replayers), self._seconds)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how the arenas were filled, each sentence once."""
        return tuple(dict.fromkeys(filter(None, (filling.replayer.note for filling in self._fillings))))

    def begin(self, request: BeginRequest) -> None:
        """Ask the agent which arenas to fill, and open them. What it raises is for watching()."""
        answer = self._link.post("/v1/publishes", request, BeginAnswer)
        self.id, self.version = answer.id, answer.version
        self._reports = reports = self._sender.open(answer.id)
        self._open.refresh()
        for replica in answer.replicas:
            opened = self._open.begin(replica)
            report = partial(self._sender.put, reports, replica.program)
            self._fillings.append(_Filling(replica, opened, opened.replayer, bool(replica.buckets), report))

    def take(self, pair: object) -> None:
        """Gather one tensor, whatever went wrong before; copy it to wherever it belongs, or have the threads copy it.

        Raises what a gather raises: it is the input's, and no rank knows how far the others are.
        """
        whole = self._intake.whole(pair)
        if not self._stopped():
            with self._copying():
                name, tensor = self._intake.named(whole)
                if self._fillings and (meant := self._intake.meaning(name)) is not None:
                    # What was gathered is let go of here: to keep all of it would be to keep the model.
                    kept = self._intake.kept is not None and whole is pair
                    for filling in self._fillings:
                        filling.take(meant, tensor, kept=kept)

    def agree(self) -> None:
        """The input is exhausted: compare with the other ranks what was gathered. Raises as take()."""
        try:
            self._intake.agree()
        except InputError as error:
            self.fail(error)

    def settle(self) -> None:
        """Wait for all that was taken to be copied: the tensors may change when it returns."""
        if not self._stopped():
            with self._copying():
                for filling in self._fillings:
                    filling.replayer.drain(self._is_refused)

    @contextmanager
    def watching(self, kind: type[BaseException] = BaseException) -> Iterator[None]:
        """Remembers what goes wrong. What is no WeightSyncError, but of that kind, is left in ``unexpected``, to be
        raised once the input is exhausted: an interrupt of one rank, too, must not leave the others in a collective.
        """
        try:
            yield
        except WeightSyncError as error:
            self.fail(error)
        except kind as error:
            self.unexpected = self.unexpected or error
            self.fail(InputError(f"publish() met {type(error).__name__}: {error}"))
            log.warning(
                "publish() met %s: it is raised when the input is exhausted, as other ranks may be gathering",
                type(error).__name__,
            )

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """watching(), and the time that it took."""
        began = time.perf_counter()
        with self.watching():
            yield
            self._seconds += time.perf_counter() - began

    def _stopped(self) -> bool:
        """Whether copying has no more use. Also learns what the sender met in the meantime."""
        if self.failure is None and self._reports is not None and self._reports.error is not None:
            self.fail(self._reports.error)
        return self.failure is not None

    def _is_refused(self) -> bool:
        return self._reports is not None and self._reports.error is not None

    def end(self) -> None:
        """The input is exhausted: learn what is still unknown, report what is full, let the agent have it."""
        try:
            if not self._stopped():
                self._compare_names()
                self._complete()
                self._link.tell(f"/v1/publishes/{self.id}/copied", Copied(seconds=self._seconds))
        except WeightSyncError as error:
            self.fail(error)
        if self.failure is not None:
            self._tell(self.failure.reason, str(self.failure))

    def _complete(self) -> None:
        began = time.perf_counter()
        for filling in self._fillings:
            if filling.known:
                filling.replayer.finish()
        self._seconds += time.perf_counter() - began
        if not all(filling.known for filling in self._fillings):
            reply = self._link.post(
                f"/v1/publishes/{self.id}/names", NamesReport(names=self._intake.meant), NamesReply
            )
            self._report_whole({replica.arena_path: replica for replica in reply.replicas})
        if self._reports is not None:
            self._sender.flush(self._reports)

    def _report_whole(self, replies: dict[str, Replica]) -> None:
        """First publish of a program: all its buckets are full at once, as they become known."""
        for filling in self._fillings:
            if filling.known:
                continue
            replica = replies.get(filling.replica.arena_path)
            if replica is None:
                raise InputError(f"the agent named no buckets for the arena {filling.replica.arena_path}")
            filling.replayer.finish(replica.owned)
            filling.report([(offset, "") for offset in sorted(bucket.offset for bucket in replica.buckets)])

    def _compare_names(self) -> None:
        """Raises InputError where this publish yielded other names than the one before."""
        if self._before is None:
            return
        now = frozenset(self.names)
        lost, new = sorted(self._before - now), sorted(now - self._before)
        if lost or new:
            told = [f"{len(lost)} missing ({_few(lost)})"] * bool(lost) + [f"{len(new)} new ({_few(new)})"] * bool(
                new
            )
            raise InputError(
                f"this publish yielded other tensors than the one before: {' and '.join(told)}; "
                "every publish of a Publisher must yield the same names"
            )

    def fail(self, error: WeightSyncError) -> None:
        """Remember the first failure."""
        if self.failure is None:
            self.failure = error

    def interrupted(self, error: BaseException) -> None:
        """The input itself raised; the caller re-raises it."""
        words = "; ".join([str(error), *getattr(error, "__notes__", ())])
        self._tell("InputRaised", f"the trainer's input raised {type(error).__name__}: {words}")

    def _tell(self, reason: str, message: str) -> None:
        for filling in self._fillings:
            filling.abandon()
        if self._reports is None:
            return  # the agent refused it or was not there: it knows of no publish
        if not self._sender.abandon(self._reports, LAST_WORDS):
            log.warning("the agent does not answer: it was not told that publish %s failed: %s", self.id, message)
            return
        try:
            body = PublishFailure(reason=reason, message=message[:MESSAGE])
            self._link.tell(f"/v1/publishes/{self.id}/failed", body, timeout=LAST_WORDS)
        except WeightSyncError as error:
            log.warning("the agent could not be told that publish %s failed: %s", self.id, error)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
