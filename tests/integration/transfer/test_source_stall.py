"""A source rank with real workers, one of whose targets is stopped in mid-write: the others are written in time."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.transfer.workers import MIB, SMALL, Bench, stop
from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.arena import Arena
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
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import TransferWorker

pytestmark = pytest.mark.mooncake

PROGRAM = plain_program(dict.fromkeys("abcdefghijklmnop", ("float32", (4 * MIB,))))  # 256 MiB
LINEAGE, D = "1" * 16, "0" * 32
STALL = 3.0


class Client:
    """A coordinator and targets that agree to everything."""

    def __init__(self) -> None:
        self.routes: dict[str, Any] = {}
        self.receipts: list[Any] = []
        self.ended: dict[str, float] = {}

    async def call(self, address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> Any:
        if path == "/v1/publishes":
            return PublishAnswer(lineage=LINEAGE, number=body.sequence)
        if path.startswith("/v1/outcomes"):
            await asyncio.sleep(1.0)
            return PublishOutcome(ended=False)
        if path == "/v1/receipts":
            self.receipts.append((address, body))
            return ReceiptsAnswer(verified=tuple(b.offset for b in body.buckets), unequal=())
        if path == "/v1/routes":
            self.routes[body.target] = body
            self.ended[body.target] = time.monotonic()
        return NamesAnswer(owned=body.names) if kind is NamesAnswer else Accepted()

    persist = call


class Rank:
    """One rank that has published version 1."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.client = Client()
        self.workers: list[TransferWorker] = []
        self._bench = bench
        route = SimpleNamespace(source="u", rank=0)
        target = SimpleNamespace(rank=SimpleNamespace(program=PROGRAM.digest), routes=[route])
        plan: Any = SimpleNamespace(
            engines=[SimpleNamespace(targets=[target])],
            coordinator="u",
            term=1,
            source=lambda uid: SimpleNamespace(address="coordinator"),
            strategy=SimpleNamespace(deadline_seconds=60),
            transfer=SimpleNamespace(bucket_bytes=8 * MIB),
        )
        programs: Any = SimpleNamespace(get=self._program, path=lambda digest: folder / digest)
        client: Any = self.client
        self.source = SourceRank(
            SourceRankRecord(rank=0, world_size=1, stage=0, stages=1, nonce="a" * 16),
            "u",
            plan=lambda: plan,
            planned=asyncio.Event(),
            client=client,
            programs=programs,
            arenas=SourceArenas(folder, 0, Room(None)),
            count=1,
            start=self._start,
            pairing=PairingFile.within(folder, 0),
            term=KeptTerm(folder, "0"),
        )

    async def _program(self, digest: str) -> Any:
        return PROGRAM

    async def _start(self, name: str, carrier: Carrier = OWN) -> TransferWorker:
        self.workers.append(await self._bench.worker(name, SMALL))
        return self.workers[-1]

    async def begin(self, sequence: int) -> local.Replica:
        answer = await self.source.begin(local.BeginRequest(rank=0, nonce="a" * 16, sequence=sequence))
        told = await self.source.names(answer.id, local.NamesReport(names=tuple("abcdefghijklmnop")))
        self.id = answer.id
        return told.replicas[0]

    async def publish(self) -> Path:
        replica = await self.begin(1)
        with Arena.open(Path(replica.arena_path)) as arena:
            for number, bucket in enumerate(replica.buckets):
                arena.view[bucket.offset : bucket.offset + 8] = number.to_bytes(8, "big")
        offsets = tuple(bucket.offset for bucket in replica.buckets)
        self.source.filled(self.id, local.Filled(program=PROGRAM.digest, offsets=offsets))
        await self.source.copied(self.id)
        return Path(replica.arena_path)


def order(regions: dict[str, Region], sync: str = "s") -> SyncOrder:
    routes = tuple(
        PlannedRoute(
            engine=name, target=name, rank=0, address=name, program=PROGRAM.digest, layout=D, grant=D, region=region
        )
        for name, region in regions.items()
    )
    return SyncOrder(
        sync=sync, term=1, lineage=LINEAGE, number=1, bucket_size=8 * MIB, deadline_seconds=60.0,
        stall_seconds=STALL, programs=(PROGRAM.digest,), routes=routes,
    )  # fmt: skip


async def until(condition: Any, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.02)


async def test_a_target_stopped_in_mid_write_costs_its_own_route_and_one_worker(bench: Bench, tmp_path: Path) -> None:
    """The others are verified; the stalled one's worker is killed; the arena is filled anew one stall later."""
    rank = Rank(bench, tmp_path)
    path = await rank.publish()
    targets = {name: await bench.target(name, PROGRAM.layout.nbytes) for name in ("stopped", "first", "second")}
    regions = {name: region for name, (_, _, region) in targets.items()}
    await rank.source.order(order(regions))
    await until(lambda: any(address == "stopped" for address, _ in rank.client.receipts), 20)
    stop(targets["stopped"][0])
    stopped_at = time.monotonic()
    await until(lambda: len(rank.client.routes) == 3, 40)
    said = {name: (end.verified, end.reason) for name, end in rank.client.routes.items()}
    assert said == {"stopped": (False, "Stalled"), "first": (True, ""), "second": (True, "")}
    assert not any(body.last for address, body in rank.client.receipts if address == "stopped")
    with Arena.open(path) as ours:
        for name in ("first", "second"):
            assert targets[name][1].view == ours.view
    assert max(rank.client.ended.values()) - stopped_at < 3 * STALL
    waiting = asyncio.create_task(rank.begin(2))
    await asyncio.sleep(0.1)
    await until(rank.workers[0].dead.done, STALL + 2)
    replicas = rank.source.runner.machine.shelf.all()
    await until(lambda: not any(replica.readers for replica in replicas), 2)
    waiting.cancel()  # version 1 has no outcome: its arena is kept for that, not for the stalled target
    await asyncio.gather(waiting, return_exceptions=True)
    await rank.source.close()
