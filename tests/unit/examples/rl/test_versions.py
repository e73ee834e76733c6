"""The trainer's copies answer as an engine does, bit by bit, and probes tell versions apart."""

import pytest
import torch
from torch import Tensor

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from reference.config import ModelConfig
from reference.engine_model import build_engine_model
from rl.probes import batched_greedy, telling
from rl.versions import Versions

CONFIG = ModelConfig(vocab=24, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=64)
PROMPT = [3, 1, 4]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Tensor]]:
    return [initial_state(CONFIG, seed) for seed in range(4)]


def test_each_version_answers_with_its_own_weights(states: list[dict[str, Tensor]]) -> None:
    """Numbers follow the order of publishing; the first checkpoint is 0; a changed state changes no copy."""
    versions = Versions(CONFIG, states[0])
    mine = {name: tensor.clone() for name, tensor in states[1].items()}
    assert versions.add(mine) == 1
    versions.name(1, "a.1")
    for tensor in mine.values():
        tensor.zero_()
    assert (versions.number("default"), versions.number("a.1"), versions.number("a.2")) == (0, 1, None)
    for number in (0, 1):
        found = versions.answer(number, PROMPT, 6)
        assert found is not None
        assert found.tokens == greedy_tokens(states[number], CONFIG, PROMPT, 6)
        assert all(logprob < 0 for logprob in found.logprobs)


def test_a_span_is_computed_after_the_tokens_before_it(states: list[dict[str, Tensor]]) -> None:
    """Continuing after prompt and first tokens gives the rest of the answer, with equal log probabilities."""
    versions = Versions(CONFIG, states[0])
    whole = versions.answer(0, PROMPT, 6)
    assert whole is not None
    rest = versions.answer(0, [*PROMPT, *whole.tokens[:2]], 4)
    assert rest is not None
    assert (rest.tokens, rest.logprobs) == (whole.tokens[2:], whole.logprobs[2:])


def test_differs_sees_any_token_that_is_another(states: list[dict[str, Tensor]]) -> None:
    """Also only the last one; a version that is not kept differs from nothing."""
    versions = Versions(CONFIG, states[0])
    right = versions.answer(0, PROMPT, 5)
    assert right is not None
    assert not versions.differs(0, PROMPT, right.tokens)
    assert versions.differs(0, PROMPT, [*right.tokens[:-1], (right.tokens[-1] + 1) % CONFIG.vocab])
    assert not versions.differs(7, PROMPT, [0])


def test_only_the_newest_are_kept(states: list[dict[str, Tensor]]) -> None:
    """Memory is bounded; names of older versions are still known."""
    versions = Versions(CONFIG, states[0], keep=2)
    for number, state in enumerate(states[1:], 1):
        versions.name(versions.add(state), f"a.{number}")
    assert [versions.model(number) is not None for number in range(4)] == [False, False, True, True]
    assert versions.answer(1, PROMPT, 1) is None
    assert versions.number("a.1") == 1


def test_probes_that_tell_versions_apart_come_first(states: list[dict[str, Tensor]]) -> None:
    """First what both pairs of versions answer differently, then what the newest pair does; else in their order."""
    old, middle, new = (build_engine_model(CONFIG, state) for state in states[:3])
    generator = torch.Generator().manual_seed(0)
    candidates = torch.randint(CONFIG.vocab, (40, 4), generator=generator).tolist()
    assert telling([old, old, old], candidates, 1, 5) == candidates[:5]
    # One token, so that some of the candidates are answered alike.
    answers = [batched_greedy(model, candidates, 1)[:, 0].tolist() for model in (new, middle, old)]
    rank = [2 * (a != b) + (b != c) for a, b, c in zip(*answers, strict=True)]
    expected = [c for wanted in (3, 2, 1, 0) for c, found in zip(candidates, rank, strict=True) if found == wanted]
    assert telling([new, middle, old], candidates, 1, 40) == expected


def test_what_is_served_before_anything_was_published_is_of_a_former_life(states: list[dict[str, Tensor]]) -> None:
    """Later on a strange name is strange, and a torn one always is."""
    versions = Versions(CONFIG, states[0])
    for name in ("z.9", "torn:z.9", "default"):
        versions.seen(name)
    versions.add(states[1])
    versions.seen("z.10")
    assert [versions.former(name) for name in ("z.9", "torn:z.9", "default", "z.10")] == [True, False, False, False]
