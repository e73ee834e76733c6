"""Every row of every table is taken by some schedule, or named with the reason why no driver reaches it."""

from types import SimpleNamespace
from typing import ClassVar

import pytest

from tools.simulate import ambush, report
from tools.simulate.ambush import Ambush, Kind
from tools.simulate.clock import Loop
from tools.simulate.coverage import Coverage, machines, out_of_reach, rows
from tools.simulate.faults import AMBUSH, Fault
from tools.simulate.runner import Batch
from tools.simulate.world import World
from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest, version_root
from weightsync.version import Version
from weightsync.wire.members import EngineOf
from weightsync.wire.v1 import Capabilities, Decided, GrantRequest, PlannedRoute, Region, SyncOrder, WriterId
from weightsync_agent.journal.records import Fresh, Keep, PauseAndReseed, Reapply
from weightsync_agent.protocol import engine_leader as m
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.engine_member import EngineMember, HoldAsked, LeaderAnswered
from weightsync_agent.protocol.fence import Fence, OpenGrant
from weightsync_agent.protocol.replica import Replica, Take
from weightsync_agent.protocol.source import Running, Source, SourceState
from weightsync_agent.protocol.table import Machine, Row

D, LINEAGE = "0" * 32, "1" * 16
B0, B1 = BucketDigest(offset=0, nbytes=10, digest=D), BucketDigest(offset=10, nbytes=10, digest=D)
OLD, V1 = Version(lineage=LINEAGE, number=1, root="2" * 64), Version(lineage=LINEAGE, number=2, root="3" * 64)
ALL = {key for cls in machines() for key in rows(cls)}
UNREACHED = sorted(key for key in ALL if out_of_reach(key))


# --- what a run must reach ---


def measured(left_out):
    """The measure of a long run that took every row but these."""
    coverage = Coverage()
    coverage.rows.update(dict.fromkeys(ALL - set(left_out), 1))
    found = report.measures(Batch(schedules=1, events=report.ENOUGH, coverage=coverage), 1.0, 1, 0)
    return next(measure for measure in found if measure.name == "transitions visited")


def test_a_run_that_takes_every_row_that_can_be_reached_is_complete():
    """The others are known, and counted apart; a machine that some test made is none of the protocol's."""

    class Door(Machine):
        table: ClassVar = {(SourceState.IDLE, str): (Row(SourceState.IDLE),)}

    assert Door not in machines()
    assert measured(UNREACHED).holds


@pytest.mark.parametrize("key", [min(ALL - set(UNREACHED)), max(ALL - set(UNREACHED))], ids=str)
def test_one_row_that_is_not_taken_breaks_the_bound(key):
    """However many others were."""
    assert not measured([*UNREACHED, key]).holds


# --- moments ---


@pytest.mark.parametrize("kind", ambush.KINDS, ids=lambda kind: kind.name)
def test_each_moment_comes(kind):
    """In one of a few schedules somebody is met in it, and the world heals."""
    place = (ambush.KINDS.index(kind) + 0.5) / len(ambush.KINDS)
    for seed in range(60):
        world = World(3_000_000 + seed, (Fault("stall", 25, 1.0, 0.5, 0.5), Fault(AMBUSH, 30, 4.5, place, 0.5)))
        world.run()
        if kind.name in world.sprung:
            return
    pytest.fail(f"in none of 60 schedules: {kind.name}")


def test_what_waits_springs_only_while_the_moment_lasts():
    """Of a moment that is over by then nobody is told."""
    loop, met = Loop(), []
    world = SimpleNamespace(
        loop=loop, rng=SimpleNamespace(randrange=lambda n: 0, choice=min, random=float), sprung=[]
    )
    machine = SimpleNamespace(state=1)
    waits = Ambush(world, Kind("it is 1", lambda each: each.state == 1, (lambda *given: met.append(given),)))

    waits.after(machine)
    machine.state = 2
    loop.step()
    waits.after(machine)
    assert (met, world.sprung) == ([], [])

    machine.state = 1
    waits.after(machine)
    loop.step()
    assert (met, world.sprung) == ([(world, machine, 0.0)], ["it is 1"])


# --- rows that no driver reaches: what they do all the same ---


def route(*events):
    """A route that took them."""
    region = Region(session="s", address=0, nbytes=20)
    planned = PlannedRoute(engine="e", target="t", rank=0, address="a", program=D, layout=D, grant=D, region=region)
    return fed(r.Route(planned), *events)


def fed(machine, *events):
    """The machine, after them."""
    for event in events:
        machine.handle(event, 0.0)
    return machine


CLOSING = (r.Filled((B0,)), r.AllFilled(), r.Written((0,)), r.Checked((0,), ()))
ROUTES = {"CLOSING": CLOSING, "VERIFIED": (*CLOSING, r.Checked((), ())), "FAILED": (r.Cancel("x", "y"),)}
ROUTE_EVENTS = {
    "Filled": r.Filled((B0,)), "AllFilled": r.AllFilled(), "Cancel": r.Cancel("x", "y"), "Written": r.Written((0,)),
    "Unsent": r.Unsent(()), "Checked": r.Checked((), ()), "ReceiptBroke": r.ReceiptBroke("x", "y"),
    "WriteBroke": r.WriteBroke(True, "x", "y"),
}  # fmt: skip


