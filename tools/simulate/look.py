"""A look at a life of the engine, and its certificate: as drivers/look.py and drivers/certificate.py.

What is a decision and still stands in those drivers is copied here and marked: decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tools.simulate.clock import Cancelled, Work
from tools.simulate.memory import ArenaFile
from weightsync.errors import EngineError, InputError, WeightSyncError
from weightsync_agent.drivers.certificate import TIMES
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.journal.records import (
    BASE,
    EngineSeen,
    Fresh,
    Journal,
    JournalRank,
    JournalState,
    Keep,
    PauseAndReseed,
    Reapply,
    Recovery,
    at_start,
    is_ours,
)
from weightsync_agent.protocol.engine_leader import NOT_CERTIFIED, Seen

if TYPE_CHECKING:
    from tools.simulate.target_side import EngineAgent


@dataclass(frozen=True, slots=True)
class Refs:
    """The arenas that a call of the hook is about: (arena, rank, grant, root) each, and the process that is meant."""

    life: str
    arenas: tuple[tuple[ArenaFile, int, str, str], ...]


def check_readback(agent: EngineAgent, refs: Refs) -> Work:
    """Raises EngineError, reason NotCertified, where something else stands in the parameters."""
    equal = yield agent.engine.call(agent.life, "readback", refs)
    if not equal:
        raise engine_error(NOT_CERTIFIED, "what was applied does not stand in the engine", retryable=False)


class Look:
    """One agent's looks."""

    def __init__(self, agent: EngineAgent) -> None:
        self.agent = agent
        self.base = ""
        self.goes_on = False
        self.life = ""  # the process that was looked at: no other may be written to

    def take(self) -> Work:
        """Look; whole engines serve on afterwards, others wait."""
        engine, life = self.agent.engine, self.agent.life
        name = yield engine.call(life, "name")
        unreadable = ""
        try:
            journal = self.agent.volume.read()
        except InputError as error:
            journal, unreadable = None, str(error)
        fresh = journal is None and not unreadable and not is_ours(name)  # decision
        kept = journal is not None and journal.state is JournalState.CURRENT and name == journal.version.name
        if not (fresh or kept):
            yield engine.call(life, "pause", "Abort")
        self.agent.crew.muster()
        pods = self.agent.crew.crew.pods()
        if fresh:
            yield engine.call(life, "resume")
            yield engine.call(life, "ready")
        yield from self.agent.open()
        if fresh or kept:
            yield engine.call(life, "pause", "InPlace")
        self.goes_on = fresh or kept
        try:
            seen = yield from self._examine(name, journal, unreadable, fresh=fresh)
        except (WeightSyncError, Cancelled):
            if self.goes_on:
                yield engine.call(life, "resume")
            raise
        if self.goes_on:
            yield engine.call(life, "resume")
        return replace(seen, pods=pods)

    def _examine(self, name: str, journal: Journal | None, unreadable: str, *, fresh: bool) -> Work:
        life = self.life = yield self.agent.engine.call(self.agent.life, "describe")
        if self.agent.direct:
            return (yield from self._examine_direct(name, life, journal, unreadable, fresh=fresh))
        if fresh and self.agent.crew.written(life):  # decision
            self.goes_on = False
            return Seen(life, PauseAndReseed("written to by a leader that is gone"), "", name)
        if fresh or (journal is not None and journal.base):  # decision
            return (yield from self._certify(name, life, journal))
        self.base = ""
        floor = journal.version if journal is not None else None
        recovery = yield from self._recovery(journal, unreadable, EngineSeen(name, life))
        self.goes_on = self.goes_on and isinstance(recovery, Keep)
        return Seen(life, recovery, "", name, floor=floor)

    def _examine_direct(self, name: str, life: str, journal: Journal | None, unreadable: str, *, fresh: bool) -> Work:
        if journal is not None and journal.base and journal.incarnation != life and not is_ours(name):  # decision
            yield self.agent.loop.sleep(self.agent.world.disk_seconds)
            self.agent.volume.journal = None
            fresh = self.goes_on = True
        if fresh:
            self.base = name
            return Seen(life, Fresh(), "", name, certified=False)
        self.base = ""
        recovery = PauseAndReseed(unreadable) if unreadable else at_start(journal, {}, EngineSeen(name, life))
        self.goes_on = self.goes_on and isinstance(recovery, Keep)
        for rank in self.agent.direct.values():
            if unreadable:
                yield from rank.restore_anybody()
            elif journal is not None and journal.incarnation == life:
                yield from rank.restore(journal.writers)
        if journal is not None and journal.incarnation == life:
            for each in journal.ranks if isinstance(recovery, Keep) else ():
                self.agent.direct[each.rank].served = each.buckets
        floor = journal.version if journal is not None and journal.decided else None  # decision
        return Seen(life, recovery, "", name, floor=floor)

    def _recovery(self, journal: Journal | None, unreadable: str, seen: EngineSeen) -> Work:
        if unreadable:
            return PauseAndReseed(unreadable)
        targets = self.agent.targets
        found = {
            rank.rank: targets[rank.rank].named(rank.arena)
            for rank in (journal.ranks if journal is not None else ())
            if rank.rank in targets
        }
        headers = {rank: each.arena.header for rank, each in found.items() if each is not None}
        headers |= self.agent.crew.headers(journal.ranks if journal is not None else ())
        recovery: Recovery = at_start(journal, headers, seen)
        if journal is not None and isinstance(recovery, Keep | Reapply):
            equal = 0
            for rank in journal.ranks:
                if rank.rank in targets:
                    equal += yield from targets[rank.rank].recover(rank, journal.version)
            others = yield from self.agent.crew.recovered(journal.version, list(journal.ranks))
            if isinstance(recovery, Reapply) and not (others and equal == len(targets)):
                return PauseAndReseed("the arena's bytes are not those of the journal")
        return recovery

    # --- the certificate on the engine's own checkpoint ---

    def _certify(self, name: str, life: str, journal: Journal | None) -> Work:
        yield self.agent.engine.call(self.agent.life, "pause", "InPlace" if journal is None else "Abort")
        self.base = name
        if journal is not None and journal.incarnation == life:
            problem = yield from self._interrupted()
        else:
            problem = yield from self._fresh(life)
        return Seen(life, Fresh(), problem, name, paused=bool(problem))

    def _fresh(self, life: str) -> Work:
        agent, world = self.agent, self.agent.world
        grants = {rank: world.nonce(32) for rank in sorted({*agent.targets, *agent.crew.ranks})}
        arenas = {}
        for rank, target in agent.targets.items():
            arenas[rank] = yield from target.lend()
        yield from agent.crew.certify("Lend", {})
        for rank, arena in arenas.items():
            arena.fill(grants[rank])
        yield from agent.crew.certify("Fill", grants)
        yield agent.engine.call(agent.life, "snapshot", self._refs(grants))
        for rank, arena in arenas.items():
            arena.seal(grants[rank], BASE)
        yield from agent.crew.certify("Seal", grants)
        self.goes_on = False
        ranks = tuple(target.arenas[0].journal_rank() for target in agent.targets.values())
        ranks += tuple(
            JournalRank(rank=rank.rank, program=rank.program, arena=rank.arenas[0], buckets=())
            for rank in (agent.crew.here.ranks if agent.crew.here is not None else ())
        )
        torn = Journal(state=JournalState.TORN, version=BASE, incarnation=life, ranks=ranks, term=0, coordinator="")
        yield from agent.write(torn)
        return (yield from self._apply(grants))

    def _interrupted(self) -> Work:
        self.goes_on = False
        headers = {}
        for rank, target in self.agent.targets.items():
            headers[rank] = (yield from target.lend()).header
        yield from self.agent.crew.certify("Lend", {})
        here = self.agent.crew.here
        headers |= {
            r.rank: self.agent.crew.arena(r.arenas[0]).header for r in (here.ranks if here is not None else ())
        }
        if any(header.version != BASE for header in headers.values()):
            return "an agent died while it certified the engine, and the copy of its checkpoint is gone: restart it"
        return (yield from self._apply({rank: header.grant for rank, header in headers.items()}))

    def _apply(self, grants: dict[int, str]) -> Work:
        agent, refs = self.agent, self._refs(grants)
        try:
            for _ in range(TIMES):
                yield from agent.crew.apply(self.life, refs)
                yield from check_readback(agent, refs)
        except EngineError as error:
            if error.reason != NOT_CERTIFIED:
                raise
            return str(error)
        yield agent.loop.sleep(agent.world.disk_seconds)
        agent.volume.journal = None
        for target in agent.targets.values():
            yield from target.returned()
        yield from agent.crew.certify("Return", {})
        self.goes_on = True
        return ""

    def _refs(self, grants: dict[int, str]) -> Refs:
        crew, targets = self.agent.crew, self.agent.targets
        first = {rank: target.arenas[0].arena for rank, target in targets.items()}
        first |= {
            rank.rank: crew.arena(rank.arenas[0]) for rank in (crew.here.ranks if crew.here is not None else ())
        }
        return Refs(self.life, tuple((first[rank], rank, grant, BASE.root) for rank, grant in sorted(grants.items())))

    def refs(self, grants: Iterable[tuple[int, str]], root: str) -> Refs:
        """The ranks' arenas of those grants as the engine sees them."""
        crew, targets = self.agent.crew, self.agent.targets

        def arena(rank: int, grant: str) -> ArenaFile:
            return crew.arena(crew.granted(grant).arena) if rank in crew.ranks else targets[rank].granted(grant).arena

        return Refs(self.life, tuple((arena(rank, grant), rank, grant, root) for rank, grant in grants))
