"""The engine's ranks as this agent holds them: arenas, with one receiving worker for each rank."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from weightsync.announcement import Mode, TargetRank
from weightsync.arena import NO_GRANT, Header
from weightsync.convert.program import CopyProgram
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers.background import in_thread
from weightsync_agent.drivers.direct_rank import DirectRank
from weightsync_agent.drivers.landing import Landing
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.drivers.receivers import StartWorker
from weightsync_agent.drivers.target_arena import TargetArena
from weightsync_agent.engines.base import ArenaRef
from weightsync_agent.engines.seed import Seed
from weightsync_agent.journal.records import BASE, Journal
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import TransferWorker
from weightsync_agent.volume import Volume


class StartRankWorker(Protocol):
    """Starts a worker of one rank of the pod. Raises TransferError."""

    async def __call__(self, name: str, rank: int, ranks: Collection[int], carrier: Carrier = OWN) -> TransferWorker:
        """ranks: all of the pod, which share its devices."""
        ...


class EngineRanks:
    """By rank; empty before the first look at the engine. served: the version that the engine serves now."""

    def __init__(
        self,
        volume: Volume,
        programs: Programs,
        start: StartRankWorker,
        *,
        landing: Landing,
        make_direct: Callable[[CopyProgram, StartWorker], DirectRank],
        arenas: int,
        served: Callable[[], Version | None],
        side: Side | None = None,
    ) -> None:
        self.targets: dict[int, RankTarget] = {}
        self.direct: dict[int, DirectRank] = {}  # in place of targets, where the engine is written to itself
        self.lives: dict[int, str] = {}  # the process of each rank that was looked at: no other may be written to
        self.volume = volume
        self._programs = programs
        self._start = start
        self._landing = landing
        self._make_direct = make_direct
        self._arenas = arenas
        self._served = served
        self._side = side

    async def open(self, programs: Iterable[CopyProgram]) -> None:
        """Take over or make the arenas of each; a rank whose program changed gets others. Or take up its parameters.

        Raises InputError where neither the arenas fit into the memory limit nor the engine can be written to.
        """
        programs = tuple(programs)
        ranks = tuple(program.rank for program in programs)
        seeds = await self._landing.seeds(programs)
        if seeds is not None:
            await self._open_direct(programs, seeds)
            return
        for rank in list(self.direct):
            await self.direct.pop(rank).close()
        for program in programs:
            known = self.targets.get(program.rank)
            if known is not None and known.program.digest == program.digest:
                continue
            if known is not None:
                del self.targets[program.rank]
                await known.close()
            await in_thread(self._programs.put, program)
            start = self._start_of(program.rank, ranks)
            target = RankTarget(
                program, self.volume.arenas, start, arenas=self._arenas, served=self._served, side=self._side
            )
            await target.open()
            self.targets[program.rank] = target

    def _start_of(self, rank: int, ranks: Collection[int]) -> StartWorker:
        async def start(name: str, carrier: Carrier = OWN) -> TransferWorker:
            return await self._start(name, rank, ranks, carrier)

        return start

    async def _open_direct(self, programs: Collection[CopyProgram], seeds: Mapping[int, Seed]) -> None:
        ranks = tuple(program.rank for program in programs)
        for rank in list(self.targets):
            staged = self.targets.pop(rank)
            await staged.close()
            staged.remove_files()  # memory that this mode is there to do without
        for program in programs:
            known = self.direct.get(program.rank)
            if known is None or known.program.digest != program.digest:
                if known is not None:
                    await known.close()
                await in_thread(self._programs.put, program)
                start = self._start_of(program.rank, ranks)
                known = self.direct[program.rank] = self._make_direct(program, start)
            await known.open(seeds[program.rank])

    @property
    def mode(self) -> Mode:
        """Where what is written to the engine lands."""
        return "Direct" if self.direct else "Staged"

    @property
    def held(self) -> Mapping[int, RankTarget | DirectRank]:
        """By rank, in whichever mode."""
        return self.direct or self.targets

    def find(self, rank: int) -> RankTarget | DirectRank:
        """The rank. Raises Refused where the engine has no such rank (yet)."""
        found = self.held.get(rank)
        if found is None:
            raise Refused(f"rank {rank} is not here (yet)", reason="UnknownRank", status=404)
        return found

    def ref(self, rank: int, grant: str, root: str) -> ArenaRef:
        """The rank's arena of that grant as the engine sees it."""
        return self._ref(self.targets[rank].granted(grant), grant, root)

    def _ref(self, arena: TargetArena, grant: str, root: str) -> ArenaRef:
        rank = arena.program.rank
        return ArenaRef(
            rank=rank,
            arena=arena.path,
            program=self._programs.path(arena.program.digest),  # our own copy: nobody exchanges it under the hook
            layout=arena.program.layout.digest,
            grant=grant,
            root=root,
            incarnation=self.lives.get(rank, ""),
        )

    def bases(self, grants: Mapping[int, str]) -> tuple[ArenaRef, ...]:
        """Each rank's first arena, which a certification uses under a grant of its own."""
        return tuple(
            self._ref(self.targets[rank].arenas[0], grant, BASE.root) for rank, grant in sorted(grants.items())
        )

    def pinned(self) -> list[list[ArenaRef]]:
        """Every arena, in rounds of one for each rank."""
        return [
            [self._ref(target.arenas[index], NO_GRANT, BASE.root) for _, target in sorted(self.targets.items())]
            for index in range(self._arenas if self.targets else 0)
        ]

    def headers(self, journal: Journal | None) -> dict[int, Header]:
        """By rank, what the arena holds that the journal names; without a rank whose arena is not here."""
        found = {
            rank.rank: self.targets[rank.rank].named(rank.arena)
            for rank in (journal.ranks if journal is not None else ())
            if rank.rank in self.targets
        }
        return {rank: arena.arena.header for rank, arena in found.items() if arena is not None}

    def announced(self) -> tuple[TargetRank, ...]:
        """What is said of them to the operator."""
        return tuple(
            TargetRank(rank=rank, layout=target.program.layout.digest, program=target.program.digest)
            for rank, target in sorted(self.held.items())
        )

    @property
    def checkpoint(self) -> str:
        """What all ranks' programs read; "" where there is none, or they do not read the same."""
        read = {target.program.checkpoint for target in self.targets.values()}
        return read.pop() if len(read) == 1 else ""

    @property
    def replica_bytes(self) -> int:
        """Of the largest rank's replica; 0 before the first look."""
        return max((target.program.layout.nbytes for target in self.targets.values()), default=0)

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
        for target in self.held.values():
            await target.close()
