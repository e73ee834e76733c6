"""What a leader asks the other pods of its engine, and what becomes of it where one of them fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weightsync.arena import ArenaState
from weightsync.digests import BucketDigest
from weightsync.errors import PeerError, Refused
from weightsync.version import Version
from weightsync.wire import members as w
from weightsync.wire.v1 import Accepted
from weightsync_agent.drivers.crew import CrewCalls, CrewPost
from weightsync_agent.engines.hook_post import HookAnswers
from weightsync_agent.peers.client import Unreachable

D, PROGRAM, LIFE = "1" * 32, "2" * 32, "3" * 16
VERSION = Version(lineage="4" * 16, number=1, root="5" * 64)
BUCKETS = (BucketDigest(offset=0, nbytes=10, digest=D),)
GRANTS = {1: "a" * 32, 2: "b" * 32, 3: "c" * 32}


def here(node: int, ranks: tuple[int, ...], life: str = LIFE, **more: Any) -> w.MemberHere:
    held = tuple(w.MemberRank(rank=rank, layout=D, program=PROGRAM, arenas=(f"arena-{rank}",)) for rank in ranks)
    return w.MemberHere(uid=f"pod-{node}", life=life, address=f"pod-{node}:1", node=node, ranks=held, **more)


def sealed(rank: int) -> w.SealedRank:
    return w.SealedRank(rank=rank, program=PROGRAM, arena=f"arena-{rank}", buckets=BUCKETS)


class Client:
    """The members' agents. fails: by address and path, what is raised."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.fails: dict[tuple[str, str], Exception] = {}
        self.slow = ("", "")
        self.answers: dict[str, Callable[[Any], Any]] = {
            "holds": lambda body: w.Held(
                uid=body.target, life=body.life, term=0, coordinator="", version=body.version,
                ranks=tuple(sealed(rank) for rank in body.grants),
            ),
            "asks": lambda body: w.HookAsked(ids={each.rank: f"id-{each.rank}" for each in body.ranks}),
            "results": lambda body: w.HookResults(records={rank: {"rank": rank} for rank in body.ids}),
            "recoveries": lambda body: w.Recovered(
                equal=True, grants={rank.rank: GRANTS[rank.rank] for rank in body.ranks}
            ),
        }  # fmt: skip

    async def call(self, address: str, path: str, kind: type, body: Any, *, seconds: float) -> Any:
        name = path.removeprefix("/v1/member/")
        if (address, name) == self.slow:
            for _ in range(5):
                await asyncio.sleep(0)
        self.asked.append((address, name, body))
        if (address, name) in self.fails:
            raise self.fails[address, name]
        return self.answers.get(name, lambda body: Accepted())(body)

    def to(self, name: str) -> list[str]:
        """Who was asked that."""
        return [address for address, path, _ in self.asked if path == name]


class Crew:
    """A leader of pod 1 (rank 1) and pod 2 (ranks 2 and 3)."""

    def __init__(self) -> None:
        self.client: Any = Client()
        self.calls = CrewCalls("leader", self.client, 5.0)
        self.calls.crew.is_of(4, 3)
        for each in (here(1, (1,)), here(2, (2, 3))):
            self.calls.came(each)
        self.calls.take()


@pytest.fixture
def crew() -> Crew:
    return Crew()


async def test_every_pod_keeps_its_own_part_and_is_told_the_end(crew: Crew) -> None:
    """Each is asked for its ranks alone, by the name of its pod and of this life of its agent."""
    async with crew.calls.holding(VERSION, GRANTS):
        assert {rank: crew.calls.ranks[rank].grant_of(VERSION) for rank in GRANTS} == GRANTS
        assert crew.calls.ranks[2].journal_rank(GRANTS[2]).buckets == BUCKETS
        assert crew.client.to("releases") == []
    assert sorted(crew.client.to("releases")) == ["pod-1:1", "pod-2:1"]
    for address, _, body in crew.client.asked:
        assert (f"{body.target}:1", body.leader, body.life) == (address, "leader", LIFE)
        assert set(body.grants) == ({1} if body.target == "pod-1" else {2, 3})


