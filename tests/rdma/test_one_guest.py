"""Real workers over verbs in one guest: bytes, the device's own counters, and what a fault of either end costs."""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.transfer.workers import MIB, Bench, begun, stop, until, whole, write_all
from tests.rdma.counters import PACKET, sent_packets
from tools.world.nursery import Forked
from tools.world.processes import python
from weightsync.arena import Arena
from weightsync.errors import TransferError
from weightsync.wire.v1 import Region
from weightsync_agent.devices import sysfs
from weightsync_agent.devices import verbs as verbs_of
from weightsync_agent.devices.choice import decide
from weightsync_agent.transfer.settings import TransferSettings, Verbs
from weightsync_agent.transfer.supervisor import TransferWorker

pytestmark = pytest.mark.timeout(300)

NBYTES = 16 * MIB
STALL = 20.0  # emulated, beside others: a piece may take seconds


async def pair(
    bench: Bench, nbytes: int
) -> tuple[tuple[TransferWorker, Arena], tuple[TransferWorker, Arena, Region]]:
    """A source with a filled arena and a target, started side by side: each takes seconds here."""
    return await asyncio.gather(bench.source(nbytes), bench.target("target", nbytes))


async def test_the_bytes_cross_the_device_and_are_equal(bench: Bench) -> None:
    """Both workers say rdma, the target holds the source's bytes, digests agree, the device counted them."""
    (source, ours), (target, theirs, region) = await pair(bench, NBYTES + 12288)
    assert (source.capabilities.transport, target.capabilities.transport) == ("rdma", "rdma")
    before = sent_packets()
    done = await write_all(source, ours, region, stall=STALL)
    assert sent_packets() - before >= ours.header.nbytes // PACKET
    assert len(done) == len(whole(ours))
    assert ours.view == theirs.view
    assert await source.digest(ours.path, whole(ours)) == await target.digest(theirs.path, whole(theirs))


async def test_transports_do_not_mix(bench: Bench, verbs: TransferSettings) -> None:
    """A worker over TCP is not written to over RDMA, nor the other way round: refused before a byte moves."""
    (source, ours), (_, theirs, region) = await asyncio.gather(
        bench.source(MIB), bench.target("plain", MIB, replace(verbs, transport="tcp"))
    )
    with pytest.raises(TransferError, match="speaks tcp, worker source rdma") as caught:
        await write_all(source, ours, region)
    assert (caught.value.reason, caught.value.quiet) == ("CapabilityMismatch", True)
    assert not any(theirs.view)


async def test_a_killed_target_ends_at_the_stall_and_the_others_go_on_elsewhere(bench: Bench) -> None:
    """The device resends to a dead peer for ever: the fence makes every piece terminal, and the arena comes free."""
    (source, ours), (doomed, theirs, region), (_, other, elsewhere) = await asyncio.gather(
        bench.source(NBYTES), bench.target("doomed", NBYTES), bench.target("other", NBYTES)
    )
    write = await begun(source, ours, region, stall=4.0)
    doomed.kill()
    await doomed.dead
    began = time.monotonic()
    with pytest.raises(TransferError, match="was ended by taking") as caught:
        await write
    assert time.monotonic() - began < 25
    assert (caught.value.reason, caught.value.quiet) == ("Stalled", True)
    landed = bytes(theirs.view)
    with pytest.raises(TransferError, match="start another") as caught:
        await write_all(source, ours, elsewhere)
    assert (caught.value.reason, caught.value.quiet) == ("WorkerStuck", True)
    await source.detach(ours.path)
    assert bytes(theirs.view) == landed
    fresh = await bench.worker("fresh")
    await fresh.attach(ours.path)
    await write_all(fresh, ours, elsewhere, stall=STALL)
    assert other.view == ours.view


async def test_a_fence_lands_nothing_late(bench: Bench) -> None:
    """Bytes that change after a fenced write's end never reach the target, which lives and looks on."""
    (source, ours), (_, theirs, region) = await pair(bench, NBYTES)
    await write_all(source, ours, region, stall=STALL)
    ours.view[:] = os.urandom(NBYTES)
    with pytest.raises(TransferError) as caught:
        await write_all(source, ours, region, stall=0.02)  # shorter than a piece takes here
    assert (caught.value.reason, caught.value.quiet) == ("Stalled", True)
    ours.view[:] = bytes(NBYTES)
    before = bytes(theirs.view)
    await asyncio.sleep(1.0)  # what was on the way would be there by then
    assert theirs.view == before


async def test_a_killed_source_lands_nothing_late(bench: Bench) -> None:
    """A process's queue pairs die with it: its write ends quiet, and the target's bytes stay as they are."""
    (source, ours), (_, theirs, region) = await pair(bench, NBYTES)
    write = await begun(source, ours, region, stall=STALL)
    source.kill()
    with pytest.raises(TransferError) as caught:
        await write
    assert (caught.value.reason, caught.value.quiet) == ("WorkerDied", True)
    before = bytes(theirs.view)
    await asyncio.sleep(1.0)  # what was on the way would be there by then
    assert theirs.view == before != ours.view


