"""One rank's arena and its receiving worker: a thin driver of Target, as drivers/rank_target.py.

What is a decision and still stands in that driver is copied here and marked: decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Lock, Work
from tools.simulate.memory import ArenaFile, digest, number_of
from tools.simulate.transfer import Worker
from weightsync.arena import ArenaState
from weightsync.errors import Refused, TransferError
from weightsync.version import Version
from weightsync.wire import v1
from weightsync_agent.journal.records import JournalRank
from weightsync_agent.protocol import target as t

if TYPE_CHECKING:
    from tools.simulate.target_side import EngineAgent

START_WORKER = 0.05
DIGEST = 0.003
WIRE_CAPABILITIES = v1.Capabilities(mooncake="0.3.13", transport="tcp")


class RankTarget:
    """One rank's arena, receiving worker and machine."""

    def __init__(self, agent: EngineAgent, rank: int, arena: ArenaFile) -> None:
        self.agent = agent
        self.world = agent.world
        self.rank = rank
        self.arena = arena
        self.where = f"{agent.pod.name}, rank {rank}"
        header = arena.header
        self.program, self.layout = header.program, header.layout
        self.machine = t.Target(rank, self.layout, self.program, agent.world.extents)
        self.worker: Worker | None = None
        self.lock = Lock(agent.loop)

    @property
    def session(self) -> str:
        """Of the worker that receives now; "" without one."""
        return self.worker.session if self.worker is not None else ""

    def handle(self, event: object) -> list[object]:
        """The machine takes it; that it cannot is a fault."""
        return self.agent.world.handle(self.where, self.machine, event)

    def register(self) -> Work:
        """Start a worker that has the arena registered."""
        self.worker = None
        yield self.agent.loop.sleep(START_WORKER)
        worker = self.world.wires.worker(self.arena)
        self.world.ledger.receivers[worker.session] = self
        self.agent.workers.append(worker)
        self.worker = worker

    def living_worker(self) -> Work:
        """One that died by itself is replaced."""
        if self.worker is None or not self.worker.alive:
            yield from self.register()

    def recover(self, rank: JournalRank, version: Version) -> Work:
        """The sealed arena's bytes are compared with the journal's digests, and taken over."""
        header = self.arena.header
        if header.state is not ArenaState.SEALED or header.version != version or rank.program != self.program:
            return False
        yield self.lock.acquire()
        try:
            if self.machine.state is not t.TargetState.FENCING:
                yield from self.living_worker()
        finally:
            self.lock.release()
        yield self.agent.loop.sleep(DIGEST)
        if self.digests(rank.buckets) != rank.buckets:
            return False
        yield self.lock.acquire()
        try:
            if self.machine.state is t.TargetState.EMPTY:
                self.handle(t.Recovered(version, header.grant, rank.program, rank.buckets))
        finally:
            self.lock.release()
        return True

    def digests(self, buckets: Any) -> tuple[Any, ...]:
        """What stands in the arena now."""
        content = self.arena.content
        return tuple(digest(self.program, number_of(b.offset), content[number_of(b.offset)]) for b in buckets)

    def grant(self, request: v1.GrantRequest) -> Work:
        """The handshake."""
        yield self.lock.acquire()
        try:
            self.machine.check_ask(request)
            yield from self.living_worker()
            actions = self.handle(t.Ask(request, self.world.nonce(32)))
            given = ""
            for action in actions:
                if isinstance(action, t.ReplaceWorker):
                    self.agent.spawn(self._replace_worker())
                elif isinstance(action, t.RefuseAsk):
                    raise Refused(action.message, reason="Fencing", status=503)
                elif isinstance(action, t.WriteFilling):
                    self.world.ledger.granted(self, action.grant, request.term, request.coordinator)
                    self.arena.fill(action.grant)
                elif isinstance(action, t.GiveGrant):
                    given = action.grant
            assert self.worker is not None  # noqa: S101 - living_worker() has just returned
            return v1.Grant(grant=given, region=self.worker.region, theirs=WIRE_CAPABILITIES)
        finally:
            self.lock.release()

    def _replace_worker(self) -> Work:
        if self.worker is not None:
            self.worker.kill()
        failed = self.world.fault_chance("worker start fails")
        if not failed:
            yield from self.register()
        else:
            self.worker = None
            yield self.agent.loop.sleep(START_WORKER)
        yield self.lock.acquire()
        try:
            self.handle(t.FenceFailed("no worker") if failed else t.Fenced())
        finally:
            self.lock.release()

    def void(self, request: v1.VoidRequest) -> Work:
        """These writers never got an order."""
        yield self.lock.acquire()
        try:
            for writer in request.writers:
                event = t.LastReceipt(request.grant, writer.key, "it was never ordered to write")
                if self.machine.takes(event):
                    self.handle(event)
        finally:
            self.lock.release()
        return v1.Accepted()

    def receipts(self, request: v1.Receipts) -> Work:
        """Digest and compare; close the writer's part with its last."""
        grant = self.machine.check_grant(request.grant, request.writer.key)
        answer = v1.ReceiptsAnswer()
        if request.buckets and request.writer.key not in grant.open:  # decision
            raise Refused(f"{request.writer.key} closed its part of grant {grant.grant}", reason="GrantClosed")
        if request.buckets:
            if self.worker is None or not self.worker.alive:
                raise TransferError("no worker")
            yield self.agent.loop.sleep(DIGEST)
            computed = self.digests(request.buckets)
            yield self.lock.acquire()
            try:
                self.machine.check_grant(request.grant, request.writer.key)
                actions = self.handle(t.Landed(request.grant, computed, request.buckets))
            finally:
                self.lock.release()
            found = next(action for action in actions if isinstance(action, t.AnswerReceipt))
            self.world.ledger.verified(self, found.verified)
            answer = v1.ReceiptsAnswer(verified=found.verified, unequal=found.unequal)
        if request.last:
            yield self.lock.acquire()
            try:
                self.handle(t.LastReceipt(request.grant, request.writer.key, request.failed))
            finally:
                self.lock.release()
        return answer

    def seal(self, request: v1.CommitRequest) -> Work:
        """Seal the arena as the decided version, if it is."""
        yield self.lock.acquire()
        try:
            self.machine.check_commit(request)
            for action in self.handle(t.Commit(request, self.rank)):
                if isinstance(action, t.Seal):
                    self.arena.seal(action.grant, action.version)
        finally:
            self.lock.release()

    def apply_begins(self) -> Work:
        """No grant from here on."""
        yield self.lock.acquire()
        try:
            self.handle(t.ApplyBegins())
        finally:
            self.lock.release()

    def apply_ends(self) -> Work:
        """Grants again."""
        yield self.lock.acquire()
        try:
            if self.machine.takes(t.ApplyEnds()):
                self.handle(t.ApplyEnds())
        finally:
            self.lock.release()

    def journal_rank(self) -> JournalRank:
        """What a journal must hold of this rank."""
        known = self.machine.verified
        buckets = tuple(known[offset] for offset in sorted(known))
        return JournalRank(rank=self.rank, program=self.program, arena=self.arena.name, buckets=buckets)
