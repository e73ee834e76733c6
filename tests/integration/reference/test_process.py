"""The engine as a process: start, files, the end; and answers that another process can check bit by bit."""

import asyncio
import base64
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from reference.alone import answer_alone
from reference.checkpoint import read_checkpoint
from reference.config import ModelConfig
from reference.engine_model import build_engine_model
from reference.programs import build_program
from weightsync import names
from weightsync.convert.program import CopyProgram

pytestmark = pytest.mark.timeout(300)  # three fresh processes import torch
LONG = 16000  # tokens: takes seconds on any machine, and no test waits for the end
EMPTY = base64.b64encode(pickle.dumps([])).decode()


async def test_it_starts_tells_and_answers_like_the_checker(
    spawn: Callable[..., Any],
    checkpoints: list[Path],
    config: ModelConfig,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Its program lies in the volume before it listens; the first answer is told; tokens are the checker's."""
    engine = spawn("--engine-name", "e7")
    listening = engine.event("listening")
    program = CopyProgram.load(tmp_path / "volume" / names.LAYOUTS / "rank-0.json")
    assert program == build_program(config)
    prompts = [[n, 7, 3, 40 - n] for n in range(10)]
    body = {"input_ids": prompts, "sampling_params": {"temperature": 0, "max_new_tokens": 20}}
    status, answers = await engine.post("/generate", body)
    assert status == 200
    first = engine.event("first_answer")
    assert first["engine"] == "e7"
    assert listening["unix_ms"] <= engine.event("up")["unix_ms"] <= first["unix_ms"]
    record_property("startup_seconds", first["unix_ms"] / 1000 - engine.spawned)
    model = build_engine_model(*read_checkpoint(checkpoints[0]))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["output_ids"] == answer_alone(model, prompt, 20)
        assert answer["meta_info"]["engine"] == "e7"
    assert engine.end() == 0
    assert engine.event("leaving")["in_flight"] == 0


async def test_sigterm_ends_a_paused_engine(spawn: Callable[..., Any], tmp_path: Path) -> None:
    """After the drain its requests are answered with what they have; without a volume, nothing was written."""
    engine = spawn("--drain-seconds", "0.1", "--no-volume")
    body = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": LONG}}
    task = asyncio.create_task(engine.post("/generate", body))
    await engine.until_running()
    await engine.post("/pause_generation", {"mode": "retract"})
    engine.process.send_signal(signal.SIGTERM)
    answer = (await task)[1]
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["output_ids"]
    assert await asyncio.to_thread(engine.ended) == 0
    assert not (tmp_path / "volume").exists()


async def test_a_loader_that_raises_ends_the_engine(spawn: Callable[..., Any], tmp_path: Path) -> None:
    """As in SGLang: the connection is cut, the process ends with 1, and its log says why."""
    (tmp_path / "bad_loader.py").write_text("def load(model, tensors):\n    raise RuntimeError('the loader failed')")
    engine = spawn("--custom-weight-loader", "bad_loader.load", PYTHONPATH=str(tmp_path))
    sampling = {"temperature": 0, "max_new_tokens": LONG}
    request = asyncio.create_task(engine.post("/generate", {"input_ids": [1], "sampling_params": sampling}))
    await engine.until_running()
    await engine.post("/pause_generation", {"mode": "retract"})
    await engine.post("/begin_weight_update", {})
    tensors = {"serialized_named_tensors": [EMPTY], "load_format": "bad_loader.load", "flush_cache": False}
    with pytest.raises(aiohttp.ClientError):
        await engine.post("/update_weights_from_tensor", tensors)
    with pytest.raises(aiohttp.ClientError):
        await request
    assert await asyncio.to_thread(engine.ended) == 1
    assert "RuntimeError: the loader failed" in engine.errors
    assert engine.event("engine_died")["error"] == "RuntimeError: the loader failed"
