"""A source: which orders it takes, what they wait for, what ends them, and which arena a publish gets."""

from collections.abc import Iterable, Sequence

import pytest

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import ProtocolError
from weightsync.version import Version
from weightsync.wire.v1 import PlannedRoute, Region, SyncOrder
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.admission import KEPT, Admission
from weightsync_agent.protocol.replica import ReplicaState
from weightsync_agent.protocol.route import AllFilled, Cancel, Filled
from weightsync_agent.protocol.source import GRACE, Source, SourceState

P, Q, R, D, LINEAGE = "a" * 32, "b" * 32, "c" * 32, "0" * 32, "1" * 16
BUCKETS = (Bucket(offset=0, nbytes=10), Bucket(offset=10, nbytes=10))
B0, B1 = (BucketDigest(offset=b.offset, nbytes=b.nbytes, digest=D) for b in BUCKETS)
STALL, DEADLINE = 5.0, 30.0
S = SourceState


def version(number: int) -> Version:
    return Version(lineage=LINEAGE, number=number, root="0" * 64)


def order(
    number: int = 1,
    sync: str = "s1",
    *,
    targets: Iterable[str] = "t",
    programs: tuple[str, ...] = (P,),
    term: int = 1,
    alien: bool = False,
) -> SyncOrder:
    region = Region(session="x:1", address=0, nbytes=20)
    routes = tuple(
        PlannedRoute(
            engine="e", target=target, rank=0, address="a", program=Q if alien else programs[0], layout=D, grant=D,
            region=region,
        )
        for target in targets
    )  # fmt: skip
    return SyncOrder(
        sync=sync, term=term, lineage=LINEAGE, number=number, bucket_size=4096, deadline_seconds=DEADLINE,
        stall_seconds=STALL, programs=programs, routes=routes,
    )  # fmt: skip


def route(target: str = "t", sync: str = "s1") -> s.RouteId:
    return s.RouteId(sync, target, 0)


class Rig:
    """A source, and words for what is done to it."""

    def __init__(self, arenas: int = 2) -> None:
        self.source = Source("rank 0", arenas)
        self.now = 0.0

    def __call__(self, event: object) -> list[object]:
        return self.source.handle(event, self.now)

    def begin(self, number: int, programs: tuple[str, ...] = (P,)) -> list[object]:
        actions = self(s.Begin(f"p{number}", programs))
        for action in actions:
            if isinstance(action, s.Fill):
                self(s.Cut(action.publish, action.replica.program, BUCKETS))
        return actions

    def publish(self, number: int, programs: tuple[str, ...] = (P,), *, copied: bool = True) -> list[object]:
        """Begun, named, and filled."""
        actions = self.begin(number, programs)
        self(s.Named(f"p{number}", LINEAGE, number))
        for program in programs:
            self(s.Digested(f"p{number}", program, (B0, B1)))
        if copied:
            self(s.Copied(f"p{number}"))
        return actions

    def sealed(self, number: int, programs: tuple[str, ...] = (P,)) -> None:
        self.publish(number, programs)
        self(s.Settled(f"p{number}", version(number)))

    def order(self, *args: object, coordinator: str = "c", **more: object) -> list[object]:
        return self(s.Ordered(order(*args, **more), coordinator))  # type: ignore[arg-type]

    def over(self, target: str = "t", sync: str = "s1", *, verified: bool = True) -> list[object]:
        return self(s.RouteOver(route(target, sync), verified))

    def state(self, program: str = P, index: int = 0) -> ReplicaState:
        return next(r.state for r in self.source.shelf.all() if r.id == s.ReplicaId(program, index))


def idle() -> Rig:
    rig = Rig()
    rig.publish(1)
    return rig


def waiting() -> Rig:
    """For the name of a publish that has begun."""
    rig = Rig()
    rig.begin(1)
    rig.order(1)
    return rig


def running() -> Rig:
    rig = idle()
    rig.order(1, targets="tu")
    return rig


def ending() -> Rig:
    """A newer order waits behind the routes of s1."""
    rig = running()
    rig.order(1, "s2")
    return rig


ALL = {S.IDLE: idle, S.WAITING: waiting, S.RUNNING: running, S.ENDING: ending}


def only(actions: list[object], kind: type) -> list[object]:
    return [action for action in actions if isinstance(action, kind)]


def kinds(actions: Sequence[object]) -> list[str]:
    return [type(action).__name__ for action in actions]


