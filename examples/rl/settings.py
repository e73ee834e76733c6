"""The trainer's command line and environment, read once."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """prompts, samples: prompts in a step over all ranks, and answers to each. stay: do not end after the last step.

    probes: checked questions in a step; probe_tokens: tokens of their answers. tolerance: see checker.check.
    """

    rank: int
    world_size: int
    meet_host: str
    meet_port: int
    rollout_host: str
    rollout_port: int
    steps: int
    prompts: int
    samples: int
    learning_rate: float
    probes: int
    probe_tokens: int
    tolerance: float
    seed: int
    stay: bool


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Read both; ends the process with a sentence where one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m rl.trainer", description="One rank of the example's trainer.")
    add = parser.add_argument
    add("--steps", type=int, default=40)
    add("--prompts", type=int, default=16, help="prompts of a step, over all ranks")
    add("--samples", type=int, default=8, help="answers sampled for each prompt")
    add("--learning-rate", type=float, default=1.2e-3)
    add("--probes", type=int, default=6, help="answers of a step that are checked (rank 0 checks)")
    add("--probe-tokens", type=int, default=16)
    add("--tolerance", type=float, default=0.0, help="log probabilities may differ by this much (unlike processors)")
    add("--seed", type=int, default=0)
    add("--stay", action="store_true", help="after the last step, wait to be ended (a StatefulSet would start anew)")
    add("--rollout", default="", metavar="HOST:PORT", help="default: the Service named rollout, from the environment")
    flags = parser.parse_args(arguments)

    def wanted(name: str, default: str | None = None) -> str:
        value = environment.get(name) or default
        if value is None:
            sys.exit(f"rl.trainer: {name} is not set")
        return value

    host, _, port = flags.rollout.rpartition(":")
    if not host:
        host, port = wanted("ROLLOUT_SERVICE_HOST"), wanted("ROLLOUT_SERVICE_PORT", "30000")
    rank, world_size = int(wanted("RANK", "0")), int(wanted("WORLD_SIZE", "1"))
    if flags.prompts % world_size:
        sys.exit(f"rl.trainer: {flags.prompts} prompts cannot be divided by {world_size} ranks")
    return Settings(
        rank=rank,
        world_size=world_size,
        meet_host=wanted("MASTER_ADDR", "127.0.0.1"),
        meet_port=int(wanted("MASTER_PORT", "29500")),
        rollout_host=host,
        rollout_port=int(port),
        steps=flags.steps,
        prompts=flags.prompts,
        samples=flags.samples,
        learning_rate=flags.learning_rate,
        probes=flags.probes,
        probe_tokens=flags.probe_tokens,
        tolerance=flags.tolerance,
        seed=flags.seed,
        stay=flags.stay,
    )
