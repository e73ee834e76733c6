"""The whole data plane over the wire: trainer in this guest, engine in the other."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.rdma import far, plane
from tests.rdma.here import GuestWorld
from tools.world.pod import Pod
from tools.world.processes import Child
from weightsync import Publisher

pytestmark = pytest.mark.timeout(1500)

ENGINE = "engine-0"


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


def ask(call: str, **arguments: object) -> Any:
    """One question to the other guest."""

    async def once() -> Any:
        link = await far.Link.open()
        try:
            return await link.ask(call, **arguments)
        finally:
            link.close()

    return asyncio.run(once())


def joined(world: GuestWorld, model: Path) -> Pod:
    """The engine's pod, started in the other guest, in this world's inventory."""
    ports = ask("engine", name=ENGINE, secret=world.secret, model=str(model))
    world.pods[ENGINE] = Pod(
        ENGINE, "engine", Path(os.devnull), ports["agent"], Elsewhere("agent"), engine_port=ports["engine"],
        uid=ENGINE, host=far.ADDRESS,
    )  # fmt: skip
    world._write_inventory()
    return world.pods[ENGINE]


def test_a_publish_goes_over_the_wire_and_is_served() -> None:
    """The packets are this guest's, the tokens the other's."""
    with GuestWorld() as world:
        trainer = world.trainer("trainer-0")
        made = Path(os.environ["OUT"]) / "model"
        engine = joined(world, made / "base")
        with Publisher(rank=0, world_size=1, directory=trainer.volume, connect_timeout=plane.PATIENT) as publisher:
            world.wait_for_engines(1, seconds=plane.PATIENT)
            running = plane.Plane(world, publisher, engine, made)
            for seed in plane.SEEDS[:2]:
                running.goes_over_rdma(seed)
