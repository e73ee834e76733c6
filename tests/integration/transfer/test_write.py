"""Writes between real workers: bytes, digests, regions."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.integration.transfer.workers import MIB, Bench, whole, write_all
from weightsync.arena import Arena
from weightsync.buckets import Bucket
from weightsync.digests import digest_bytes
from weightsync.errors import InputError, TransferError
from weightsync.wire.v1 import Region
from weightsync_agent.transfer.capabilities import agree
from weightsync_agent.transfer.probe import probe
from weightsync_agent.transfer.supervisor import TransferSettings, TransferWorker

pytestmark = pytest.mark.mooncake


async def test_bytes_and_digests_are_equal_at_both_ends(bench: Bench) -> None:
    """Every bucket is reported once, the target's file holds the source's bytes, and digests agree everywhere."""
    source, ours = await bench.source(40 * MIB + 12288)
    target, theirs, region = await bench.target("target", 40 * MIB + 12288)
    buckets = whole(ours)
    done = await write_all(source, ours, region)
    assert sorted(done, key=lambda bucket: bucket.offset) == buckets
    assert ours.view == theirs.view
    found = await source.digest(ours.path, buckets)
    assert found == await target.digest(theirs.path, buckets)
    assert [d.digest for d in found] == [digest_bytes(ours.view[b.offset : b.offset + b.nbytes]) for b in buckets]


async def test_only_the_given_buckets_are_written(bench: Bench) -> None:
    """A source that owns a part of the replica leaves the rest of the target alone; the same offset at both ends."""
    source, ours = await bench.source(8 * MIB)
    _, theirs, region = await bench.target("target", 8 * MIB)
    run = Bucket(offset=4096, nbytes=MIB)
    assert [b async for b in source.write(ours.path, [run], region, stall_seconds=20)] == [run]
    assert theirs.view[4096 : 4096 + MIB] == ours.view[4096 : 4096 + MIB]
    assert not any(theirs.view[:4096])
    assert not any(theirs.view[4096 + MIB :])


async def test_one_worker_serves_several_targets_and_calls_at_once(bench: Bench) -> None:
    """Concurrent writes to three targets, two calls each, with a digest beside them: all arrive."""
    source, ours = await bench.source(24 * MIB)
    targets = [await bench.target(f"target-{n}", 24 * MIB) for n in range(3)]
    half = [whole(ours)[:1], whole(ours)[1:]]

    async def write(part: list[Bucket], to: Region) -> list[Bucket]:
        return [bucket async for bucket in source.write(ours.path, part, to, stall_seconds=20)]

    writes = [write(part, region) for _, _, region in targets for part in half]
    digests = asyncio.create_task(source.digest(ours.path, whole(ours)))
    assert sum(len(part) for part in await asyncio.gather(*writes)) == 9
    assert len(await digests) == 3
    assert all(arena.view == ours.view for _, arena, _ in targets)


async def test_regions_are_arenas_whatever_is_in_them(bench: Bench) -> None:
    """20 arenas are 20 regions, and attaching them again adds none."""
    worker = await bench.worker("many")
    arenas = [bench.arena(f"arena-{n}", 65536) for n in range(20)]
    regions = [await worker.attach(arena.path) for arena in arenas]
    assert [await worker.attach(arena.path) for arena in arenas] == regions
    told = (await probe(worker.session, 10)).regions
    assert sorted(told) == sorted((region.address, region.nbytes) for region in regions)


async def test_region_that_is_not_the_targets_is_refused(bench: Bench) -> None:
    """By us, before a byte moves, where the bucket or the region does not fit; the target stays untouched."""
    source, ours = await bench.source(8 * MIB)
    _, theirs, region = await bench.target("target", 4 * MIB)
    moved = region.model_copy(update={"address": region.address + 4 * MIB})
    for to, buckets in [(region, whole(ours)), (moved, [Bucket(offset=0, nbytes=MIB)])]:
        with pytest.raises(TransferError) as caught:
            await anext(source.write(ours.path, buckets, to, stall_seconds=20))
        assert (caught.value.reason, caught.value.quiet) == ("OutOfRegion", True)
    assert not any(theirs.view)


async def test_region_that_mooncake_refuses_fails_the_write(bench: Bench) -> None:
    """A region that was unregistered after the first contact: the write fails, and another target is unhurt."""
    source, ours = await bench.source(8 * MIB)
    target, theirs, region = await bench.target("target", 8 * MIB)
    _, other, elsewhere = await bench.target("other", 8 * MIB)
    assert len(await write_all(source, ours, region)) == 1
    await target.detach(theirs.path)
    with pytest.raises(TransferError, match=r"write to .* failed") as caught:
        await write_all(source, ours, region)
    assert not caught.value.quiet  # its process lives: what is on the way cannot be known to have been refused
    await write_all(source, ours, elsewhere)
    assert other.view == ours.view


async def test_detached_arena_is_unknown(bench: Bench) -> None:
    """After detach() neither digest nor write finds it, and it can be attached again."""
    source, ours = await bench.source(MIB)
    _, _, region = await bench.target("target", MIB)
    await source.detach(ours.path)
    with pytest.raises(TransferError, match="not attached"):
        await source.digest(ours.path, whole(ours))
    with pytest.raises(TransferError, match="not attached"):
        await write_all(source, ours, region)
    await source.attach(ours.path)
    await write_all(source, ours, region)


async def test_file_that_is_no_arena_is_refused(bench: Bench, memory_folder: Path) -> None:
    """A wrong file is the caller's error and names the file; the worker goes on."""
    worker = await bench.worker("worker")
    wrong = memory_folder / "wrong"
    wrong.write_bytes(os.urandom(8192))
    with pytest.raises(InputError, match="not an arena"):
        await worker.attach(wrong)
    short = bench.arena("short", 65536)
    os.truncate(short.path, 8192)
    with pytest.raises(InputError, match="8192 bytes, 69632 expected"):
        await worker.attach(short.path)
    with pytest.raises(InputError, match="cannot be read"):
        await worker.attach(memory_folder / "missing")
    await worker.attach(bench.arena("right", 4096).path)


