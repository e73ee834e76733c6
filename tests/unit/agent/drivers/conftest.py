"""A source rank with real arenas, a coordinator that answers as a test says, a worker without a process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import TransferError
from weightsync.testing.programs import plain_program
from weightsync.wire import local
from weightsync.wire.v1 import (
    Accepted,
    NamesAnswer,
    PlannedRoute,
    PublishAnswer,
    PublishOutcome,
    ReceiptsAnswer,
    Region,
    SyncOrder,
)
from weightsync_agent.arenas.files import SourceArenas
from weightsync_agent.arenas.sizing import Room
from weightsync_agent.drivers.kept_term import KeptTerm
from weightsync_agent.drivers.source_rank import SourceRank
from weightsync_agent.journal.file import PairingFile
from weightsync_agent.protocol.replica import Replica
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import DIED, STALLED, STOPPED

PROGRAM = plain_program({"a": ("float32", (1024,)), "b": ("float32", (1024,))})
OTHER = plain_program({"a": ("float32", (1024,)), "b": ("float16", (1024,))})
LINEAGE = "1" * 16
D = "0" * 32


class FakeWorker:
    """Writes everything at once, unless a test puts something else in the way."""

    def __init__(self) -> None:
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.attached: set[Path] = set()
        self.capabilities = SimpleNamespace(transport="tcp")
        self.raises: BaseException | None = None
        self.hangs: set[str] = set()  # sessions to which nothing becomes terminal
        self.fences = False  # a write that stalls is ended at its source
        self.digested: list[int] = []
        self.mapped: list[tuple[str, Path]] = []
        self.bytes = D  # what every bucket is read as
        self.written: list[tuple[str, int]] = []
        self.pace = 0.0  # seconds of one bucket

    async def attach(self, path: Path) -> None:
        await asyncio.sleep(0.1)
        if self.dead.done():
            raise TransferError("dead", reason=DIED, quiet=True)
        self.attached.add(path)
        self.mapped.append(("attach", path))

    async def detach(self, path: Path) -> None:
        await asyncio.sleep(0.1)
        self.attached.discard(path)
        self.mapped.append(("detach", path))

    async def digest(self, path: Path, buckets: list[Bucket]) -> list[BucketDigest]:
        assert path in self.attached
        self.digested += [bucket.offset for bucket in buckets]
        return [BucketDigest(offset=b.offset, nbytes=b.nbytes, digest=self.bytes) for b in buckets]

    async def probe(self, session: str, *, deadline_seconds: float) -> None:
        await asyncio.sleep(0)

    async def write(
        self, path: Path, buckets: list[Bucket], to: Region, *, stall_seconds: float, stop: asyncio.Event
    ) -> AsyncIterator[Bucket]:
        assert path in self.attached
        if self.raises is not None:
            raise self.raises
        for bucket in buckets:
            if to.session in self.hangs:
                await self._hang(stall_seconds)
            await asyncio.sleep(self.pace)
            if stop.is_set():
                raise TransferError("stopped", reason=STOPPED, quiet=True)
            self.written.append((to.session, bucket.offset))
            yield bucket

    async def _hang(self, stall_seconds: float) -> None:
        await asyncio.wait({self.dead}, timeout=stall_seconds)
        if self.dead.done():
            raise TransferError("killed", reason=DIED, quiet=False)
        raise TransferError("nothing ended", reason=STALLED, quiet=self.fences)

    def kill(self) -> None:
        if not self.dead.done():
            self.dead.set_result("killed")

    async def close(self) -> None:
        self.kill()


class FakeClient:
    """Answers by path; a test replaces what it wants answered otherwise."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.slow: dict[int, float] = {}  # sequence of a publish: seconds until its answer
        self.ended = asyncio.Event()
        self.answers: dict[str, Callable[[Any], Any]] = {}

    async def call(self, address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> Any:
        await asyncio.sleep(0)
        self.asked.append((path, body))
        for prefix, answer in self.answers.items():
            if path.startswith(prefix):
                return answer(body)
        if path == "/v1/publishes":
            await asyncio.sleep(self.slow.get(body.sequence, 0.0))
            return PublishAnswer(lineage=LINEAGE, number=body.sequence)
        if path.startswith("/v1/outcomes"):
            if not self.ended.is_set():
                await asyncio.sleep(1.0)
            return PublishOutcome(ended=self.ended.is_set())
        if path == "/v1/receipts":
            return ReceiptsAnswer(verified=tuple(b.offset for b in body.buckets), unequal=())
        return NamesAnswer(owned=body.names) if kind is NamesAnswer else Accepted()

    persist = call

    def paths(self, path: str) -> list[Any]:
        """The bodies that were sent there."""
        return [body for asked, body in self.asked if asked == path]


class World:
    """One source rank and what it talks to."""

    def __init__(self, folder: Path, arenas: int = 2, limit: int | None = None) -> None:
        self.client = FakeClient()
        self.workers: list[FakeWorker] = []
        self.program_error: Exception | None = None
        self.no_worker: Exception | None = None
        self.bytes = D  # what a worker that is started reads of every bucket
        self.arenas = SourceArenas(folder, 0, Room(limit))
        route = SimpleNamespace(source="u", rank=0)
        target = SimpleNamespace(rank=SimpleNamespace(program=PROGRAM.digest), routes=[route])
        self.plan: Any = SimpleNamespace(
            engines=[SimpleNamespace(targets=[target])],
            coordinator="u",
            term=1,
            source=lambda uid: SimpleNamespace(address="coordinator"),
            strategy=SimpleNamespace(deadline_seconds=60),
            transfer=SimpleNamespace(bucket_bytes=4096),
        )
        programs: Any = SimpleNamespace(get=self._program, path=lambda digest: folder / f"{digest}.json")
        client: Any = self.client
        start: Any = self._start
        self.planned = asyncio.Event()
        self.source = SourceRank(
            self.who("a" * 16),
            "u",
            plan=lambda: self.plan,
            planned=self.planned,
            client=client,
            programs=programs,
            arenas=self.arenas,
            pairing=PairingFile.within(folder, 0),
            term=KeptTerm(folder, "0"),
            count=arenas,
            start=start,
        )

    def replicas(self) -> list[Replica]:
        """As the machine knows them."""
        return self.source.runner.machine.shelf.all()

    def of(self, id_: str) -> Replica:
        """The replica that this publish filled last."""
        (replica,) = self.source.runner.machine.shelf.owned(id_)
        return replica

    async def _program(self, digest: str) -> Any:
        await asyncio.sleep(0)
        if self.program_error is not None:
            raise self.program_error
        return {program.digest: program for program in (PROGRAM, OTHER)}[digest]

    def serve(self, *programs: str) -> None:
        """The plan has this rank serve these."""
        route = SimpleNamespace(source="u", rank=0)
        targets = [SimpleNamespace(rank=SimpleNamespace(program=digest), routes=[route]) for digest in programs]
        self.plan.engines = [SimpleNamespace(targets=targets)]

    async def _start(self, name: str, carrier: Carrier = OWN) -> FakeWorker:
        await asyncio.sleep(1.0)
        if self.no_worker is not None:
            raise self.no_worker
        self.workers.append(FakeWorker())
        self.workers[-1].bytes = self.bytes
        return self.workers[-1]

    @staticmethod
    def who(nonce: str) -> SourceRankRecord:
        """The rank, with that Publisher."""
        return SourceRankRecord(rank=0, world_size=1, stage=0, stages=1, nonce=nonce)

    @staticmethod
    def request(sequence: int, nonce: str = "a" * 16) -> local.BeginRequest:
        """publish() number ``sequence``."""
        return local.BeginRequest(rank=0, nonce=nonce, sequence=sequence)

    @staticmethod
    def failure(message: str) -> local.PublishFailure:
        """The trainer's input was wrong."""
        return local.PublishFailure(reason="Wrong", message=message)

    async def begin(self, sequence: int) -> str:
        """A publish of which all buckets are known."""
        answer = await self.source.begin(self.request(sequence))
        await self.source.names(answer.id, local.NamesReport(names=("a", "b")))
        return answer.id

    async def publish(self, sequence: int, digests: bool = True) -> str:
        """A whole publish, to the end of the copy."""
        id_ = await self.begin(sequence)
        self.fill(id_, digests)
        await self.source.copied(id_)
        return id_

    def fill(self, id_: str, digests: bool = True) -> None:
        """All buckets at once."""
        part = self.source.publishes.find(id_).parts[PROGRAM.digest]
        offsets = tuple(bucket.offset for bucket in part.buckets or ())
        told = (D,) * len(offsets) if digests else ()
        self.source.filled(id_, local.Filled(program=PROGRAM.digest, offsets=offsets, digests=told))

    def order(self, number: int, sync: str = "s", targets: tuple[str, ...] = ("t",), term: int = 1) -> SyncOrder:
        """Write that version to some targets."""
        routes = tuple(
            PlannedRoute(
                engine="e", target=target, rank=0, address="target", program=PROGRAM.digest, layout=D, grant=D,
                region=Region(session=f"{target}:1", address=0, nbytes=PROGRAM.layout.nbytes),
            )
            for target in targets
        )  # fmt: skip
        return SyncOrder(
            sync=sync, term=term, lineage=LINEAGE, number=number, bucket_size=4096, deadline_seconds=30.0,
            stall_seconds=5.0, programs=(PROGRAM.digest,), routes=routes,
        )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """Makes one; inside a running loop."""
    return lambda **options: World(tmp_path, **options)
