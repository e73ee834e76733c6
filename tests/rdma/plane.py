"""The whole data plane over verbs: what both of its tests set and look at.

`python -m tests.rdma.plane FOLDER` makes, with torch, what a guest needs: the checkpoint that engines start with,
those that are published, and the tokens that each of these gives. In a guest numpy stands for torch (light/).
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from reference.checkpoint import greedy_tokens, make_checkpoint, read_checkpoint
from reference.config import ModelConfig
from tests.rdma.counters import PACKET, sent_packets
from tools.world.pod import Pod
from tools.world.processes import wait
from tools.world.world import World
from weightsync import Publisher
from weightsync.plan import Plan
from weightsync.publisher.handle import PublishHandle
from weightsync.publisher.outcome import Outcome

CONFIG = ModelConfig(vocab=64, hidden=128, layers=4, heads=4, kv_heads=4, head_dim=32, intermediate=512)
PROMPT = [3, 1, 4, 1, 5]
TOKENS = 8
PATIENT = 300.0  # seconds: programs start slowly in an emulated guest
BASE = 0  # the seed of what engines start with
SEEDS = (11, 12, 13, 14)  # of the publishes


def make(folder: Path) -> None:
    """Checkpoints by name, and tokens.json."""
    import torch

    torch.set_num_threads(1)
    states = {seed: make_checkpoint(folder / str(seed), CONFIG, seed) for seed in (BASE, *SEEDS)}
    tokens = {str(seed): greedy_tokens(state, CONFIG, PROMPT, TOKENS) for seed, state in states.items()}
    (folder / "tokens.json").write_text(json.dumps(tokens))


@dataclass
class Publishing:
    """A publish that has begun. before: packets that the device had sent; payload: bytes of one engine's."""

    handle: PublishHandle
    before: int
    payload: int

    def outcome(self) -> Outcome:
        """When every engine has its own."""
        return self.handle.outcome(timeout=PATIENT)

    @property
    def payloads(self) -> int:
        """How many payloads the device's packets could have held since."""
        return (sent_packets() - self.before) * PACKET // self.payload


class Plane:
    """A world of one trainer and some engines: publishes are looked at from their packets to their tokens."""

    def __init__(self, world: World, publisher: Publisher, folder: Path) -> None:
        self.world, self.publisher, self.folder = world, publisher, folder

    def allow(self, protocol: str, *devices: str) -> None:
        """Change what may carry the bytes, and wait until the coordinator knows."""
        self.world.set_plan(transfer={"protocol": protocol, "rdma": {"devices": list(devices)}})

        def planned(plan: Plan) -> bool:
            return (plan.transfer.protocol, plan.transfer.rdma.devices) == (protocol, devices)

        plan = self.world.wait_for_plan(planned, f"protocol {protocol}", PATIENT)
        agent = self.world.coordinator(plan).agent
        known = f'"generation": {plan.generation},'
        wait("the coordinator to know it", lambda: known in agent.log.read_text(), PATIENT, [agent])

    def begin(self, seed: int) -> Publishing:
        """A publish that was copied."""
        _, state = read_checkpoint(self.folder / str(seed))
        before = sent_packets()
        handle = self.publisher.publish(state, label=f"seed {seed}")
        return Publishing(handle, before, sum(tensor.nbytes for tensor in state.values()))

    def served(self, engine: Pod) -> int:
        """The seed of the weights of which torch computed the tokens that the engine gives."""
        sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
        body = {"input_ids": PROMPT, "sampling_params": sampling}
        said = self.world.ask_engine(engine, "/generate", body, seconds=PATIENT)["output_ids"]
        computed = json.loads((self.folder / "tokens.json").read_text())
        (seed,) = [int(name) for name, tokens in computed.items() if tokens == said]
        return seed

    def becomes(self, engine: Pod, publishing: Publishing, seed: int) -> None:
        """Whatever became of it first, the engine serves it in the end."""
        self.world.wait_for_version(engine, publishing.handle.version or "", PATIENT)
        assert self.served(engine) == seed


if __name__ == "__main__":
    make(Path(sys.argv[1]))
