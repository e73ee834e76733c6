"""A route: written, checked, closed once."""

import pytest

from weightsync.digests import BucketDigest
from weightsync.errors import ProtocolError
from weightsync.wire.v1 import PlannedRoute, Region
from weightsync_agent.protocol import route as r

D = "0" * 32
B0 = BucketDigest(offset=0, nbytes=10, digest=D)
B1 = BucketDigest(offset=10, nbytes=10, digest=D)


def route() -> r.Route:
    region = Region(session="s", address=0, nbytes=20)
    return r.Route(
        PlannedRoute(engine="e", target="t", rank=0, address="a", program=D, layout=D, grant=D, region=region)
    )


def walk(*events: object) -> tuple[r.Route, list[object]]:
    """All actions of the last event."""
    machine, actions = route(), []
    for event in events:
        actions = machine.handle(event, 0.0)
    return machine, actions


FILLED = (r.Filled((B0, B1)), r.AllFilled())


def test_what_is_filled_is_written_and_what_is_written_is_receipted() -> None:
    """Filled asks for a write; a terminal write asks the target to check."""
    machine = route()
    assert machine.handle(r.Filled((B0,)), 0.0) == [r.Write((B0,))]
    assert machine.handle(r.Written((0,)), 0.0) == [r.Receipt((B0,), last=False)]


def test_the_last_receipt_comes_once_after_every_bucket_is_verified() -> None:
    """All buckets verified: one last receipt; its answer verifies the route."""
    machine, actions = walk(*FILLED, r.Written((0, 10)), r.Checked((0,), ()))
    assert actions == []
    assert machine.handle(r.Checked((10,), ()), 0.0) == [r.Receipt((), last=True)]
    assert machine.handle(r.Checked((), ()), 0.0) == [r.End(True, True, "", "")]
    assert machine.state is r.RouteState.VERIFIED
    assert (machine.sent_bytes, machine.resent_bytes) == (20, 0)


def test_a_shard_is_not_complete_while_more_may_be_filled() -> None:
    """Verified buckets alone do not close the route: the filling must have ended."""
    _, actions = walk(r.Filled((B0,)), r.Written((0,)), r.Checked((0,), ()))
    assert actions == []


def test_an_unequal_bucket_is_written_again_and_counted() -> None:
    """The target found another digest: the same bucket goes once more."""
    machine, actions = walk(*FILLED, r.Written((0, 10)), r.Checked((10,), (0,)))
    assert actions == [r.Write((B0,))]
    assert machine.resent_bytes == 10


def test_a_bucket_that_never_becomes_equal_ends_the_route() -> None:
    """After RESENDS resends: failed with DigestMismatch, and the part of the grant is closed."""
    machine = route()
    machine.handle(r.Filled((B0,)), 0.0)
    actions: list[object] = []
    for _ in range(r.RESENDS + 1):
        machine.handle(r.Written((0,)), 0.0)
        actions = machine.handle(r.Checked((), (0,)), 0.0)
    assert isinstance(actions[0], r.Receipt)
    assert actions[0].last
    assert isinstance(actions[1], r.End)
    assert (actions[1].verified, actions[1].reason) == (False, "DigestMismatch")


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "bytes may still land"])
def test_only_a_quiet_failure_closes_the_grant(quiet: bool) -> None:
    """A failed write whose bytes may still land sends no last receipt: the target must fence."""
    machine, actions = walk(*FILLED, r.WriteBroke(quiet, "Stalled", "m"))
    assert any(isinstance(a, r.Receipt) and a.last for a in actions) is quiet
    assert actions[-1] == r.End(False, quiet, "Stalled", "m")
    assert machine.state is r.RouteState.FAILED


def test_giving_up_waits_for_writes_in_flight() -> None:
    """Cancelled while writing: no last receipt before the writes are terminal."""
    machine, actions = walk(*FILLED, r.Cancel("Superseded", "newer"))
    assert actions == [r.StopWriting()]
    actions = machine.handle(r.WriteBroke(True, "Stopped", "stopped"), 0.0)
    assert actions == [r.Receipt((), last=True, failed="newer"), r.End(False, True, "Superseded", "newer")]


def test_giving_up_comes_too_late_for_a_closing_route() -> None:
    """The last receipt is on its way: the route still becomes verified."""
    machine, actions = walk(*FILLED, r.Written((0, 10)), r.Checked((0, 10), ()), r.Cancel("x", "y"))
    assert actions == []
    assert machine.handle(r.Checked((), ()), 0.0) == [r.End(True, True, "", "")]


def test_an_ended_route_takes_late_events_without_effect() -> None:
    """Late answers change nothing; what no table row foresees raises."""
    machine, _ = walk(r.Cancel("x", "y"))
    assert machine.handle(r.Written((0,)), 0.0) == []
    with pytest.raises(ProtocolError):
        machine.handle("nonsense", 0.0)


def test_a_bucket_told_twice_is_written_once() -> None:
    """Requests to the agent may come twice: the second Filled starts no write."""
    machine = route()
    machine.handle(r.Filled((B0,)), 0.0)
    assert machine.handle(r.Filled((B0, B1)), 0.0) == [r.Write((B1,))]
    assert machine.sent_bytes == 20


def test_no_last_receipt_while_a_write_is_in_flight() -> None:
    """All are verified, one is written once more: the route closes only when that one was checked too."""
    machine, _ = walk(r.Filled((B0, B1)), r.Written((0, 10)), r.Checked((0, 10), ()))
    machine.writing.add(0)
    assert machine.handle(r.AllFilled(), 0.0) == []
    assert machine.handle(r.Written((0,)), 0.0) == [r.Receipt((B0,), last=False)]
    assert machine.handle(r.Checked((0,), ()), 0.0) == [r.Receipt((), last=True)]


