"""Pairing the ranks' publishes."""

import pytest

from weightsync.announcement import TargetRank
from weightsync.errors import Refused
from weightsync.plan import Engine, Route, Target
from weightsync.wire.v1 import PublishRequest, WriterId
from weightsync_agent.protocol.gather import Gather, lineage_of

A, B, C = "a" * 16, "b" * 16, "c" * 16


def call(
    rank: int,
    sequence: int,
    nonce: str = "",
    size: int = 2,
    *,
    offset: int = 0,
    label: str = "",
    programs: tuple[str, ...] | None = None,
) -> PublishRequest:
    return PublishRequest(
        writer=WriterId(uid=f"pod-{rank}", rank=rank), world_size=size, stage=rank, stages=size,
        nonce=nonce or (A, B)[rank], sequence=sequence, offset=offset, label=label, programs=programs,
    )  # fmt: skip


OLD, NEW = "1" * 32, "2" * 32


def engine(name: str, program: str, sources: tuple[str, ...] = ("pod-0", "pod-1")) -> Engine:
    routes = tuple(Route(stage=rank, source=source, rank=rank) for rank, source in enumerate(sources))
    rank = TargetRank(rank=0, layout="3" * 32, program=program)
    target = Target(uid=name, pod=name, address=name, rank=rank, routes=routes)
    return Engine(name=name, leader=name, address=name, incarnation="1", targets=(target,))


def test_the_nth_calls_of_all_ranks_are_one_version() -> None:
    """The last to come completes it; numbers rise, the lineage stays."""
    gather = Gather()
    for n in (1, 2, 3):
        assert gather.add(call(1, n), 0.0) == (None, [])
        found, void = gather.add(call(0, n, label=f"step {n}"), 0.0)
        assert void == []
        assert found is not None
        assert (found.lineage, found.number, found.label) == (lineage_of({0: A, 1: B}), n, f"step {n}")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the old one first", "the new one first"])
def test_one_rank_restarting_begins_a_new_lineage(order: tuple[int, int]) -> None:
    """By the label that both give; numbers go on where the longest-living rank is, and then it counts alike."""
    gather = Gather()
    gather.add(call(0, 6), 0.0), gather.add(call(1, 6), 0.0)
    calls = (call(0, 7, label="step 7"), call(1, 1, C, label="step 7"))
    gather.add(calls[order[0]], 0.0)
    found, void = gather.add(calls[order[1]], 0.0)
    assert void == []
    assert found is not None
    assert (found.lineage, found.number) == (lineage_of({0: A, 1: C}), 7)
    gather.add(call(0, 8), 0.0)
    found, _ = gather.add(call(1, 2, C, offset=6), 0.0)
    assert found is not None
    assert found.number == 8


def test_what_the_life_before_left_waiting_is_void() -> None:
    """The whole trainer restarted: rank 0's last publish never meets rank 1's first, though both count alike."""
    gather = Gather()
    gather.add(call(0, 1), 0.0), gather.add(call(1, 1), 0.0)
    left = call(0, 2)
    gather.add(left, 0.0)
    assert gather.add(call(1, 2, C), 0.0) == (None, [left])
    found, void = gather.add(call(0, 2, "d" * 16), 0.0)
    assert void == []
    assert found is not None
    assert found.lineage == lineage_of({0: "d" * 16, 1: C})


