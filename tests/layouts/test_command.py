"""The commands, on a checkpoint in files: what they write, say and answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.layouts import families
from tests.layouts.conftest import Ask
from tests.layouts.others import config_of
from weightsync.convert.program import CopyProgram
from weightsync.replicas.summary import Summary

pytestmark = pytest.mark.timeout(240)

FLAGS = ("--attention-backend", "torch_native")  # of SGLang's own command line


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """qwen3 with random tensors, in two files with an index."""
    folder = tmp_path_factory.mktemp("checkpoint")
    family = families.qwen3(tie_word_embeddings=True)
    (folder / "config.json").write_text(json.dumps(family.config))
    weight_map: dict[str, str] = {}
    for at, rows in enumerate((family.tensors[:9], family.tensors[9:])):
        file = f"model-{at}.safetensors"
        save_file({name: torch.randn(shape).to(getattr(torch, dtype)) for name, dtype, shape in rows}, folder / file)
        weight_map |= {name: file for name, _, _ in rows}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.fixture(scope="module")
def made(checkpoint: Path, ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `python -m weightsync.replicas` filled for two ranks, cache beside it."""
    folder = tmp_path_factory.mktemp("layouts")
    arguments = ["--model", str(checkpoint), "--tp", "2", "--out", str(folder / "out"), "--json"]
    arguments += ["--cache", str(folder / "cache"), "--", *FLAGS]
    answer = ask({"op": "run", "arguments": arguments})
    assert answer["status"] == 0
    assert Summary.read(answer["printed"][answer["printed"].index("{\n") :], "stdout").pure
    return folder


def test_each_rank_gets_its_program(made: Path) -> None:
    """Files as the agent looks for them, readable by its user, and the summary that names their digests."""
    summary = Summary.load(made / "out" / "summary.json")
    assert [row.rank for row in summary.ranks] == [0, 1]
    for row in summary.ranks:
        path = made / "out" / f"rank-{row.rank}.json"
        program = CopyProgram.load(path)
        assert (program.rank, program.digest, program.layout.digest) == (row.rank, row.program, row.layout)
        assert path.stat().st_mode & 0o777 == 0o644
        assert row.checked > 0
        assert program.origin.startswith("sglang ")


def test_a_second_call_is_answered_from_the_cache(
    made: Path, checkpoint: Path, sglang_environment: dict[str, str], tmp_path: Path
) -> None:
    """The same files, without torch or SGLang being loaded: a model module that raises is never reached."""
    script = (
        "import sys; sys.modules['torch'] = sys.modules['sglang'] = None\n"
        "from weightsync_cli.__main__ import main; sys.argv[0] = 'weightsync'; main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, "layout", "--model", str(checkpoint), "--tp", "2", "--out", str(tmp_path),
         "--cache", str(made / "cache"), "-o", "json", "--", *FLAGS],
        env=sglang_environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    again = Summary.read(run.stdout, "stdout")
    assert all(row.cached for row in again.ranks)
    for name in ("rank-0.json", "rank-1.json"):
        assert (tmp_path / name).read_bytes() == (made / "out" / name).read_bytes()


def test_a_tensor_of_another_shape_is_made_anew(
    made: Path, checkpoint: Path, sglang_environment: dict[str, str], tmp_path: Path
) -> None:
    """The cache is asked by what the headers say: with another checkpoint there is nothing to answer with."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    save_file({"model.norm.weight": torch.zeros(64)}, other / "model.safetensors")
    script = (
        "import sys; sys.modules['torch'] = None; from weightsync.replicas.__main__ import main; main(sys.argv[1:])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, "--model", str(other), "--tp", "2", "--out", str(tmp_path / "out"),
         "--cache", str(made / "cache")],
        env=sglang_environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "torch" in run.stderr
    assert not (tmp_path / "out" / "summary.json").exists()


def test_computed_parameters_are_said_aloud(ask: Ask, tmp_path: Path) -> None:
    """Gemma: written all the same, with an exit code of its own, each parameter with its reason."""
    (tmp_path / "config.json").write_text(json.dumps(config_of("gemma")))
    headers = ask({"op": "headers", "config": config_of("gemma")})["headers"]
    save_file({name: torch.zeros(shape).to(getattr(torch, dtype)) for name, dtype, shape in headers},
              tmp_path / "model.safetensors")  # fmt: skip
    answer = ask({"op": "run", "arguments": ["--model", str(tmp_path), "--out", str(tmp_path), "--no-cache"]})
    assert answer["status"] == 3
    assert (
        "rank 0: load_weights must make model.norm.weight: model.norm.weight is computed by add_" in answer["printed"]
    )
    assert not Summary.load(tmp_path / "summary.json").pure


def test_where_sglang_is_missing_the_command_says_so(checkpoint: Path, tmp_path: Path) -> None:
    """One sentence, exit code 1."""
    run = subprocess.run(
        [sys.executable, "-m", "weightsync_cli", "layout", "--model", str(checkpoint), "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode == 1
    assert "SGLang cannot be imported here" in run.stderr
