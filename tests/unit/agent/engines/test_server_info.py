"""What is kept of /server_info, and why an engine cannot be fed."""

from typing import Any

import pytest

from weightsync_agent.engines.base import Capabilities
from weightsync_agent.engines.server_info import at_least, engine_info, parse_server_info, refusal

FINE = {
    "version": "0.5.17",
    "custom_weight_loader": ["weightsync_hook.load"],
    "tp_size": 2,
    "pp_size": 1,
    "dp_size": 1,
}
OLD = Capabilities(begin_end=False, flush_with_waiting=False)
NEW = Capabilities(begin_end=True, flush_with_waiting=True)


def test_no_key_is_kept() -> None:
    """Of a body with keys in clear only the named fields survive."""
    body = {**FINE, "api_key": "sesame", "admin_api_key": "sesame", "internal_states": [{"admin_api_key": "sesame"}]}
    assert "sesame" not in parse_server_info(body).model_dump_json()


@pytest.mark.parametrize(
    ("version", "yes"),
    [
        ("0.5.21", True), ("0.5.21.post1", True), ("0.5.20", False), ("0.5.9", False), ("0.6.0rc1", True),
        ("v1.0.0", True), ("", False), ("main", False),
    ],
)  # fmt: skip
def test_releases_are_compared_by_their_numbers(version: str, yes: bool) -> None:
    """0.5.9 is older than 0.5.21; what is no release has no new feature."""
    assert at_least(version, (0, 5, 21)) is yes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({}, "", id="a plain engine with the hook"),
        pytest.param({"custom_weight_loader": []}, "--custom-weight-loader weightsync_hook.load", id="no hook"),
        pytest.param({"custom_weight_loader": None}, "--custom-weight-loader", id="no loader at all"),
        pytest.param({"custom_weight_loader": ["other.load"]}, "--custom-weight-loader", id="another loader"),
        pytest.param({"dp_size": 2}, "--dp-size 2", id="replicas in one server"),
        pytest.param({"dp_size": 2, "enable_dp_attention": True}, "", id="data-parallel attention is one replica"),
        pytest.param({"weight_cache_mode": "shared"}, "--weight-cache-mode shared", id="weights shared by engines"),
        pytest.param({"weight_cache_mode": "off"}, "", id="no weight cache"),
        pytest.param({"enable_eplb": True}, "--enable-eplb", id="experts that move"),
        pytest.param({"enable_lora": True}, "LoRA", id="adapters"),
        pytest.param({"quantization": "fp8"}, "--quantization fp8", id="repacked weights, no sessions"),
    ],
)
def test_why_an_engine_cannot_be_fed(changes: dict[str, Any], words: str) -> None:
    """A sentence that names the setting, or none."""
    sentence = refusal(parse_server_info({**FINE, **changes}), OLD)
    assert words in sentence
    assert bool(sentence) == bool(words)


def test_quantised_weights_need_sessions() -> None:
    """A release that can undo the repacking is not refused for it."""
    assert refusal(parse_server_info({**FINE, "quantization": "fp8"}), NEW) == ""


def test_both_answers_make_the_info() -> None:
    """The version's name comes from /model_info, sizes from /server_info; ranks are tp x pp."""
    info = engine_info({"weight_version": "v1", "model_path": "/m"}, parse_server_info({**FINE, "pp_size": 2}), OLD)
    assert (info.weight_version, info.server_version, info.ranks, info.refusal) == ("v1", "0.5.17", (0, 1, 2, 3), "")