@pytest.mark.parametrize(
    "error", [Unreachable("silent"), Refused("busy", reason="Busy")], ids=["it is silent", "it refuses"]
)
async def test_where_one_pod_does_not_keep_its_part_nothing_is_entered_and_all_let_go(
    crew: Crew, error: Exception
) -> None:
    """Also the one that failed: it may have done it. None is told before it has answered: it would keep its part."""
    crew.client.fails = {("pod-1:1", "holds"): error, ("pod-1:1", "releases"): Unreachable("silent")}
    crew.client.slow = ("pod-2:1", "holds")
    with pytest.raises(type(error)) as raised:
        async with crew.calls.holding(VERSION, GRANTS):
            pytest.fail("a commit began without one of the engine's pods")
    assert raised.value is error
    assert [path for _, path, _ in crew.client.asked] == ["holds", "holds", "releases", "releases"]
    assert crew.client.to("releases") == ["pod-1:1", "pod-2:1"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"uid": "another"}, id="of another pod"),
        pytest.param({"life": "9" * 16}, id="of another life"),
        pytest.param({"version": VERSION.model_copy(update={"number": 2})}, id="of another version"),
        pytest.param({"ranks": (sealed(2),)}, id="of one of its ranks alone"),
    ],
)
async def test_another_certificate_than_was_asked_for_is_none(crew: Crew, change: dict[str, Any]) -> None:
    """What is not that pod's word on that decision, for all of its ranks, is no reason to commit."""
    right = crew.client.answers["holds"]
    crew.client.answers["holds"] = lambda body: (
        right(body).model_copy(update=change) if body.target == "pod-2" else right(body)
    )
    with pytest.raises(Refused, match="pod pod-2 was asked to seal") as wrong:
        async with crew.calls.holding(VERSION, GRANTS):
            pytest.fail("a commit began on a certificate of something else")
    assert wrong.value.reason == "WrongCertificate"


async def test_what_is_known_of_a_pod_is_of_one_life_of_its_agent(crew: Crew) -> None:
    """It forgets its grants when it restarts. One that speaks again is known as it was; one that left is not."""
    async with crew.calls.holding(VERSION, GRANTS):
        pass
    crew.calls.came(here(1, (1,), written={1: "process-1"}))
    crew.calls.came(here(2, (2, 3), life="8" * 16))
    crew.calls.take()
    assert (crew.calls.written(1), crew.calls.written(2), crew.calls.written(7)) == ("process-1", "", "")
    assert [crew.calls.ranks[rank].grant_of(VERSION) for rank in (1, 2)] == [GRANTS[1], ""]
    with pytest.raises(Refused, match="not held by pod pod-2") as closed:
        crew.calls.ranks[2].granted(GRANTS[2])
    assert closed.value.reason == "GrantClosed"
    crew.calls.crew.is_of(2, 2)
    crew.calls.take()
    assert set(crew.calls.ranks) == {1}


@pytest.mark.parametrize("equal", [True, False], ids=["all of it is there", "one has other bytes"])
async def test_a_version_that_all_pods_still_hold_is_taken_over(crew: Crew, equal: bool) -> None:
    """Byte for byte, in every pod; else it must come anew."""
    right = crew.client.answers["recoveries"]
    crew.client.answers["recoveries"] = lambda body: (
        right(body) if body.target == "pod-1" or equal else w.Recovered(equal=False)
    )
    journal = {}
    for rank, grant in GRANTS.items():
        crew.calls.ranks[rank].sealed = {grant: sealed(rank)}
        journal[rank] = crew.calls.ranks[rank].journal_rank(grant)
        crew.calls.ranks[rank].sealed = {}
    assert await crew.calls.recovered(VERSION, journal) is equal
    assert bool(crew.calls.ranks[3].grant_of(VERSION)) is equal


async def test_arenas_are_known_by_rank_and_file(crew: Crew) -> None:
    """Of every pod."""

    def arenas(body: Any) -> w.Arenas:
        rank = int(body.target[-1])
        each = w.ArenaOf(
            rank=rank, arena="a", state=ArenaState.SEALED, nbytes=10, layout=D, program=PROGRAM, grant=GRANTS[rank],
            version=VERSION,
        )  # fmt: skip
        return w.Arenas(arenas=(each,))

    crew.client.answers["arenas"] = arenas
    found = await crew.calls.headers()
    assert {key: (header.grant, header.version) for key, header in found.items()} == {
        (1, "a"): (GRANTS[1], VERSION),
        (2, "a"): (GRANTS[2], VERSION),
    }


