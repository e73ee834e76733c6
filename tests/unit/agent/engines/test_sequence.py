"""The commit's order, by what the engine can do and by how it is paused."""

import pytest

from weightsync_agent.engines.base import Capabilities, PauseMode
from weightsync_agent.engines.sequence import OPEN_STEPS, Step, commit_steps, direct_steps, left_out, refusal

OLD = Capabilities(begin_end=False, flush_with_waiting=False)
NEW = Capabilities(begin_end=True, flush_with_waiting=True)

ALL = [
    "JOURNAL_TORN", "PAUSE", "MARK_TORN", "BEGIN", "APPLY", "END", "FLUSH", "MARK_CURRENT", "JOURNAL_CURRENT",
    "CONTINUE", "CONFIRM", "GATE",
]  # fmt: skip


@pytest.mark.parametrize(
    ("capabilities", "mode", "missing"),
    [
        pytest.param(NEW, "Retract", set(), id="a new engine goes through every step"),
        pytest.param(NEW, "Abort", {"FLUSH"}, id="aborting flushes in the pause"),
        pytest.param(NEW, "InPlace", {"FLUSH"}, id="in place nothing is flushed"),
        pytest.param(
            OLD, "Abort", {"BEGIN", "END", "FLUSH"}, id="an old engine flushes in its pause, and has no sessions"
        ),
        pytest.param(OLD, "InPlace", {"BEGIN", "END", "FLUSH"}, id="an old engine in place"),
    ],
)
def test_the_order(capabilities: Capabilities, mode: PauseMode, missing: set[str]) -> None:
    """The design's order, without the steps that are left out, each of which has a reason."""
    assert [step.name for step in commit_steps(capabilities, mode)] == [name for name in ALL if name not in missing]
    omitted = left_out(capabilities, mode)
    assert {step.name for step in omitted} == missing
    assert all(omitted.values())


@pytest.mark.parametrize("capabilities", [OLD, NEW])
@pytest.mark.parametrize("mode", ["Abort", "Retract", "InPlace"])
def test_torn_first_and_current_last(capabilities: Capabilities, mode: PauseMode) -> None:
    """Journal and pause come before the first byte; nothing is generated before the journal says Current."""
    steps = commit_steps(capabilities, mode)
    order = {step: at for at, step in enumerate(steps)}
    assert order[Step.JOURNAL_TORN] < order[Step.PAUSE] < order[Step.MARK_TORN] < order[Step.APPLY]
    assert order[Step.APPLY] < order[Step.MARK_CURRENT] < order[Step.JOURNAL_CURRENT] < order[Step.CONTINUE]
    assert order[Step.CONTINUE] < order[Step.CONFIRM] < order[Step.GATE]


@pytest.mark.parametrize(
    ("capabilities", "mode", "refused"),
    [
        pytest.param(OLD, "Retract", True, id="an old engine cannot flush under waiting requests"),
        pytest.param(NEW, "Retract", False, id="a new one can"),
        pytest.param(OLD, "Abort", False, id="aborted requests do not wait"),
        pytest.param(OLD, "InPlace", False, id="in place nothing is flushed"),
    ],
)
def test_what_is_refused(capabilities: Capabilities, mode: PauseMode, refused: bool) -> None:
    """Refused with the two ways out in the sentence."""
    sentence = refusal(capabilities, mode)
    assert (sentence is not None) == refused
    if sentence:
        assert "pauseMode Abort" in sentence
        assert "0.5.21" in sentence


@pytest.mark.parametrize("capabilities", [OLD, NEW])
def test_a_life_is_certified_in_its_first_commit(capabilities: Capabilities) -> None:
    """Applied and read back, twice, before anything calls it whole; later commits do not read back."""
    first, later = (commit_steps(capabilities, "Retract", certified=known) for known in (False, True))
    assert Step.READ_BACK not in later
    once = [step for step in later if step in {Step.BEGIN, Step.APPLY, Step.END}]
    at = first.index(Step.MARK_TORN) + 1
    assert list(first[at : first.index(Step.FLUSH)]) == 2 * [*once, Step.READ_BACK]
    rest = [step for step in first if step not in {*once, Step.READ_BACK}]
    assert rest == [step for step in later if step not in once]


@pytest.mark.parametrize("capabilities", [OLD, NEW])
@pytest.mark.parametrize("certified", [False, True])
def test_a_direct_commit_applies_nothing(capabilities: Capabilities, certified: bool) -> None:
    """What was let in by the opening steps is finished: the same first steps, nothing copied, read back at first."""
    steps = direct_steps(capabilities, "Abort", certified=certified)
    assert steps[: len(OPEN_STEPS)] == OPEN_STEPS
    assert Step.APPLY not in steps
    assert (Step.READ_BACK in steps) is not certified
    expected = [step for step in commit_steps(capabilities, "Abort") if step is not Step.APPLY]
    assert [step for step in steps if step not in {Step.SAME_LIFE, Step.READ_BACK}] == expected


def test_a_direct_engine_is_journalled_and_paused_before_anybody_is_let_in() -> None:
    """And is the process that was described."""
    assert OPEN_STEPS == (Step.JOURNAL_TORN, Step.PAUSE, Step.SAME_LIFE, Step.MARK_TORN)