def refusal(actions: list[object]) -> list[tuple[str, str]]:
    return [(a.sync, a.reason) for a in actions if isinstance(a, s.RefuseOrder | s.RefuseEnd)]


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_each_state_is_reached(state: SourceState) -> None:
    """What the other tests start from."""
    assert ALL[state]().source.state is state


# --- the fence, and messages that come twice, late, or in another order ---


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
@pytest.mark.parametrize(
    ("term", "coordinator", "reason"),
    [(2, "c", "StaleTerm"), (3, "d", "TermHeld")],
    ids=["an older term", "a second coordinator"],
)
def test_what_the_fence_refuses_changes_nothing(state: SourceState, term: int, coordinator: str, reason: str) -> None:
    """Orders and ends alike, whatever runs."""
    rig = ALL[state]()
    rig.source.admission.fence.raise_to(3, "c")
    assert refusal(rig.order(1, "s9", term=term, coordinator=coordinator)) == [("s9", reason)]
    ended = rig(s.Ended("s1", term, coordinator, version(1)))
    assert refusal(ended) == [("s1", reason)]
    assert len(ended) == 1
    assert rig.source.state is state
    assert all(r.state is not ReplicaState.SEALED for r in rig.source.shelf.all())
    assert not rig.source.admission.over


@pytest.mark.parametrize("end", [False, True], ids=["an order", "the end of one that never came"])
def test_an_order_of_a_sync_that_was_followed_by_another_is_refused(end: bool) -> None:
    """It came late, and its end was lost: the routes of the sync that followed go on."""
    rig = idle()
    if end:
        rig(s.Ended("c/1/3", 1, "c"))
    else:
        rig.order(1, "c/1/3")
    before = rig.source.state
    assert refusal(rig.order(1, "c/1/2")) == [("c/1/2", "OrderOver")]
    assert rig.source.state is before
    assert kinds(rig.order(1, "c/1/4"))[-1:] != ["RefuseOrder"]


def test_an_order_raises_the_fence_and_one_that_names_nobody_takes_no_name_away() -> None:
    """Also while it waits; an end raises it, too."""
    rig = waiting()
    fence = rig.source.admission.fence
    assert (fence.term, fence.coordinator) == (1, "c")
    rig.order(1, "s2", coordinator="")
    assert (fence.term, fence.coordinator) == (1, "c")
    rig(s.Ended("s7", 4, "d"))
    assert (fence.term, fence.coordinator) == (4, "d")
    rig(s.Ended("s7", 5))
    assert (fence.term, fence.coordinator) == (5, "")
    assert refusal(rig.order(1, "s8", term=5, coordinator="e")) == []


@pytest.mark.parametrize("ended", [False, True], ids=["while it runs", "after its end"])
def test_an_order_that_comes_twice_starts_once(ended: bool) -> None:
    """The second is taken, and starts nothing."""
    rig = running()
    if ended:
        rig(s.Ended("s1", 1, "c"))
        rig.over("t")
        rig.over("u")
    assert rig.order(1, targets="tu") == [s.TakeOrder("s1")]


@pytest.mark.parametrize("rig", [waiting, ending], ids=["for a name", "behind an older order"])
def test_an_order_told_again_while_it_waits_is_answered_once(rig: object) -> None:
    """Nothing comes of the second; the first goes on waiting."""
    made: Rig = rig()  # type: ignore[operator]
    state, pending = made.source.state, made.source.pending
    assert pending is not None
    assert made.order(1, pending.order.sync) == []
    assert (made.source.state, made.source.pending) == (state, pending)


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_an_order_after_its_end_starts_nothing(state: SourceState) -> None:
    """The end overtook it: refused, and what runs or waits is not disturbed."""
    rig = ALL[state]()
    assert rig(s.Ended("s9", 1, "c")) == []
    pending = rig.source.pending
    actions = rig.order(1, "s9")
    assert refusal(actions) == [("s9", "OrderOver")]
    assert len(actions) == 1
    assert (rig.source.state, rig.source.pending) == (state, pending)


def test_an_order_that_was_refused_stays_refused() -> None:
    """A duplicate comes when its bytes are there."""
    rig = Rig()
    assert refusal(rig.order(1)) == [("s1", "NotFilled")]
    rig.publish(1)
    assert refusal(rig.order(1)) == [("s1", "OrderOver")]


def test_so_many_syncs_are_remembered() -> None:
    """No memory without bound."""
    admission = Admission("rank 0")
    for number in range(KEPT + 10):
        admission.take(f"s{number}")
        admission.end(f"s{number}")
    assert len(admission.taken) == len(admission.over) == KEPT
    assert "s9" not in admission.taken


