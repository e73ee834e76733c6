"""One rank's arenas and their receiving worker: thin drivers of Target, as rank_target.py and target_arena.py.

What is a decision and still stands in those drivers is copied here and marked: decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.simulate import invariants as i
from tools.simulate.clock import Future, Lock, TimedOut, Work
from tools.simulate.memory import ArenaFile, digest, number_of
from tools.simulate.transfer import Worker
from weightsync.errors import Refused, TransferError
from weightsync.version import Version
from weightsync.wire import v1
from weightsync_agent.journal.records import JournalRank
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.fence import Fence

if TYPE_CHECKING:
    from tools.simulate.member_side import MemberAgent
    from tools.simulate.target_side import EngineAgent

START_WORKER = 0.05
DIGEST = 0.003
WIRE_CAPABILITIES = v1.Capabilities(mooncake="0.3.13", transport="tcp")


class TargetArena:
    """One arena: its file, its region in the receiving worker ("" while there is none), its machine."""

    def __init__(self, agent: EngineAgent | MemberAgent, rank: int, file: ArenaFile) -> None:
        self.world = agent.world
        self.arena = file
        self.program, self.layout = file.header.program, file.header.layout
        self.where = f"{agent.pod.name}, rank {rank}"
        self.session = ""
        self.keepers = 0  # commits, copies and comparisons that need it as it is
        self.writers: set[str] = set()  # that hold the grant and have not said that they are done
        self.machine = t.Target(rank, self.layout, self.program, agent.world.extents)
        self.changed = Future(agent.world.loop)

    def handle(self, event: object) -> list[object]:
        """Feed the machine; that it cannot take it is a fault."""
        actions = self.world.handle(self.where, self.machine, event)
        changed, self.changed = self.changed, Future(self.world.loop)
        changed.set()
        return actions

    def keep(self) -> None:
        """One more needs it as it is."""
        self.handle(t.Keep())
        self.keepers += 1

    def release(self) -> None:
        """One less."""
        if self.machine.takes(t.Release()):
            self.handle(t.Release())
            self.keepers -= 1
            needed = self.keepers > 0 and self.machine.state is not t.TargetState.KEPT
            i.held_while_applied(self.where, applied=needed)

    def digests(self, buckets: Any) -> tuple[Any, ...]:
        """What stands in it now."""
        content = self.arena.content
        return tuple(digest(self.program, number_of(b.offset), content[number_of(b.offset)]) for b in buckets)

    @property
    def rank(self) -> t.RankArena:
        """What is in it, for the choice of the next one to fill."""
        return t.RankArena(self.machine.state, self.machine.version)

    def journal_rank(self) -> JournalRank:
        """What a journal must hold of it."""
        known = self.machine.verified
        buckets = tuple(known[offset] for offset in sorted(known))
        return JournalRank(rank=self.machine.rank, program=self.program, arena=self.arena.name, buckets=buckets)


class RankTarget:
    """One rank."""

    def __init__(self, agent: EngineAgent | MemberAgent, rank: int, files: list[ArenaFile]) -> None:
        self.agent = agent
        self.world = agent.world
        self.rank = rank
        self.arenas = [TargetArena(agent, rank, file) for file in files]
        self.program, self.layout = self.arenas[0].program, self.arenas[0].layout
        self.worker: Worker | None = None
        self.granted_at = 0.0
        self.lock = Lock(agent.loop)

    def register(self) -> Work:
        """Start a worker that has the arenas registered."""
        self.worker = None
        yield self.agent.loop.sleep(self.world.start_seconds)
        worker = self.world.wires.worker([each.arena for each in self.arenas])
        for each, session in zip(self.arenas, worker.arenas, strict=True):
            each.session = session
            self.world.ledger.receivers[session] = each
        self.agent.workers.append(worker)
        self.worker = worker

    def living_worker(self) -> Work:
        """One that died by itself is replaced."""
        if self.worker is None or not self.worker.alive:
            yield from self.register()

    def granted(self, grant: str) -> TargetArena:
        """The arena of that grant. Raises Refused where it is none's."""
        for each in self.arenas:
            if each.machine.grant is not None and each.machine.grant.grant == grant:
                return each
        raise Refused(f"grant {grant} is not open at rank {self.rank}", reason="GrantClosed")

    def named(self, name: str) -> TargetArena | None:
        """The arena whose file has that name."""
        return next((each for each in self.arenas if each.arena.name == name), None)

    def recover(self, rank: JournalRank, version: Version) -> Work:
        """The sealed arena's bytes are compared with the journal's digests, and taken over."""
        found = self.named(rank.arena)
        if found is None or found.arena.header.version != version or rank.program != self.program:
            return False
        header = found.arena.header
        yield self.lock.acquire()
        try:
            if not any(each.machine.state is t.TargetState.FENCING for each in self.arenas):
                yield from self.living_worker()
        finally:
            self.lock.release()
        yield self.agent.loop.sleep(DIGEST)
        if found.digests(rank.buckets) != rank.buckets:
            return False
        yield self.lock.acquire()
        try:
            if found.machine.state is t.TargetState.EMPTY:
                found.handle(t.Recovered(version, header.grant, rank.program, rank.buckets))
        finally:
            self.lock.release()
        return True

    def grant(self, request: v1.GrantRequest, fence: Fence) -> Work:
        """The handshake."""
        yield self.lock.acquire()
        try:
            chosen = self.arenas[t.choose([each.rank for each in self.arenas], self.agent.served)]
            chosen.machine.check_ask(request)
            yield from self.living_worker()
            fence.check_sync(request.term, request.coordinator, request.sync)
            given = ""
            for action in chosen.handle(t.Ask(request, self.world.nonce(32))):
                match action:
                    case t.ReplaceWorker():
                        self.world.ledger.fences(chosen)
                        self.agent.spawn(self._replace_worker(chosen))
                    case t.RefuseAsk(message):
                        raise Refused(message, reason="Fencing", status=503)
                    case t.WriteFilling(grant):
                        self.world.ledger.granted(chosen, grant, request.term, request.coordinator)
                        self.world.ledger.of_sync(self.agent.life.name, "a grant", request.sync)
                        chosen.arena.fill(grant)
                        chosen.writers = {writer.key for writer in request.writers}
                    case t.GiveGrant(grant):
                        given = grant
                        self.granted_at = self.agent.loop.now
            region = v1.Region(session=chosen.session, address=4096, nbytes=chosen.arena.header.nbytes)
            return v1.Grant(grant=given, region=region, theirs=WIRE_CAPABILITIES, relays=True, lends=self.agent.lends)
        finally:
            self.lock.release()

    def begin_pull(self, version: Version, term: int, *, fence: bool = False) -> Work:
        """The arena for our own worker to read that version into. Raises Refused."""
        yield self.lock.acquire()
        try:
            chosen = self.arenas[t.choose([each.rank for each in self.arenas], self.agent.machine.version)]
            event = t.Pull(version, term, self.world.nonce(32), fence)
            if not chosen.machine.takes(event):
                i.may_be_read_into(chosen.where, chosen.machine.state.value, free=_free(chosen.machine, fence=fence))
                raise Refused(chosen.machine.state.value, reason="Busy", status=503)
            for action in chosen.handle(event):
                match action:
                    case t.ReplaceWorker():
                        self.world.ledger.fences(chosen)
                        self.agent.spawn(self._replace_worker(chosen))
                    case t.RefuseAsk(message):
                        raise Refused(message, reason="Fencing", status=503)
                    case t.WriteFilling(grant):
                        self.world.ledger.reads(chosen, grant)
                        chosen.arena.fill(grant)
                        chosen.writers = set()
            return chosen
        finally:
            self.lock.release()

    def begin_relay(self, grant: str) -> Work:
        """The arena of that grant, for our own worker to read into. Raises Refused."""
        yield self.lock.acquire()
        try:
            granted = self.granted(grant)
            event = t.Relay(grant)
            if not granted.machine.takes(event):
                free = granted.machine.state is t.TargetState.FILLING
                i.may_be_read_into(granted.where, granted.machine.state.value, free=free)
                raise Refused(granted.machine.state.value, reason="GrantClosed")
            granted.handle(event)
            self.world.ledger.reads(granted, grant)
            granted.writers = set()
            return granted
        finally:
            self.lock.release()

    def passes(self, request: v1.PassRequest) -> Work:
        """What others may read of a sync's grant."""
        arena = self.granted(request.grant)
        return self._more(request, arena, arena.machine.check_passing)

    def grown(self, request: v1.MoreRequest) -> Work:
        """What others may read of what our own worker reads in no sync."""
        arena = self.granted(request.grant)
        return self._more(request, arena, arena.machine.check_growing)

    def _more(self, request: v1.MoreRequest, arena: TargetArena, check: Any) -> Work:
        until = self.agent.loop.now + request.wait
        while not (found := check(request.grant, request.after)):
            left = until - self.agent.loop.now
            try:
                yield self.agent.loop.within(arena.changed, max(0.0, left))
            except TimedOut:
                break
        if self.worker is None or not self.worker.alive or not arena.session:
            raise Refused("no worker", reason="NoWorker", status=503)
        region = v1.Region(session=arena.session, address=4096, nbytes=arena.arena.header.nbytes)
        return v1.PassAnswer(region=region, buckets=found)

    def pulled(self, pulled: TargetArena, computed: Any, claimed: Any) -> Work:
        """A bucket was read and digested here. Whether it is what the holder said."""
        grant = pulled.machine.grant
        yield self.lock.acquire()
        try:
            if grant is None or pulled.machine.state is not t.TargetState.PULLING:
                return False
            actions = pulled.handle(t.Landed(grant.grant, (computed,), (claimed,)))
        finally:
            self.lock.release()
        equal = any(isinstance(action, t.AnswerReceipt) and bool(action.verified) for action in actions)
        self.world.ledger.verified(pulled, (computed.offset,) if equal else ())
        return equal

    def end_pull(self, pulled: TargetArena) -> Work:
        """Our reading worker has ended."""
        yield self.lock.acquire()
        try:
            if pulled.machine.takes(t.PullEnded()):
                pulled.handle(t.PullEnded())
        finally:
            self.lock.release()

    def grant_of(self, version: Version) -> str:
        """The grant under which the version lies here. Raises Refused where none does."""
        for each in sorted(self.arenas, key=lambda each: each.machine.version != version):
            grant = each.machine.grant
            named = grant is not None and (grant.lineage, grant.number) == (version.lineage, version.number)
            if grant is not None and named and not each.machine.missing():
                return grant.grant
        raise Refused("not all of it is here", reason="GrantClosed")

    def lendable(self, version: Version) -> TargetArena | None:
        """The arena that is sealed as that version, with a worker behind which others can read it."""
        alive = self.worker is not None and self.worker.alive
        whole = (t.TargetState.SEALED, t.TargetState.KEPT)
        found = (each for each in self.arenas if each.machine.version == version and each.machine.state in whole)
        return next((each for each in found if alive and each.session), None)

    def growing(self, version: Version) -> TargetArena | None:
        """The arena that our own worker reads that version into, with a worker behind which others can read it."""
        alive = self.worker is not None and self.worker.alive
        found = (each for each in self.arenas if each.machine.grows(version))
        return next((each for each in found if alive and each.session), None)

    @property
    def written_since(self) -> float | None:
        """When an arena was granted to a sync that is not over, as far as is known here."""
        fencing = any(each.machine.state is t.TargetState.FENCING for each in self.arenas)
        waits = fencing or any(not each.machine.quiet() or each.machine.awaits_commit() for each in self.arenas)
        return self.granted_at if waits else None

    @property
    def kept(self) -> bool:
        """A commit needs one of the arenas as it is."""
        return any(each.machine.state is t.TargetState.KEPT for each in self.arenas)

    def lend(self) -> Work:
        """The first arena, to certify the engine in. Raises Refused, reason Fencing."""
        first = self.arenas[0]
        yield self.lock.acquire()
        try:
            for action in first.handle(t.Lend()):
                if isinstance(action, t.ReplaceWorker):
                    self.world.ledger.fences(first)
                    self.agent.spawn(self._replace_worker(first))
                if isinstance(action, t.RefuseAsk):
                    raise Refused(action.message, reason="Fencing", status=503)
        finally:
            self.lock.release()
        return first.arena

    def returned(self) -> Work:
        """What lies in the arena is nothing any more."""
        yield self.lock.acquire()
        try:
            self.arenas[0].arena.empty()
            self.arenas[0].handle(t.Returned())
        finally:
            self.lock.release()

    def _replace_worker(self, fenced: TargetArena) -> Work:
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
            fenced.handle(t.FenceFailed("no worker") if failed else t.Fenced())
        finally:
            self.lock.release()

    def void(self, request: v1.VoidRequest) -> Work:
        """These writers never got an order."""
        yield self.lock.acquire()
        try:
            for each in self.arenas:
                for writer in request.writers:
                    event = t.LastReceipt(request.grant, writer.key, "it was never ordered to write")
                    if each.machine.takes(event):
                        self.world.ledger.closed(each.where, each.session, request.grant, writer.key)
                        each.handle(event)
                        each.writers.discard(writer.key)
        finally:
            self.lock.release()
        return v1.Accepted()

    def receipts(self, request: v1.Receipts) -> Work:
        """Digest and compare; close the writer's part with its last."""
        written = self.granted(request.grant)
        written.machine.check_grant(request.grant, request.writer.key)
        answer = v1.ReceiptsAnswer()
        if request.buckets:
            written.machine.check_writing(request.grant, request.writer.key)
            if self.worker is None or not self.worker.alive:
                raise TransferError("no worker")
            yield self.agent.loop.sleep(DIGEST)
            computed = written.digests(request.buckets)
            yield self.lock.acquire()
            try:
                written.machine.check_grant(request.grant, request.writer.key)
                actions = written.handle(t.Landed(request.grant, computed, request.buckets))
            finally:
                self.lock.release()
            found = next(action for action in actions if isinstance(action, t.AnswerReceipt))
            self.world.ledger.verified(written, found.verified)
            answer = v1.ReceiptsAnswer(verified=found.verified, unequal=found.unequal)
        if request.last:
            yield self.lock.acquire()
            try:
                written.machine.check_grant(request.grant, request.writer.key)
                self.world.ledger.closed(written.where, written.session, request.grant, request.writer.key)
                written.handle(t.LastReceipt(request.grant, request.writer.key, request.failed))
                written.writers.discard(request.writer.key)
            finally:
                self.lock.release()
        return answer

    def seal(self, request: v1.CommitRequest) -> Work:
        """Seal the arena as the decided version, if it is, and keep it."""
        yield self.lock.acquire()
        try:
            mine = next((rank for rank in request.ranks if rank.rank == self.rank), None)
            sealed = self.granted(mine.grant) if mine is not None else self.arenas[0]
            sealed.machine.check_commit(request)
            for action in sealed.handle(t.Commit(request, self.rank)):
                if isinstance(action, t.Seal):
                    sealed.arena.seal(action.grant, action.version)
            sealed.keep()
            return sealed.arena.header.grant
        finally:
            self.lock.release()

    def keep(self, grant: str) -> Work:
        """Nobody fills that arena from here on, until it was released as often."""
        yield self.lock.acquire()
        try:
            kept = self.granted(grant)
            if not kept.machine.takes(t.Keep()):
                raise Refused(kept.machine.state.value, reason="GrantClosed")
            kept.keep()
        finally:
            self.lock.release()

    def release(self, grant: str) -> Work:
        """One who kept it needs it no more."""
        yield self.lock.acquire()
        try:
            kept = self.granted(grant)
            kept.release()
        finally:
            self.lock.release()


def _free(machine: t.Target, *, fence: bool) -> bool:
    """Whether a version may be read into it. fence: those who may still write have been silent for long enough."""
    if machine.state is t.TargetState.FILLING:
        return fence or machine.quiet()
    return machine.state in (t.TargetState.EMPTY, t.TargetState.SEALED)
