"""Pauses, updates and flushes with requests in flight; a gate before each step makes every case repeatable."""

import asyncio
import base64
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reference.alone import answer_alone
from reference.checkpoint import read_checkpoint
from reference.engine_model import EngineModel, build_engine_model
from reference.front import Status

PROMPTS = [list(range(1, 9)), [9, 3, 7], [40] * 5]
TOKENS = 24
EMPTY = base64.b64encode(pickle.dumps([])).decode()
LOADER = """
import torch
from reference.checkpoint import read_checkpoint

calls = []

def load(model, named_tensors):
    calls.append((type(model).__name__, named_tensors))
    model.load_weights(read_checkpoint(PATH)[1].items())

def fail(model, named_tensors):
    raise RuntimeError("the loader failed")
"""


@pytest.fixture
def models(checkpoints: list[Path]) -> list[EngineModel]:
    """What the checker holds of both versions."""
    return [build_engine_model(*read_checkpoint(path)) for path in checkpoints]


@pytest.fixture
def loader(tmp_path: Path, checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """A loader of the test's own, that an engine imports by name."""
    text = f"from pathlib import Path\nPATH = Path({str(checkpoints[1])!r})\n{LOADER}"
    (tmp_path / "tiny_loader.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return "tiny_loader.load"


def check_spans(models: dict[str, EngineModel], prompt: list[int], answer: dict[str, Any]) -> None:
    """Every span is what its version answers after all that stands before it."""
    output, at = answer["output_ids"], 0
    for version, count in answer["meta_info"]["spans"]:
        assert output[at : at + count] == answer_alone(models[version], [*prompt, *output[:at]], count)
        at += count
    assert at == len(output)


async def running(engine: Any, prompts: list[list[int]], steps: int) -> list["asyncio.Task[Any]"]:
    """Requests that have taken ``steps`` steps each."""
    tasks = []
    for count, prompt in enumerate(prompts, start=1):
        tasks.append(engine.generate(prompt, TOKENS))
        await engine.in_flight(count)
    await engine.allow(steps * len(prompts))
    return tasks


async def commit(engine: Any, loader: str, *, flush: bool = True) -> None:
    """What an agent does between pause and continue."""
    update = {"serialized_named_tensors": [EMPTY], "load_format": loader, "flush_cache": False}
    rename = {"new_version": "torn:v2", "abort_all_requests": False}
    assert (await engine.post("/update_weight_version", rename))[0] == 200
    assert (await engine.post("/begin_weight_update", {}))[0] == 200
    assert (await engine.post("/update_weights_from_tensor", update))[0] == 200
    assert (await engine.post("/end_weight_update", {}))[0] == 200
    if flush:
        assert (await engine.post("/flush_cache"))[0] == 200
    assert (await engine.post("/update_weight_version", rename | {"new_version": "v2"}))[0] == 200


async def test_retract_commits_in_the_middle_of_requests(start: Any, loader: str, models: list[EngineModel]) -> None:
    """All finish with all tokens; each span is its version's; a request of the pause is wholly the new one's."""
    engine = await start("--weight-version", "v1", "--custom-weight-loader", loader, gated=True)
    tasks = await running(engine, PROMPTS, 7)
    assert (await engine.post("/pause_generation", {"mode": "retract"}))[0] == 200
    late = engine.generate([5, 5, 5], TOKENS)
    await commit(engine, loader)
    assert (await engine.get("/model_info"))[1]["weight_version"] == "v2"
    await engine.in_flight(len(PROMPTS))
    assert not late.done()
    await engine.allow(None)
    assert not any(task.done() for task in tasks)
    assert (await engine.post("/continue_generation", {}))[0] == 200
    versions = dict(zip(("v1", "v2"), models, strict=True))
    for prompt, task in zip(PROMPTS, tasks, strict=True):
        status, answer = await task
        meta = answer["meta_info"]
        assert status == 200
        assert meta["spans"] == [["v1", 7], ["v2", TOKENS - 7]]
        assert meta["weight_versions"] == [
            {"version": "v1", "start": 0, "end": 7},
            {"version": "v2", "start": 7, "end": TOKENS},
        ]
        assert meta["num_retractions"] == 1
        check_spans(versions, prompt, answer)
    answer = (await late)[1]
    assert answer["meta_info"]["spans"] == [["v2", TOKENS]]
    check_spans(versions, [5, 5, 5], answer)
    import tiny_loader  # type: ignore[import-not-found]

    assert tiny_loader.calls == [("EngineModel", [])]


async def test_without_the_flush_old_weights_show(start: Any, loader: str, models: list[EngineModel]) -> None:
    """The retracted request continues on cached keys of the old version: the check of its second span fails."""
    engine = await start("--weight-version", "v1", "--custom-weight-loader", loader, gated=True)
    (task,) = await running(engine, PROMPTS[:1], 7)
    await engine.post("/pause_generation", {"mode": "retract"})
    await commit(engine, loader, flush=False)
    await engine.post("/continue_generation", {})
    await engine.allow(None)
    answer = (await task)[1]
    assert answer["meta_info"]["cached_tokens"] > 0
    with pytest.raises(AssertionError):
        check_spans(dict(zip(("v1", "v2"), models, strict=True)), PROMPTS[0], answer)


async def test_a_resume_before_the_apply_shows(start: Any, models: list[EngineModel]) -> None:
    """An engine that names a version whose weights it does not hold is found out by its answers."""
    engine = await start("--weight-version", "v1")
    await engine.post("/update_weight_version", {"new_version": "v2"})
    answer = (await engine.generate(PROMPTS[0], TOKENS))[1]
    with pytest.raises(AssertionError):
        check_spans(dict(zip(("v1", "v2"), models, strict=True)), PROMPTS[0], answer)


async def test_in_place_refuses_the_flush_and_goes_on(start: Any, loader: str) -> None:
    """Requests keep their caches; the flush is a 400 as long as they run."""
    engine = await start("--weight-version", "v1", "--custom-weight-loader", loader, gated=True)
    tasks = await running(engine, PROMPTS, 7)
    await engine.post("/pause_generation", {"mode": "in_place"})
    assert await engine.post("/flush_cache") == (400, "Flush cache failed.\n")
    await commit(engine, loader, flush=False)
    await engine.allow(None)
    await engine.post("/continue_generation", {})
    for task in tasks:
        meta = (await task)[1]["meta_info"]
        assert meta["spans"] == [["v1", 7], ["v2", TOKENS - 7]]
        assert meta["num_retractions"] == 0


async def test_abort_answers_with_what_there_is(start: Any, models: list[EngineModel]) -> None:
    """The pause returns when all were answered; what waits behind it is answered after continue."""
    engine = await start("--weight-version", "v1", gated=True)
    tasks = await running(engine, PROMPTS, 5)
    assert (await engine.post("/pause_generation", {}))[0] == 200
    assert all(task.done() for task in tasks)
    for prompt, task in zip(PROMPTS, tasks, strict=True):
        status, answer = await task
        assert status == 200
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert answer["meta_info"]["spans"] == [["v1", 5]]
        check_spans({"v1": models[0]}, prompt, answer)
    late = engine.generate([1], 2)
    assert (await engine.post("/flush_cache"))[0] == 200
    await engine.allow(None)
    await engine.post("/continue_generation", {})
    assert len((await late)[1]["output_ids"]) == 2


async def test_a_rename_aborts_everything_by_default(start: Any) -> None:
    """SGLang's default, which is why an agent sends false."""
    engine = await start(gated=True)
    tasks = await running(engine, PROMPTS, 3)
    await engine.post("/update_weight_version", {"new_version": "v2"})
    for task in tasks:
        assert (await task)[1]["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize(
    ("act_as", "status"), [("0.5.23", 200), ("0.5.17", 400)], ids=["0.5.23 flushes", "0.5.17 refuses"]
)
async def test_a_flush_while_retracted_requests_wait(start: Any, act_as: str, status: int) -> None:
    """Before 0.5.21 nothing but the end of those requests makes it possible."""
    engine = await start("--act-as", act_as, gated=True)
    tasks = await running(engine, PROMPTS, 3)
    await engine.post("/pause_generation", {"mode": "retract"})
    assert (await engine.post("/flush_cache"))[0] == status
    await engine.post("/continue_generation", {})
    await engine.allow(None)
    await asyncio.gather(*tasks)
    assert (await engine.post("/flush_cache"))[0] == 200


async def test_a_flush_is_refused_while_requests_run(start: Any) -> None:
    """Not paused at all."""
    engine = await start(gated=True)
    await running(engine, PROMPTS[:1], 3)
    assert await engine.get("/flush_cache") == (400, "Flush cache failed.\n")


async def test_an_update_whose_own_flush_fails_says_so(start: Any, loader: str) -> None:
    """The weights are new, the answer is 400: a reason never to ask for that flush."""
    engine = await start("--custom-weight-loader", loader, gated=True)
    await running(engine, PROMPTS[:1], 3)
    await engine.post("/pause_generation", {"mode": "in_place"})
    await engine.post("/begin_weight_update", {})
    body = {"serialized_named_tensors": [EMPTY], "load_format": loader, "weight_version": "v2"}
    status, answer = await engine.post("/update_weights_from_tensor", body)
    assert status == 400
    assert "the cache was not flushed" in answer["message"]
    assert (await engine.get("/model_info"))[1]["weight_version"] == "v2"


async def test_an_update_of_a_running_engine_waits_for_its_requests(start: Any, checkpoints: list[Path]) -> None:
    """And keeps new ones out: the first answers with old weights, the second with new ones."""
    engine = await start("--weight-version", "v1", gated=True)
    (first,) = await running(engine, PROMPTS[:1], 3)
    body = {"model_path": str(checkpoints[1]), "weight_version": "v2"}
    update = asyncio.create_task(engine.post("/update_weights_from_disk", body))
    async with asyncio.timeout(60):
        while not engine.front.update_waits:
            await engine.get("/model_info")
    second = engine.generate(PROMPTS[1], 4)
    assert (await engine.get("/model_info"))[1]["weight_version"] == "v1"
    await engine.allow(None)
    assert (await update)[0] == 200
    assert (await first)[1]["meta_info"]["spans"] == [["v1", TOKENS]]
    assert (await second)[1]["meta_info"]["spans"] == [["v2", 4]]


async def test_the_api_answers_while_tokens_are_computed(start: Any) -> None:
    """Between two steps, not after the last: a request of 16000 tokens is seen, and ended, long before its end."""
    engine = await start()
    task = engine.generate([1], 16000)
    await engine.until(lambda: engine.scheduler.running_requests == 1)
    info = (await engine.get("/server_info"))[1]["internal_states"][0]
    assert info["running_requests"] == 1
    assert (await engine.post("/abort_request", {"abort_all": True}))[0] == 200
    assert 0 < (await task)[1]["meta_info"]["completion_tokens"] < 16000


async def test_a_client_that_leaves_frees_its_place(start: Any) -> None:
    """Its request is aborted, the others go on."""
    engine = await start(gated=True)
    tasks = await running(engine, PROMPTS[:2], 3)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    await engine.in_flight(1)
    await engine.allow(None)
    assert (await tasks[1])[1]["meta_info"]["completion_tokens"] == TOKENS


async def test_one_of_many_can_be_aborted_by_name(start: Any) -> None:
    """By the beginning of its name, as in SGLang."""
    engine = await start(gated=True)
    sampling = {"temperature": 0, "max_new_tokens": TOKENS}
    body = {"input_ids": PROMPTS, "sampling_params": sampling, "rid": ["a-1", "a-2", "b-1"]}
    task = asyncio.create_task(engine.post("/generate", body))
    await engine.in_flight(3)
    await engine.post("/abort_request", {"rid": "a"})
    await engine.allow(None)
    kinds = [answer["meta_info"]["finish_reason"]["type"] for answer in (await task)[1]]
    assert kinds == ["abort", "abort", "length"]


async def test_draining_lets_requests_end_and_takes_no_new_ones(start: Any) -> None:
    """After SIGTERM: those in flight get all their tokens, the next is told to go elsewhere."""
    engine = await start(gated=True)
    tasks = await running(engine, PROMPTS, 3)
    engine.front.status = Status.LEAVING
    drained = asyncio.create_task(engine.front.drain(60))
    assert (await engine.generate([1], 2))[0] == 503
    assert (await engine.get("/health"))[0] == 503
    assert not drained.done()
    await engine.allow(None)
    for task in tasks:
        assert (await task)[1]["meta_info"]["completion_tokens"] == TOKENS
    await drained


async def test_draining_ends_what_cannot_end(start: Any) -> None:
    """A paused engine's requests are answered with what they have."""
    engine = await start(gated=True)
    tasks = await running(engine, PROMPTS, 3)
    await engine.post("/pause_generation", {"mode": "retract"})
    await engine.front.drain(0)
    for task in tasks:
        meta = (await task)[1]["meta_info"]
        assert (meta["finish_reason"]["type"], meta["completion_tokens"]) == ("abort", 3)


@dataclass
class Accident:
    """An update that ends the engine."""

    word: str
    act_as: str = "0.5.23"
    load_format: str | None = None
    flush: bool = False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "accident",
    [
        pytest.param(Accident("the loader failed", load_format="tiny_loader.fail"), id="a loader that raises"),
        pytest.param(Accident("Unknown load_format=x.load", load_format="x.load"), id="a loader that is not allowed"),
        pytest.param(Accident("Cache flush failed", "0.5.17", flush=True), id="0.5.17, flush with requests waiting"),
    ],
)
async def test_an_accident_in_an_update_ends_the_model_thread(start: Any, loader: str, accident: Accident) -> None:
    """As in SGLang, where the scheduler's end is the server's: nothing more is computed, calls fail."""
    assert loader
    engine = await start("--custom-weight-loader", "tiny_loader.fail", "--act-as", accident.act_as, gated=True)
    tasks = await running(engine, PROMPTS[:1], 3)
    await engine.post("/pause_generation", {"mode": "retract"})
    await engine.post("/begin_weight_update", {})
    tensors = {"serialized_named_tensors": [EMPTY], "load_format": accident.load_format}
    status, _ = await engine.post("/update_weights_from_tensor", tensors | {"flush_cache": accident.flush})
    assert status == 500
    assert (await engine.post("/flush_cache"))[0] == 500
    assert [accident.word in str(error) for error in engine.accidents] == [True]
    tasks[0].cancel()