# --- taking an order ---


def test_an_order_starts_its_routes_with_what_is_filled() -> None:
    """Taken first; each route gets the buckets, then that they are all; the shard is reported once."""
    rig = idle()
    planned = order(targets="tu").routes
    replica = s.ReplicaId(P, 0)
    started = order(targets="tu")
    assert rig.order(targets="tu") == [
        s.TakeOrder("s1"),
        s.StartRoute(route("t"), planned[0], started, replica, 0),
        s.FeedRoute(route("t"), Filled((B0, B1))),
        s.StartRoute(route("u"), planned[1], started, replica, 0),
        s.FeedRoute(route("u"), Filled((B0, B1))),
        s.FeedRoute(route("t"), AllFilled()),
        s.FeedRoute(route("u"), AllFilled()),
        s.ReportShard("s1", 1, P, (B0, B1)),
        s.Wake(DEADLINE + GRACE),
    ]
    assert {r for replica in rig.source.shelf.all() for r in replica.readers} == {route("t"), route("u")}


def test_buckets_are_written_as_they_fill() -> None:
    """The order came while the publish fills: routes get what is new, and the shard's end once."""
    rig = Rig()
    rig.begin(1)
    rig(s.Named("p1", LINEAGE, 1))
    assert kinds(rig.order(1)) == ["TakeOrder", "StartRoute", "Wake"]
    assert rig(s.Digested("p1", P, (B0,))) == [s.FeedRoute(route(), Filled((B0,)))]
    assert rig(s.Digested("p1", P, (B1,))) == [
        s.FeedRoute(route(), Filled((B1,))),
        s.FeedRoute(route(), AllFilled()),
        s.ReportShard("s1", 1, P, (B0, B1)),
    ]
    assert rig(s.Digested("p1", P, ())) == []
    assert rig(s.Digested("p9", P, (B0,))) == []


@pytest.mark.parametrize("programs", [(P,), (P, Q), (Q,)], ids=["the same program", "one more", "another"])
def test_a_later_publish_is_no_shard_of_the_order_that_runs(programs: tuple[str, ...]) -> None:
    """Its bytes are another version's, also of a program that the order does not name."""
    rig = idle()
    rig.order(1)
    rig.begin(2, programs)
    filled = [action for program in programs for action in rig(s.Digested("p2", program, (B0, B1)))]
    assert only(filled, s.ReportShard) == []


@pytest.mark.parametrize("copied", [False, True], ids=["while it fills", "when it is full"])
def test_a_second_cut_changes_nothing(copied: bool) -> None:
    """It may be told twice, and late; the plan's bucket size may have changed meanwhile."""
    rig = Rig()
    rig.publish(1, copied=copied)
    state = rig.state()
    assert rig(s.Cut("p1", P, BUCKETS[:1])) == []
    (replica,) = rig.source.shelf.all()
    assert (replica.buckets, replica.state) == (BUCKETS, state)


def test_a_shard_without_buckets_is_whole_when_it_is_cut() -> None:
    """This stage owns nothing of the program."""
    rig = Rig()
    rig(s.Begin("p1", (P,)))
    rig(s.Named("p1", LINEAGE, 1))
    rig.order(1)
    assert rig(s.Cut("p1", P, ())) == [s.FeedRoute(route(), AllFilled()), s.ReportShard("s1", 1, P, ())]


@pytest.mark.parametrize(
    ("event", "state", "answer"),
    [
        (s.Named("p1", LINEAGE, 1), S.RUNNING, ["TakeOrder"]),
        (s.Named("p1", LINEAGE, 2), S.IDLE, ["RefuseOrder"]),
        (s.Broken("p1", "Wrong", "m"), S.IDLE, ["RefuseOrder"]),
        (s.Settled("p1", None), S.IDLE, ["RefuseOrder"]),
        (s.Tick(), S.WAITING, []),
        (s.Begin("p2", (P,)), S.WAITING, []),
        (s.Ended("s1", 1, "c"), S.IDLE, ["RefuseOrder"]),
        (s.Ended("s0", 1, "c"), S.WAITING, []),
        (s.Ended("s0", 2, "d"), S.IDLE, ["RefuseOrder"]),
        (s.Ordered(order(1, "s2"), "c"), S.WAITING, ["RefuseOrder"]),
    ],
    ids=[
        "named as it", "named otherwise", "broken", "without an outcome", "in time", "another publish begins",
        "the end of its sync", "the end of another", "another term", "a newer order",
    ],
)  # fmt: skip
def test_an_order_waits_for_the_name(event: object, state: SourceState, answer: list[str]) -> None:
    """Until it is known, or can no longer be."""
    rig = waiting()
    actions = rig(event)
    answers = [a for a in actions if isinstance(a, s.TakeOrder | s.RefuseOrder)]
    assert kinds(answers) == answer
    assert all(a.sync == "s1" for a in answers)
    assert rig.source.state is state


