"""An answer computed alone has the same bits, whatever happened on the way."""

import pytest
import torch
from torch import Tensor

from reference.alone import answer_alone, feed, greedy_tokens
from reference.config import ModelConfig
from reference.engine_model import EngineModel, KVCache
from weightsync.errors import InputError

PROMPT = [5, 9, 2, 40, 7, 7, 1, 30, 12, 44, 3]


def test_a_cut_cache_changes_no_bit(model: EngineModel) -> None:
    """Logits after a cached prefix of any length equal those without a cache, bit by bit."""
    whole = model.new_cache()
    expected = feed(model, whole, PROMPT)
    for known in range(1, len(PROMPT)):
        cache = whole.prefix(0, known)
        assert torch.equal(feed(model, cache, PROMPT[known:]), expected), f"{known} positions from the cache"


def test_the_capacity_of_the_cache_changes_no_bit(model: EngineModel, config: ModelConfig) -> None:
    """A cache that was large from the start and one that grew give the same bits at every position."""
    small, large = model.new_cache(), KVCache(config, 1, torch.float32, capacity=256)
    for token in range(40):
        for _ in range(4):
            assert torch.equal(feed(model, small, [token]), feed(model, large, [token]))
    assert small.length == 160
    assert small.capacity > 64


def test_an_answer_goes_on_as_it_would_have(model: EngineModel) -> None:
    """Prompt and a part of the answer, given as prompt, bring the rest: what a retracted request relies on."""
    answer = answer_alone(model, PROMPT, 60)
    for cut in (1, 17, 59):
        assert answer_alone(model, PROMPT + answer[:cut], 60 - cut) == answer[cut:]


def test_the_checker_computes_what_the_engine_computes(
    model: EngineModel, config: ModelConfig, states: list[dict[str, Tensor]]
) -> None:
    """greedy_tokens, from the checkpoint's state, equals the engine's answer; other weights answer otherwise."""
    answer = answer_alone(model, PROMPT, 20)
    assert greedy_tokens(states[0], config, PROMPT, 20) == answer
    assert greedy_tokens(states[1], config, PROMPT, 20) != answer


def test_a_stop_token_ends_the_answer(model: EngineModel) -> None:
    """It is the answer's last token."""
    answer = answer_alone(model, PROMPT, 20)
    stopped = answer_alone(model, PROMPT, 20, [answer[4]])
    assert stopped == answer[: answer.index(answer[4]) + 1]


def test_more_than_one_thread_is_refused(model: EngineModel) -> None:
    """Several threads may split a sum differently, so the checker says so instead of failing now and then."""
    torch.set_num_threads(2)
    with pytest.raises(InputError, match=r"torch uses 2 threads.*set_num_threads\(1\)"):
        answer_alone(model, PROMPT, 1)


def test_an_empty_prompt_is_refused(model: EngineModel) -> None:
    """There would be no logits."""
    with pytest.raises(InputError, match="at least one"):
        answer_alone(model, [], 1)
