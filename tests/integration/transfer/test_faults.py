"""What happens to a write when one of the two processes is killed, stopped or hangs, and to the other writes."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.transfer.workers import MIB, SMALL, Bench, begun, go_on, running, stop, until, whole, write_all
from tools.world.processes import stands_still
from weightsync.buckets import Bucket
from weightsync.errors import TransferError
from weightsync.wire.v1 import Region
from weightsync_agent.transfer import supervisor
from weightsync_agent.transfer.probe import Peer
from weightsync_agent.transfer.supervisor import TransferWorker

pytestmark = pytest.mark.mooncake

NBYTES = 128 * MIB


async def test_killed_target_fails_its_own_write_only(bench: Bench) -> None:
    """kill -9 of a target in mid-write: its write fails soon, quiet, as the process is gone; the other completes."""
    source, ours = await bench.source(NBYTES)
    doomed, _, region = await bench.target("doomed", NBYTES)
    _, other, elsewhere = await bench.target("other", NBYTES)
    write = await begun(source, ours, region)
    beside = asyncio.create_task(write_all(source, ours, elsewhere))
    doomed.kill()
    began = time.monotonic()
    with pytest.raises(TransferError, match=r"failed: Mooncake failed a write") as caught:
        await write
    assert time.monotonic() - began < 10
    assert (caught.value.reason, caught.value.quiet) == ("TransferFailed", True)
    assert len(await beside) == len(whole(ours))
    assert other.view == ours.view
    await source.detach(ours.path)  # every piece is terminal


async def test_stopped_target_stalls_its_own_write_only(bench: Bench) -> None:
    """SIGSTOP of a target: Stalled after stall_seconds, not quiet; another write meanwhile is done before that."""
    source, ours = await bench.source(NBYTES)
    stopped, _, region = await bench.target("stopped", NBYTES)
    _, other, elsewhere = await bench.target("other", NBYTES)
    await write_all(source, ours, elsewhere)
    write = await begun(source, ours, region, stall=4.0)
    stop(stopped)
    began = time.monotonic()
    assert len(await write_all(source, ours, elsewhere)) == len(whole(ours))
    assert not write.done(), "the other write waited for the stopped target"
    with pytest.raises(TransferError, match="ended for 4 s") as caught:
        await write
    assert time.monotonic() - began < 15
    assert (caught.value.reason, caught.value.quiet) == ("Stalled", False)
    assert other.view == ours.view
    with pytest.raises(TransferError, match="not terminal"):
        await source.detach(ours.path)
    # The receiver's death is what makes the region quiet, and the pieces terminal.
    stopped.kill()
    await stopped.dead
    await until(lambda: detached(source, ours.path))


async def detached(worker: TransferWorker, path: Path) -> bool:
    """Whether the arena could be given back."""
    try:
        await worker.detach(path)
    except TransferError:
        return False
    return True


async def test_terminal_pieces_to_a_stopped_target_are_not_quiet(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mooncake gives up on a stopped target: all pieces are terminal, yet bytes in its sockets land when it goes on.

    So the failure must not be called quiet while the target's process lives, and the source's arena may change.
    """
    monkeypatch.setenv("MC_TCP_PROGRESS_TIMEOUT_SEC", "1")
    monkeypatch.setenv("MC_TCP_STATUS_TIMEOUT_SEC", "1")
    source, ours = await bench.source(NBYTES)
    target, theirs, region = await bench.target("target", NBYTES)
    write = await begun(source, ours, region)
    stop(target)
    with pytest.raises(TransferError, match="Mooncake failed") as caught:
        await write
    assert not caught.value.quiet
    await source.detach(ours.path)
    before = theirs.view.tobytes()
    go_on(target)
    await until(lambda: theirs.view != before)


async def test_dead_worker_raises_what_is_pending(bench: Bench) -> None:
    """A killed source: a write to a stopped target and a later call raise, with the reason; ``dead`` tells it too."""
    source, ours = await bench.source(NBYTES)
    target, _, region = await bench.target("target", NBYTES)
    write = await begun(source, ours, region)
    stop(target)
    source.kill()
    with pytest.raises(TransferError, match="ended by SIGKILL") as caught:
        await write
    assert (caught.value.reason, caught.value.quiet) == ("WorkerDied", False)
    assert "SIGKILL" in await source.dead
    for call in (source.attach(ours.path), source.digest(ours.path, whole(ours)), write_all(source, ours, region)):
        with pytest.raises(TransferError) as caught:
            await call
        assert caught.value.reason == "WorkerDied"


async def test_call_pending_at_death_raises(bench: Bench) -> None:
    """A stopped worker answers nothing; when it is killed the waiting call raises."""
    source, ours = await bench.source(MIB)
    stop(source)
    call = asyncio.create_task(source.digest(ours.path, whole(ours)))
    await asyncio.sleep(0)
    source.kill()
    with pytest.raises(TransferError, match="SIGKILL"):
        await call


async def test_worker_that_does_not_answer_is_stalled(bench: Bench) -> None:
    """A frozen worker costs its callers the deadline of a call, not more."""
    source, ours = await bench.source(MIB, replace(SMALL, call_seconds=0.5))
    stop(source)
    with pytest.raises(TransferError, match="did not answer digest") as caught:
        await source.digest(ours.path, whole(ours))
    assert caught.value.reason == "Stalled"


async def test_stopped_target_is_met_by_the_probe(bench: Bench) -> None:
    """A target that is stopped before the first contact: Mooncake is never let near it, and others are served."""
    source, ours = await bench.source(8 * MIB, replace(SMALL, contact_seconds=0.5))
    stopped, _, region = await bench.target("stopped", 8 * MIB)
    _, _, elsewhere = await bench.target("other", 8 * MIB)
    stop(stopped)
    first = asyncio.create_task(write_all(source, ours, region))
    await write_all(source, ours, elsewhere)
    with pytest.raises(TransferError, match="stopped, or cut off") as caught:
        await first
    assert (caught.value.reason, caught.value.quiet) == ("Unreachable", True)