def test_an_order_waits_no_longer_than_its_stall_timeout() -> None:
    """NotFilled; a Wake was asked for."""
    rig = Rig()
    rig.begin(1)
    rig.now = 1.0
    assert rig.order(1) == [s.Wake(1.0 + STALL)]
    rig.now = 5.9
    assert rig(s.Tick()) == [s.Wake(6.0)]
    rig.now = 6.0
    assert refusal(rig(s.Tick())) == [("s1", "NotFilled")]
    assert rig.source.state is S.IDLE


@pytest.mark.parametrize(
    ("sent", "reason", "words"),
    [
        (order(7), "NotFilled", "has no"),
        (order(1, programs=(P, Q)), "NotFilled", Q),
        (order(1, alien=True), "InvalidOrder", Q),
        (order(1, targets="tt"), "InvalidOrder", "two routes"),
        (order(2), "NotFilled", "never will: a tensor lacks"),
    ],
    ids=[
        "a version that is not here",
        "a program that was not filled",
        "a route of no program",
        "a target twice",
        "a broken version",
    ],
)
def test_an_order_that_can_never_be_carried_out_is_refused_at_once(sent: SyncOrder, reason: str, words: str) -> None:
    """Every publish has its name: nothing is waited for."""
    rig = idle()
    rig.publish(2, copied=False)
    rig(s.Broken("p2", "Wrong", "a tensor lacks"))
    (refused,) = rig(s.Ordered(sent, "c"))
    assert isinstance(refused, s.RefuseOrder)
    assert refused.reason == reason
    assert words in refused.message
    assert rig.source.state is S.IDLE


def test_an_order_without_routes_is_taken_and_over() -> None:
    """Nothing runs."""
    rig = idle()
    assert only(rig.order(1, targets=""), s.TakeOrder) == [s.TakeOrder("s1")]
    assert rig.source.state is S.IDLE


# --- ending one ---


def cancelled(actions: list[object]) -> dict[str, str]:
    """Target: reason."""
    return {
        a.route.target: a.event.reason for a in actions if isinstance(a, s.FeedRoute) and isinstance(a.event, Cancel)
    }


def test_a_newer_order_waits_until_the_older_ones_routes_have_ended() -> None:
    """Cancelled at once; started when the last is over."""
    rig = running()
    actions = rig.order(1, "s2")
    assert cancelled(actions) == {"t": "Superseded", "u": "Superseded"}
    assert only(actions, s.TakeOrder) == []
    assert rig.over("t", verified=False) == []
    assert kinds(rig.over("u", verified=False))[:2] == ["TakeOrder", "StartRoute"]
    assert rig.source.state is S.RUNNING


@pytest.mark.parametrize(
    ("event", "refused", "last"),
    [
        (s.Ended("s2", 1, "c"), [("s2", "OrderOver")], S.IDLE),
        (s.Ended("s1", 1, "c"), [], S.RUNNING),
        (s.Ended("s0", 2, "d"), [("s2", "StaleTerm")], S.IDLE),
        (s.Ordered(order(1, "s3"), "c"), [("s2", "Superseded")], S.RUNNING),
        (s.Tick(), [], S.RUNNING),
        (s.Broken("p1", "Wrong", "m"), [], S.IDLE),
    ],
    ids=["its own end", "the older one's end", "another term", "a newer one yet", "time", "its version is broken"],
)
def test_an_order_waits_behind_an_older_one(event: object, refused: list[tuple[str, str]], last: SourceState) -> None:
    """What ends its wait, and what becomes of it when the older one's routes are over."""
    rig = ending()
    assert refusal(rig(event)) == refused
    assert rig.source.state is S.ENDING
    rig.over("t", verified=False)
    rig.over("u", verified=False)
    assert rig.source.state is last


def test_the_wait_for_a_name_begins_when_the_older_order_has_ended() -> None:
    """Not before: its routes may take a stall timeout to end."""
    rig = running()
    rig.begin(2)
    rig.order(2, "s2")
    rig.now = STALL
    rig.over("t")
    assert rig.over("u") == [s.Wake(2 * STALL)]
    assert rig.source.state is S.WAITING


