"""One process with SGLang for all cases."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tools.setup import sglang_env
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
Ask = Callable[[Json], Json]

# SGLang imports every model that it knows, a third of what its import costs. These are the ones of the tests.
MODELS = frozenset({
    "apertus", "arcee", "commandr", "deepseek_v2", "ernie4", "exaone4", "exaone_moe", "gemma", "gemma2",
    "gemma3_causal", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_oss", "granite", "granitemoe",
    "hunyuan", "lfm2", "lfm2_moe", "llama", "minimax_m2", "mistral", "mixtral", "olmo2", "olmoe", "opt",
    "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_text",
    "qwen3_moe", "qwen3_next", "stablelm", "starcoder2",
})  # fmt: skip


@pytest.fixture(scope="session")
def sglang() -> Path:
    """The folder that makes SGLang importable."""
    try:
        return sglang_env.prepare(ROOT)
    except SetupError as error:
        pytest.fail(f"SGLang's packages cannot be installed: {error}", pytrace=False)


@pytest.fixture(scope="session")
def sglang_environment(sglang: Path) -> dict[str, str]:
    """Environment variables of a process that imports SGLang."""
    path = os.pathsep.join([*os.environ["PYTHONPATH"].split(os.pathsep), str(sglang)])
    known = {file.stem for file in (sglang / "sglang/srt/models").glob("*.py")}
    disabled = ",".join(sorted(known - MODELS - {"registry", "utils", "__init__"}))
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **quiet, "PYTHONPATH": path, "SGLANG_DISABLED_MODEL_ARCHS": disabled}


@pytest.fixture(scope="session")
def ask(sglang_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Sends a request to the worker; its answer. Fails the test where the worker did."""
    path = tmp_path_factory.mktemp("sglang") / "log"
    ours, theirs = socket.socketpair()
    with theirs, path.open("wb") as log:
        command = [sys.executable, "-m", "tests.layouts.worker", str(theirs.fileno())]
        worker = subprocess.Popen(
            command, env=sglang_environment, cwd=ROOT, stdout=log, stderr=log, pass_fds=[theirs.fileno()]
        )
    connection = Connection(ours.detach())

    def exchange(request: Json) -> Json:
        try:
            connection.send_bytes(json.dumps(request).encode())
            if not connection.poll(200):
                pytest.fail(f"the worker does not answer: {_tail(path)}", pytrace=False)
            answer: Json = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            pytest.fail(f"the worker has ended: {_tail(path)}", pytrace=False)
        if "failed" in answer:
            pytest.fail(answer["failed"], pytrace=False)
        return answer

    yield exchange
    connection.close()
    worker.wait(20)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
