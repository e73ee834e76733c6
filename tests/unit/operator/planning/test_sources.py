"""What is said of the trainer's side, and which finding wins."""

import pytest

from tests.build.pods import gathered, source_rank, trainer
from weightsync_operator.planning import reasons, sources
from weightsync_operator.planning.pods import Pod


def two_stages(stage: int, name: str, **more: object) -> Pod:
    return trainer(name, source_rank(stage, world=2, stage=stage, stages=2), **more)  # type: ignore[arg-type]


CASES = [
    pytest.param([], False, [reasons.NO_SOURCES], ["app=trainer"], id="no pod matches"),
    pytest.param([trainer(announced=False)], False, [reasons.SOURCES_NOT_READY], ["trainer-0"], id="no agent yet"),
    pytest.param([trainer(ready=False)], False, [reasons.SOURCES_NOT_READY], ["trainer-0"], id="no Publisher yet"),
    pytest.param([trainer()], True, [], [], id="one rank of a world of one"),
    pytest.param([two_stages(0, "a"), two_stages(1, "b")], True, [], [], id="two stages in two pods"),
    pytest.param(
        [two_stages(0, "a"), two_stages(1, "b", announced=False)],
        False,
        [reasons.RANKS_MISSING, reasons.STAGES_MISSING],
        ["2 ranks, missing: 1", "stages without a rank: 1", "b (its agent has not announced itself)"],
        id="the second stage's pod is not there yet",
    ),
    pytest.param(
        [trainer("a", source_rank(0, world=2))],
        True,
        [reasons.RANKS_MISSING],
        ["2 ranks, missing: 1"],
        id="a data-parallel rank is missing, every stage is fed",
    ),
    pytest.param(
        [trainer("a", source_rank(0, world=2, stages=2), source_rank(1, world=2, stages=2))],
        False,
        [reasons.STAGES_MISSING],
        ["stage 1 of 2", "a"],
        id="all ranks are there, no rank has stage 1",
    ),
    pytest.param(
        [trainer("a", source_rank(0, world=2)), trainer("b", source_rank(1, world=3))],
        False,
        [reasons.SOURCES_DISAGREE],
        ["pod a", "pod b"],
        id="two worlds",
    ),
    pytest.param(
        [trainer("a", source_rank(1, world=1))],
        False,
        [reasons.SOURCES_DISAGREE],
        ["rank 1 of 1"],
        id="rank too high",
    ),
    pytest.param(
        [trainer("a"), trainer("b")], False, [reasons.RANKS_DUPLICATED], ["a, b"], id="two pods with the same rank"
    ),
    pytest.param(
        [two_stages(0, "a"), two_stages(0, "b"), trainer("c", source_rank(2, world=9))],
        False,
        [reasons.SOURCES_DISAGREE],
        ["pod c"],
        id="disagreement is graver than a duplicate",
    ),
]


@pytest.mark.parametrize(("pods", "usable", "expected", "said"), CASES)
def test_findings(pods: list[Pod], usable: bool, expected: list[str], said: list[str]) -> None:
    """Each state of the trainer pods has its reasons, the gravest first, and the first names what it is about."""
    found = gathered(pods)
    assert found.usable is usable
    assert [finding.reason for finding in found.findings] == expected
    for part in said:
        assert part in found.findings[0].message


def test_ranks_are_listed_by_rank() -> None:
    """A pod's ranks come in their order, whatever order its agent announced them in."""
    pod = trainer("a", source_rank(1, world=2), source_rank(0, world=2))
    assert [rank.rank for rank in gathered([pod]).pods[0].ranks] == [0, 1]


def test_pods_that_match_and_cannot_take_part_are_named() -> None:
    """Not that no pod matches, where all are Terminating or another WeightSync's."""
    found = sources.gather((), "app=trainer", ("trainer-0 is Terminating", "x belongs to old"))
    said = "no pod of the trainer selector app=trainer can take part: trainer-0 is Terminating, x belongs to old"
    assert (found.findings[0].reason, found.findings[0].message) == (reasons.NO_SOURCES, said)
