"""The engine's ranks as this agent holds them: one arena with its receiving worker for each."""

from collections.abc import Iterable

from weightsync.announcement import TargetRank
from weightsync.arena import Header
from weightsync.convert.program import CopyProgram
from weightsync.errors import Refused
from weightsync_agent.drivers.background import in_thread
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.rank_target import RankTarget, StartWorker
from weightsync_agent.engines.base import ArenaRef
from weightsync_agent.journal.records import Journal
from weightsync_agent.volume import Volume


class EngineRanks:
    """By rank; empty before the first look at the engine."""

    def __init__(self, volume: Volume, programs: Programs, start: StartWorker, memory_limit: int | None) -> None:
        self.targets: dict[int, RankTarget] = {}
        self.lives: dict[int, str] = {}  # the process of each rank that was looked at: no other may be written to
        self.volume = volume
        self._programs = programs
        self._start = start
        self._limit = memory_limit

    async def open(self, programs: Iterable[CopyProgram]) -> None:
        """Take over or make the arena of each; a rank whose program changed gets another one."""
        for program in programs:
            known = self.targets.get(program.rank)
            if known is not None and known.program.digest == program.digest:
                continue
            if known is not None:
                del self.targets[program.rank]
                await known.close()
            await in_thread(self._programs.put, program)
            target = RankTarget(program, self.volume.arenas, self._start, self._limit)
            await target.open()
            self.targets[program.rank] = target

    def find(self, rank: int) -> RankTarget:
        """The rank's arena. Raises Refused where the engine has no such rank (yet)."""
        found = self.targets.get(rank)
        if found is None:
            raise Refused(f"rank {rank} is not here (yet)", reason="UnknownRank", status=404)
        return found

    def ref(self, rank: int, grant: str, root: str) -> ArenaRef:
        """The rank's arena as the engine sees it."""
        target = self.targets[rank]
        return ArenaRef(
            rank=rank,
            arena=target.path,
            program=self.volume.rank_program(rank),
            layout=target.program.layout.digest,
            grant=grant,
            root=root,
            incarnation=self.lives.get(rank, ""),
        )

    def headers(self) -> dict[int, Header]:
        """What each arena holds."""
        return {rank: target.arena.header for rank, target in self.targets.items()}

    def announced(self) -> tuple[TargetRank, ...]:
        """What is said of them to the operator."""
        return tuple(
            TargetRank(rank=rank, layout=target.program.layout.digest, program=target.program.digest)
            for rank, target in sorted(self.targets.items())
        )

    async def recovered(self, journal: Journal) -> bool:
        """Every rank's sealed arena holds the journal's version, byte for byte."""
        equal = [
            await self.targets[rank.rank].recover(rank, journal.version)
            for rank in journal.ranks
            if rank.rank in self.targets
        ]
        return all(equal) and len(equal) == len(self.targets)

    async def close(self) -> None:
        """End the workers; the arenas stay."""
        for target in self.targets.values():
            await target.close()
