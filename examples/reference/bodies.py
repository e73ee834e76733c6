"""Bodies of requests, with SGLang's names and defaults. Keys that are not known are ignored, as there."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from reference.config import ModelConfig
from reference.generation import Sampling
from weightsync.errors import InputError

# Accepted, because they change nothing here: there is no tokenizer and no end-of-sequence token of its own.
_IDLE = {"ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"}
# Understood only at the value that means "off".
_OFF: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1.0),
    "top_k": (None, -1),
    "min_p": (None, 0.0),
    "n": (None, 1),
    "min_new_tokens": (None, 0),
    "frequency_penalty": (None, 0.0),
    "presence_penalty": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}
_GREEDY_BELOW = 1e-6  # SGLang's: a lower temperature means the most likely token


class GenerateBody(BaseModel):
    """POST /generate."""

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    return_logprob: bool | list[bool] | None = None
    rid: str | list[str] | None = None
    stream: bool = False


class PauseBody(BaseModel):
    """POST /pause_generation."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueBody(BaseModel):
    """POST /continue_generation."""

    torch_empty_cache: bool = True


class BeginBody(BaseModel):
    """POST /begin_weight_update."""

    selector: Literal["target", "draft", "all"] = "all"


class EndBody(BaseModel):
    """POST /end_weight_update."""


class VersionBody(BaseModel):
    """POST /update_weight_version. The default aborts everything."""

    new_version: str
    abort_all_requests: bool = True


class TensorBody(BaseModel):
    """POST /update_weights_from_tensor."""

    serialized_named_tensors: list[str]
    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


class DiskBody(BaseModel):
    """POST /update_weights_from_disk."""

    model_path: str
    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


class CheckerBody(BaseModel):
    """POST or GET /weights_checker."""

    action: str = "checksum"


class AbortBody(BaseModel):
    """POST /abort_request. An empty rid aborts nothing."""

    rid: str = ""
    abort_all: bool = False


class _Parameters(BaseModel, extra="allow"):
    """The sampling parameters that mean something here."""

    temperature: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    max_new_tokens: int | None = Field(default=None, ge=0)
    stop_token_ids: list[int] | None = None
    sampling_seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)


def sampling_of(params: dict[str, Any], prompt: list[int], config: ModelConfig, seed: int) -> Sampling:
    """Read sampling_params for one prompt; ``seed`` where they name none. Raises InputError, as 400 would say."""
    parsed = _Parameters.model_validate(params)
    for name, value in (parsed.model_extra or {}).items():
        if name in _IDLE or (name in _OFF and value in _OFF[name]):
            continue
        raise InputError(f"sampling parameter {name}={value!r} is not supported by the reference engine")
    room = config.max_positions - len(prompt)
    limit = parsed.max_new_tokens
    if room <= 0:
        raise InputError(
            f"The input ({len(prompt)} tokens) is longer than the model's context length "
            f"({config.max_positions} tokens)."
        )
    if limit is not None and limit > room:
        raise InputError(
            f"{len(prompt)} input tokens and {limit} new ones exceed the model's maximum context length of "
            f"{config.max_positions} tokens."
        )
    temperature = 1.0 if parsed.temperature is None else parsed.temperature
    return Sampling(
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        max_new_tokens=min(128, room) if limit is None else limit,
        stop_token_ids=frozenset(parsed.stop_token_ids or ()),
        seed=seed if parsed.sampling_seed is None else parsed.sampling_seed,
    )