async def test_workers_of_one_kind_agree(bench: Bench) -> None:
    """Two workers with the same settings may write to each other; with another slice size they may not."""
    one, other = await bench.worker("one"), await bench.worker("other")
    agree(one.capabilities, other.capabilities)
    third = await bench.worker("third", TransferSettings(slice_bytes=65536))
    with pytest.raises(Exception, match="MC_TCP_SLICE_SIZE is 1048576 on our side and 65536 on theirs"):
        agree(one.capabilities, third.capabilities)


async def test_ports_lie_in_the_range(bench: Bench) -> None:
    """The session's port is one that a NetworkPolicy can name."""
    worker = await bench.worker("worker", TransferSettings(min_port=15300, max_port=15330))
    assert 15300 <= int(worker.session.rpartition(":")[2]) <= 15330


async def test_ipv6(bench: Bench) -> None:
    """An IPv6 host gives a session in brackets, and bytes move."""
    workers = [await TransferWorker.start("::1", TransferSettings(), name=name) for name in ("six", "sechs")]
    bench.workers.extend(workers)
    ours, theirs = bench.arena("six", MIB, filled=True), bench.arena("sechs", MIB)
    await workers[0].attach(ours.path)
    region = await workers[1].attach(theirs.path)
    assert region.session.startswith("[::1]:")
    await write_all(workers[0], ours, region)
    assert ours.view == theirs.view


async def test_written_bytes_stay_in_the_file(bench: Bench) -> None:
    """The arena outlives the worker that received into it: another process reads the same bytes."""
    source, ours = await bench.source(MIB)
    target, theirs, region = await bench.target("target", MIB)
    await write_all(source, ours, region)
    target.kill()
    await target.dead
    with Arena.open(theirs.path) as again:
        assert again.view == ours.view


async def test_an_arena_is_read_into_another_and_only_where_asked(bench: Bench) -> None:
    """One-sided: its bytes land at the same offset; beyond either end nothing is read, nor from one that ended."""
    holder, theirs = await bench.source(8 * MIB)
    region = await holder.attach(theirs.path)
    reader, ours, _ = await bench.target("reader", 8 * MIB)
    await reader.meet(region, deadline_seconds=10)
    await reader.fetch(ours.path, MIB, 4 * MIB, region, seconds=20)
    assert ours.view[MIB : 5 * MIB] == theirs.view[MIB : 5 * MIB]
    assert not any(ours.view[:MIB])
    assert not any(ours.view[5 * MIB :])
    with pytest.raises(TransferError, match="not within"):
        await reader.fetch(ours.path, 7 * MIB, 2 * MIB, region, seconds=20)
    holder.kill()
    await holder.dead
    with pytest.raises(TransferError):
        await reader.fetch(ours.path, 0, MIB, region, seconds=5)
