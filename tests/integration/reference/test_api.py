"""Each endpoint: status codes and bodies, as SGLang's."""

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest

EMPTY = base64.b64encode(pickle.dumps([])).decode()
TENSORS = {"serialized_named_tensors": [EMPTY], "flush_cache": False}

OUTSIDE = "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()"

Call = tuple[str, Any]  # path, body of a POST; None: a GET
PAUSE: Call = ("/pause_generation", {"mode": "retract"})
BEGIN: Call = ("/begin_weight_update", {})
GREEDY = {"temperature": 0, "max_new_tokens": 3}


async def call(engine: Any, path: str, body: Any) -> tuple[int, Any]:
    """One request of the table."""
    reply: tuple[int, Any] = await (engine.get(path) if body is None else engine.post(path, body))
    return reply


@pytest.mark.parametrize(
    ("before", "request_", "status", "answer"),
    [
        pytest.param([], ("/health", None), 200, "", id="health computes a token"),
        pytest.param([], ("/health_generate", None), 200, "", id="health_generate too"),
        pytest.param([], ("/ready", None), 200, "", id="ready"),
        pytest.param([PAUSE], ("/ready", None), 503, "", id="not ready while paused"),
        pytest.param([PAUSE, ("/continue_generation", {})], ("/ready", None), 200, "", id="ready again"),
        pytest.param([], ("/nothing", None), 404, {"detail": "Not Found"}, id="unknown path"),
        pytest.param([], ("/pause_generation", None), 405, {"detail": "Method Not Allowed"}, id="GET of a POST"),
        pytest.param(
            [], ("/pause_generation", {}), 200,
            {"message": "Generation paused successfully.", "status": "ok"}, id="pause, by default abort",
        ),
        pytest.param(
            [], ("/pause_generation", {"mode": "stop"}), 400, {"object": "error", "type": "Bad Request", "code": 400},
            id="unknown mode",
        ),
        pytest.param(
            [], ("/continue_generation", {}), 200,
            {"message": "Generation continued successfully.", "status": "ok"}, id="continue without pause",
        ),
        pytest.param([], BEGIN, 200, {"success": True, "message": "Success"}, id="begin"),
        pytest.param(
            [BEGIN], BEGIN, 400,
            {"success": False, "message": "a weight-update session is already open; call end_weight_update() first"},
            id="begin twice",
        ),
        pytest.param(
            [], ("/end_weight_update", {}), 400,
            {"success": False, "message": "no weight-update session is open; call begin_weight_update() first"},
            id="end without begin",
        ),
        pytest.param([BEGIN], ("/end_weight_update", {}), 200, {"success": True, "message": "Success"}, id="end"),
        pytest.param([PAUSE, BEGIN], ("/end_weight_update", {}), 200, {"success": True}, id="end while paused"),
        pytest.param(
            [], ("/update_weights_from_tensor", TENSORS), 400,
            {"success": False, "message": OUTSIDE},
            id="tensors outside begin and end",
        ),
        pytest.param(
            [BEGIN], ("/update_weights_from_tensor", TENSORS), 200, {"success": True, "message": "Success"},
            id="tensors between begin and end",
        ),
        pytest.param(
            [BEGIN], ("/update_weights_from_tensor", TENSORS | {"weight_version": "7"}), 200,
            {"success": True, "message": "Success Weight version updated to 7."}, id="tensors with a version",
        ),
        pytest.param(
            [BEGIN], ("/update_weights_from_tensor", TENSORS | {"serialized_named_tensors": ["gARLAS4="]}), 400,
            {"success": False}, id="tensors that are no empty list",
        ),
        pytest.param(
            [BEGIN], ("/update_weights_from_tensor", TENSORS | {"serialized_named_tensors": []}), 400,
            {"success": False}, id="no entry for the rank",
        ),
        pytest.param([], ("/update_weights_from_tensor", {}), 400, {"object": "error"}, id="tensors left out"),
        pytest.param([], ("/flush_cache", None), 200, None, id="flush by GET"),
        pytest.param([], ("/flush_cache", {}), 200, None, id="flush by POST"),
        pytest.param(
            [], ("/update_weight_version", {"new_version": "7"}), 200,
            {"success": True, "message": "Weight version updated to 7", "new_version": "7"}, id="version",
        ),
        pytest.param([], ("/update_weight_version", {}), 400, {"object": "error"}, id="version left out"),
        pytest.param(
            [("/update_weight_version", {"new_version": "7"})], ("/model_info", None), 200,
            {"weight_version": "7", "is_generation": True, "model_type": "llama"}, id="model_info's version",
        ),
        pytest.param([], ("/model_info", None), 200, {"weight_version": "default"}, id="model_info"),
        pytest.param(
            [], ("/server_info", None), 200,
            {"version": "0.5.23", "tp_size": 1, "pp_size": 1, "ep_size": 1, "dp_size": 1, "admin_api_key": None},
            id="server_info",
        ),
        pytest.param([], ("/abort_request", {"abort_all": True}), 200, "", id="abort with nothing to abort"),
        pytest.param(
            [], ("/weights_checker", {"action": "melt"}), 400,
            {"success": False, "message": "Unsupported action='melt'"}, id="unknown action",
        ),
        pytest.param(
            [], ("/weights_checker", {"action": "compare"}), 400, {"success": False}, id="compare with no snapshot"
        ),
        pytest.param(
            [("/weights_checker", {"action": "snapshot"})], ("/weights_checker", {"action": "compare"}), 200,
            {"success": True, "message": "Success."}, id="compare with an equal snapshot",
        ),
        pytest.param(
            [("/weights_checker", {"action": "snapshot"}), ("/weights_checker", {"action": "reset_tensors"})],
            ("/weights_checker", {"action": "compare"}), 400, {"success": False}, id="compare after a reset",
        ),
        pytest.param(
            [], ("/update_weights_from_disk", {"model_path": "/nowhere"}), 400,
            {"success": False, "num_paused_requests": 0}, id="disk: no such checkpoint",
        ),
        pytest.param([], ("/generate", {"input_ids": []}), 400, {"error": {}}, id="generate: no prompt"),
        pytest.param([], ("/generate", {"text": "hello"}), 400, {"error": {}}, id="generate: text"),
        pytest.param([], ("/generate", {"input_ids": [48]}), 400, {"error": {}}, id="generate: token out of range"),
        pytest.param([], ("/generate", {"input_ids": [1], "stream": True}), 400, {"error": {}}, id="stream"),
        pytest.param(
            [], ("/generate", {"input_ids": [1], "sampling_params": {"top_p": 0.5}}), 400, {"error": {}},
            id="generate: what is not supported",
        ),
        pytest.param(
            [], ("/generate", {"input_ids": [[1], [2]], "sampling_params": [GREEDY]}), 400, {"error": {}},
            id="generate: lists of different lengths",
        ),
    ],
)  # fmt: skip
async def test_an_endpoint_answers_as_sglang_does(
    start: Any, before: list[Call], request_: Call, status: int, answer: Any
) -> None:
    """Status and the fields that matter, after the calls that came before."""
    engine = await start()
    for path, body in before:
        assert (await call(engine, path, body))[0] == 200
    found_status, found = await call(engine, *request_)
    assert found_status == status, found
    if isinstance(answer, dict):
        expected = {key: found[key] if value == {} else value for key, value in answer.items()}
        assert {key: found[key] for key in expected} == expected
    elif answer is not None:
        assert found == answer


