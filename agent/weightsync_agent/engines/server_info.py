"""The few fields of SGLang's answers that are kept, and why an engine cannot be fed. Pure.

``/server_info`` carries the engine's keys in clear: it is parsed here into named fields, and the rest is dropped.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from weightsync.names import HOOK_LOADER
from weightsync.records import Record
from weightsync_agent.engines.base import Capabilities, EngineInfo

FLUSH_WITH_WAITING = (0, 5, 21)


class ServerInfo(Record):
    """What is kept of ``/server_info``. loaders: the custom weight loaders that the server was started with."""

    server_version: str
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    nodes: int = 1
    dp_attention: bool = False
    loaders: tuple[str, ...] = ()
    quantization: str = ""
    eplb: bool = False
    lora: bool = False
    weight_cache: str = "off"
    flush_with_waiting: bool = Field(default=False)


def parse_server_info(body: Mapping[str, Any]) -> ServerInfo:
    """Keep the needed fields; anything missing has SGLang's default."""
    version = str(body.get("version") or "")
    return ServerInfo(
        server_version=version,
        tp_size=int(body.get("tp_size") or 1),
        pp_size=int(body.get("pp_size") or 1),
        dp_size=int(body.get("dp_size") or 1),
        nodes=int(body.get("nnodes") or 1),
        dp_attention=bool(body.get("enable_dp_attention")),
        loaders=tuple(str(name) for name in body.get("custom_weight_loader") or ()),
        quantization=str(body.get("quantization") or ""),
        eplb=bool(body.get("enable_eplb")),
        lora=bool(body.get("enable_lora") or body.get("lora_paths")),
        weight_cache=str(body.get("weight_cache_mode") or "off"),
        flush_with_waiting=at_least(version, FLUSH_WITH_WAITING),
    )


def at_least(version: str, wanted: tuple[int, int, int]) -> bool:
    """``0.5.21``, ``0.5.21.post1`` and ``0.6.0rc1`` are at least 0.5.21; what is no version is not."""
    numbers = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return numbers is not None and tuple(int(n) for n in numbers.groups()) >= wanted


def refusals(info: ServerInfo, capabilities: Capabilities) -> dict[str, str]:
    """Every setting for which engines are refused, and why this one is: a sentence, "" where it is not.

    The hook's loader first: a call with a ``load_format`` that the server does not know ends it (seen on 0.5.17).
    """
    checks = {
        "--custom-weight-loader": (
            HOOK_LOADER not in info.loaders,
            f"it was not started with --custom-weight-loader {HOOK_LOADER} (and PYTHONPATH naming the hook's folder)",
        ),
        "--dp-size": (
            info.dp_size > 1 and not info.dp_attention,
            f"--dp-size {info.dp_size}: run one server for each replica",
        ),
        "--nnodes": (
            info.tp_size * info.pp_size % info.nodes > 0,
            f"--nnodes {info.nodes}: its {info.tp_size * info.pp_size} ranks cannot be shared out evenly",
        ),
        "--weight-cache-mode": (
            info.weight_cache != "off",
            f"--weight-cache-mode {info.weight_cache} shares weights between engines: use off",
        ),
        "--enable-eplb": (info.eplb, "--enable-eplb moves experts between ranks at run time"),
        "--enable-lora": (
            info.lora,
            "LoRA adapters are merged into, or kept beside, weights that would change under them",
        ),
        "--quantization": (
            bool(info.quantization) and not capabilities.begin_end,
            f"--quantization {info.quantization} repacks weights after loading, and this release of SGLang "
            f"({info.server_version}) cannot undo that (no /begin_weight_update)",
        ),
    }
    return {setting: sentence if failed else "" for setting, (failed, sentence) in checks.items()}


def refusal(info: ServerInfo, capabilities: Capabilities) -> str:
    """The first reason why this engine cannot be fed, with the setting's name; "" where it can."""
    sentences = filter(None, refusals(info, capabilities).values())
    return next((f"the engine cannot be fed: {sentence}" for sentence in sentences), "")


def engine_info(model_info: Mapping[str, Any], info: ServerInfo, capabilities: Capabilities) -> EngineInfo:
    """Both answers together."""
    return EngineInfo(
        weight_version=str(model_info.get("weight_version") or ""),
        server_version=info.server_version,
        model_path=str(model_info.get("model_path") or ""),
        tp_size=info.tp_size,
        pp_size=info.pp_size,
        nodes=info.nodes,
        refusal=refusal(info, capabilities),
    )
