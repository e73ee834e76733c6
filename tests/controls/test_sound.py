"""The counterpart of the controls: where nothing is wrong, the trainer's own run says so."""

import json
from pathlib import Path
from typing import Any

import pytest

from reference.checkpoint import write_checkpoint
from rl.policy import CONFIG, first_state
from tools.world.processes import python, wait
from tools.world.world import World
from weightsync import names

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS, PROBES = 3, 4


def lines(log: Path) -> list[dict[str, Any]]:
    """What a rank has said."""
    found = [line for line in log.read_text().splitlines() if line.startswith("{")] if log.exists() else []
    return [json.loads(line) for line in found]


def test_two_ranks_train_publish_and_find_every_answer_right() -> None:
    """Every step is a version that the engine serves; all probes are checked, none is torn or stale."""
    with World({"strategy": {"deadlineSeconds": 60}, "transfer": {"bucketSize": "64Ki"}}) as world:
        write_checkpoint(world.folder / "model", CONFIG, first_state())
        trainers = [world.trainer(f"trainer-{rank}") for rank in range(2)]
        engine = world.engine("engine-0", world.folder / "model")
        port = str(world.ports.take())
        ranks = []
        for rank, pod in enumerate(trainers):
            command = python(
                "rl.trainer", "--steps", str(STEPS), "--prompts", "4", "--samples", "4", "--probes", str(PROBES),
                "--rollout", f"127.0.0.1:{engine.engine_port}",
            )  # fmt: skip
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port, names.DIRECTORY_ENV: str(pod.volume)}
            child = world.child(f"rank {rank}", command, place, world.folder / f"rank-{rank}.log")
            child.start()
            ranks.append(child)
        try:
            world.wait_for_plan(lambda plan: len(plan.sources) == 2 and len(plan.engines) == 1, "a plan", 120)
            wait("the end of training", lambda: not any(rank.alive for rank in ranks), 150)
            said = lines(ranks[0].log)
        finally:
            for rank in ranks:
                rank.stop()
        summary = said[-1]
        assert summary["event"] == "summary", ranks[0].tail()
        counts = {key: summary[key] for key in ("versions_published", "checked", "torn", "stale")}
        assert counts == {"versions_published": STEPS, "checked": STEPS * PROBES, "torn": 0, "stale": 0}
        outcomes = [step["engines"][0]["outcome"] for step in said if step["event"] == "step"]
        assert outcomes == ["Current"] * STEPS
        assert world.call(engine, "/v1/readback", {})["digestOk"]
