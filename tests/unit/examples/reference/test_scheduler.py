"""Waiting, running, pausing, aborting, flushing: driven step by step, without threads."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reference.alone import answer_alone
from reference.config import ModelConfig
from reference.engine_model import EngineModel, build_engine_model
from reference.generation import Generation
from reference.scheduler import Scheduler

Ask = Callable[..., Generation]
PROMPT = list(range(1, 21))  # longer than one chunk of the prompt


def run(scheduler: Scheduler) -> None:
    """Until nothing is left to compute."""
    for _ in range(10000):
        if not scheduler.has_work:
            return
        scheduler.step()
    pytest.fail("the scheduler never came to an end")


def run_until(scheduler: Scheduler, holds: Callable[[], bool]) -> None:
    """Until something holds."""
    while not holds():
        assert scheduler.has_work
        scheduler.step()


def load(scheduler: Scheduler, state: dict[str, Tensor], version: str) -> None:
    """New weights under a new name."""
    scheduler.model.load_weights(state.items())
    scheduler.version = version


@pytest.fixture
def scheduler(model: EngineModel) -> Scheduler:
    """Serving version "a"."""
    return Scheduler(model, "a", max_running=8)


def test_each_greedy_answer_is_the_one_computed_alone(scheduler: Scheduler, ask: Ask) -> None:
    """However many run at once, each has its own bits; and they take turns."""
    requests = [ask([*PROMPT, n], 12) for n in range(5)]
    scheduler.add(requests)
    run_until(scheduler, lambda: all(len(r.output) >= 1 for r in requests))
    assert all(len(r.output) <= 3 for r in requests)
    run(scheduler)
    for request in requests:
        assert request.output == answer_alone(scheduler.model, request.prompt, 12)
        assert request.spans == [("a", 12)]
        assert request.finish == {"type": "length", "length": 12}
    assert ask.done == requests  # type: ignore[attr-defined]


def test_a_stop_token_wins_over_the_limit(scheduler: Scheduler, ask: Ask) -> None:
    """Even where it is the last token that may come."""
    first = answer_alone(scheduler.model, PROMPT, 1)[0]
    request = ask(PROMPT, 1, stop=[first])
    scheduler.add([request])
    run(scheduler)
    assert request.finish == {"type": "stop", "matched": first}
    assert request.output == [first]


def test_a_request_for_nothing_ends_at_once(scheduler: Scheduler, ask: Ask) -> None:
    """max_new_tokens 0."""
    request = ask(PROMPT, 0)
    scheduler.add([request])
    assert request.finish == {"type": "length", "length": 0}
    assert not scheduler.has_work


def test_sampled_requests_of_one_length_are_one_batch(scheduler: Scheduler, ask: Ask) -> None:
    """They advance together, equal prompts are computed once, and each draws what its seed says."""
    requests = [ask([1, 2, n % 2], 6, temperature=1.0, seed=n) for n in range(6)]
    other = ask([1, 2], 6, temperature=1.0)
    scheduler.add([*requests[:3], other, *requests[3:]])
    scheduler.step()
    assert len(scheduler.running) == 2
    assert [len(r.output) for r in requests] == [1] * 6
    run(scheduler)
    assert len({tuple(r.output) for r in requests}) > 1
    for request in requests:
        single = Scheduler(scheduler.model, "a")
        again = ask(request.prompt, 6, temperature=1.0, seed=request.sampling.seed)
        single.add([again])
        run(single)
        assert again.output == request.output
        assert again.logprobs == pytest.approx(request.logprobs, abs=1e-4)


def test_a_batch_goes_on_when_rows_end(scheduler: Scheduler, ask: Ask) -> None:
    """Rows that finish early leave; the others' tokens do not change by it."""
    requests = [ask([1, 2, n], 2 + 3 * n, temperature=1.0, seed=n) for n in range(8)]
    full = [ask([1, 2, n], 26, temperature=1.0, seed=n) for n in range(8)]
    for group in (requests, full):
        scheduler.add(group)
        run(scheduler)
        scheduler.flush()
    for short, long in zip(requests, full, strict=True):
        assert short.output == long.output[: len(short.output)]
        assert len(short.output) == 2 + 3 * requests.index(short)


def test_no_more_run_than_may(scheduler: Scheduler, ask: Ask) -> None:
    """The rest waits, in order."""
    scheduler.add([ask([1, n], 5) for n in range(6)])
    scheduler.add([ask([1, 2, n], 5, temperature=1.0) for n in range(6)])
    scheduler.step()
    assert scheduler.running_requests == 8
    assert len(scheduler.waiting) == 4
    run(scheduler)
    assert len(ask.done) == 12  # type: ignore[attr-defined]


