"""Lanes: one stalled route costs its worker, and no other route."""

import pytest

from weightsync.errors import ProtocolError
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.lane import Close, Join, Lane, LaneState, Leave, Retire, Strand
from weightsync_agent.protocol.lanes import SUSPECTS, Lanes

A, B, C = (s.RouteId("s", name, 0) for name in "abc")
AGAIN = s.RouteId("s2", "a", 0)
S = LaneState
KILL = s.KillLane(7)

TO: dict[LaneState, tuple[object, ...]] = {
    S.OPEN: (Join(A), Join(B)),
    S.RETIRED: (Join(A), Join(B), Strand(A, 5.0)),
    S.KILLED: (Join(A), Join(B), Strand(A, 5.0), Leave(B)),
    S.DEAD: (s.LaneDead(7),),
}


def lane(state: LaneState) -> Lane:
    machine = Lane(7)
    for event in TO[state]:
        machine.handle(event, 0.0)
    assert machine.state is state
    return machine


ROWS: list[tuple[LaneState, object, float, LaneState, list[object]]] = [
    (S.OPEN, Join(C), 0.0, S.OPEN, []),
    (S.OPEN, Leave(A), 0.0, S.OPEN, []),
    (S.OPEN, Strand(A, 5.0), 0.0, S.RETIRED, [s.Wake(5.0)]),
    (S.OPEN, Retire(5.0), 0.0, S.RETIRED, [s.Wake(5.0)]),
    (S.OPEN, s.Tick(), 99.0, S.OPEN, []),
    (S.OPEN, s.LaneDead(7), 0.0, S.DEAD, []),
    (S.RETIRED, Leave(B), 0.0, S.KILLED, [KILL]),
    (S.RETIRED, Leave(C), 0.0, S.RETIRED, []),
    (S.RETIRED, Strand(B, 9.0), 1.0, S.KILLED, [KILL]),
    (S.RETIRED, Strand(C, 9.0), 1.0, S.RETIRED, [s.Wake(5.0)]),
    (S.RETIRED, Retire(9.0), 1.0, S.RETIRED, []),
    (S.RETIRED, s.Tick(), 4.9, S.RETIRED, []),
    (S.RETIRED, s.Tick(), 5.0, S.KILLED, [KILL]),
    (S.RETIRED, s.LaneDead(7), 0.0, S.DEAD, []),
    (S.KILLED, Leave(B), 0.0, S.KILLED, []),
    (S.KILLED, Strand(B, 9.0), 0.0, S.KILLED, []),
    (S.KILLED, Retire(9.0), 0.0, S.KILLED, []),
    (S.KILLED, s.Tick(), 99.0, S.KILLED, []),
    (S.KILLED, s.LaneDead(7), 0.0, S.DEAD, []),
]


@pytest.mark.parametrize(
    ("state", "event", "now", "to", "actions"),
    ROWS,
    ids=[
        f"{state.name} takes {type(event).__name__} to {to.name} {i}"
        for i, (state, event, _, to, _) in enumerate(ROWS)
    ],
)
def test_each_row(state: LaneState, event: object, now: float, to: LaneState, actions: list[object]) -> None:
    """State, event, time: next state and actions."""
    machine = lane(state)
    assert machine.handle(event, now) == actions
    assert machine.state is to


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (S.OPEN, Close()), (S.RETIRED, Close()), (S.RETIRED, Join(C)), (S.KILLED, Join(C)), (S.DEAD, Leave(A)),
        (S.DEAD, s.LaneDead(7)),
    ],
    ids=["used", "retired", "joined while retired", "joined while killed", "left when dead", "dead twice"],
)  # fmt: skip
def test_what_is_not_in_the_table(state: LaneState, event: object) -> None:
    """Raises and changes nothing."""
    machine = lane(state)
    with pytest.raises(ProtocolError):
        machine.handle(event, 0.0)
    assert machine.state is state


@pytest.mark.parametrize("event", [Close(), Retire(5.0), Strand(A, 5.0)], ids=lambda event: type(event).__name__)
def test_a_lane_that_nobody_else_uses_is_killed_at_once(event: object) -> None:
    """Nothing is waited for."""
    machine = Lane(7)
    assert machine.handle(event, 0.0) == [KILL]
    assert machine.state is S.KILLED


def placed(*routes: s.RouteId) -> Lanes:
    lanes = Lanes()
    assert {lanes.place(route, 0.0) for route in routes} <= {0}
    return lanes


def test_a_stall_moves_the_others_and_kills_the_worker_when_they_have_left() -> None:
    """B and C go on in one fresh lane; the old one is killed once neither writes through it."""
    lanes = placed(A, B, C)
    assert lanes.stalled(A, 0, 5.0, 0.0) == [s.MoveRoute(B, 1), s.MoveRoute(C, 1), s.Wake(5.0)]
    assert lanes.shared == 1
    assert lanes.moved(C, 0, 0.0) == []
    assert lanes.moved(B, 0, 0.0) == [s.KillLane(0)]
    assert (lanes.of(B), lanes.of(C), lanes.of(A)) == ({1}, {1}, set())


