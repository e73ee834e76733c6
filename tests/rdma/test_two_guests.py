"""Workers over verbs in two guests on one wire: bytes, counters, and faults of the wire and of the other guest."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from tests.integration.transfer.workers import MIB, Bench, begun, until, write_all
from tests.rdma.counters import PACKET, sent_packets
from tests.rdma.far import ADDRESS, Link, verbs
from weightsync.arena import Arena
from weightsync.digests import digest_bytes
from weightsync.errors import TransferError
from weightsync.wire.v1 import Region
from weightsync_agent.transfer.supervisor import TransferWorker
from weightsync_cli.checks import writes

pytestmark = pytest.mark.timeout(300)

NBYTES = 8 * MIB
LONG = 32 * MIB  # so that a write is under way for a while after its first bucket
STALL = 30.0  # emulated, beside another guest: a piece may take seconds
SHORT = 5.0


@pytest.fixture
async def far() -> AsyncIterator[Link]:
    """The other guest; what was started there ends with the test."""
    link = await Link.open()
    yield link
    await link.ask("clear")
    link.close()


async def run(command: str) -> None:
    """A shell's command in this guest."""
    await asyncio.to_thread(subprocess.run, ["bash", "-c", command], check=True)


async def pair(bench: Bench, far: Link, name: str, nbytes: int) -> tuple[TransferWorker, Arena, Region]:
    """A source with a filled arena here and a target there, started side by side."""
    (source, ours), region = await asyncio.gather(bench.source(nbytes), far.target(name, nbytes))
    return source, ours, region


async def stalled(write: Awaitable[object]) -> TransferError:
    """How a write ended that must have been fenced."""
    with pytest.raises(TransferError) as caught:
        await write
    assert (caught.value.reason, caught.value.quiet) == ("Stalled", True), caught.value
    return caught.value


async def arrives(bench: Bench, arena: Arena, far: Link, name: str) -> None:
    """A fresh worker writes the arena to a fresh target."""
    worker, region = await asyncio.gather(bench.worker(f"for {name}"), far.target(name, arena.header.nbytes))
    await worker.attach(arena.path)
    await write_all(worker, arena, region, stall=STALL)
    assert await far.ask("digest", name=name) == digest_bytes(arena.view)


async def test_the_bytes_cross_the_wire_and_are_equal(bench: Bench, far: Link) -> None:
    """The other guest's arena holds the source's bytes, and this guest's device has sent as many."""
    source, ours, region = await pair(bench, far, "plain", NBYTES)
    before = sent_packets()
    await write_all(source, ours, region, stall=STALL)
    assert sent_packets() - before >= NBYTES // PACKET
    assert await far.ask("digest", name="plain") == digest_bytes(ours.view)


async def test_a_peer_killed_in_mid_write_is_fenced_at_the_stall(bench: Bench, far: Link) -> None:
    """Quiet, the arena comes free, and another target over there is written to by a fresh worker."""
    source, ours, region = await pair(bench, far, "doomed", LONG)
    write = await begun(source, ours, region, stall=SHORT)
    await far.ask("kill", name="doomed")
    await stalled(write)
    await source.detach(ours.path)
    await arrives(bench, ours, far, "after a death")


async def test_a_peer_stopped_in_mid_write_is_written_to(bench: Bench, far: Link) -> None:
    """One-sided: its device needs no process."""
    source, ours, region = await pair(bench, far, "stopped", LONG)
    write = await begun(source, ours, region, stall=STALL)
    await far.ask("stop", name="stopped")
    await write
    assert await far.ask("digest", name="stopped") == digest_bytes(ours.view)


CUT = "nft add table ip cut; nft add chain ip cut out '{ type filter hook output priority 0; }'"
DROP = "nft add rule ip cut out udp dport 4791 drop"  # RoCE v2; what agents and workers say by TCP goes on