async def test_a_stopped_target_is_written_to(bench: Bench) -> None:
    """The device needs no process at the other end once it was met."""
    (source, ours), (target, theirs, region) = await pair(bench, NBYTES)
    write = await begun(source, ours, region, stall=STALL)
    stop(target)
    await write
    assert theirs.view == ours.view


@pytest.mark.parametrize("index", [pytest.param(200, id="that the table does not hold")])
async def test_a_wrong_gid_index_starts_no_worker(bench: Bench, verbs: TransferSettings, index: int) -> None:
    """Mooncake does not initialise; the agent is told, and nothing falls back to TCP."""
    with pytest.raises(TransferError, match="initialising Mooncake over rdma"):
        await bench.worker("lost", replace(verbs, verbs=Verbs(devices=verbs.verbs.devices, gid_index=index)))


async def test_a_device_that_is_not_there_starts_no_worker(bench: Bench, verbs: TransferSettings) -> None:
    """A device filter that matches nothing is no leave to take TCP."""
    with pytest.raises(TransferError, match="initialising Mooncake over rdma"):
        await bench.worker("lost", replace(verbs, verbs=Verbs(devices=("mlx5_7",))))


async def test_a_read_only_arena_is_refused_before_it_is_registered(bench: Bench) -> None:
    """The sentence says what to mount how; Mooncake's own would be a number."""
    folder = bench.folder / "sealed"
    folder.mkdir()
    await run("mount", "-t", "tmpfs", "tmpfs", str(folder))
    with Arena.create(folder / "arena", layout="0" * 32, program="0" * 32, nbytes=MIB) as arena:
        path = arena.path
    await run("mount", "-o", "remount,ro", str(folder))
    worker = await bench.worker("worker")
    with pytest.raises(TransferError, match="mount the volume read-write"):
        await worker.attach(path)
    await run("umount", str(folder))


async def run(*command: str) -> None:
    """A command that must succeed."""
    await asyncio.to_thread(subprocess.run, command, check=True)


POOR = """
import asyncio, os, sys
from pathlib import Path
from weightsync.errors import TransferError
from weightsync_agent.transfer.settings import TransferSettings, Verbs
from weightsync_agent.transfer.supervisor import TransferWorker

async def main():
    verbs = Verbs(devices=(os.environ["GUEST_DEVICE"],))
    settings = TransferSettings(transport="rdma", verbs=verbs, start_seconds=120)
    worker = await TransferWorker.start(os.environ["GUEST_ADDRESS"], settings, name="poor")
    try:
        await worker.attach(Path(sys.argv[1]))
    except TransferError as error:
        print(error)
    await worker.close()

asyncio.run(main())
"""


async def test_too_little_lockable_memory_is_a_sentence(bench: Bench) -> None:
    """Without CAP_IPC_LOCK and with a small memlock limit: what failed, and what to raise."""
    arena = bench.arena("arena", 4 * MIB)
    command = [
        "prlimit", "--memlock=1048576", "setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock",
        sys.executable, "-c", POOR, str(arena.path),
    ]  # fmt: skip
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert "raise the memlock limit" in done.stdout, done.stdout + done.stderr
    assert str(Path(arena.path)) in done.stdout


def test_the_device_is_discovered_and_opened() -> None:
    """sysfs and libibverbs agree on it; Auto takes it."""
    (device,) = verbs_of.opened(sysfs.discover())
    (port,) = device.ports
    assert (device.name, device.problems, port.state, port.layer) == (
        os.environ["GUEST_DEVICE"], (), "ACTIVE", "Ethernet",
    )  # fmt: skip
    assert os.environ["GUEST_ADDRESS"] in {gid.ipv4 for gid in port.gids}
    assert {gid.kind for gid in port.gids} <= {"RoCE v1", "RoCE v2"}
    assert (device.max_mr_bytes or 0) > NBYTES
    decision = decide("auto", (device,))
    assert (decision.transport, decision.devices) == ("rdma", (device,))


async def test_preflight_says_that_the_guest_is_fit(bench: Bench) -> None:
    """Over verbs, with a loopback write that is compared."""
    command = python("weightsync_cli", "preflight", "--transport", "rdma", "--size", "4Mi", "-o", "json")
    environment = {"POD_IP": os.environ["GUEST_ADDRESS"], "WEIGHTSYNC_DIR": str(bench.folder)}
    program = Forked("preflight", command, environment, bench.folder / "said")
    program.start()
    await until(lambda: not program.alive, seconds=240)
    said = program.log.read_text()
    findings = {each["check"]: each for each in json.loads(said)["findings"]}
    assert {each["status"] for each in findings.values()} == {"ok"}, said
    assert f"{4 * MIB} bytes over rdma in" in findings["loopback write"]["found"]


async def test_an_arena_comes_free_when_its_writes_are_terminal(bench: Bench) -> None:
    """detach() after a write, and the same file again."""
    (source, ours), (_, theirs, region) = await pair(bench, MIB)
    await write_all(source, ours, region, stall=STALL)
    await source.detach(ours.path)
    ours.view[:4] = os.urandom(4)
    await source.attach(ours.path)
    await write_all(source, ours, region, stall=STALL)
    await until(lambda: theirs.view == ours.view)
