"""The whole data plane in one guest: a publish goes over verbs into the reference engine, whose tokens are right."""

import os
import shutil
from pathlib import Path

import pytest

from tests.rdma.here import GuestWorld

pytestmark = pytest.mark.timeout(1500)


def test_a_publish_goes_over_verbs_and_is_served(tmp_path: Path) -> None:
    """Every step of it by the processes that do it in a pod."""
    model = Path("/dev/shm") / tmp_path.name  # the shared folder cannot be mapped
    shutil.copytree(Path(os.environ["OUT"]) / "model", model)
    with GuestWorld() as world:
        trainer, engine = world.trainer("trainer-0"), world.engine("engine-0", model)
        from tests.rdma import plane

        plane.run(world, trainer, engine)
        plane.only_rdma(trainer.agent.log)
        plane.only_rdma(engine.agent.log)
