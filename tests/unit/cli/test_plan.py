"""The command `weightsync plan`, run as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weightsync_cli", "plan", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nobody_answers(tmp_path: Path) -> None:
    """Exit code 1; the agent and what the plan lacks are named; no file is written."""
    inventory, out = tmp_path / "agents.yaml", tmp_path / "plan.json"
    inventory.write_text("agents: [{uid: t0, address: '127.0.0.1:1', role: trainer}]", encoding="utf-8")
    done = run("--inventory", str(inventory), "--out", str(out))
    assert done.returncode == 1
    assert "SourcesNotReady" in done.stdout
    assert "agent t0" in done.stdout
    assert not out.exists()


def test_a_wrong_inventory_is_one_line(tmp_path: Path) -> None:
    """No traceback: the file and the field."""
    inventory = tmp_path / "agents.yaml"
    inventory.write_text("agents: 3", encoding="utf-8")
    done = run("--inventory", str(inventory), "--out", str(tmp_path / "plan.json"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert f"{inventory}: agents" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_that_reads_like_markup_is_shown(tmp_path: Path) -> None:
    """It ended the command in a traceback, or was left out of the message."""
    inventory = tmp_path / "[/red]" / "agents.yaml"
    done = run("--inventory", str(inventory), "--out", str(tmp_path / "plan.json"))
    assert done.stderr == f"error: {inventory}: cannot be read: No such file or directory\n"


def test_what_was_planned_as_json(tmp_path: Path) -> None:
    """One line, and nothing else: why there is no plan, by whom."""
    inventory = tmp_path / "agents.yaml"
    inventory.write_text("agents: [{uid: t0, address: '127.0.0.1:1', role: trainer}]", encoding="utf-8")
    done = run("--inventory", str(inventory), "--out", str(tmp_path / "plan.json"), "-o", "json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["plan"], said["written"], said["engines"], list(said["silent"])) == (None, False, [], ["t0"])
    assert said["sources"][0]["reason"] == "SourcesNotReady"