@pytest.mark.parametrize("labels", [("", ""), ("a", "")], ids=["no label", "one label"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the late one first", "the late one last"])
def test_two_steps_are_never_paired(order: tuple[int, int], labels: tuple[str, str]) -> None:
    """Also by a coordinator that remembers nothing: the earlier is void, and the next common step is a version."""
    gather, calls = Gather(), (call(0, 1, label=labels[0]), call(1, 2, label=labels[1]))
    gather.add(calls[order[0]], 0.0)
    assert gather.add(calls[order[1]], 0.0) == (None, [calls[0]])
    found, void = gather.add(call(0, 2), 0.0)
    assert found is not None
    assert (found.number, void) == (2, [])


def test_another_coordinator_counts_alike() -> None:
    """A new Gather that sees only the third publish gives it number 3."""
    gather = Gather()
    gather.add(call(0, 3), 0.0)
    found, _ = gather.add(call(1, 3), 0.0)
    assert found is not None
    assert found.number == 3


def test_a_publish_that_the_others_gave_up_is_void() -> None:
    """Rank 1 comes late with step 2 when rank 0 is at step 3: they are never paired."""
    gather = Gather()
    gather.add(call(0, 1), 0.0), gather.add(call(1, 1), 0.0)
    gather.drop(call(0, 2))
    gather.add(call(0, 3), 0.0)
    late = call(1, 2)
    assert gather.add(late, 0.0) == (None, [late])
    found, _ = gather.add(call(1, 3), 0.0)
    assert found is not None
    assert {rank: each.sequence for rank, each in found.ranks.items()} == {0: 3, 1: 3}


def test_ranks_of_different_worlds_are_refused() -> None:
    """Both sides are named."""
    gather = Gather()
    gather.add(call(0, 1), 0.0)
    with pytest.raises(Refused, match="rank 1 says 3 ranks"):
        gather.add(call(1, 1, size=3), 0.0)


def test_missing_ranks_are_named() -> None:
    """Nobody waits: nobody is missing."""
    gather = Gather()
    assert gather.missing() == []
    gather.add(call(1, 1), 0.0)
    assert gather.missing() == [0]


def test_a_request_that_comes_twice_is_one_publish() -> None:
    """While it waits nothing is void; once it is paired it is told its version again."""
    gather = Gather()
    gather.add(call(0, 1), 0.0)
    assert gather.add(call(0, 1), 0.0) == (None, [])
    found, void = gather.add(call(1, 1), 0.0)
    assert void == []
    assert gather.given(call(0, 1)) is found
    assert gather.given(call(1, 1, offset=3)) is found
    assert gather.given(call(0, 2)) is None
    assert gather.given(call(0, 1, C)) is None


def test_a_publish_that_arrives_late_is_void() -> None:
    """Whatever it says of itself: its rank is further, waiting or paired, and a version is never gathered again."""
    gather = Gather()
    for n in (1, 2, 3):
        gather.add(call(0, n), 0.0), gather.add(call(1, n), 0.0)
    gather.add(call(0, 4), 0.0)
    late = call(1, 2)
    assert gather.add(late, 0.0) == (None, [late])
    gather.add(call(1, 5), 0.0)
    again = call(1, 4)
    assert gather.add(again, 0.0) == (None, [again])
    assert [each.sequence for each in gather.waiting.values()] == [5]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rank 0 first", "rank 1 first"])
def test_two_labels_are_never_paired_though_the_counts_are_equal(order: tuple[int, int]) -> None:
    """They are of two lives: what waited longer is void."""
    gather, calls = Gather(), (call(0, 1, label="step 5"), call(1, 1, label="step 7"))
    first, last = calls[order[0]], calls[order[1]]
    gather.add(first, 0.0)
    assert gather.add(last, 0.0) == (None, [first])
    found, _ = gather.add(call(first.writer.rank, 1, C, label=last.label), 0.0)
    assert found is not None
    assert found.label == last.label


def test_a_rank_that_restarted_alone_meets_the_others_again_by_its_label() -> None:
    """The others are one step behind in asking: its newer label makes theirs void, not its lower count its own."""
    gather = Gather()
    gather.add(call(0, 75), 0.0), gather.add(call(1, 75), 0.0)
    waiting = call(0, 76, label="step 76")
    gather.add(waiting, 0.0)
    assert gather.add(call(1, 74, C, label="step 77"), 0.0) == (None, [waiting])
    found, void = gather.add(call(0, 77, label="step 77"), 0.0)
    assert void == []
    assert found is not None
    assert (found.label, found.number) == ("step 77", 77)


def test_known_lives_of_two_labels_are_told_apart_by_their_counts() -> None:
    """Whichever came first: the earlier step is void."""
    for order in ((0, 1), (1, 0)):
        gather = Gather()
        gather.add(call(0, 1), 0.0), gather.add(call(1, 1), 0.0)
        calls = (call(0, 2, label="step 2"), call(1, 3, label="step 3"))
        gather.add(calls[order[0]], 0.0)
        assert gather.add(calls[order[1]], 0.0) == (None, [calls[0]])


@pytest.mark.parametrize(
    ("zero", "one", "served"),
    [
        pytest.param((OLD, NEW), (OLD, NEW), ["old", "new"], id="all ranks know both engines"),
        pytest.param((OLD, NEW), (OLD,), ["old"], id="one rank does not know the new engine yet"),
        pytest.param((OLD,), (OLD, NEW), ["old"], id="the other does not"),
        pytest.param((NEW,), (OLD, NEW), ["new"], id="one rank does not know the old engine any more"),
        pytest.param((), (OLD, NEW), [], id="one rank knows of no engine"),
        pytest.param(None, (OLD, NEW), ["old", "new"], id="one rank does not say what it fills"),
        pytest.param(None, (OLD,), ["old"], id="one rank does not say, and the other does not know the new engine"),
    ],
)
def test_a_version_serves_the_engines_that_all_ranks_know(
    zero: tuple[str, ...] | None, one: tuple[str, ...], served: list[str]
) -> None:
    """It is made of their programs, over which the stages that fill them meet."""
    engines = [engine("old", OLD), engine("new", NEW)]
    gather = Gather()
    gather.add(call(0, 1, programs=zero), 0.0, engines)
    assert gather.stages(OLD) == set()
    found, _ = gather.add(call(1, 1, programs=one), 0.0, engines)
    assert found is not None
    assert [each.name for each in engines if found.serves(each)] == served
    programs = {"old": OLD, "new": NEW}
    assert found.programs == {programs[name] for name in served}
    for name, program in programs.items():
        assert gather.stages(program) == ({0, 1} if name in served else set())


def test_an_engine_that_joins_after_all_published_is_served_where_its_programs_are_filled() -> None:
    """Not of a program for which no engine was there: the stages did not meet over it, though all may fill it."""
    gather = Gather()
    gather.add(call(0, 1, programs=(OLD, NEW)), 0.0, [engine("old", OLD)])
    found, _ = gather.add(call(1, 1, programs=(OLD, NEW)), 0.0, [engine("old", OLD)])
    assert found is not None
    assert found.serves(engine("like the old", OLD))
    assert not found.serves(engine("new", NEW))


def test_an_engine_that_a_pod_feeds_which_did_not_publish_waits() -> None:
    """The rank's pod was replaced, and the plan names the one before."""
    gather, left = Gather(), engine("left", OLD, ("pod-0", "gone"))
    gather.add(call(0, 1, programs=(OLD,)), 0.0, [left])
    found, _ = gather.add(call(1, 1, programs=(OLD,)), 0.0, [left])
    assert found is not None
    assert not found.serves(left)
    assert found.programs == set()