@asynccontextmanager
async def cut() -> AsyncIterator[None]:
    """This guest's device sends nothing meanwhile, and nobody is told."""
    await run(f"{CUT}; {DROP}")
    try:
        yield
    finally:
        await run("nft delete table ip cut")


async def test_packets_lost_for_a_while_cost_time_only(bench: Bench, far: Link) -> None:
    """The device resends what the wire dropped."""
    source, ours, region = await pair(bench, far, "lossy", NBYTES)
    await write_all(source, ours, region, stall=STALL)
    ours.view[:] = os.urandom(NBYTES)
    async with cut():
        write = asyncio.create_task(write_all(source, ours, region, stall=STALL))
        await asyncio.sleep(3.0)  # longer than a round trip, shorter than the stall
        assert not write.done()
    await write
    assert await far.ask("digest", name="lossy") == digest_bytes(ours.view)


async def test_a_wire_that_stays_cut_is_fenced_and_lands_nothing_late(bench: Bench, far: Link) -> None:
    """Healed after the write's end, the wire carries none of its bytes any more."""
    source, ours, region = await pair(bench, far, "cut", NBYTES)
    await write_all(source, ours, region, stall=STALL)
    ours.view[:] = os.urandom(NBYTES)
    async with cut():
        error = await stalled(write_all(source, ours, region, stall=SHORT))
        assert "was ended by taking" in str(error)
        ours.view[:] = bytes(NBYTES)
        landed = await far.ask("digest", name="cut")
    await asyncio.sleep(2.0)  # what was resent would be there by then
    assert await far.ask("digest", name="cut") == landed
    await arrives(bench, ours, far, "after a cut")


async def test_the_sources_link_goes_down_and_up(bench: Bench, far: Link) -> None:
    """The write ends with an error, in time; afterwards a fresh worker goes through."""
    source, ours, region = await pair(bench, far, "unplugged", LONG)
    write = await begun(source, ours, region, stall=SHORT)
    await run("ip link set eth0 down; sleep 2; ip link set eth0 up")
    with pytest.raises(TransferError):
        await asyncio.wait_for(write, 60)
    await source.detach(ours.path)  # every piece is terminal
    await arrives(bench, ours, far, "plugged in again")


async def test_the_targets_link_goes_down_and_up(bench: Bench, far: Link) -> None:
    """The write ends with an error, in time; afterwards a fresh pair goes through."""
    source, ours, region = await pair(bench, far, "dark", LONG)
    write = await begun(source, ours, region, stall=SHORT)
    await far.ask("later", command="ip link set eth0 down; sleep 8; ip link set eth0 up")
    with pytest.raises(TransferError):
        await asyncio.wait_for(write, 60)
    await until(lambda: reachable(far), seconds=60)
    await source.detach(ours.path)
    await arrives(bench, ours, far, "lit again")


async def reachable(far: Link) -> bool:
    """Whether the other guest answers."""
    return bool(await far.ask("digest", name="dark"))


async def test_gids_of_two_kinds_do_not_meet(bench: Bench, far: Link) -> None:
    """A link-local GID here and an IPv4 one there: the write fails, nothing lands."""
    (source, ours), region = await asyncio.gather(
        bench.source(MIB, verbs(gid_index=0)), far.target("other kind", MIB, gid_index=1)
    )
    empty = await far.ask("digest", name="other kind")
    with pytest.raises(TransferError):
        await write_all(source, ours, region, stall=STALL)
    assert await far.ask("digest", name="other kind") == empty


async def test_preflight_writes_from_guest_to_guest(bench: Bench, far: Link) -> None:
    """Compared and timed, over the devices."""
    port = await far.ask("listen")
    place = writes.Place(os.environ["GUEST_ADDRESS"], verbs(), bench.folder)
    before = sent_packets()
    found = await writes.to_peer(place, f"{ADDRESS}:{port}", 4 * MIB)
    assert found.status == "ok", found
    assert f"{4 * MIB} bytes over rdma in" in found.found
    assert sent_packets() - before >= 2 * 4 * MIB // PACKET  # it is written twice, and the second one timed
