"""The whole data plane over verbs: what both of its tests set and look at.

`python -m tests.rdma.plane FOLDER` makes, with torch, what a guest needs: the checkpoint that engines start with,
those that are published, and the tokens that each of these gives. In a guest numpy stands for torch (light/).
"""

import json
import sys
from pathlib import Path

from reference.checkpoint import greedy_tokens, make_checkpoint, read_checkpoint
from reference.config import ModelConfig
from tests.rdma.counters import PACKET, sent_packets
from tools.world.pod import Pod
from tools.world.processes import wait
from tools.world.world import World
from weightsync import Publisher
from weightsync.plan import Plan
from weightsync.publisher.outcome import Outcome

CONFIG = ModelConfig(vocab=64, hidden=128, layers=4, heads=4, kv_heads=4, head_dim=32, intermediate=512)
PROMPT = [3, 1, 4, 1, 5]
TOKENS = 8
PATIENT = 300.0  # seconds: programs start slowly in an emulated guest
SEEDS = (11, 12, 13)  # of the publishes


def make(folder: Path) -> None:
    """Checkpoints by name, and tokens.json."""
    import torch

    torch.set_num_threads(1)
    make_checkpoint(folder / "base", CONFIG, seed=0)
    states = {seed: make_checkpoint(folder / str(seed), CONFIG, seed) for seed in SEEDS}
    tokens = {str(seed): greedy_tokens(state, CONFIG, PROMPT, TOKENS) for seed, state in states.items()}
    (folder / "tokens.json").write_text(json.dumps(tokens))


class Plane:
    """A world of one trainer and one engine, in which a publish is looked at from its packets to its tokens."""

    def __init__(self, world: World, publisher: Publisher, engine: Pod, folder: Path) -> None:
        self.world, self.publisher, self.engine, self.folder = world, publisher, engine, folder

    def allow(self, protocol: str, *devices: str) -> None:
        """Change what may carry the bytes, and wait until the coordinator knows."""
        self.world.set_plan(transfer={"protocol": protocol, "rdma": {"devices": list(devices)}})

        def planned(plan: Plan) -> bool:
            return (plan.transfer.protocol, plan.transfer.rdma.devices) == (protocol, devices)

        plan = self.world.wait_for_plan(planned, f"protocol {protocol}", PATIENT)
        agent = self.world.coordinator(plan).agent
        known = f'"generation": {plan.generation},'
        wait("the coordinator to know it", lambda: known in agent.log.read_text(), PATIENT, [agent])

    def publish(self, seed: int) -> tuple[Outcome, int]:
        """The outcome, and how many payloads the device's packets could have held meanwhile."""
        _, state = read_checkpoint(self.folder / str(seed))
        before = sent_packets()
        outcome = self.publisher.publish(state, label=f"seed {seed}").outcome(timeout=PATIENT)
        payload = sum(tensor.nbytes for tensor in state.values())
        return outcome, (sent_packets() - before) * PACKET // payload

    def is_served(self, seed: int) -> None:
        """The engine's tokens are those that torch computed of the published weights."""
        expected = json.loads((self.folder / "tokens.json").read_text())[str(seed)]
        sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
        body = {"input_ids": PROMPT, "sampling_params": sampling}
        said = self.world.ask_engine(self.engine, "/generate", body, seconds=120)
        assert said["output_ids"] == expected

    def goes_over_rdma(self, seed: int) -> None:
        """A publish becomes current, its route says RDMA, the device counted its payload, its tokens are served."""
        outcome, payloads = self.publish(seed)
        assert [each.outcome for each in outcome.engines] == ["Current"], outcome.describe()
        assert outcome.transports == {"rdma": 1}
        assert payloads >= 1
        self.is_served(seed)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
