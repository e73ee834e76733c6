"""The judgement of one answer, against a replay that needs no weights."""

from collections.abc import Sequence

import pytest

from rl.checker import Answer, Continuation, Span, Tally, check, check_versions

NAMES = {"default": 0, "a.1": 1, "a.2": 2, "a.3": 3}
KEPT = 1  # the oldest version whose weights are held


class Counting:
    """Version n answers last + n, last + 2 n, ...: every version another one's; log probabilities are -n."""

    def number(self, version: str) -> int | None:
        return NAMES.get(version)

    def former(self, version: str) -> bool:
        return version == "z.9"

    def answer(self, number: int, prefix: Sequence[int], tokens: int) -> Continuation | None:
        if number < KEPT:
            return None
        return Continuation([prefix[-1] + number * (at + 1) for at in range(tokens)], [-float(number)] * tokens)

    def differs(self, number: int, prefix: Sequence[int], tokens: Sequence[int]) -> bool:
        found = self.answer(number, prefix, len(tokens))
        return found is not None and list(found.tokens) != list(tokens)


def answer(tokens: Sequence[int], *spans: tuple[str, int], floor: int = 0, logprobs: Sequence[float] = ()) -> Answer:
    return Answer("engine-0", [10], tokens, [Span(*span) for span in spans], floor, logprobs)


@pytest.mark.parametrize(
    "right",
    [
        pytest.param(answer([12, 14], ("a.2", 2), logprobs=[-2.0, -2.0]), id="one version"),
        pytest.param(answer([11, 13, 15], ("a.1", 1), ("a.2", 2)), id="a switch in the middle of the answer"),
        pytest.param(answer([13], ("a.3", 1), floor=3), id="the version that the engine was reported with"),
        pytest.param(answer([13], ("a.3", 1), floor=2), id="a newer version than the one reported"),
        pytest.param(answer([99], ("z.9", 1)), id="a former life's version, before the engine had one of this life"),
    ],
)
def test_a_right_answer_has_no_finding(right: Answer) -> None:
    """Spans that are what their versions compute are neither torn nor stale, and version - 1 is told apart."""
    verdict = check(right, Counting())
    assert (verdict.torn, verdict.stale) == ("", "")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        pytest.param(answer([11, 12], ("a.2", 2)), "these weights compute", id="the weights of the version before"),
        pytest.param(answer([12, 15], ("a.2", 2)), "these weights compute", id="a token half-way"),
        pytest.param(answer([11, 12], ("a.1", 1), ("a.2", 1)), "these weights compute", id="only the second span"),
        pytest.param(answer([12], ("torn:a.2", 1)), "nobody published", id="an engine that answered while torn"),
        pytest.param(answer([12], ("b.1", 1)), "nobody published", id="another lineage"),
        pytest.param(answer([99], ("z.9", 1), floor=1), "nobody published", id="a former life's version, too late"),
        pytest.param(answer([12], ("default", 1)), "too old", id="weights that are not kept any more"),
        pytest.param(answer([12, 14], ("a.2", 1)), "spans count 1", id="tokens without a version"),
        pytest.param(answer([12], ("a.2", 1), logprobs=[-2.1]), "log probabilities", id="the right token by chance"),
    ],
)
def test_a_torn_answer_is_found(wrong: Answer, words: str) -> None:
    """What the named weights would not have computed is torn, and the sentence says engine and version."""
    verdict = check(wrong, Counting())
    assert words in verdict.torn
    assert "engine-0" in verdict.torn


def test_tolerance_lets_log_probabilities_be_rounded_otherwise() -> None:
    """Within the tolerance they are right; the tokens must be equal all the same."""
    assert not check(answer([12], ("a.2", 1), logprobs=[-2.001]), Counting(), tolerance=0.01).torn
    assert check(answer([13], ("a.2", 1), logprobs=[-2.001]), Counting(), tolerance=0.01).torn


def test_a_token_of_an_older_version_than_reported_is_stale() -> None:
    """Also where the version is computed rightly, and also in an answer of which only the names are looked at."""
    late = answer([11, 13], ("a.1", 1), ("a.2", 1), floor=2)
    assert "version 1 (a.1)" in check(late, Counting()).stale
    assert check_versions(late, Counting()).stale
    assert not check(late, Counting()).torn


def test_distinguishable_needs_a_predecessor_that_answers_otherwise() -> None:
    """True where some span's version - 1 differs; False where nothing is known of it."""
    assert check(answer([12], ("a.2", 1)), Counting()).distinguishable
    assert not check(answer([11], ("a.1", 1)), Counting()).distinguishable


def test_tally_counts_each_kind() -> None:
    """Checked and sampled answers are counted apart, wrong ones together."""
    tally = Tally()
    for one in (answer([12], ("a.2", 1)), answer([11, 14], ("a.1", 1), ("a.2", 1)), answer([9], ("a.2", 1), floor=3)):
        tally.count(one, check(one, Counting()))
    sampled = answer([9], ("nobody", 1))
    tally.count_sampled(check_versions(sampled, Counting()))
    assert tally.document() == {
        "checked": 3, "distinguishable": 3, "torn": 3, "stale": 1, "switched": 1, "sampled": 1,
    }  # fmt: skip
