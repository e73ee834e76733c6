"""The whole data plane over verbs: what both of its tests set and look at.

`python -m tests.rdma.plane FOLDER` makes the checkpoint that engines start with. Importing this loads torch, which
takes an emulated guest minutes: tests start their pods first, whose engine loads it meanwhile.
"""

import sys
from pathlib import Path

import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state, make_checkpoint
from reference.config import ModelConfig
from tests.rdma.counters import PACKET, sent_packets
from tools.world.pod import Pod
from tools.world.world import World
from weightsync import Publisher

CONFIG = ModelConfig(vocab=64, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128)
PROMPT = [3, 1, 4, 1, 5]
TOKENS = 8
PATIENT = 600.0  # seconds: programs start slowly in an emulated guest
SEEDS = (11, 12)  # of two publishes: the second one finds its connections made


def run(world: World, trainer: Pod, engine: Pod) -> None:
    """Publish to the engine, and look at what it serves."""
    torch.set_num_threads(1)
    with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
        world.wait_for_engines(1, seconds=PATIENT)
        for seed in SEEDS:
            _publish_and_ask(world, publisher, engine, seed)


def _publish_and_ask(world: World, publisher: Publisher, engine: Pod, seed: int) -> None:
    """A publish becomes current, the device counted its payload, the engine's tokens are those of the weights."""
    before = sent_packets()
    state = initial_state(CONFIG, seed=seed)
    handle = publisher.publish(state)
    outcome = handle.outcome(timeout=PATIENT)
    assert [each.outcome for each in outcome.engines] == ["Current"], outcome.describe()
    payload = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    assert sent_packets() - before >= payload // PACKET
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    said = world.ask_engine(engine, "/generate", {"input_ids": PROMPT, "sampling_params": sampling}, seconds=120)
    assert said["output_ids"] == greedy_tokens(state, CONFIG, PROMPT, TOKENS)
    assert said["meta_info"]["spans"] == [[handle.version, TOKENS]]


def only_rdma(log: Path | str) -> None:
    """No worker of the agent whose log this is spoke anything else."""
    text = log.read_text() if isinstance(log, Path) else log
    assert '"transport": "rdma"' in text
    assert '"transport": "tcp"' not in text


if __name__ == "__main__":
    make_checkpoint(Path(sys.argv[1]), CONFIG, seed=0)
