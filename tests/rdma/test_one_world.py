"""The whole data plane in one guest: a publish goes over verbs into the reference engine, whose tokens are right, and
past one whose pod has no device.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rdma import plane
from tests.rdma.here import GuestWorld
from weightsync import Publisher
from weightsync.wire.v1 import EngineOutcome

pytestmark = pytest.mark.timeout(900)

MADE = Path(os.environ.get("OUT", "")) / "model"
WITH, WITHOUT = "engine-0", "engine-1"
NO_FILE = "/dev/infiniband/uverbs0 is not in this container"


@pytest.fixture(scope="module")
def running() -> Iterator[plane.Plane]:
    """Booted once: programs start slowly here. One engine's pod has the device, the other's has not."""
    with GuestWorld() as world:
        trainer = world.trainer("trainer-0")
        world.engine(WITH, MADE / str(plane.BASE))
        world.engine_without_device(WITHOUT, MADE / str(plane.BASE))
        with Publisher(rank=0, world_size=1, directory=trainer.volume, connect_timeout=plane.PATIENT) as publisher:
            world.wait_for_engines(2, seconds=plane.PATIENT)
            yield plane.Plane(world, publisher, MADE)


def ended(publishing: plane.Publishing) -> tuple[dict[str, EngineOutcome], int]:
    """Each engine's outcome, and how many payloads the device's packets could have held."""
    outcome = publishing.outcome()
    return {each.engine: each for each in outcome.engines}, publishing.payloads


def test_a_publish_goes_over_verbs_and_is_served(running: plane.Plane) -> None:
    """Every step of it by the processes that do it in a pod.

    RDMA is wanted: the engine without a device is refused by name, and goes on serving what it has.
    """
    engines, payloads = ended(running.begin(11))
    assert (engines[WITH].outcome, [route.transport for route in engines[WITH].routes]) == ("Current", ["rdma"]), (
        engines[WITH]
    )
    assert payloads >= 1
    assert running.served(running.world.pods[WITH]) == 11
    assert (engines[WITHOUT].outcome, engines[WITHOUT].reason) == ("Failed", "NoDevice"), engines[WITHOUT]
    assert NO_FILE in engines[WITHOUT].message
    assert running.served(running.world.pods[WITHOUT]) == plane.BASE


def test_auto_takes_tcp_where_there_is_no_device_and_says_so(running: plane.Plane) -> None:
    """Each engine over what its pod has; the outcome says how, and why. Who was left out is repaired first."""
    publishing = running.begin(12)
    publishing.outcome()
    running.allow("Auto")
    running.becomes(running.world.pods[WITHOUT], publishing, 12)
    engines, payloads = ended(running.begin(13))
    assert {each.outcome for each in engines.values()} == {"Current"}, engines
    (over, other) = engines[WITH].routes[0], engines[WITHOUT].routes[0]
    assert (over.transport, other.transport) == ("rdma", "tcp")
    assert NO_FILE in other.why
    assert payloads >= 1
    for name in engines:
        assert running.served(running.world.pods[name]) == 13


def test_without_a_device_that_may_be_used_nothing_is_written(running: plane.Plane) -> None:
    """RDMA is wanted, and the only device that may be used is not there: refused with names, no byte over TCP."""
    running.allow("RDMA", "mlx5_9")
    engines, payloads = ended(running.begin(14))
    assert {(each.outcome, each.reason) for each in engines.values()} == {("Failed", "NoDevice")}, engines
    assert "only mlx5_9 may be used" in engines[WITH].message
    assert payloads == 0
    for name in engines:
        assert running.served(running.world.pods[name]) == 13
