"""What the engine says of itself, how it refuses bodies and keys."""

from typing import Any

from tests.contract.api import Json
from tests.contract.table import case
from tests.contract.world import World
from weightsync.names import HOOK_LOADER
from weightsync_agent.engines.payload import hook_call


@case("it answers that it is there")
async def _health(world: World) -> Json:
    return {
        "health": (await world.api.get("/health", key="")).note(),
        "health_generate": (await world.api.get("/health_generate", key="")).note(),
    }


@case("it tells its model and settings")
async def _information(world: World) -> Json:
    model = await world.api.get("/model_info")
    server = await world.api.get("/server_info")
    sizes = {size: server.at(size) for size in ("tp_size", "pp_size", "dp_size")}
    info = await world.engine.info()
    return {
        "model_info": {**model.note("model_path"), "weight_version": model.at("weight_version")},
        "server_info": {**server.note("version"), **sizes, "loaders": server.at("custom_weight_loader")},
        "refusal": info.refusal,
        "ranks": list(info.ranks),
    }


@case("greedy generation")
async def _generate(world: World) -> Json:
    seen = await world.generate([5, 17, 99])
    again = await world.generate([5, 17, 99])
    return {
        **seen.note(
            "output_ids", "meta_info.id", "meta_info.prompt_tokens", "meta_info.completion_tokens",
            "meta_info.cached_tokens", "meta_info.finish_reason.length",
        ),
        "finish": seen.at("meta_info.finish_reason.type"),
        "weight_version": seen.at("meta_info.weight_version"),
        "tokens": len(seen.body["output_ids"]),
        "the same again": seen.body["output_ids"] == again.body["output_ids"],
    }  # fmt: skip


@case("what it has, and what it has not")
async def _endpoints(world: World) -> Json:
    capabilities = await world.engine.capabilities()
    return {
        **{
            f"{method} {path}": {
                kind: (await world.api.call(method, path, {} if method == "POST" else None, key=key)).status
                for kind, key in (("the api key", world.key), ("the admin key", world.admin))
            }
            for method, path in (
                ("GET", "/begin_weight_update"),
                ("POST", "/begin_weight_update"),
                ("POST", "/end_weight_update"),
                ("GET", "/pause_generation"),
                ("GET", "/no_such_thing"),
            )
        },
        "sessions": capabilities.begin_end,
        "flush with waiting": capabilities.flush_with_waiting,
    }


@case("bodies that are wrong")
async def _malformed(world: World) -> Json:
    post = world.api.post
    update = "/update_weights_from_tensor"
    found = {
        "pause in an unknown mode": await post("/pause_generation", {"mode": "sideways"}),
        "pause with no JSON": await post("/pause_generation", "{"),
        "pause with no body": await post("/pause_generation"),
        "version without a name": await post("/update_weight_version", {"abort_all_requests": False}),
        "weights without tensors": await post(update, {"load_format": HOOK_LOADER}),
        "weights that are no base64": await post(update, {**hook_call(1), "serialized_named_tensors": ["?"]}),
        "generate without input": await post("/generate", {"sampling_params": {}}),
    }
    unknown = await post("/continue_generation", {"torch_empty_cache": False, "no_such_field": 1})
    return {
        **{name: {"status": seen.status, "body": _problem(seen.body)} for name, seen in found.items()},
        "a field that is not known": unknown.note("status", "message"),
        "still serving": (await world.generate([1], 1)).status,
    }


def _problem(body: Any) -> str:
    """How an error says what is wrong."""
    if isinstance(body, dict):
        return next((field for field in ("message", "error", "detail") if body.get(field)), "no word")
    return "text" if body else "nothing"


@case("keys")
async def _keys(world: World) -> Json:
    if not (world.admin and world.key):
        return {}
    calls = {
        "generate": ("POST", "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}),
        "model_info": ("GET", "/model_info", None),
        "server_info": ("GET", "/server_info", None),
        "health": ("GET", "/health", None),
        "flush_cache": ("POST", "/flush_cache", {}),
        "continue_generation": ("POST", "/continue_generation", {}),
        "weights_checker": ("POST", "/weights_checker", {"action": "checksum"}),
    }
    keys = {"no key": "", "another key": "wrong", "the api key": world.key, "the admin key": world.admin}
    statuses = {
        call: {
            name: (await world.api.call(method, path, body, key=key)).status for name, key in keys.items()
        }
        for call, (method, path, body) in calls.items()
    }  # fmt: skip
    refused = await world.api.post("/continue_generation", {}, key="wrong")
    return {**statuses, "how it is refused": refused.note("error")}