def test_retract_computes_anew_with_the_new_weights(
    scheduler: Scheduler, ask: Ask, config: ModelConfig, states: list[dict[str, Tensor]]
) -> None:
    """Tokens are kept; after the flush each span is what its version answers after what stood before it."""
    request = ask(PROMPT, 30)
    scheduler.add([request])
    run_until(scheduler, lambda: len(request.output) == 11)
    scheduler.pause("retract")
    assert not scheduler.has_work
    assert scheduler.running_requests == 0
    load(scheduler, states[1], "b")
    assert scheduler.flush()
    scheduler.resume()
    run(scheduler)
    assert request.spans == [("a", 11), ("b", 19)]
    assert request.retractions == 1
    old, new = (build_engine_model(config, state) for state in states)
    assert request.output[:11] == answer_alone(old, PROMPT, 11)
    assert request.output[11:] == answer_alone(new, PROMPT + request.output[:11], 19)
    assert request.output[11:] != answer_alone(old, PROMPT + request.output[:11], 19)


def test_a_pause_without_new_weights_changes_nothing(scheduler: Scheduler, ask: Ask) -> None:
    """A sync that failed and was undone leaves one span and the answer of a request that was never paused."""
    request = ask(PROMPT, 30)
    scheduler.add([request])
    for _ in range(3):
        more = len(request.output) + 4
        while len(request.output) < more:
            scheduler.step()
        scheduler.pause("retract")
        scheduler.version = "torn:b"
        scheduler.version = "a"
        scheduler.resume()
    run(scheduler)
    assert request.spans == [("a", 30)]
    assert request.output == answer_alone(scheduler.model, PROMPT, 30)


def test_in_place_keeps_what_old_weights_computed(
    scheduler: Scheduler, ask: Ask, config: ModelConfig, states: list[dict[str, Tensor]]
) -> None:
    """The cache stays, so the new version's tokens are not what it would say from the prompt on."""
    request = ask(PROMPT, 40)
    scheduler.add([request])
    run_until(scheduler, lambda: len(request.output) == 11)
    scheduler.pause("in_place")
    assert scheduler.running_requests == 1
    assert not scheduler.flush()
    load(scheduler, states[1], "b")
    scheduler.resume()
    run(scheduler)
    assert request.spans == [("a", 11), ("b", 29)]
    assert request.retractions == 0
    new = build_engine_model(config, states[1])
    assert request.output[11:] != answer_alone(new, PROMPT + request.output[:11], 29)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_without_a_flush_old_weights_answer(
    scheduler: Scheduler, ask: Ask, config: ModelConfig, states: list[dict[str, Tensor]], temperature: float
) -> None:
    """A prompt that was seen before continues on keys of the old weights; after a flush it does not."""

    def answer() -> Generation:
        request = ask(PROMPT, 12, temperature=temperature, seed=5)
        scheduler.add([request])
        run(scheduler)
        return request

    answer()
    load(scheduler, states[1], "b")
    stale = answer()
    assert stale.cached_tokens == len(PROMPT) - 1
    assert stale.spans == [("b", 12)]
    assert scheduler.flush()
    fresh = answer()
    assert fresh.cached_tokens == 0
    assert stale.output != fresh.output
    clean = Scheduler(build_engine_model(config, states[1]), "b")
    expected = ask(PROMPT, 12, temperature=temperature, seed=5)
    clean.add([expected])
    run(clean)
    assert fresh.output == expected.output


def test_a_cached_prefix_changes_no_answer(scheduler: Scheduler, ask: Ask) -> None:
    """With the same weights, reuse is invisible but in cached_tokens."""
    for prompt in (PROMPT, [*PROMPT[:13], 40, 41], PROMPT[:5], PROMPT):
        request = ask(prompt, 10)
        scheduler.add([request])
        run(scheduler)
        assert request.output == answer_alone(scheduler.model, prompt, 10)
    assert request.cached_tokens == len(PROMPT) - 1


def test_a_batch_does_not_feed_the_answers_that_are_checked(scheduler: Scheduler, ask: Ask) -> None:
    """What a batch computed rounds otherwise: a greedy request does not find it."""
    scheduler.add([ask(PROMPT, 3, temperature=1.0, seed=n) for n in range(3)])
    run(scheduler)
    request = ask(PROMPT, 3)
    scheduler.add([request])
    run(scheduler)
    assert request.cached_tokens == 0


