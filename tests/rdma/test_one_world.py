"""The whole data plane in one guest: a publish goes over verbs into the reference engine, whose tokens are right."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rdma import plane
from tests.rdma.here import GuestWorld
from weightsync import Publisher

pytestmark = pytest.mark.timeout(1500)

MADE = Path(os.environ.get("OUT", "")) / "model"


@pytest.fixture(scope="module")
def world() -> Iterator[GuestWorld]:
    """Booted once: a program takes half a minute to start here."""
    with GuestWorld() as world:
        world.trainer("trainer-0")
        world.engine("engine-0", MADE / "base")
        yield world


@pytest.fixture(scope="module")
def running(world: GuestWorld) -> Iterator[plane.Plane]:
    """With a Publisher that is connected."""
    trainer, engine = world.pods["trainer-0"], world.pods["engine-0"]
    with Publisher(rank=0, world_size=1, directory=trainer.volume, connect_timeout=plane.PATIENT) as publisher:
        world.wait_for_engines(1, seconds=plane.PATIENT)
        yield plane.Plane(world, publisher, engine, MADE)


def test_a_publish_goes_over_verbs_and_is_served(running: plane.Plane) -> None:
    """Every step of it by the processes that do it in a pod; the second publish finds its connections made."""
    for seed in plane.SEEDS[:2]:
        running.goes_over_rdma(seed)


def test_without_a_device_that_may_be_used_nothing_is_written(running: plane.Plane) -> None:
    """RDMA is wanted, and the only device that may be used is not there: refused with names, no byte over TCP."""
    running.allow("RDMA", "mlx5_9")
    outcome, _ = running.publish(plane.SEEDS[2])
    (engine,) = outcome.engines
    assert (engine.outcome, engine.reason) == ("Failed", "NoDevice")
    assert "only mlx5_9 may be used" in engine.message
    running.is_served(plane.SEEDS[1])


def test_auto_takes_tcp_and_says_so(running: plane.Plane) -> None:
    """The same without a device, where TCP is allowed: the bytes arrive, and the outcome says how and why."""
    running.allow("Auto", "mlx5_9")
    outcome, payloads = running.publish(plane.SEEDS[2])
    assert [each.outcome for each in outcome.engines] == ["Current"], outcome.describe()
    (route,) = outcome.engines[0].routes
    assert route.transport == "tcp"
    assert "only mlx5_9 may be used" in route.why
    assert payloads == 0
    running.is_served(plane.SEEDS[2])
