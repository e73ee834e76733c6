"""The reference engine without torch, as it runs in emulated guests, answers as the one with torch and the real one.

Engine and hook are the very same files; numpy stands for torch (tests/rdma/light).
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reference.checkpoint import greedy_tokens, make_checkpoint
from tests.contract.cases import CASES as EVERY
from tests.contract.cases import cases_pause
from tests.contract.differences import DELIBERATE, differences
from tests.contract.reference import CONFIG, ROOT, running
from tests.contract.test_reference_engine import OLD, RECORDED

# But for pauses alone: which request waits is decided without a tensor.
CASES = {name: case for name, case in EVERY.items() if case.__module__ != cases_pause.__name__}
LIGHT = ROOT / "tests" / "rdma" / "light"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_it_answers_as_the_real_one(tmp_path: Path) -> None:
    """What the hook does to parameters, what is generated with them, and the API around that."""
    recorded = json.loads(RECORDED.read_text())
    with running(tmp_path, OLD, LIGHT) as engine:
        answers, failures = asyncio.run(engine.answers(CASES))
    assert not failures
    assert not [found for case in CASES for found in differences(case, recorded[case], answers[case], DELIBERATE)]


def test_its_tokens_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checkpoint, the same prompt; and no torch was loaded for them."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # so small a model is computed by one anyway
    state = make_checkpoint(tmp_path, CONFIG, seed=5)
    script = (
        "import sys, json, torch; from pathlib import Path;"
        "from reference.checkpoint import greedy_tokens, read_checkpoint;"
        "config, state = read_checkpoint(Path(sys.argv[1]));"
        "print(json.dumps([torch.__version__, greedy_tokens(state, config, [3, 1, 4, 1, 5], 16)]))"
    )
    environment = {"PYTHONPATH": ":".join(map(str, (LIGHT, ROOT / "examples", ROOT / "sdk")))}
    command = [sys.executable, "-c", script, str(tmp_path)]
    found = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert found == ["0+light", greedy_tokens(state, CONFIG, [3, 1, 4, 1, 5], 16)]
