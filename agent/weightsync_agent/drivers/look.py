"""A look at a life of the engine: what it is, what it may hold, and whether it can be trusted.

To be made while no commit runs: it pauses the engine, or stops it between two batches.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError, PeerError
from weightsync_agent.drivers.certificate import Certificate
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.engines.base import (
    Description,
    EngineAdapter,
    EngineInfo,
    description_problem,
    repacked_problem,
)
from weightsync_agent.engines.incarnation import engine_incarnation
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import (
    EngineSeen,
    Fresh,
    Journal,
    JournalState,
    Keep,
    PauseAndReseed,
    Reapply,
    Recovery,
    at_start,
    is_ours,
)
from weightsync_agent.protocol.crew import Pod, share
from weightsync_agent.protocol.engine_leader import Seen
from weightsync_agent.threads import in_thread

LEADER = 0  # its pod's place in the engine


class Look:
    """What one agent needs to look at its engine. tell: that a look has what stands in ``missing``."""

    def __init__(
        self, adapter: EngineAdapter, journal: StateFile[Journal], ranks: EngineRanks, tell: Callable[[], None]
    ) -> None:
        self._adapter = adapter
        self._file = journal
        self._ranks = ranks
        self.base = ""  # what a fresh engine calls its checkpoint
        self.engine_ranks = 0  # of the whole engine, as it says itself; 0 before the first look
        self.missing = ""  # why there are no copy programs, while a look waits for them
        self._tell = tell
        self._goes_on = False

    async def take(self) -> Seen:
        """Look. Raises WeightSyncError where the engine does not answer; whole engines serve on then, others wait."""
        adapter = self._adapter
        adapter.forget()
        info = await adapter.info()
        self.engine_ranks = len(info.ranks)
        if info.refusal:
            return Seen("", Fresh(), info.refusal, info.weight_version)
        if self._ranks.crew is not None:
            self._ranks.crew.crew.is_of(len(info.ranks), info.nodes)
        journal, unreadable = await in_thread(self._read)
        fresh = journal is None and not unreadable and not is_ours(info.weight_version)
        kept = (
            journal is not None
            and journal.state is JournalState.CURRENT
            and info.weight_version == journal.version.name
        )
        whole = fresh or kept
        if not whole:
            await adapter.pause("Abort")  # it held a version once, and holds another or none now: it may not answer
        pods = self._muster(info)
        if fresh:
            # Nobody has committed to it, so only a look that was cut off can have left it paused.
            await adapter.resume()
            await adapter.ready()
        if whole:
            await adapter.capabilities()  # asked before the pause, not in it
        await self._ranks.open(await self._programs(share(len(info.ranks), info.nodes, LEADER)))
        if whole:
            await adapter.pause("InPlace")  # it goes on where it was, and its requests lose nothing
        self._goes_on = whole
        try:
            seen = await self._examine(info, journal, unreadable, fresh=fresh)
            return replace(seen, pods=pods)
        finally:
            if self._goes_on:
                await adapter.resume()

    def _muster(self, info: EngineInfo) -> frozenset[Pod]:
        """The other pods, as they are for this look. Raises PeerError while one is not there."""
        calls = self._ranks.crew
        if calls is None:
            if info.nodes > 1:
                raise InputError(f"the engine is of {info.nodes} pods, and this agent can lead none but its own")
            return frozenset()
        lacking = calls.lacking()
        if lacking:
            raise PeerError(lacking)
        calls.take()
        return calls.crew.pods()

    async def _programs(self, ranks: range) -> tuple[CopyProgram, ...]:
        def miss(sentence: str) -> None:
            self.missing = sentence
            self._tell()

        try:
            return await self._ranks.volume.wait_for_programs(ranks, miss)
        except InputError as error:
            miss(str(error))
            raise
        finally:
            self.missing = ""

    def _read(self) -> tuple[Journal | None, str]:
        try:
            return self._file.read(), ""
        except InputError as error:
            return None, str(error)

    async def _examine(self, info: EngineInfo, journal: Journal | None, unreadable: str, *, fresh: bool) -> Seen:
        """The paused engine: what is seen, and in ``_goes_on`` whether it may generate again."""
        adapter, ranks = self._adapter, self._ranks
        descriptions = await adapter.describe(info.ranks)
        life = engine_incarnation(descriptions, ranks.pod_of)
        ranks.lives = {d.rank: d.incarnation for d in descriptions}
        problems = [
            description_problem(d, ranks.held[d.rank].program.layout)
            if d.rank in ranks.held
            else d.problem or repacked_problem(d)
            for d in descriptions
        ]
        problem = next((p for p in problems if p), "")
        if problem:
            return Seen(life, Fresh(), problem, info.weight_version, paused=not self._goes_on)
        for arenas in ranks.pinned():
            await adapter.pin(arenas)
        if ranks.direct:
            return await self._examine_direct(info, life, journal, unreadable, fresh=fresh)
        if fresh and (written := self._written(descriptions)):
            self._goes_on = False
            return Seen(life, PauseAndReseed(written), "", info.weight_version)
        if fresh or (journal is not None and journal.base):
            return await self._certify(info, life, journal)
        self.base = ""
        floor = journal.version if journal is not None else None
        recovery = await self._recovery(journal, unreadable, info, life)
        self._goes_on = self._goes_on and isinstance(recovery, Keep)
        return Seen(life, recovery, "", info.weight_version, floor=floor)

    def _written(self, descriptions: Iterable[Description]) -> str:
        """Which other pod's process holds what a leader that is gone let into it; "" none does."""
        calls = self._ranks.crew
        for d in descriptions:
            if calls is not None and calls.written(d.rank) == d.incarnation:
                return f"rank {d.rank}, of pod {self._ranks.pod_of(d.rank)}, was written to by a leader that is gone"
        return ""

    async def _examine_direct(
        self, info: EngineInfo, life: str, journal: Journal | None, unreadable: str, *, fresh: bool
    ) -> Seen:
        """There is no replica: what is torn waits for a sync, and a process that nobody has written to is whole.

        Its first commit certifies it, by reading back what was written into it.
        """
        name = info.weight_version
        if journal is not None and journal.base and journal.incarnation != life and not is_ours(name):
            await in_thread(self._file.remove)  # it was let into another process, which is gone
            fresh = self._goes_on = True
        if fresh:
            self.base = name
            return Seen(life, Fresh(), "", name, certified=False)
        self.base = ""
        recovery = PauseAndReseed(unreadable) if unreadable else at_start(journal, {}, EngineSeen(name, life))
        self._goes_on = self._goes_on and isinstance(recovery, Keep)
        for rank in self._ranks.direct.values():
            if unreadable:
                await rank.restore_anybody()
            elif journal is not None and journal.incarnation == life:
                await rank.restore(journal.writers)
        if journal is not None and journal.incarnation == life:
            for each in journal.ranks if isinstance(recovery, Keep) else ():
                self._ranks.direct[each.rank].served = each.buckets
        # What was written when the agent died was decided by nobody: only the version before it is a floor.
        floor = journal.version if journal is not None and journal.decided else None
        return Seen(life, recovery, "", name, floor=floor)

    async def _certify(self, info: EngineInfo, life: str, journal: Journal | None) -> Seen:
        # The process that was described: it may have taken the place of the one that was paused.
        await self._adapter.pause("InPlace" if journal is None else "Abort")
        self.base = info.weight_version
        certificate = Certificate(self._adapter, self._file, self._ranks, life)
        try:
            if journal is not None and journal.incarnation == life:
                problem = await certificate.interrupted()
            else:
                problem = await certificate.fresh()
        finally:
            self._goes_on = not certificate.touched
        return Seen(life, Fresh(), problem, info.weight_version, paused=bool(problem))

    async def _recovery(self, journal: Journal | None, unreadable: str, info: EngineInfo, life: str) -> Recovery:
        if unreadable:
            return PauseAndReseed(unreadable)
        recovery = at_start(journal, await self._ranks.headers(journal), EngineSeen(info.weight_version, life))
        if journal is not None and isinstance(recovery, Keep | Reapply):
            equal = await self._ranks.recovered(journal)
            if isinstance(recovery, Reapply) and not equal:
                return PauseAndReseed(f"{recovery.reason}, and the arena's bytes are not those of the journal")
        return recovery