@pytest.mark.parametrize(
    "event",
    [r.Written((0,)), r.WriteBroke(True, "x", "y"), r.Filled((B0,)), r.AllFilled()],
    ids=["a write's end", "a worker's end", "a bucket told again", "completeness told again"],
)
def test_a_closing_route_is_not_disturbed_by(event: object) -> None:
    """Every write was terminal and verified before: it still becomes verified."""
    machine, actions = walk(*FILLED, r.Written((0, 10)), r.Checked((0, 10), ()), event)
    assert actions == []
    assert machine.handle(r.Checked((), ()), 0.0) == [r.End(True, True, "", "")]


def test_a_new_bucket_after_the_last_receipt_fails_the_route() -> None:
    """The shard was said to be complete and was not: never verified."""
    late = BucketDigest(offset=20, nbytes=10, digest=D)
    machine, actions = walk(*FILLED, r.Written((0, 10)), r.Checked((0, 10), ()), r.Filled((late,)))
    assert [(a.verified, a.reason) for a in actions if isinstance(a, r.End)] == [(False, "FilledLate")]
    assert machine.state is r.RouteState.FAILED


def test_what_its_worker_did_not_write_is_written_again_and_counted() -> None:
    """However often workers are replaced: that is no fault of the target's."""
    machine, actions = walk(*FILLED, r.Unsent((0, 10)))
    assert actions == [r.Write((B0, B1))]
    for _ in range(r.RESENDS + 2):
        assert machine.handle(r.Unsent((0,)), 0.0) == [r.Write((B0,))]
    assert machine.handle(r.Written((0, 10)), 0.0) == [r.Receipt((B0, B1), last=False)]
    assert machine.handle(r.Checked((10,), (0,)), 0.0) == [r.Write((B0,))]
    assert machine.resent_bytes == 10 * (r.RESENDS + 5)
    assert machine.handle(r.Unsent(()), 0.0) == []


@pytest.mark.parametrize("event", [r.Written, r.Unsent], ids=["written", "not written"])
def test_a_route_that_is_given_up_ends_when_its_last_write_is_terminal(event: type) -> None:
    """One is not the last."""
    machine, _ = walk(*FILLED, r.Cancel("x", "y"))
    assert machine.handle(event((0,)), 0.0) == []
    assert machine.state is r.RouteState.BREAKING
    assert machine.handle(event((10,)), 0.0) == [r.Receipt((), last=True, failed="y"), r.End(False, True, "x", "y")]


BREAKING = (*FILLED, r.Cancel("x", "y"))
CLOSING = (*FILLED, r.Written((0, 10)), r.Checked((0, 10), ()))


@pytest.mark.parametrize(
    "event",
    [
        r.Checked((0,), ()), r.ReceiptBroke("a", "b"), r.Filled((B0,)), r.AllFilled(), r.Cancel("a", "b"),
    ],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_a_route_that_is_given_up_takes_without_effect(event: object) -> None:
    """It waits for its writes, and keeps its reason."""
    machine, actions = walk(*BREAKING, event)
    assert (actions, machine.state, machine.reason) == ([], r.RouteState.BREAKING, "x")


@pytest.mark.parametrize(
    ("before", "event", "end"),
    [
        (FILLED[:1], r.ReceiptBroke("Gone", "m"), None),
        ((r.AllFilled(),), r.ReceiptBroke("Gone", "m"), r.End(False, True, "Gone", "m")),
        (CLOSING, r.ReceiptBroke("Gone", "m"), r.End(False, True, "Gone", "m")),
        (BREAKING, r.WriteBroke(False, "Stalled", "m"), r.End(False, False, "x", "y")),
        (BREAKING, r.WriteBroke(True, "Stopped", "m"), r.End(False, True, "x", "y")),
    ],
    ids=[
        "while it writes",
        "with nothing to write",
        "for the last receipt",
        "given up and stalled",
        "given up, quiet",
    ],
)
def test_how_a_route_fails(before: tuple[object, ...], event: object, end: r.End | None) -> None:
    """The first reason is told; whether it is quiet by the last word."""
    if before == (r.AllFilled(),):
        before = (r.Filled((B0,)), r.Written((0,)))
    machine, actions = walk(*before, event)
    assert [a for a in actions if isinstance(a, r.End)] == ([end] if end is not None else [])
    assert machine.state is (r.RouteState.BREAKING if end is None else r.RouteState.FAILED)


@pytest.mark.parametrize("ended", [(r.Cancel("x", "y"),), (*CLOSING, r.Checked((), ()))], ids=["failed", "verified"])
@pytest.mark.parametrize(
    "event",
    [
        r.Filled((B0,)), r.AllFilled(), r.Checked((), ()), r.ReceiptBroke("a", "b"), r.Cancel("a", "b"),
        r.WriteBroke(True, "a", "b"), r.Written((0,)), r.Unsent((0,)),
    ],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_what_comes_late_changes_nothing(ended: tuple[object, ...], event: object) -> None:
    """An ended route asks for nothing."""
    machine, _ = walk(*ended)
    state = machine.state
    assert (machine.handle(event, 0.0), machine.state) == ([], state)


@pytest.mark.parametrize("event", [r.Unsent((0,)), r.Filled((B0, B1)), r.AllFilled()], ids=lambda e: type(e).__name__)
def test_a_closing_route_waits_for_its_last_receipt_alone(event: object) -> None:
    """All was verified."""
    machine, actions = walk(*CLOSING, event)
    assert (actions, machine.state) == ([], r.RouteState.CLOSING)
