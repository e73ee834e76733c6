"""The whole data plane over the wire: trainer in this guest, engine in the other.

Faults come in the middle of a write: while the other guest's wire is cut, bytes are on their way and do not arrive.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rdma import far, plane
from tests.rdma.counters import sent_packets
from tests.rdma.here import GuestWorld
from tools.world.pod import Pod
from tools.world.processes import Child, wait
from weightsync import Publisher

pytestmark = pytest.mark.timeout(900)

ENGINE = "engine-0"
MADE = Path(os.environ.get("OUT", "")) / "model"
CUT = (
    "nft add table ip cut; nft add chain ip cut come '{ type filter hook input priority 0; }'; "
    "nft add rule ip cut come udp dport 4791 drop"  # RoCE v2; what agents say by TCP goes on
)
HEAL = "nft delete table ip cut"
UNPLUG = "ip link set eth0 down; sleep 8; ip link set eth0 up"
ON_THE_WAY = 16  # packets: more than connections need to be made


class Elsewhere(Child):
    """A process of the other guest: whether it runs is not known here."""

    def __init__(self, name: str) -> None:
        super().__init__(name, [], {}, Path(os.devnull))

    @property
    def alive(self) -> bool:
        """It counts as running."""
        return True

    def stop(self, seconds: float = 10.0) -> None:
        """The other guest ends it."""

    def tail(self, lines: int = 25) -> str:
        """Of all that runs there."""
        return str(ask("tails", lines=lines))


def ask(call: str, **arguments: object) -> Any:
    """One question to the other guest."""

    async def once() -> Any:
        link = await far.Link.open()
        try:
            return await link.ask(call, **arguments)
        finally:
            link.close()

    return asyncio.run(once())


def joined(world: GuestWorld) -> Pod:
    """The engine's pod, started in the other guest, in this world's inventory."""
    ports = ask("engine", name=ENGINE, secret=world.secret, model=str(MADE / str(plane.BASE)))
    world.pods[ENGINE] = Pod(
        ENGINE, "engine", Path(os.devnull), ports["agent"], Elsewhere("agent"), engine_port=ports["engine"],
        uid=ENGINE, host=far.ADDRESS,
    )  # fmt: skip
    world._write_inventory()
    return world.pods[ENGINE]


@pytest.fixture(scope="module")
def running() -> Iterator[plane.Plane]:
    """Booted once."""
    with GuestWorld(**far.AGENTS) as world:
        trainer = world.trainer("trainer-0")
        joined(world)
        with Publisher(rank=0, world_size=1, directory=trainer.volume, connect_timeout=plane.PATIENT) as publisher:
            world.wait_for_engines(1, seconds=plane.PATIENT)
            yield plane.Plane(world, publisher, MADE)


def in_mid_write(running: plane.Plane, seed: int) -> plane.Publishing:
    """A publish whose bytes are on the way, and do not arrive until the wire is healed."""
    ask("shell", command=CUT)
    publishing = running.begin(seed)
    wait("bytes on the wire", lambda: sent_packets() - publishing.before > ON_THE_WAY, plane.PATIENT)
    return publishing


def test_a_publish_goes_over_the_wire_and_is_served(running: plane.Plane) -> None:
    """The packets are this guest's, the tokens the other's."""
    publishing = running.begin(11)
    outcome = publishing.outcome()
    assert [each.outcome for each in outcome.engines] == ["Current"], outcome.describe()
    assert outcome.transports == {"rdma": 1}
    assert publishing.payloads >= 1
    assert running.served(running.world.pods[ENGINE]) == 11


def test_packets_lost_in_a_publish_cost_time_only(running: plane.Plane) -> None:
    """The device resends what the wire dropped."""
    engine = running.world.pods[ENGINE]
    before = running.served(engine)
    publishing = in_mid_write(running, 12)
    assert running.served(engine) == before
    ask("shell", command=HEAL)
    outcome = publishing.outcome()
    assert [each.outcome for each in outcome.engines] == ["Current"], outcome.describe()
    assert outcome.transports == {"rdma": 1}
    assert running.served(engine) == 12


def test_an_engine_whose_worker_dies_in_a_publish_serves_on_and_is_repaired(running: plane.Plane) -> None:
    """Its outcome is honest, nothing of the broken write is ever served, and the next version goes through."""
    engine = running.world.pods[ENGINE]
    before = running.served(engine)
    publishing = in_mid_write(running, 13)
    assert ask("kill_workers") == 1
    assert running.served(engine) == before
    ask("shell", command=HEAL)
    outcome = publishing.outcome()
    assert [(each.outcome, each.reason) for each in outcome.engines] == [("Failed", "Stalled")], outcome.engines
    assert running.served(engine) == before
    recovers(running, 11)


def test_an_engine_whose_link_goes_down_in_a_publish_serves_on_and_is_repaired(running: plane.Plane) -> None:
    """The same where its whole guest cannot be reached for a while."""
    engine = running.world.pods[ENGINE]
    before = running.served(engine)
    publishing = in_mid_write(running, 14)
    ask("later", command=f"{UNPLUG}; {HEAL}")
    outcome = publishing.outcome()
    assert [each.outcome for each in outcome.engines] == ["Failed"], outcome.engines
    assert running.served(engine) == before
    recovers(running, 12)


def recovers(running: plane.Plane, seed: int) -> None:
    """The version that failed was never decided; the next one goes through, over the wire as before.

    At the third publish at the latest: a receiving worker that nobody reaches any more is replaced after two.
    """
    outcomes = []
    for _ in range(3):
        outcomes.append(running.begin(seed).outcome())
        if [each.outcome for each in outcomes[-1].engines] == ["Current"]:
            break
    assert outcomes[-1].transports == {"rdma": 1}, [outcome.describe() for outcome in outcomes]
    assert running.served(running.world.pods[ENGINE]) == seed