@pytest.mark.parametrize(
    ("event", "reasons", "state"),
    [
        (s.Ended("s1", 1, "c"), {"Superseded"}, S.ENDING),
        (s.Ended("s0", 1, "c"), set(), S.RUNNING),
        (s.Ended("s0", 2, "d"), {"StaleTerm"}, S.ENDING),
        (s.Broken("p1", "Wrong", "m"), set(), S.RUNNING),
        (s.Tick(), set(), S.RUNNING),
        (s.Settled("p1", version(1)), set(), S.RUNNING),
    ],
    ids=["its end", "another's end", "another term", "its version is broken", "in time", "its outcome"],
)
def test_what_ends_an_order_that_runs(event: object, reasons: set[str], state: SourceState) -> None:
    """Its routes are told why."""
    rig = running()
    assert set(cancelled(rig(event)).values()) == reasons
    assert rig.source.state is state


def test_an_arena_of_a_broken_version_is_not_filled_before_its_routes_have_ended() -> None:
    """The coordinator ends them."""
    rig = Rig(arenas=1)
    rig.publish(1, copied=False)
    rig.order(1)
    assert rig(s.Broken("p1", "Wrong", "m")) == [s.Empty(s.ReplicaId(P, 0))]
    assert fills(rig.begin(2)) == []
    rig(s.Ended("s1", 1, "c"))
    assert fills(rig.over(verified=False)) == [("p2", 0)]


def test_an_order_ends_a_grace_after_its_deadline() -> None:
    """The coordinator is lost."""
    rig = running()
    rig.now = DEADLINE + GRACE - 0.1
    assert rig(s.Tick()) == []
    rig.now = DEADLINE + GRACE
    assert set(cancelled(rig(s.Tick())).values()) == {"DeadlineExceeded"}
    assert rig.source.state is S.ENDING
    assert rig(s.Tick()) == []


@pytest.mark.parametrize("state", [S.IDLE, S.WAITING], ids=lambda state: state.name)
@pytest.mark.parametrize(
    "event",
    [s.RouteOver(route(), True), s.RouteStalled(route(), 0), s.RouteMoved(route(), 0)],
    ids=lambda event: type(event).__name__,
)
def test_a_route_that_does_not_run_has_nothing_to_say(state: SourceState, event: object) -> None:
    """Raises, and changes nothing; so it does of another route while one runs."""
    rig = ALL[state]()
    with pytest.raises(ProtocolError):
        rig(event)
    assert rig.source.state is state
    for busy in (running(), ending()):
        with pytest.raises(ProtocolError):
            busy(type(event)(s.RouteId("s9", "t", 0), True if isinstance(event, s.RouteOver) else 0))  # type: ignore[call-arg]


def test_an_order_that_ends_feeds_its_routes_nothing_more() -> None:
    """Buckets that fill meanwhile are not written."""
    rig = Rig()
    rig.begin(1)
    rig(s.Named("p1", LINEAGE, 1))
    rig.order(1)
    rig(s.Ended("s1", 1, "c"))
    assert rig(s.Digested("p1", P, (B0, B1))) == []


# --- stalls ---


@pytest.mark.parametrize("rig", [running, ending], ids=["while it runs", "while it ends"])
def test_a_stalled_route_frees_its_arena_when_its_worker_is_dead(rig: object) -> None:
    """The others go on in a fresh one; the order ends without waiting for the worker."""
    made: Rig = rig()  # type: ignore[operator]
    actions = made(s.RouteStalled(route("t"), 0))
    assert s.MoveRoute(route("u"), 1) in actions
    assert s.Wake(STALL) in actions
    assert made(s.RouteOver(route("t"), False, (0,))) == []
    assert made(s.RouteMoved(route("u"), 0)) == [s.KillLane(0)]
    replica = made.source.shelf.all()[0]
    assert replica.readers == {route("t"), route("u")}
    made(s.LaneDead(0))
    assert route("t") not in replica.readers


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_a_worker_is_killed_one_stall_timeout_after_a_stall(state: SourceState) -> None:
    """Whatever has become of the order meanwhile."""
    rig = running()
    rig(s.RouteStalled(route("t"), 0))
    if state is not S.RUNNING:
        rig(s.Ended("s1", 1, "c"))
    if state in (S.IDLE, S.WAITING):
        rig(s.RouteOver(route("t"), False, (0,)))
        rig(s.RouteOver(route("u"), False, (0, 1)))
    if state is S.WAITING:
        rig.begin(2)
        rig.order(2, "s2")
    assert rig.source.state is state
    rig.now = STALL
    assert [a for a in rig(s.Tick()) if a == s.KillLane(0)] == (
        [s.KillLane(0)] if state in (S.RUNNING, S.ENDING) else []
    )
    for lane in (0, 1):
        rig(s.LaneDead(lane))
    left = {r for replica in rig.source.shelf.all() for r in replica.readers}
    assert left == ({route("t"), route("u")} if state in (S.RUNNING, S.ENDING) else set())