def test_a_worker_is_killed_one_stall_timeout_after_the_stall_at_the_latest() -> None:
    """B never leaves."""
    lanes = placed(A, B)
    lanes.stalled(A, 0, 5.0, 0.0)
    assert lanes.tick(4.9) == []
    assert lanes.tick(5.0) == [s.KillLane(0)]


def test_only_the_end_of_the_worker_frees_what_a_stalled_write_reads() -> None:
    """The route ends first: its arena waits for the lane, which then names it."""
    lanes = placed(A)
    assert lanes.stalled(A, 0, 5.0, 0.0) == [s.KillLane(0)]
    assert lanes.over(s.RouteOver(A, False, (0,)), 5.0, 0.0) == ([], False)
    assert lanes.dead(0, 0.0) == ([], {A})


def test_a_route_that_ends_with_open_writes_unannounced_strands_its_lane() -> None:
    """No RouteStalled came before: B is moved all the same."""
    lanes = placed(A, B)
    actions, free = lanes.over(s.RouteOver(A, False, (0,)), 5.0, 0.0)
    assert (actions, free) == ([s.MoveRoute(B, 1), s.Wake(5.0)], False)


def test_a_route_whose_lane_is_dead_already_is_free() -> None:
    """Its writes ended with the worker."""
    lanes = placed(A)
    lanes.stalled(A, 0, 5.0, 0.0)
    lanes.dead(0, 0.0)
    assert lanes.over(s.RouteOver(A, False, (0,)), 5.0, 0.0) == ([], True)


def test_a_route_with_two_stalled_lanes_waits_for_both() -> None:
    """Moved after its first writes stalled unnoticed."""
    lanes = placed(A, B)
    lanes.stalled(B, 0, 5.0, 0.0)
    lanes.stalled(A, 1, 5.0, 0.0)
    lanes.stalled(A, 0, 5.0, 0.0)
    lanes.over(s.RouteOver(A, False, (0, 1)), 5.0, 0.0)
    assert lanes.dead(0, 0.0)[1] == {B}
    assert lanes.dead(1, 0.0)[1] == {A}


def test_a_target_that_stalled_gets_a_lane_of_its_own_until_it_was_verified() -> None:
    """From the start of the next order; the lane ends with the route; then it shares again."""
    lanes = placed(A, B)
    lanes.stalled(A, 0, 5.0, 0.0)
    own = lanes.place(AGAIN, 0.0)
    assert own not in (0, lanes.shared)
    assert lanes.over(s.RouteOver(AGAIN, True), 5.0, 0.0) == ([s.KillLane(own)], True)
    assert lanes.place(s.RouteId("s3", "a", 0), 0.0) == lanes.shared
    failed = placed(A, B)
    failed.stalled(A, 0, 5.0, 0.0)
    failed.over(s.RouteOver(A, False, (0,)), 5.0, 0.0)
    assert failed.place(AGAIN, 0.0) != failed.shared


def test_a_stall_in_a_lane_of_its_own_moves_nobody() -> None:
    """And makes no new lane."""
    lanes = placed(A, B)
    lanes.stalled(A, 0, 5.0, 0.0)
    shared, own = lanes.shared, lanes.place(AGAIN, 0.0)
    assert lanes.stalled(AGAIN, own, 5.0, 0.0) == [s.KillLane(own)]
    assert (lanes.shared, lanes.count) == (shared, own)


def test_a_worker_that_dies_by_itself_is_replaced_for_all() -> None:
    """Its users go on in a fresh lane; nobody only waited for its end."""
    lanes = placed(A, B)
    assert lanes.dead(0, 0.0) == ([s.MoveRoute(A, 1), s.MoveRoute(B, 1)], set())
    assert lanes.shared == 1
    assert lanes.dead(0, 0.0) == ([], set())
    assert lanes.stalled(A, 0, 5.0, 0.0) == []
    assert lanes.moved(A, 0, 0.0) == []


def test_a_killed_worker_moves_nobody_when_it_ends() -> None:
    """They moved when it was retired."""
    lanes = placed(A, B)
    lanes.stalled(A, 0, 5.0, 0.0)
    lanes.tick(5.0)
    assert lanes.dead(0, 5.0) == ([], {A})


def test_a_held_worker_is_left_by_all() -> None:
    """Told by whoever meets it, and by others after it."""
    lanes = placed(A, B)
    assert lanes.held(0, 5.0, 0.0) == [s.MoveRoute(A, 1), s.MoveRoute(B, 1), s.Wake(5.0)]
    assert lanes.held(0, 9.0, 1.0) == []
    assert lanes.moved(A, 0, 1.0) + lanes.moved(B, 0, 1.0) == [s.KillLane(0)]
    assert lanes.held(99, 5.0, 0.0) == []


def test_a_lane_is_not_killed_when_the_shared_one_is_left() -> None:
    """The shared lane stays for the next order."""
    lanes = placed(A)
    assert lanes.over(s.RouteOver(A, True), 5.0, 0.0) == ([], True)
    assert lanes.place(B, 0.0) == 0


def test_so_many_suspects_are_remembered() -> None:
    """Pods come and go."""
    lanes = Lanes()
    for number in range(SUSPECTS + 10):
        lanes.stalled(s.RouteId("s", f"t{number}", 0), 99, 5.0, 0.0)
    assert len(lanes.suspects) == SUSPECTS
