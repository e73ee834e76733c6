"""One rank of an engine that is written to itself: thin driver of DirectTarget, as drivers/direct_rank.py, drain.py.

What is a decision and still stands in those drivers is copied here and marked: decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Lock, Task, Work
from tools.simulate.memory import digest, number_of
from tools.simulate.rank_target import DIGEST, WIRE_CAPABILITIES
from weightsync.errors import PeerError, Refused, TransferError
from weightsync.wire import v1
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.journal.records import JournalRank, JournalWriter
from weightsync_agent.protocol import direct as d
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.engine_leader import ANOTHER_LIFE, NOT_CERTIFIED
from weightsync_agent.protocol.fence import Fence, OpenGrant

if TYPE_CHECKING:
    from tools.simulate.serving import EngineMemory
    from tools.simulate.target_side import EngineAgent

MEMORY = "engine-memory"
ANYBODY = "*/"
REPLACED = 0.1


class DirectRank:
    """One rank; it knows a session of the engine's process, and reads what stands behind it."""

    def __init__(self, agent: EngineAgent, rank: int) -> None:
        self.agent = agent
        self.world = agent.world
        self.rank = rank
        number = agent.pod.first + rank
        self.program, self.layout = self.world.program(number), self.world.layout(number)
        self.where = f"{agent.pod.name}, rank {rank}"
        self.machine = d.DirectTarget(rank, self.layout, self.program, self.world.extents)
        self.served: tuple[Any, ...] = ()
        self.addresses: dict[str, str] = {}
        self.planned: dict[str, str] = {}
        self.session = ""
        self.draining: Task | None = None
        self.lock = Lock(agent.loop)

    def handle(self, event: object) -> list[object]:
        """Feed the machine; that it cannot take it is a fault."""
        return self.world.handle(self.where, self.machine, event)

    # --- a life of the engine ---

    def open(self, session: str) -> Work:
        """Another session is another process."""
        yield self.lock.acquire()
        try:
            if self.session and self.session != session:
                self.handle(d.NewLife())
                self.served = ()
            self.session = session
        finally:
            self.lock.release()

    def restore(self, writers: tuple[JournalWriter, ...]) -> Work:
        """Whom an agent before this one let in."""
        mine = [writer for writer in writers if writer.rank == self.rank]
        self.addresses |= {_uid(writer.key): writer.address for writer in mine if writer.address}
        if mine:
            yield from self._restore(mine[0].grant, frozenset(writer.key for writer in mine))

    def restore_anybody(self) -> Work:
        """An agent before this one may have let in whoever it was."""
        yield from self._restore("0" * 32, frozenset({ANYBODY}))

    def _restore(self, grant: str, keys: frozenset[str]) -> Work:
        yield self.lock.acquire()
        try:
            if self.machine.state is d.DirectState.CLOSED:
                self.handle(d.Restored(OpenGrant(grant, 0, "", "", "0" * 16, 0, self.program, keys, set(keys))))
        finally:
            self.lock.release()

    def check_life(self) -> Work:
        """Raises EngineError where another process runs than the one that was opened."""
        sessions = yield self.agent.engine.call(self.agent.life, "seed")
        if sessions[self.rank] != self.session:
            raise engine_error(ANOTHER_LIFE, f"{self.session} was looked at, {sessions[self.rank]} is there")

    @property
    def memory(self) -> EngineMemory | None:
        """What stands behind the session; None once that process has ended."""
        worker = self.world.wires.sessions.get(self.session)
        return worker.arenas[self.session] if worker is not None else None  # type: ignore[return-value]

    # --- requests ---

    def grant(self, request: v1.GrantRequest, fence: Fence, let_in: Callable[[OpenGrant], Work]) -> Work:
        """The handshake. let_in: returns once the engine is journalled torn, and paused."""
        yield self.lock.acquire()
        try:
            self.machine.check_ask(request)
            self.addresses |= request.sources
            self.planned = request.sources or self.planned
            event = t.Ask(request, self.world.nonce(32))
            if self.machine.quiet():  # decision
                yield from let_in(self.machine.fresh(event))
            fence.check_sync(request.term, request.coordinator, request.sync)
            for action in self.handle(event):
                match action:
                    case d.Drain():
                        self._drain()
                        self._ambush()
                    case t.RefuseAsk(message):
                        raise Refused(message, reason="Fencing", status=503)
                    case t.GiveGrant(grant):
                        self.world.ledger.let_in(self, grant, request.term, request.coordinator)
                        self.world.ledger.of_sync(self.agent.life.name, "a grant", request.sync)
            region = v1.Region(session=self.session, address=0, nbytes=self.world.extents[0][1])
            return v1.Grant(grant=event.grant, region=region, theirs=WIRE_CAPABILITIES)
        finally:
            self.lock.release()

    def void(self, request: v1.VoidRequest) -> Work:
        """These writers never got an order."""
        yield self.lock.acquire()
        try:
            for writer in request.writers:
                self._last(t.LastReceipt(request.grant, writer.key, "it was never ordered to write"))
        finally:
            self.lock.release()
        return v1.Accepted()

    def _last(self, event: t.LastReceipt) -> None:
        if self.machine.takes(event):
            self.world.ledger.closed(self.where, self.session, event.grant, event.writer)
            self.handle(event)

    def receipts(self, request: v1.Receipts) -> Work:
        """Read back and compare; close the writer's part with its last."""
        answer, key = v1.ReceiptsAnswer(), request.writer.key
        if request.buckets:
            self.machine.check_writing(request.grant, key)
            computed = yield from self._read(request.buckets)
            yield self.lock.acquire()
            try:
                self.machine.check_grant(request.grant, key)
                actions = self.handle(t.Landed(request.grant, computed, request.buckets))
            finally:
                self.lock.release()
            found = next(action for action in actions if isinstance(action, t.AnswerReceipt))
            self.world.ledger.verified_in_place(self, found.verified)
            answer = v1.ReceiptsAnswer(verified=found.verified, unequal=found.unequal)
        if request.last:
            yield self.lock.acquire()
            try:
                last = t.LastReceipt(request.grant, key, request.failed)
                if not self.machine.takes(last):
                    self.machine.check_grant(request.grant, key)
                self._last(last)
            finally:
                self.lock.release()
        return answer

    def seal(self, request: v1.CommitRequest) -> Work:
        """The parameters are the decided version, if they are."""
        yield self.lock.acquire()
        try:
            self.machine.check_commit(request)
            self.handle(t.Commit(request, self.rank))
            self.served = self.verified()
            self.world.ledger.whole_in_place(self, request.version.name)
        finally:
            self.lock.release()

    # --- reading back ---

    def read_back(self) -> Work:
        """Raises EngineError where the parameters are not what was verified."""
        found = yield from self._read(self.served)
        if self.agent.engine.repacks or found != self.served:
            raise engine_error(NOT_CERTIFIED, "what was written does not stand in the engine", retryable=False)

    def _read(self, buckets: tuple[Any, ...]) -> Work:
        yield self.agent.loop.sleep(DIGEST)
        memory = self.memory
        if memory is None:
            raise TransferError(f"{self.session} does not answer")
        content = memory.content
        return tuple(digest(self.program, number_of(b.offset), content[number_of(b.offset)]) for b in buckets)

    # --- writers that may still write ---

    def _drain(self) -> None:
        if self.draining is None or self.draining.done:
            self.draining = self.agent.spawn(self._until_quiet())

    def _ambush(self) -> None:
        """While faults go on: now and then the engine's process is replaced just when its writers are waited for."""
        if self.world.faulty and self.world.rng.random() < REPLACED:
            self.agent.loop.at(0.05, self.agent.pod.replace_engine)

    def _until_quiet(self) -> Work:
        grant, pause = self.machine.grant, 0.1
        if grant is None:
            return
        # Not by its name: what nobody knows the writers of is restored under one name at each look.
        while self.machine.state is d.DirectState.DRAINING and self.machine.grant is grant:
            for key in sorted(grant.open):
                try:
                    over = yield from (self._all_over() if key == ANYBODY else self._over(grant.grant, key))
                except PeerError:
                    continue
                gone = d.Gone(grant.grant, (key,))
                if over and self.machine.takes(gone):
                    self.handle(gone)
            yield self.agent.loop.sleep(pause)
            pause = min(2.0, 1.5 * pause)

    def _over(self, grant: str, key: str) -> Work:
        """Its agent's word, and that no connection is left: none while a byte of it is on its way."""
        address = self.addresses.get(_uid(key), "")
        if not address:
            return False
        said = yield self._ask(address, grant)
        flying = self.world.wires.flying.get(self.session, ())
        return said.quiet and not any(_uid(piece.writer) == _uid(key) for piece in flying)

    def _all_over(self) -> Work:
        for address in self.planned.values():
            said = yield self._ask(address, "0" * 32)
            if not said.quiet:
                return False
        return bool(self.planned) and not self.world.wires.flying.get(self.session)

    def _ask(self, address: str, grant: str) -> Any:
        agent = self.agent
        way = (agent.life, agent.pod.address, address)
        request = v1.QuietRequest(grant=grant, session=self.session)
        return self.world.network.call(way, "/v1/quiet", request, self.world.stall_seconds)

    # --- small ---

    def granted(self, grant: str) -> DirectRank:
        """Itself. Raises Refused where that is not its grant."""
        if not self.machine.current(grant):
            raise Refused(f"grant {grant} is not open at rank {self.rank}", reason="GrantClosed")
        return self

    def verified(self) -> tuple[Any, ...]:
        """The buckets that were verified, by offset."""
        return tuple(self.machine.verified[offset] for offset in sorted(self.machine.verified))

    def journal_rank(self) -> JournalRank:
        """What a journal must hold of it."""
        return JournalRank(rank=self.rank, program=self.program, arena=MEMORY, buckets=self.verified())

    def writers(self) -> tuple[JournalWriter, ...]:
        """Who may still write."""
        return self.named(self.machine.grant) if self.machine.grant is not None else ()

    def named(self, grant: OpenGrant) -> tuple[JournalWriter, ...]:
        """The grant's open writers as a journal names them."""
        return tuple(
            JournalWriter(rank=self.rank, grant=grant.grant, key=key, address=self.addresses.get(_uid(key), ""))
            for key in sorted(grant.open)
        )


def _uid(key: str) -> str:
    """Of the pod in a writer's key."""
    return key.rpartition("/")[0]