def test_a_worker_that_dies_does_not_free_what_its_live_route_reads() -> None:
    """The route has not ended: it may write through another."""
    rig = running()
    rig(s.RouteStalled(route("t"), 0))
    rig(s.LaneDead(0))
    assert route("t") in rig.source.shelf.all()[0].readers
    rig(s.RouteOver(route("t"), False, (0,)))
    assert route("t") not in rig.source.shelf.all()[0].readers


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_a_held_worker_is_left_in_every_state(state: SourceState) -> None:
    """Routes that run move; where none runs it ends at once."""
    rig = ALL[state]()
    moved = only(rig(s.LaneHeld(0)), s.MoveRoute)
    assert len(moved) == (2 if state in (S.RUNNING, S.ENDING) else 0)
    assert rig.source.lanes.shared == 1
    assert rig.source.state is state


# --- publishes ---


def fills(actions: list[object]) -> list[tuple[str, int]]:
    return [(a.publish, a.replica.index) for a in actions if isinstance(a, s.Fill)]


def test_with_two_arenas_the_next_is_filled_while_one_is_on_the_wire() -> None:
    """v+2 waits for v's decision, and for nothing else."""
    rig = running()
    assert fills(rig.publish(2)) == [("p2", 1)]
    assert fills(rig.begin(3)) == []
    rig.over("t")
    rig.over("u")
    assert fills(rig(s.Ended("s1", 1, "c", version(1)))) == [("p3", 0)]


@pytest.mark.parametrize(
    "event",
    [s.Decided(version(1)), s.Settled("p1", version(1)), s.Ended("s1", 1, "c", version(1)), s.Settled("p1", None)],
    ids=["its decision", "its outcome", "the end of its order", "an outcome without a version"],
)
def test_a_decision_seals_and_frees_at_once(event: object) -> None:
    """Whichever comes first; the arena that was waited for is filled."""
    rig = idle()
    rig.publish(2)
    assert fills(rig.begin(3)) == []
    actions = rig(event)
    decided = event != s.Settled("p1", None)
    assert only(actions, s.Seal) == ([s.Seal(s.ReplicaId(P, 0), version(1), 1, (B0, B1))] if decided else [])
    assert fills(actions) == [("p3", 0)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (s.Settled("p1", version(1)), s.Ended("s1", 1, "c", version(1))),
        (s.Ended("s1", 1, "c", version(1)), s.Settled("p1", version(1))),
    ],
    ids=["outcome, then the order's end", "the order's end, then the outcome"],
)
def test_a_decided_version_is_kept_until_the_other_arena_is_taken(first: object, second: object) -> None:
    """A publish between the two takes the other arena: the decided one stays sealed."""
    rig = idle()
    assert kinds(rig(first)) == ["Seal"]
    assert fills(rig.begin(2)) == [("p2", 1)]
    assert rig(second) == []
    assert rig.state() is ReplicaState.SEALED


def test_the_last_sealed_one_is_filled_only_where_no_other_is_free() -> None:
    """Two sealed: the older goes."""
    rig = Rig()
    rig.sealed(1)
    rig.sealed(2)
    assert fills(rig.begin(3)) == [("p3", 0)]
    assert rig.state(index=1) is ReplicaState.SEALED


def test_with_one_arena_a_publish_ends_the_repair_that_reads_it() -> None:
    """No new pieces, wait for the routes, then fill; a repair that comes meanwhile is refused."""
    rig = Rig(arenas=1)
    rig.sealed(1)
    rig.order(1, targets="tu")
    assert set(cancelled(rig(s.Begin("p2", (P,)))).values()) == {"Superseded"}
    assert rig.source.state is S.ENDING
    assert fills(rig.over("t", verified=False)) == []
    rig.order(1, "s2")
    actions = rig.over("u", verified=False)
    assert refusal(actions) == [("s2", "NotFilled")]
    assert fills(actions) == [("p2", 0)]


def test_with_one_arena_a_publish_does_not_end_the_sync_of_what_is_undecided() -> None:
    """It waits for the decision."""
    rig = Rig(arenas=1)
    rig.publish(1)
    rig.order(1)
    assert rig(s.Begin("p2", (P,))) == []
    rig.over()
    assert fills(rig(s.Settled("p1", None))) == [("p2", 0)]


