"""The pods of one engine, as its leader knows them."""

import pytest

from weightsync.errors import Refused
from weightsync.wire.members import MemberHere, MemberRank
from weightsync_agent.protocol.crew import SILENT_SECONDS, Crew, Pod, replaced, share

D, LIFE = "d" * 32, "1" * 16


def here(node: int = 1, uid: str = "pod-1", life: str = LIFE, ranks: tuple[int, ...] = (2, 3)) -> MemberHere:
    held = tuple(MemberRank(rank=rank, layout=D, program=D, arenas=("a",)) for rank in ranks)
    return MemberHere(uid=uid, life=life, address="h:1", node=node, ranks=held)


def crew(*members: MemberHere, nodes: int = 2, ranks: int = 4) -> Crew:
    made = Crew()
    made.is_of(ranks, nodes)
    for member in members:
        made.came(member, 10.0)
    return made


@pytest.mark.parametrize(
    ("ranks", "nodes", "shares"),
    [
        pytest.param(2, 1, [range(2)], id="one pod has all"),
        pytest.param(4, 2, [range(2), range(2, 4)], id="two pods, two ranks each"),
        pytest.param(16, 4, [range(4), range(4, 8), range(8, 12), range(12, 16)], id="four pods"),
    ],
)
def test_ranks_are_shared_out_as_sglang_does(ranks: int, nodes: int, shares: list[range]) -> None:
    """The next of equal shares for each node: no rank twice, none left out."""
    assert [share(ranks, nodes, node) for node in range(nodes)] == shares


@pytest.mark.parametrize(
    ("members", "now", "words"),
    [
        pytest.param((), 10.0, "pod 1 has not said", id="nobody came"),
        pytest.param((here(),), 10.0, "", id="all are there"),
        pytest.param((here(),), 10.1 + SILENT_SECONDS, "pod 1 has not said", id="one fell silent"),
        pytest.param((here(ranks=()),), 10.0, "no arenas for ranks 2 to 3", id="one has no arenas yet"),
        pytest.param((here(ranks=(0, 1)),), 10.0, "no arenas for ranks 2 to 3", id="one holds others' ranks"),
    ],
)
def test_an_engine_waits_for_every_pod_of_it(members: tuple[MemberHere, ...], now: float, words: str) -> None:
    """And says for which, and what to do."""
    lacking = crew(*members).lacking(now)
    assert words in lacking
    assert bool(words) is bool(lacking)


def test_an_engine_of_one_pod_waits_for_nobody() -> None:
    """Whoever says that it belongs to it is refused."""
    alone = crew(nodes=1)
    assert alone.lacking(10.0) == ""
    with pytest.raises(Refused, match="which is of 1"):
        alone.came(here(), 10.0)


def test_before_the_engine_answers_nobody_is_given_ranks() -> None:
    """A member that comes early is remembered."""
    early = Crew()
    early.came(here(ranks=()), 1.0)
    assert list(early.share(1)) == []
    early.is_of(4, 2)
    assert list(early.share(1)) == [2, 3]
    assert early.pods() == {Pod(1, "pod-1", LIFE)}
    early.is_of(4, 1)
    assert early.pods() == frozenset()


def test_a_place_is_the_pods_that_spoke_last_for_it() -> None:
    """Another uid is another pod; another life is the same pod, whose agent has forgotten its grants."""
    first, restarted, other = here(), here(life="2" * 16), here(uid="pod-1b")
    pods = [crew(member).pods() for member in (first, restarted, other)]
    assert len(set(pods)) == 3
    assert not replaced(pods[0], pods[1])
    assert replaced(pods[0], pods[2])
    assert crew(first, other).uid_of(2) == "pod-1b"
    assert crew(first).uid_of(0) == ""
