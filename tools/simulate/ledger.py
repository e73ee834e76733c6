"""What is true in the world, whatever the machines believe; calls the invariants where something changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tools.simulate import invariants as i
from tools.simulate.clock import Loop
from tools.simulate.memory import SIZE, ArenaFile, number_of
from tools.simulate.source_invariants import unchanged_on_the_wire
from weightsync.arena import ArenaState
from weightsync.version import Version, version_name
from weightsync.wire.v1 import Decided
from weightsync_agent.journal.records import BASE
from weightsync_agent.protocol.gather import Gathered

if TYPE_CHECKING:
    from tools.simulate.direct_rank import DirectRank
    from tools.simulate.rank_target import TargetArena
    from tools.simulate.serving import EngineMemory, Serving
    from tools.simulate.transfer import Piece

BASE_NAME = "default"


class Ledger:
    """steps: what each version's name really is. All else is by pod or by version name."""

    def __init__(self, loop: Loop, owners: Sequence[int]) -> None:
        self.loop = loop
        self.owners = owners  # by bucket: the stage that owns it
        self.stages: dict[str, int] = {}  # by writer key
        self.steps: dict[str, int] = {BASE_NAME: 0, BASE.name: 0}
        self.roots: dict[str, str] = {}
        self.committed: set[str] = set()
        self.terms: dict[int, str] = {}
        self.highest_term: dict[str, int] = {}
        self.newest: dict[
            tuple[str, str], int
        ] = {}  # (life of a listener, of a coordinator): its newest sync's number
        self.highest: dict[tuple[str, str], int] = {}
        self.served: dict[str, set[str]] = {}  # incarnation of an engine -> names that it answered from
        self.receivers: dict[str, TargetArena] = {}  # session -> who receives there
        self.engines: dict[str, EngineMemory] = {}  # session -> an engine's own parameters
        self.flying: dict[str, list[Piece]] = {}  # by session
        self.sessions: Mapping[str, object] = {}  # of processes that live
        self.decided_syncs = 0
        self.joins = 0
        self.renewals = 0  # of leases
        self.currents = 0

    # --- engines ---

    def base(self, name: str) -> str:
        """What an engine calls the checkpoint that it starts with."""
        self.steps[name] = 0
        return name

    def engine_begins(self, engine: Serving) -> None:
        """A new life of its process."""
        self.served[f"{engine.name}/{engine.incarnation}"] = set()
        if engine.process is not None:
            self.engines |= engine.process.arenas

    def engine_changed(self, engine: Serving) -> None:
        """A control call, or a copy, had its effect."""
        i.whole(engine, self.steps)
        if not engine.answers:
            return
        engine.cached = engine.memory[0][0][0]
        if engine.cached == 0:
            return
        name = engine.name_shown
        served = self.served[f"{engine.name}/{engine.incarnation}"]
        served.add(name)
        self.committed.add(name)
        lineage, _, number = name.partition(".")
        key = (engine.name, lineage)
        i.never_falls(engine.name, name, int(number), self.highest.get(key, 0))
        self.highest[key] = int(number)

    def engine_written(self, engine: Serving, arena: ArenaFile) -> None:
        """Before bytes go from an arena into engine memory."""
        version = arena.header.version
        volume = engine.agent.volume
        i.torn_first(engine, volume.record(), version.name if version else "?", unreadable=volume.torn)

    def apply_begins(self, engine: Serving, refs: Sequence[tuple[ArenaFile, int, str, str]]) -> None:
        """The hook begins to copy."""
        agent = engine.agent
        for arena, rank, grant, _ in refs:
            version = arena.header.version
            step = self.steps.get(version.name) if version else None
            lacking = 0
            target = agent.targets.get(rank) if agent.life.alive else None
            if target is not None and version != BASE:
                machines = [each.machine for each in target.arenas if each.arena is arena]
                known = next((set(m.verified) for m in machines if m.grant and m.grant.grant == grant), set())
                lacking = sum(bucket * SIZE not in known for bucket in range(len(arena.content)))
            i.verified_before_applied(f"{engine.name}, rank {rank}", arena.content, step, lacking)

    # --- arenas ---

    def heard(self, listener: str, sync: str) -> None:
        """A request of that sync reaches this life of an agent, or of a source rank."""
        life, _, number = sync.rpartition("/")
        self.newest[listener, life] = max(self.newest.get((listener, life), 0), int(number))

    def of_sync(self, listener: str, what: str, sync: str) -> None:
        """Something that a sync asked for is done."""
        i.not_ended(listener, what, sync, self.newest.get((listener, sync.rpartition("/")[0]), 0))

    def _may_land(self, session: str) -> Sequence[Piece]:
        """What is on its way to a process that lives: a dead one receives nothing, whether its agent knows or not."""
        return self.flying.get(session, ()) if session in self.sessions else ()

    def granted(self, target: TargetArena, grant: str, term: int, coordinator: str) -> None:
        """A target marks its arena Filling under a new grant."""
        where = target.where
        i.granted_once(where, grant, self._may_land(target.session))
        self.effect(where, "a grant", term, coordinator)

    def reads(self, target: TargetArena, grant: str) -> None:
        """A target marks its arena Filling for its own reader."""
        i.granted_once(target.where, grant, self._may_land(target.session))

    def read_lands(self, target: TargetArena, grant: str, bucket: int) -> None:
        """A piece that our own reader asked for comes in."""
        header = target.arena.header
        i.landed_in_grant(target.where, header.grant, grant, "its own reader")
        verified = bucket * SIZE in target.machine.verified
        i.no_late_byte(target.where, header.state, verified, bucket, "its own reader")

    def taken(self, pod: str, own: Decided | None, decided: Decided) -> None:
        """An engine takes a version over from another, or from its own arenas, and nobody told it to."""
        version = decided.version
        i.decided_before(pod, version.name, version.root, self.roots.get(version.name, ""))
        if own is not None:
            i.takes_no_older(pod, own, decided)
        self.highest_term[pod] = max(self.highest_term.get(pod, 0), decided.term)

    def fences(self, target: TargetArena) -> None:
        """The receiving worker is to be killed for this arena."""
        i.fenced_for_a_reason(target.where, len(target.writers), len(self.flying.get(target.session, ())))

    def verified(self, target: TargetArena, offsets: Sequence[int]) -> None:
        """A target counts buckets as verified."""
        flying = self._may_land(target.session)
        if flying:
            for offset in offsets:
                i.quiet_before_verified(target.where, number_of(offset), flying)

    def closed(self, where: str, session: str, grant: str, writer: str) -> None:
        """A writer's part of a grant is to be closed, by its last receipt or since it was never ordered to write."""
        flying = self._may_land(session)
        i.nothing_follows(where, writer, sum(p.writer == writer and p.call.grant == grant for p in flying))

    def lands(self, piece: Piece) -> None:
        """A piece is about to land in a living receiver's arena, or in an engine's parameters."""
        memory = self.engines.get(piece.session)
        if memory is not None:
            self._lands_in_place(piece, memory)
            return
        target = self.receivers[piece.session]
        header = target.arena.header
        i.one_stage(target.where, piece.bucket, self.stages.get(piece.writer, -1), self.owners[piece.bucket])
        i.landed_in_grant(target.where, header.grant, piece.call.grant, piece.writer)
        verified = piece.bucket * SIZE in target.machine.verified
        i.no_late_byte(target.where, header.state, verified, piece.bucket, piece.writer)

    def _lands_in_place(self, piece: Piece, memory: EngineMemory) -> None:
        engine = memory.engine
        where = f"{engine.name}, rank {memory.rank}"
        volume = engine.agent.volume
        i.torn_first(engine, volume.record(), None, unreadable=volume.torn)
        i.one_stage(where, piece.bucket, self.stages.get(piece.writer, -1), self.owners[piece.bucket])
        i.landed_in_grant(where, memory.grant, piece.call.grant, piece.writer)
        i.no_late_byte(where, ArenaState.FILLING, piece.bucket in memory.verified, piece.bucket, piece.writer)

    def let_in(self, rank: DirectRank, grant: str, term: int, coordinator: str) -> None:
        """Writers may write into the parameters themselves."""
        i.granted_once(rank.where, grant, self.flying.get(rank.session, ()))
        memory = rank.memory
        if memory is not None:
            volume = memory.engine.agent.volume
            i.torn_first(memory.engine, volume.record(), None, unreadable=volume.torn)
            memory.grant, memory.verified = grant, set()
        self.effect(rank.where, "a grant", term, coordinator)

    def verified_in_place(self, rank: DirectRank, offsets: Sequence[int]) -> None:
        """Buckets of the parameters count as verified."""
        flying, memory = self.flying.get(rank.session, ()), rank.memory
        for offset in offsets:
            i.quiet_before_verified(rank.where, number_of(offset), flying)
            if memory is not None:
                memory.verified.add(number_of(offset))

    def whole_in_place(self, rank: DirectRank, name: str) -> None:
        """The parameters are to be served as that version."""
        memory = rank.memory
        if memory is not None:
            lacking = len(memory.content) - len(memory.verified)
            i.verified_before_applied(rank.where, memory.content, self.steps.get(name), lacking)

    def refilled(self, arena: ArenaFile, bucket: int) -> None:
        """The trainer writes into a source's arena."""
        unchanged_on_the_wire(arena, bucket)

    # --- coordinators ---

    def effect(self, where: str, what: str, term: int, coordinator: str) -> None:
        """Something that a coordinator asked for is done."""
        pod = where.partition(",")[0]
        highest = self.highest_term.get(pod, 0)
        i.term_holds(where, what, term, highest)
        if term > highest:
            self.highest_term[pod] = term
        known = self.terms.get(term)
        if known is None:
            self.terms[term] = coordinator
        else:
            i.one_coordinator(term, coordinator, known)

    def gathered(self, gathered: Gathered, steps: Sequence[int]) -> None:
        """All ranks called publish(): a version has a name."""
        name = version_name(gathered.lineage, gathered.number)
        step = steps[0] if len(set(steps)) == 1 else -2
        known = self.steps.setdefault(name, step)
        if known != step or step == -2:
            raise i.Violation(1, f"{name} is made of the steps {list(steps)}, known as {known}")

    def decided(self, version: Version) -> None:
        """A decision is durable."""
        i.one_root(version.name, version.root, self.roots.setdefault(version.name, version.root))
        self.decided_syncs += 1

    def current(self, engine: str, incarnation: str, name: str) -> None:
        """A coordinator is told that this life of the engine is current."""
        self.currents += 1
        i.honest(engine, name, name in self.served.get(f"{engine}/{incarnation}", ()))