def test_a_repair_is_not_begun_while_a_publish_waits_for_its_arena() -> None:
    """The arena is read by a stalled worker: it will be filled when that is dead."""
    rig = Rig(arenas=1)
    rig.sealed(1)
    rig.order(1)
    rig(s.RouteStalled(route(), 0))
    rig(s.Begin("p2", (P,)))
    rig(s.RouteOver(route(), False, (0,)))
    assert refusal(rig.order(1, "s2")) == [("s2", "NotFilled")]
    assert fills(rig(s.LaneDead(0))) == [("p2", 0)]


def test_publishes_that_wait_are_served_in_their_order_and_per_program() -> None:
    """p2 gets Q at once, P when it is free; p3 after p2."""
    rig = Rig(arenas=1)
    rig.publish(1)
    assert fills(rig.begin(2, (P, Q))) == [("p2", 0)]
    assert fills(rig.begin(3)) == []
    assert fills(rig(s.Settled("p1", None))) == [("p2", 0)]
    assert only(rig(s.Broken("p2", "Wrong", "m")), s.Abandon) == []
    assert [r.owner for r in rig.source.shelf.all() if r.id.program == P] == ["p3"]


def test_a_publish_that_waits_and_is_given_up_is_told_so() -> None:
    """And takes nothing later; a second word says nothing."""
    rig = Rig(arenas=1)
    rig.publish(1)
    rig.begin(2)
    assert rig(s.Broken("p2", "TrainerRestarted", "m")) == [s.Abandon("p2", "TrainerRestarted", "m")]
    assert rig(s.Broken("p2", "Wrong", "m")) == []
    assert fills(rig(s.Settled("p1", None))) == []


def test_a_broken_publish_leaves_its_arenas_empty_and_free() -> None:
    """The next one gets them."""
    rig = Rig(arenas=1)
    rig.publish(1, copied=False)
    assert rig(s.Broken("p1", "Wrong", "m")) == [s.Empty(s.ReplicaId(P, 0))]
    assert fills(rig.begin(2)) == [("p2", 0)]
    rig(s.Named("p1", LINEAGE, 1))
    assert [r.name for r in rig.source.shelf.all()] == [""]


def test_a_program_that_is_left_out_of_a_publish_leaves_its_arena_empty() -> None:
    """The rest goes on to its end; told again, it says nothing."""
    rig = Rig(arenas=1)
    rig.begin(1, (P, Q))
    left = s.Broken("p1", "ProgramNotFilled", "m", program=Q)
    assert rig(left) == [s.Empty(s.ReplicaId(Q, 0))]
    assert rig(left) == []
    assert [(r.owner, r.state) for r in rig.source.shelf.all()] == [
        ("p1", ReplicaState.FILLING),
        ("", ReplicaState.EMPTY),
    ]
    assert rig.source.shelf.trouble("") == ""


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_copied_and_begin_are_refused_where_they_cannot_be(state: SourceState) -> None:
    """A bucket of one program lacks, or the publish has begun: raises, and changes nothing of the others either."""
    rig = ALL[state]()
    rig.begin(8, (Q, R))
    rig(s.Digested("p8", Q, (B0, B1)))
    with pytest.raises(ProtocolError):
        rig(s.Copied("p8"))
    assert rig.source.lacks("p8") == R
    assert (rig.state(Q), rig.state(R)) == (ReplicaState.FILLING, ReplicaState.FILLING)
    turn = rig.source.shelf.turn
    with pytest.raises(ProtocolError):
        rig(s.Begin("p8", (Q,)))
    assert rig.source.shelf.turn == turn
    rig(s.Digested("p8", R, (B0, B1)))
    assert rig.source.lacks("p8") == ""
    rig(s.Copied("p8"))
    assert (rig.state(Q), rig.state(R)) == (ReplicaState.FILLED, ReplicaState.FILLED)


# --- memory ---


def test_arenas_that_nobody_wants_are_removed_what_repairs_may_need_last() -> None:
    """An engine of program Q left: its spent arena goes at once, its sealed one with the next sealed version."""
    rig = Rig()
    rig.sealed(1, (P, Q))
    rig.publish(2, (P, Q))
    rig(s.Settled("p2", None))
    assert only(rig.begin(3), s.Remove) == [s.Remove(s.ReplicaId(Q, 1))]
    assert rig.state(Q) is ReplicaState.SEALED
    rig(s.Named("p3", LINEAGE, 3))
    rig(s.Digested("p3", P, (B0, B1)))
    rig(s.Copied("p3"))
    assert only(rig(s.Settled("p3", version(3))), s.Remove) == [s.Remove(s.ReplicaId(Q, 0))]


