"""The engine's ranks as this agent holds them: arenas, with one receiving worker for each rank.

Of an engine of several pods the leader has those of its own pod here, and knows the others through their agents.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from weightsync.announcement import Mode, TargetRank
from weightsync.arena import NO_GRANT, Header
from weightsync.convert.program import CopyProgram
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import CommitRequest
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers.crew import CrewCalls, RemoteRank
from weightsync_agent.drivers.direct_rank import DirectRank
from weightsync_agent.drivers.landing import Landing
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.drivers.receivers import StartWorker
from weightsync_agent.drivers.target_arena import TargetArena
from weightsync_agent.engines.base import ArenaRef
from weightsync_agent.engines.seed import Seed
from weightsync_agent.journal.records import BASE, Journal, JournalRank
from weightsync_agent.threads import in_thread
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
        crew: CrewCalls | None = None,
    ) -> None:
        self.crew = crew
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

    @property
    def remote(self) -> Mapping[int, RemoteRank]:
        """By rank, those of other pods."""
        return self.crew.ranks if self.crew is not None else {}

    @property
    def numbers(self) -> frozenset[int]:
        """All ranks of the engine, wherever they are."""
        return frozenset({*self.held, *self.remote})

    def pod_of(self, rank: int) -> str:
        """The uid of another pod that holds the rank; "" where it is here."""
        return self.remote[rank].here.uid if rank in self.remote else ""

    @contextlib.asynccontextmanager
    async def sealed(self, commit: CommitRequest) -> AsyncIterator[None]:
        """Seal every rank of this pod as the decided version; meanwhile those arenas stay as they are.

        Raises Refused with what is missing.
        """
        async with self._keeping() as kept:
            for rank, held in self.held.items():
                if isinstance(held, DirectRank):
                    await held.seal(commit)
                else:
                    kept[rank] = await held.seal(commit)
            yield

    @contextlib.asynccontextmanager
    async def kept(self, grants: Iterable[tuple[int, str]]) -> AsyncIterator[None]:
        """Meanwhile this pod's arenas of these grants stay as they are. Raises Refused where one is not sealed."""
        async with self._keeping() as kept:
            for rank, grant in grants:
                if rank in self.targets:
                    await self.targets[rank].keep(grant)
                    kept[rank] = grant
            yield

    @contextlib.asynccontextmanager
    async def _keeping(self) -> AsyncIterator[dict[int, str]]:
        targets, kept = dict(self.targets), dict[int, str]()
        try:
            yield kept
        finally:
            for rank, grant in kept.items():
                await targets[rank].release(grant)

    @contextlib.asynccontextmanager
    async def holding(
        self, version: Version, grants: Iterable[tuple[int, str]], commit: CommitRequest | None = None
    ) -> AsyncIterator[None]:
        """Meanwhile the other pods' arenas of these grants stay as they are; see CrewCalls.holding."""
        there = {rank: grant for rank, grant in grants if rank in self.remote}
        if self.crew is None or not there:
            yield
            return
        async with self.crew.holding(version, there, commit):
            yield

    def journal_rank(self, rank: int, grant: str) -> JournalRank:
        """What a journal must hold of the rank's replica under that grant."""
        if rank in self.remote:
            return self.remote[rank].journal_rank(grant)
        return self.held[rank].granted(grant).journal_rank()

    def find(self, rank: int) -> RankTarget | DirectRank:
        """The rank. Raises Refused where the engine has no such rank (yet)."""
        found = self.held.get(rank)
        if found is None:
            raise Refused(f"rank {rank} is not here (yet)", reason="UnknownRank", status=404)
        return found

    def program_path(self, digest: str) -> Path:
        """Our own copy of a program: nobody exchanges it under the hook."""
        return self._programs.path(digest)

    def ref(self, rank: int, grant: str, root: str) -> ArenaRef:
        """The rank's arena of that grant as the engine sees it."""
        if rank in self.remote:
            return self._remote_ref(rank, self.remote[rank].granted(grant).arena, grant, root)
        return self._ref(self.targets[rank].granted(grant), grant, root)

    def _ref(self, arena: TargetArena, grant: str, root: str) -> ArenaRef:
        rank = arena.program.rank
        return ArenaRef(
            rank=rank,
            arena=arena.path,
            program=self.program_path(arena.program.digest),
            layout=arena.program.layout.digest,
            grant=grant,
            root=root,
            incarnation=self.lives.get(rank, ""),
        )

    def _remote_ref(self, rank: int, arena: str, grant: str, root: str) -> ArenaRef:
        """By names: the rank's own pod knows where they lie."""
        held = self.remote[rank].rank
        return ArenaRef(
            rank=rank, arena=Path(arena), program=Path(held.program), layout=held.layout, grant=grant, root=root,
            incarnation=self.lives.get(rank, ""),
        )  # fmt: skip

    def _first(self, rank: int, index: int, grant: str) -> ArenaRef:
        """The rank's arena of that index, where no version is in it."""
        if rank in self.remote:
            return self._remote_ref(rank, self.remote[rank].rank.arenas[index], grant, BASE.root)
        return self._ref(self.targets[rank].arenas[index], grant, BASE.root)

    def bases(self, grants: Mapping[int, str]) -> tuple[ArenaRef, ...]:
        """Each rank's first arena, which a certification uses under a grant of its own."""
        return tuple(self._first(rank, 0, grant) for rank, grant in sorted(grants.items()))

    def base_ranks(self) -> tuple[JournalRank, ...]:
        """What a journal must hold of each rank's first arena, in which the engine is certified."""
        there = (
            JournalRank(rank=rank, program=remote.rank.program, arena=remote.rank.arenas[0], buckets=())
            for rank, remote in self.remote.items()
        )
        return (*(target.arenas[0].journal_rank() for target in self.targets.values()), *there)

    def pinned(self) -> list[list[ArenaRef]]:
        """Every arena, in rounds of one for each rank."""
        counts = {rank: len(target.arenas) for rank, target in self.targets.items()}
        counts |= {rank: len(remote.rank.arenas) for rank, remote in self.remote.items()} if self.targets else {}
        return [
            [self._first(rank, index, NO_GRANT) for rank, count in sorted(counts.items()) if index < count]
            for index in range(max(counts.values(), default=0))
        ]

    async def headers(self, journal: Journal | None) -> dict[int, Header]:
        """By rank, what the arena holds that the journal names; without a rank whose arena is not there."""
        there = await self.crew.headers() if self.crew is not None and journal is not None else {}
        named = {rank.rank: there.get((rank.rank, rank.arena)) for rank in (journal.ranks if journal else ())}
        found = {
            rank.rank: self.targets[rank.rank].named(rank.arena)
            for rank in (journal.ranks if journal is not None else ())
            if rank.rank in self.targets
        }
        here = {rank: arena.arena.header for rank, arena in found.items() if arena is not None}
        return here | {rank: header for rank, header in named.items() if header is not None}

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
        """Every rank's sealed arena holds the journal's version, byte for byte, in whichever pod."""
        equal = [
            await self.targets[rank.rank].recover(rank, journal.version)
            for rank in journal.ranks
            if rank.rank in self.targets
        ]
        if not all(equal) or len(equal) != len(self.targets):
            return False
        there = {rank.rank: rank for rank in journal.ranks if rank.rank in self.remote}
        if self.crew is None or not self.remote:
            return True
        return there.keys() == self.remote.keys() and await self.crew.recovered(journal.version, there)

    async def close(self) -> None:
        """End the workers; the arenas stay."""
        for target in self.held.values():
            await target.close()