@pytest.mark.parametrize(
    ("situation", "from_0_5_21", "before"),
    [
        pytest.param("idle", True, True, id="idle"),
        pytest.param("running", False, False, id="one runs"),
        pytest.param("in place", False, False, id="one is paused in place"),
        pytest.param("retracted", True, False, id="one was retracted"),
        pytest.param("waiting", False, False, id="one waits and nothing is paused"),
        pytest.param("waiting, paused", True, False, id="one waits while paused"),
    ],
)
def test_when_a_flush_is_possible(
    model: EngineModel, ask: Ask, situation: str, from_0_5_21: bool, before: bool
) -> None:
    """SGLang's rule: nothing runs, and nothing waits unless the engine is paused and the release ignores it."""
    for ignores, expected in ((True, from_0_5_21), (False, before)):
        scheduler = Scheduler(model, "a", flush_ignores_waiting=ignores)
        if situation in ("running", "in place", "retracted"):
            scheduler.add([ask(PROMPT, 20)])
            scheduler.step()
        if situation in ("in place", "retracted", "waiting, paused"):
            scheduler.pause("in_place" if situation == "in place" else "retract")
        if situation.startswith("waiting"):
            scheduler.add([ask(PROMPT, 20)])
        requests = len(scheduler.waiting) + scheduler.running_requests
        assert scheduler.flush() is expected
        assert len(scheduler.waiting) + scheduler.running_requests == requests


def test_abort_ends_requests_with_what_they_have(scheduler: Scheduler, ask: Ask) -> None:
    """Running ones, rows of a batch and waiting ones; only those whose name begins so."""
    greedy, first, second = (
        ask(PROMPT, 20, name="x-1"),
        *(ask([1, 2, n], 20, temperature=1.0, name=f"{'xy'[n]}-{n}") for n in range(2)),
    )
    scheduler.add([greedy, first, second])
    run_until(scheduler, lambda: len(greedy.output) == 3)
    waiting = ask(PROMPT, 20, name="x-9")
    scheduler.add([waiting])
    scheduler.abort("x")
    assert greedy.finish is not None
    assert greedy.finish["type"] == "abort"
    assert len(greedy.output) == 3
    assert greedy.output == answer_alone(scheduler.model, PROMPT, 3)
    assert waiting.finish == {"type": "abort", "message": "Abort in waiting queue"}
    assert second.finish is None
    run(scheduler)
    assert len(second.output) == 20
    assert sorted(r.name for r in ask.done) == ["x-0", "x-1", "x-9", "y-1"]  # type: ignore[attr-defined]


def test_everything_can_be_aborted_while_paused(scheduler: Scheduler, ask: Ask) -> None:
    """Also what was retracted, with the tokens that it had."""
    requests = [ask(PROMPT, 20), ask([1], 20, temperature=1.0)]
    scheduler.add(requests)
    run_until(scheduler, lambda: all(r.output for r in requests))
    counts = [len(r.output) for r in requests]
    scheduler.pause("retract")
    scheduler.abort()
    assert [len(r.output) for r in requests] == counts
    assert all(r.finish and r.finish["type"] == "abort" for r in requests)
    scheduler.resume()
    assert not scheduler.has_work


def test_retracted_sampled_requests_draw_the_same_tokens(scheduler: Scheduler, ask: Ask) -> None:
    """With unchanged weights a pause is invisible: the noise depends on seed and position."""
    expected = [ask([1, 2, n], 12, temperature=1.0, seed=n) for n in range(4)]
    scheduler.add(expected)
    run(scheduler)
    scheduler.flush()
    paused = [ask([1, 2, n], 12, temperature=1.0, seed=n) for n in range(4)]
    scheduler.add(paused)
    run_until(scheduler, lambda: len(paused[0].output) == 5)
    scheduler.pause("retract")
    scheduler.resume()
    run(scheduler)
    assert [r.output for r in paused] == [r.output for r in expected]


def test_a_pause_does_not_wait_for_a_long_prompt(scheduler: Scheduler, ask: Ask) -> None:
    """One step computes a part of it at most."""
    request = ask(list(range(40)) * 5, 1)
    scheduler.add([request])
    steps = 0
    while not request.finish:
        scheduler.step()
        steps += 1
    assert steps > 10
    assert not torch.is_inference_mode_enabled()
