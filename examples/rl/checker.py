"""Is an answer what the weights that it names compute? Pure: the weights are asked through ``Replay``.

A greedy answer of an engine that computes each request alone, in float32 and with one thread, can be repeated bit
by bit. So a span of it that differs from what its version computes after the same tokens comes from other weights:
it is torn. Numbers of versions rise from 0, the first checkpoint's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Span:
    """So many tokens in a row, computed with the weights of one version."""

    version: str
    tokens: int


@dataclass(frozen=True)
class Answer:
    """One answer. floor: the number below which the engine must not be, known when the request was sent.

    logprobs: of each token, as the engine computed them; empty where they were not asked for.
    """

    engine: str
    prompt: Sequence[int]
    tokens: Sequence[int]
    spans: Sequence[Span]
    floor: int = 0
    logprobs: Sequence[float] = ()


@dataclass(frozen=True)
class Continuation:
    """Greedy tokens after a prefix, and the log probability of each."""

    tokens: Sequence[int]
    logprobs: Sequence[float]


class Replay(Protocol):
    """The trainer's own copies of the versions."""

    def number(self, version: str) -> int | None:
        """The version's number, None where nobody published such a one."""

    def former(self, version: str) -> bool:
        """Whether a former life of the trainer published it: nobody has its weights to compare with."""

    def answer(self, number: int, prefix: Sequence[int], tokens: int) -> Continuation | None:
        """What that version answers after ``prefix``; None where its weights are not kept any more."""

    def differs(self, number: int, prefix: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether that version answers otherwise than ``tokens`` after ``prefix``; False where it is not kept."""


@dataclass(frozen=True)
class Verdict:
    """torn, stale: a sentence about what is wrong, empty where nothing is; distinguishable: version - 1 would
    have answered otherwise."""

    torn: str = ""
    stale: str = ""
    distinguishable: bool = False


def check(answer: Answer, replay: Replay, tolerance: float = 0.0) -> Verdict:
    """Judge a greedy answer, span by span.

    tolerance: by how much a log probability may differ. 0 where engines and trainer run on processors of one
    kind; a little more where their sums are rounded otherwise.
    """
    torn, distinguishable = "", False
    stale = check_versions(answer, replay).stale
    done = 0
    for span in answer.spans:
        number = replay.number(span.version)
        if number is None:
            torn = torn or _unknown(answer, span, replay)
        else:
            prefix = [*answer.prompt, *answer.tokens[:done]]
            got = Continuation(answer.tokens[done : done + span.tokens], answer.logprobs[done : done + span.tokens])
            torn = torn or _difference(answer, span, replay.answer(number, prefix, span.tokens), got, tolerance)
            distinguishable = distinguishable or (number > 0 and replay.differs(number - 1, prefix, got.tokens))
        done += span.tokens
    if not torn and done != len(answer.tokens):
        torn = f"{answer.engine}: spans count {done} tokens, the answer has {len(answer.tokens)}"
    return Verdict(torn, stale, distinguishable)


def check_versions(answer: Answer, replay: Replay) -> Verdict:
    """Judge any answer, a sampled one too, by the names of its versions alone."""
    torn = stale = ""
    for span in answer.spans:
        number = replay.number(span.version)
        if number is None:
            torn = torn or _unknown(answer, span, replay)
        elif number < answer.floor:
            stale = stale or (
                f"{answer.engine}: {span.tokens} tokens of version {number} ({span.version}) in a request that was "
                f"sent after the engine had been reported current with version {answer.floor}"
            )
    return Verdict(torn, stale)


def _unknown(answer: Answer, span: Span, replay: Replay) -> str:
    """Until an engine is current with a version of this life, it may answer by one of the life before."""
    if answer.floor == 0 and replay.former(span.version):
        return ""
    return f"{answer.engine}: {span.tokens} tokens of version {span.version!r}, which nobody published"


def _difference(
    answer: Answer, span: Span, expected: Continuation | None, got: Continuation, tolerance: float
) -> str:
    where = f"{answer.engine}: {span.tokens} tokens of version {span.version}"
    if expected is None:
        return f"{where}: too old to be checked"
    if list(expected.tokens) != list(got.tokens):
        return f"{where}: {list(got.tokens)} were answered, these weights compute {list(expected.tokens)}"
    gap = max((abs(a - b) for a, b in zip(expected.logprobs, got.logprobs, strict=False)), default=0.0)
    if gap > tolerance:
        return f"{where}: the tokens are right, but their log probabilities are off by up to {gap:.3g}"
    return ""


@dataclass
class Tally:
    """Counts over a run, and the sentences about what was wrong."""

    checked: int = 0
    distinguishable: int = 0
    torn: int = 0
    stale: int = 0
    switched: int = 0  # checked answers that more than one version computed
    sampled: int = 0  # sampled answers, judged by their versions' names alone

    def count(self, answer: Answer, verdict: Verdict) -> None:
        """A checked answer."""
        self.checked += 1
        self.switched += len(answer.spans) > 1
        self.distinguishable += verdict.distinguishable
        self._wrong(verdict)

    def count_sampled(self, verdict: Verdict) -> None:
        """An answer of which only the versions were looked at."""
        self.sampled += 1
        self._wrong(verdict)

    def _wrong(self, verdict: Verdict) -> None:
        self.torn += bool(verdict.torn)
        self.stale += bool(verdict.stale)

    def document(self) -> Mapping[str, int]:
        """For the trainer's lines."""
        return {
            "checked": self.checked,
            "distinguishable": self.distinguishable,
            "torn": self.torn,
            "stale": self.stale,
            "switched": self.switched,
            "sampled": self.sampled,
        }