def of_route(state, event, place):
    """Nothing is asked for; but the coordinator hears of a shard that grew after it was complete."""
    machine = route(*ROUTES[state])
    if (event, place) == ("Filled", 1):
        return machine, r.Filled((B1,)), "FAILED"
    return machine, ROUTE_EVENTS[event], state


def of_target(state, event, place):
    """A writer of the sealed bytes may still write: the receiver is killed first."""
    machine = t.Target(0, D, D, [(0, 10)])
    machine.handle(t.Recovered(V1, D, D, (B0,)), 0.0)
    machine.grant = OpenGrant(D, 1, "c", "x", LINEAGE, 2, D, frozenset({"s/0"}), {"s/0"})
    request = GrantRequest(
        term=1, coordinator="c", sync="y", rank=0, layout=D, program=D, lineage=LINEAGE, number=3,
        writers=(WriterId(uid="s", rank=0),), ours=Capabilities(mooncake="1", transport="tcp"),
    )  # fmt: skip
    return machine, t.Ask(request, "e" * 32) if event == "Ask" else t.Lend(), "FENCING"


def of_source(state, event, place):
    """A second coordinator in the term that another holds changes nothing."""
    machine = Source("rank 0", 2, Fence(3, "c"))
    order = SyncOrder(
        sync="x", term=3, lineage=LINEAGE, number=2, bucket_size=4096, deadline_seconds=30.0, stall_seconds=5.0,
        programs=(D,), routes=(),
    )  # fmt: skip
    if state in ("RUNNING", "ENDING"):
        machine.running = Running(order)
    machine.state = SourceState[state]
    return machine, s.Ordered(order, "d") if event == "Ordered" else s.Ended("x", 3, "d"), state


LEADERS = {
    "FRESH": Fresh(), "CURRENT": Keep(V1), "TORN": PauseAndReseed("torn"),
    "REAPPLYING": Reapply(V1, (), {0: D}, "why"),
}  # fmt: skip


def of_leader(state, event, place):
    """A version older than the last is refused, one that is served is answered; a life that changed is seen."""
    machine = m.EngineLeader()
    if event == "LookFailed":
        return fed(machine, m.Answers(), m.Silent()), m.LookFailed("late"), "ABSENT"
    problem = "it repacks" if state == "REFUSED" else ""
    recovery = LEADERS.get(state, Fresh())
    fed(machine, m.Answers(), m.Seen("life", recovery, problem, "name", floor=None if state == "FRESH" else V1))
    if event == "LifeChanged":
        if state == "COMMITTING":
            machine.handle(m.CommitAsked(V1, ((0, D),), (Step.A,)), 0.0)
        if state == "OPENING":
            machine.handle(m.OpenAsked("x", V1, (Step.A,)), 0.0)
        return machine, m.LifeChanged("other"), "LOOKING" if state == "REFUSED" else state
    machine.floor = V1
    version = V1 if (state, place) == ("CURRENT", 0) else OLD
    return machine, m.CommitAsked(version, ((0, D),), (Step.A,)), state


class Step:
    """Of a commit."""

    A = SimpleNamespace(name="A")


def of_replica(state, event, place):
    """An outcome alone seals what was filled, too; what ended undecided is emptied where it turns out wrong."""
    replica = Replica(s.ReplicaId(D, 0))
    fed(replica, Take("p", 1), s.Cut("p", D, (Bucket(offset=0, nbytes=10),)), s.Named("p", LINEAGE, 2))
    fed(replica, s.Digested("p", D, (B0,)), *([s.Copied("p")] if state == "FILLED" else []))
    if event == "Broken":
        return fed(replica, s.Copied("p"), s.Settled("p", None)), s.Broken("p", "x", "y"), "EMPTY"
    return replica, s.Settled("p", V1), "SEALED"


def of_member(state, event, place):
    """Another hold takes the place of the first, whose arenas are let go."""
    machine = EngineMember("pod-1", "1" * 16)
    engine = EngineOf(leader="pod-0", life="2" * 16, ready=True)
    fed(machine, LeaderAnswered(engine, 0.0), HoldAsked(OLD, ((1, D),)))
    return machine, HoldAsked(V1, ((1, "e" * 32),)), "HELD"


def of_joiner(state, event, place):
    """It goes on with what it takes over, whatever the engine is said to need."""
    machine = j.Joiner("me")
    programs = {D: "0" * 64}
    version = Version(lineage=LINEAGE, number=1, root=version_root(LINEAGE, 1, programs))
    own = Decided(version=version, term=1, programs=programs)
    machine.programs = {0: D}
    fed(machine, j.Needs(own, sealed=True), j.Asked((), own, answered=True))
    return machine, j.Needs(own, sealed=True), state


VISITS = {
    "Joiner": of_joiner,
    "EngineMember": of_member,
    "Route": of_route, "Target": of_target, "Source": of_source, "EngineLeader": of_leader, "Replica": of_replica,
}  # fmt: skip


@pytest.mark.parametrize("key", UNREACHED, ids=lambda key: " ".join(map(str, key)))
def test_a_row_that_no_driver_reaches_holds_all_the_same(key):
    """It is taken, and leads where it should: a driver that came to need it would find it right."""
    name, state, event, place = key
    machine, given, after = VISITS[name](state, event, place)
    assert machine.state.name == state
    fits = [row.guard is None or row.guard(machine, given) for row in machine.table[machine.state, type(given)]]
    assert fits.index(True) == place
    machine.handle(given, 0.0)
    assert machine.state.name == after