@pytest.mark.parametrize("path", ["/begin_weight_update", "/end_weight_update"])
async def test_the_older_release_has_no_sessions(start: Any, path: str) -> None:
    """0.5.17: 404, and tensors are taken without."""
    engine = await start("--act-as", "0.5.17")
    assert await engine.post(path, {}) == (404, {"detail": "Not Found"})
    assert (await engine.post("/update_weights_from_tensor", TENSORS))[0] == 200
    assert (await engine.get("/ready"))[0] == 404
    assert (await engine.get("/server_info"))[1]["version"] == "0.5.17"


async def test_a_body_must_be_declared_as_json(start: Any) -> None:
    """As in FastAPI: 400, nothing done."""
    engine = await start()
    async with engine.client.post("/pause_generation", data=b"{}") as response:
        assert response.status == 400
    async with engine.client.post("/pause_generation", data=b"{", headers={"content-type": "application/json"}) as r:
        assert r.status == 400
    assert (await engine.get("/ready"))[0] == 200


async def test_keys_guard_the_api(start: Any) -> None:
    """401 with SGLang's body; the admin key is in /server_info in clear, which is why that must not be logged."""
    engine = await start("--api-key", "a", "--admin-api-key", "m")
    assert await engine.post("/flush_cache", {}) == (401, {"error": "Unauthorized"})
    header = {"Authorization": "Bearer m"}
    assert (await engine.post("/flush_cache", {}, headers=header))[0] == 200
    info = (await engine.get("/server_info", headers={"Authorization": "Bearer a"}))[1]
    assert (info["api_key"], info["admin_api_key"]) == ("a", "m")


async def test_an_answer_carries_sglangs_fields_and_spans(start: Any) -> None:
    """Tokens, finish reason, counts, version, log probabilities where asked for, and spans and engine of ours."""
    engine = await start("--weight-version", "v1")
    body = {"input_ids": [1, 2, 3], "sampling_params": GREEDY, "return_logprob": True, "rid": "mine"}
    status, answer = await engine.post("/generate", body)
    assert status == 200
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == 3
    assert answer["text"] == ""
    assert meta.pop("e2e_latency") > 0
    triples = meta.pop("output_token_logprobs")
    assert [token for _, token, _ in triples] == answer["output_ids"]
    assert all(logprob <= 0 and text is None for logprob, _, text in triples)
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "weight_version": "v1",
        "num_retractions": 0,
        "spans": [["v1", 3]],
        "weight_versions": [{"version": "v1", "start": 0, "end": 3}],
        "output_token_logprobs_length": 3,
        "engine": "e0",
    }