async def test_hanging_first_contact_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that stops between probe and first contact holds Mooncake's lock: the write to it is Stalled.

    A write to another that it held up is given back, quiet, with the word to start another worker; a later one is
    refused at once.
    """

    async def answered(session: str, deadline_seconds: float) -> Peer:
        return Peer(session, 2, ((0, 1 << 62),))

    source, ours = await bench.source(8 * MIB, replace(SMALL, contact_seconds=1.0))
    stopped, _, region = await bench.target("stopped", 8 * MIB)
    _, other, elsewhere = await bench.target("other", 8 * MIB)
    await write_all(source, ours, elsewhere)
    stop(stopped)
    monkeypatch.setattr(supervisor, "probe", answered)
    held = asyncio.create_task(write_all(source, ours, region))
    behind = asyncio.create_task(write_all(source, ours, elsewhere))
    with pytest.raises(TransferError, match="first contact") as caught:
        await held
    assert (caught.value.reason, caught.value.quiet) == ("Stalled", False)
    for write in (behind, write_all(source, ours, elsewhere)):
        with pytest.raises(TransferError, match="start another") as caught:
            await write
        assert (caught.value.reason, caught.value.quiet) == ("WorkerStuck", True)
    assert other.view == ours.view


async def test_left_iteration_stops_the_rest(bench: Bench) -> None:
    """A caller that leaves after one bucket: what was not submitted never is, and the arena comes free."""
    source, ours = await bench.source(NBYTES)
    _, theirs, region = await bench.target("target", NBYTES)
    stream = source.write(ours.path, whole(ours), region, stall_seconds=20)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: detached(source, ours.path))
    assert theirs.view != ours.view


async def test_a_stopped_write_waits_for_what_was_submitted(bench: Bench) -> None:
    """Nothing new is submitted; buckets that landed are told; it ends Stopped and quiet, and the arena is free."""
    source, ours = await bench.source(NBYTES)
    _, theirs, region = await bench.target("target", NBYTES)
    halt, landed = asyncio.Event(), list[Bucket]()

    async def write() -> None:
        async for bucket in source.write(ours.path, whole(ours), region, stall_seconds=20, stop=halt):
            landed.append(bucket)
            halt.set()

    with pytest.raises(TransferError, match="was stopped") as caught:
        await write()
    assert (caught.value.reason, caught.value.quiet) == ("Stopped", True)
    assert 0 < len(landed) < len(whole(ours))
    await source.detach(ours.path)  # every piece is terminal
    for bucket in landed:
        run = slice(bucket.offset, bucket.offset + bucket.nbytes)
        assert theirs.view[run] == ours.view[run]


async def test_a_stopped_write_to_a_stopped_target_stalls(bench: Bench) -> None:
    """What was submitted does not end: Stalled, not quiet."""
    source, ours = await bench.source(NBYTES)
    target, _, region = await bench.target("target", NBYTES)
    await write_all(source, ours, region)  # what a link bears is known now: the next write has much outstanding
    halt = asyncio.Event()

    async def write() -> None:
        async for _ in source.write(ours.path, whole(ours), region, stall_seconds=2, stop=halt):
            stop(target)
            halt.set()

    with pytest.raises(TransferError, match="ended for 2 s") as caught:
        await write()
    assert (caught.value.reason, caught.value.quiet) == ("Stalled", False)


async def test_failed_initialize_is_a_sentence() -> None:
    """RDMA is required and there is no device: start() says so, and nothing is called on the broken engine."""
    with pytest.raises(TransferError, match=r"worker bare: initialising Mooncake over rdma at 127\.0\.0\.1 failed"):
        await TransferWorker.start("127.0.0.1", replace(SMALL, transport="rdma"), name="bare")


async def test_slow_start_is_given_up() -> None:
    """A worker that is not ready in time is killed."""
    with pytest.raises(TransferError, match=r"not ready within 0\.001 s"):
        await TransferWorker.start("127.0.0.1", replace(SMALL, start_seconds=0.001), name="slow")


PARENT = """
import asyncio, sys
from weightsync_agent.transfer.supervisor import TransferSettings, TransferWorker

async def main():
    worker = await TransferWorker.start("127.0.0.1", TransferSettings(), name="orphan")
    print(worker.pid, flush=True)
    await worker.dead

asyncio.run(main())
"""


@pytest.mark.parametrize("frozen", [pytest.param(False, id="idle"), pytest.param(True, id="with a frozen child")])
async def test_child_ends_with_its_parent(frozen: bool) -> None:
    """A killed agent leaves no worker behind, also where the worker's interpreter answers nothing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    assert parent.stdout is not None
    while not (line := await parent.stdout.readline()).strip().isdigit():
        assert line, "the parent ended before its worker was ready"
    if frozen:
        os.kill(int(line), signal.SIGSTOP)
        stands_still(int(line))
    parent.kill()
    await parent.wait()
    await until(lambda: not running(int(line)))


async def test_write_to_a_region_of_a_vanished_worker(bench: Bench) -> None:
    """A target that ended before the first contact: unreachable at once, nothing was written."""
    source, ours = await bench.source(MIB)
    target, _, region = await bench.target("target", MIB)
    await target.close()
    with pytest.raises(TransferError) as caught:
        await write_all(source, ours, Region.model_validate(region))
    assert (caught.value.reason, caught.value.quiet) == ("Unreachable", True)
