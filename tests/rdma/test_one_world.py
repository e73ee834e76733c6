"""The whole data plane in one guest: a publish goes over verbs into the reference engine, whose tokens are right."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state, make_checkpoint
from reference.config import ModelConfig
from tests.rdma.counters import PACKET, sent_packets
from tools.world.world import World
from weightsync import Publisher

pytestmark = pytest.mark.timeout(900)

CONFIG = ModelConfig(vocab=64, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128)
PROMPT = [3, 1, 4, 1, 5]
TOKENS = 8
PATIENT = 600.0  # seconds: programs start slowly in an emulated guest


@pytest.fixture
def world() -> Iterator[World]:
    """Agents over the guest's device, and nothing else."""
    torch.set_num_threads(1)
    agents = {
        "WEIGHTSYNC_TRANSPORT": "rdma",
        "WEIGHTSYNC_DEVICES": os.environ["GUEST_DEVICE"],
        "WEIGHTSYNC_STALL_SECONDS": "60",
        "WEIGHTSYNC_PROBE_SECONDS": "5",
    }
    with World({"strategy": {"deadlineSeconds": 300}}, agents) as world:
        yield world


def test_a_publish_goes_over_verbs_and_is_served(world: World, tmp_path: Path) -> None:
    """Current, with the tokens of the trainer's own copy; the device counted the payload; every worker says rdma."""
    make_checkpoint(tmp_path, CONFIG, seed=0)
    trainer, engine = world.trainer("trainer-0"), world.engine("engine-0", tmp_path)
    with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
        world.wait_for_engines(1, seconds=PATIENT)
        before = sent_packets()
        state = initial_state(CONFIG, seed=11)
        handle = publisher.publish(state)
        outcome = handle.outcome(timeout=PATIENT)
        assert [each.outcome for each in outcome.engines] == ["Current"], outcome.describe()
        payload = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        assert sent_packets() - before >= payload // PACKET
        sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
        said = world.ask_engine(engine, "/generate", {"input_ids": PROMPT, "sampling_params": sampling}, seconds=120)
        assert said["output_ids"] == greedy_tokens(state, CONFIG, PROMPT, TOKENS)
        assert said["meta_info"]["spans"] == [[handle.version, TOKENS]]
        for pod in (trainer, engine):
            log = pod.agent.log.read_text()
            assert '"transport": "rdma"' in log
            assert '"transport": "tcp"' not in log
