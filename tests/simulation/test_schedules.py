"""Thousands of schedules: the real machines, every fault, every invariant after every event."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.simulate.faults import Fault
from tools.simulate.schedule import describe, run, shrink, told
from tools.simulate.world import World

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = 5000


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: the same hashing of strings wherever it runs."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(
        [sys.executable, "-m", "tools.simulate", *arguments],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=1500,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_five_thousand_schedules_violate_nothing():
    """Each holds a whole sync and a fault, and ends with every live engine current."""
    jobs = str(max(1, min(4, os.cpu_count() or 1)))

    done = simulate("--schedules", str(SCHEDULES), "--seed", "1000000", "--jobs", jobs)

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    report = json.loads((ROOT / "build" / "simulate" / "simulate.json").read_text())
    figures = {measure["name"]: measure["value"] for measure in report["measures"]}
    assert figures["violations"] == 0
    assert figures["schedules without a whole sync"] == 0
    assert figures["schedules without a fault"] == 0
    assert figures["states reached"] >= 0.95
    assert figures["transitions visited"] >= 0.7


@pytest.mark.parametrize("seed", [3, 14, 159])
def test_the_same_seed_gives_the_same_trace(seed):
    """A schedule is its seed's alone: two runs agree event by event."""
    worlds = [World(seed), World(seed)]
    for world in worlds:
        world.run()

    first, second = (told(world) for world in worlds)

    assert first == second
    assert worlds[0].loop.events == worlds[1].loop.events


def test_a_schedule_has_other_courses():
    """The same shape and the same faults; what is drawn as it goes on is drawn anew, and again as before."""
    own, other, same = (World(14, again=again) for again in (0, 1, 1))
    for world in (own, other, same):
        world.run()

    assert (other.faults, other.owners, other.strategy) == (own.faults, own.owners, own.strategy)
    assert told(other) == told(same) != told(own)


def test_schedules_differ_by_their_seed():
    """Shapes, faults and times are drawn anew for each."""
    shapes = set()
    for seed in range(12):
        world = World(seed)
        shapes.add((world.stages, world.engine_ranks, world.arenas, world.strategy.type, str(world.faults)))

    assert len(shapes) == 12


def test_a_failure_names_its_seed_and_shrinks_to_the_faults_that_it_needs(monkeypatch):
    """What a person gets: the invariant, few faults, a short trace, the command that shows it again."""
    monkeypatch.setattr("tools.simulate.target_side.commit_steps", _without_flush)
    needless = (Fault("operator down", 30, 0.2, 0.5, 0.5), Fault("slow network", 60, 0.5, 0.5, 0.5))
    failure = next(f for f in (run(seed, needless).failure for seed in range(40)) if f is not None)

    smaller = shrink(failure)
    text = describe(smaller)

    assert smaller.number == failure.number == 1
    assert smaller.faults == ()
    assert f"--replay {failure.seed}" in text
    assert "answers from step" in text or "answers, and" in text
    assert len(text.splitlines()) < 60


def _without_flush(*arguments, **options):
    from weightsync_agent.engines.sequence import commit_steps

    return tuple(step for step in commit_steps(*arguments, **options) if step.name not in {"FLUSH", "PAUSE"})


def test_the_command_replays_a_seed():
    """One schedule, told in one line where nothing is wrong with it."""
    done = simulate("--replay", "7")

    assert done.returncode == 0, done.stdout
    assert "every invariant held" in done.stdout


def test_the_command_runs_with_a_bug_and_fails():
    """Broken on purpose it ends with 1, a trace and the seed."""
    done = simulate("--schedules", "40", "--jobs", "1", "--bug", "no-torn-journal")

    assert done.returncode == 1
    assert "violates invariant 2" in done.stdout
    assert "--replay" in done.stdout
