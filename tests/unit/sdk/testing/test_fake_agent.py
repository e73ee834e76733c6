"""The fake refuses what the real agent refuses: a test against it must not pass by its leniency."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weightsync.errors import Refused
from weightsync.publisher.link import Link
from weightsync.records import WireRecord
from weightsync.testing import FakeAgent, plain_program
from weightsync.wire import local

PROGRAM = plain_program({"w": ("float32", (64, 64)), "v": ("float32", (8,))})
NONCE = "0" * 16
WHO = local.ConnectRequest(rank=0, world_size=1, nonce=NONCE)
BEGIN = local.BeginRequest(rank=0, nonce=NONCE, sequence=1)


@pytest.fixture
def agent(volume: Path) -> Iterator[FakeAgent]:
    """One program, small buckets."""
    with FakeAgent(volume, [PROGRAM], bucket_bytes=4096) as made:
        yield made


@pytest.fixture
def link(agent: FakeAgent) -> Iterator[Link]:
    """A connection of nobody yet."""
    with Link(agent.directory, timeout=5, patience=1) as made:
        yield made


def begin(link: Link) -> tuple[str, local.Replica]:
    """Connect, begin, tell the names: the publish's path and its replica."""
    link.post("/v1/connect", WHO, local.ConnectAnswer)
    path = f"/v1/publishes/{link.post('/v1/publishes', BEGIN, local.BeginAnswer).id}"
    reply = link.post(f"{path}/names", local.NamesReport(names=("w", "v")), local.NamesReply)
    return path, reply.replicas[0]


def test_buckets_are_known_once_the_names_are(agent: FakeAgent, link: Link) -> None:
    """Empty before; then they cover what the stage owns, and the next publish begins with them."""
    link.post("/v1/connect", WHO, local.ConnectAnswer)
    first = link.post("/v1/publishes", BEGIN, local.BeginAnswer)
    assert first.replicas[0].buckets == ()
    assert link.post("/v1/publishes", BEGIN, local.BeginAnswer) == first
    _, replica = begin(link)
    assert replica.owned == ("v", "w")
    assert len(replica.buckets) > 3
    following = BEGIN.model_copy(update={"sequence": 2})
    assert link.post("/v1/publishes", following, local.BeginAnswer).replicas[0].buckets == replica.buckets


def filled(replica: local.Replica, offsets: tuple[int, ...]) -> local.Filled:
    """A report."""
    return local.Filled(program=replica.program, offsets=offsets)


@pytest.mark.parametrize(
    ("step", "body", "reason"),
    [
        pytest.param("/v1/publishes", BEGIN, "NotConnected", id="a publish of a rank that did not connect"),
        pytest.param("/v1/publishes/x/copied", local.Copied(), "UnknownPublish", id="an unknown publish"),
    ],
)
def test_requests_out_of_order(link: Link, step: str, body: WireRecord, reason: str) -> None:
    """Refused with the reason."""
    with pytest.raises(Refused) as caught:
        link.tell(step, body)
    assert caught.value.reason == reason


def test_a_bucket_that_does_not_exist(link: Link) -> None:
    """Refused by its offset."""
    path, replica = begin(link)
    with pytest.raises(Refused, match="5 is no bucket"):
        link.tell(f"{path}/filled", filled(replica, (5,)))


def test_a_copy_that_is_not_complete(link: Link) -> None:
    """Every bucket must have been reported."""
    path, replica = begin(link)
    offsets = tuple(bucket.offset for bucket in replica.buckets)
    link.tell(f"{path}/filled", filled(replica, offsets[1:]))
    with pytest.raises(Refused, match=r"the bucket at 0 of program .* was never reported"):
        link.tell(f"{path}/copied", local.Copied())
    link.tell(f"{path}/filled", filled(replica, offsets[:1]))
    link.tell(f"{path}/copied", local.Copied())


def test_a_bucket_that_changes_after_its_report(agent: FakeAgent, link: Link) -> None:
    """It may be on the wire already: the fake notices what would be torn weights."""
    path, replica = begin(link)
    link.tell(f"{path}/filled", filled(replica, tuple(bucket.offset for bucket in replica.buckets)))
    arena = agent.directory / replica.arena_path
    with arena.open("r+b") as file:
        file.seek(4096)
        file.write(b"x")
    with pytest.raises(Refused, match=r"the bucket at 0 of program .* changed after it was reported"):
        link.tell(f"{path}/copied", local.Copied())