async def test_a_list_is_answered_by_a_list(start: Any) -> None:
    """In its order, with parameters for each; and a list of one is still a list."""
    engine = await start()
    prompts = [[1, 2], [3], [4, 5, 6]]
    body = {"input_ids": prompts, "sampling_params": [GREEDY | {"max_new_tokens": n} for n in (1, 2, 3)], "rid": "r"}
    answers = (await engine.post("/generate", body))[1]
    assert [len(a["output_ids"]) for a in answers] == [1, 2, 3]
    assert [a["meta_info"]["prompt_tokens"] for a in answers] == [2, 1, 3]
    assert [a["meta_info"]["id"] for a in answers] == ["r_0", "r_1", "r_2"]
    assert len((await engine.post("/generate", {"input_ids": [[1]], "sampling_params": GREEDY}))[1]) == 1


async def test_seeds_decide_sampled_answers(start: Any) -> None:
    """The same seed, the same answer, alone or in a list; without a seed, each its own."""
    engine = await start()
    sampled = {"temperature": 1.0, "max_new_tokens": 12}
    seeds = [sampled | {"sampling_seed": n} for n in (5, 6)]
    pair = (await engine.post("/generate", {"input_ids": [[1, 2]] * 2, "sampling_params": seeds}))[1]
    assert pair[0]["output_ids"] != pair[1]["output_ids"]
    for one, params in zip(pair, seeds, strict=True):
        again = (await engine.post("/generate", {"input_ids": [1, 2], "sampling_params": params}))[1]
        assert again["output_ids"] == one["output_ids"]
    many = (await engine.post("/generate", {"input_ids": [[1, 2]] * 8, "sampling_params": sampled}))[1]
    assert len({tuple(a["output_ids"]) for a in many}) == 8


async def test_the_first_answered_token_is_told_once(start: Any) -> None:
    """An answer without a token is none."""
    engine = await start()
    await engine.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 0}})
    assert engine.said == []
    for _ in range(2):
        assert (await engine.post("/generate", {"input_ids": [1], "sampling_params": GREEDY}))[0] == 200
    assert engine.said == [{"event": "first_answer", "engine": "e0", "version": "default"}]


async def test_weights_from_disk_are_served(start: Any, checkpoints: list[Path]) -> None:
    """Checksums, answers, version and model_path are the other checkpoint's; and back again."""
    engine = await start()
    ask = {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 20}}

    async def state() -> Any:
        ids = (await engine.post("/generate", ask))[1]["output_ids"]
        checker = (await engine.post("/weights_checker", {}))[1]
        return ids, checker["ranks"][0]["checksums"], checker["per_engine_checksum"]

    first = await state()
    body = {"model_path": str(checkpoints[1]), "weight_version": "v2"}
    assert await engine.post("/update_weights_from_disk", body) == (
        200,
        {
            "success": True,
            "message": "Succeeded to update model weights. Weight version updated to v2.",
            "num_paused_requests": 0,
        },
    )
    info = (await engine.get("/model_info"))[1]
    assert (info["weight_version"], info["model_path"]) == ("v2", str(checkpoints[1]))
    second = await state()
    assert all(a != b for a, b in zip(first, second, strict=True))
    norms = [name for name in first[1] if "norm" in name]
    assert all((first[1][name] == second[1][name]) is (name in norms) for name in first[1])
    await engine.post("/update_weights_from_disk", {"model_path": str(checkpoints[0])})
    assert await state() == first


async def test_a_shallow_health_check_needs_no_token(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 /health answers while paused."""
    monkeypatch.setenv("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0")
    engine = await start()
    await engine.post("/pause_generation", {"mode": "retract"})
    assert (await engine.get("/health"))[0] == 200


async def test_a_deep_health_check_fails_while_paused(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token comes: 503, and the server counts as unhealthy until one does."""
    monkeypatch.setattr("reference.front.HEALTH_SECONDS", 0.05)
    engine = await start()
    await engine.post("/pause_generation", {"mode": "retract"})
    assert (await engine.get("/health"))[0] == 503
    await engine.post("/continue_generation", {})
    assert (await engine.get("/ready"))[0] == 503
    monkeypatch.setattr("reference.front.HEALTH_SECONDS", 60.0)
    assert (await engine.get("/health"))[0] == 200
    assert (await engine.get("/ready"))[0] == 200