async def test_a_step_of_a_certification_is_taken_by_all(crew: Crew) -> None:
    """Whether it is of grants or not."""
    await crew.calls.certify("7" * 16, "Lend", {})
    assert crew.client.to("certificates") == ["pod-1:1", "pod-2:1"]
    crew.client.fails = {("pod-1:1", "certificates"): Unreachable("silent")}
    with pytest.raises(PeerError):
        await crew.calls.certify("7" * 16, "Seal", GRANTS)


# --- the hook ---


class Local:
    """The hook of rank 0, in the leader's own pod."""

    def __init__(self) -> None:
        self.fails = False
        self.withdrawn: list[int] = []

    async def ask(self, op: str, requests: Any) -> dict[int, str]:
        if self.fails:
            raise PeerError("the volume is full")
        return {rank: f"id-{rank}" for rank in requests}

    async def withdraw(self, ids: Any) -> None:
        self.withdrawn += ids

    async def answers(self, ids: Any) -> HookAnswers:
        return HookAnswers({rank: {"rank": rank} for rank in ids}, {})


REQUESTS: dict[int, dict[str, Any]] = {
    rank: {"arena": f"arena-{rank}", "grant": "a" * 32, "here": "the leader's alone"} for rank in range(4)
}


async def test_requests_reach_the_hook_of_every_rank_wherever_it_is(crew: Crew) -> None:
    """And its results come back, by rank. What means something in the leader's pod alone is not sent."""
    post: Any = CrewPost(Local(), crew.calls)  # type: ignore[arg-type]
    ids = await post.ask("apply", REQUESTS)
    assert ids == {rank: f"id-{rank}" for rank in range(4)}
    found = await post.answers(ids)
    assert found.records == {rank: {"rank": rank} for rank in range(4)}
    assert found.failures == {}
    sent = [rank for _, name, body in crew.client.asked if name == "asks" for rank in body.ranks]
    assert [(rank.rank, rank.arena) for rank in sent] == [(1, "arena-1"), (2, "arena-2"), (3, "arena-3")]


@pytest.mark.parametrize("local", [True, False], ids=["the leader's own fails", "another pod's fails"])
async def test_where_one_request_cannot_be_left_none_stays(crew: Crew, local: bool) -> None:
    """The engine would be told to apply it in some of its ranks. A pod that is silent may have it, and is told."""
    here_: Any = Local()
    here_.fails = local
    if not local:
        crew.client.fails = {("pod-2:1", "asks"): Unreachable("silent")}
    with pytest.raises(PeerError):
        await CrewPost(here_, crew.calls).ask("apply", REQUESTS)
    assert crew.client.to("withdrawals") == ["pod-1:1", "pod-2:1"]


async def test_withdrawing_does_not_fail_where_a_pod_is_silent(crew: Crew) -> None:
    """The others are told all the same."""
    crew.client.fails = {("pod-1:1", "withdrawals"): Unreachable("silent")}
    local: Any = Local()
    await CrewPost(local, crew.calls).withdraw(dict.fromkeys(range(4), "id"))
    assert crew.client.to("withdrawals") == ["pod-1:1", "pod-2:1"]
    assert local.withdrawn == [0]


async def test_a_pod_that_does_not_say_what_came_of_it_fails_for_its_ranks_alone(crew: Crew) -> None:
    """It can be asked again. A rank of which its pod says nothing has no result, though the pod is not silent."""
    crew.client.fails = {("pod-2:1", "results"): Unreachable("silent")}
    found = await crew.calls.answers(dict.fromkeys(GRANTS, "id"))
    assert found.records == {1: {"rank": 1}}
    assert {rank: (each.reason, each.retryable) for rank, each in found.failures.items()} == {
        2: ("MemberSilent", True),
        3: ("MemberSilent", True),
    }
    crew.client.fails = {}
    failure = w.HookFailure(reason="ApplyFailed", message="no memory", retryable=False)
    crew.client.answers["results"] = lambda body: w.HookResults(
        failures={rank: failure for rank in body.ids if rank == 2}
    )
    found = await crew.calls.answers(dict.fromkeys(GRANTS, "id"))
    assert {rank: each.reason for rank, each in found.failures.items()} == {
        1: "HookSilent",
        2: "ApplyFailed",
        3: "HookSilent",
    }
