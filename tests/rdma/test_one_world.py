"""The whole data plane in one guest: a publish goes over verbs into the reference engine, whose tokens are right."""

from pathlib import Path

import pytest
import torch

from reference.checkpoint import make_checkpoint
from tests.rdma.here import GuestWorld
from tests.rdma.plane import CONFIG, PATIENT, only_rdma, publish_and_ask
from weightsync import Publisher

pytestmark = pytest.mark.timeout(900)


def test_a_publish_goes_over_verbs_and_is_served(tmp_path: Path) -> None:
    """Twice: the second one finds its connections made."""
    torch.set_num_threads(1)
    make_checkpoint(tmp_path, CONFIG, seed=0)
    with GuestWorld() as world:
        trainer, engine = world.trainer("trainer-0"), world.engine("engine-0", tmp_path)
        with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
            world.wait_for_engines(1, seconds=PATIENT)
            for seed in (11, 12):
                publish_and_ask(world, publisher, engine, seed)
        only_rdma(trainer.agent.log)
        only_rdma(engine.agent.log)