def test_where_there_is_no_room_an_unwanted_arena_goes_before_the_publish_does() -> None:
    """Even a sealed one; with nothing to give up, the publish is told why."""
    rig = Rig()
    rig.sealed(1, (Q,))
    assert fills(rig(s.Begin("p2", (P,)))) == [("p2", 0)]
    assert rig(s.NoRoom("p2", s.ReplicaId(P, 0), "m")) == [
        s.Remove(s.ReplicaId(Q, 0)),
        s.Fill("p2", s.ReplicaId(P, 0)),
    ]
    assert rig(s.NoRoom("p2", s.ReplicaId(P, 0), "too big")) == [s.Abandon("p2", "NoRoom", "too big")]
    assert rig.source.shelf.all() == []
    assert rig(s.NoRoom("p2", s.ReplicaId(P, 0), "m")) == []


def test_no_replica_stays_whose_arena_was_never_made() -> None:
    """Two arenas could not be made: the next publish gets both anew, and the old failures take nothing from it."""
    rig = Rig()
    assert fills(rig(s.Begin("p1", (P, Q)))) == [("p1", 0), ("p1", 0)]
    rig(s.NoRoom("p1", s.ReplicaId(P, 0), "m"))
    rig(s.NoRoom("p1", s.ReplicaId(Q, 0), "m"))
    assert rig.source.shelf.all() == []
    assert fills(rig(s.Begin("p2", (P, Q)))) == [("p2", 0), ("p2", 0)]
    rig(s.NoRoom("p1", s.ReplicaId(Q, 0), "m"))
    assert len(rig.source.shelf.owned("p2")) == 2


# --- what outlived the agent ---


def found(program: str, turn: int, number: int) -> s.FoundReplica:
    return s.FoundReplica(s.ReplicaId(program, 0), version(number), turn, (B0, B1))


def test_only_the_newest_of_what_outlived_the_agent_is_compared_and_offered() -> None:
    """Older arenas are there to be filled; turns go on from there."""
    rig = Rig()
    newest = s.Compare(s.ReplicaId(P, 0), version(4), (B0, B1))
    assert rig(s.Found((found(Q, 3, 3), found(P, 4, 4)))) == [newest]
    assert (rig.state(P), rig.state(Q)) == (ReplicaState.FOUND, ReplicaState.SPENT)
    assert refusal(rig.order(3, "s0", programs=(Q,))) == [("s0", "NotFilled")]
    rig.publish(5)
    assert rig.source.shelf.publishes["p5"].turn == 5
    assert fills(Rig()(s.Begin("p1", (P,)))) == [("p1", 0)]


@pytest.mark.parametrize(
    ("equal", "answer"), [(True, "TakeOrder"), (False, "RefuseOrder")], ids=["equal", "not equal"]
)
def test_an_order_waits_until_found_bytes_were_compared(equal: bool, answer: str) -> None:
    """The bytes are the version, or nothing."""
    rig = Rig()
    rig(s.Found((found(P, 4, 4),)))
    assert rig.order(4) == [s.Wake(STALL)]
    actions = rig(s.Compared(s.ReplicaId(P, 0), equal))
    assert answer in kinds(actions)
    assert only(actions, s.Empty) == ([] if equal else [s.Empty(s.ReplicaId(P, 0))])
    assert rig.source.state is (S.RUNNING if equal else S.IDLE)
    reported = only(actions, s.ReportShard)
    assert reported == ([s.ReportShard("s1", 1, P, (B0, B1))] if equal else [])


def test_found_comes_once_and_first() -> None:
    """Later it raises."""
    rig = Rig()
    rig(s.Found((found(P, 1, 1),)))
    for late in (rig, idle(), running()):
        with pytest.raises(ProtocolError):
            late(s.Found((found(P, 1, 1),)))


def test_a_found_arena_is_filled_before_its_bytes_were_compared() -> None:
    """A publish does not wait; the late word changes nothing."""
    rig = Rig(arenas=1)
    rig(s.Found((found(P, 4, 4),)))
    assert fills(rig.begin(5)) == [("p5", 0)]
    assert rig(s.Compared(s.ReplicaId(P, 0), False)) == []
    assert rig(s.Compared(s.ReplicaId(Q, 0), True)) == []
    assert rig.state() is ReplicaState.FILLING
