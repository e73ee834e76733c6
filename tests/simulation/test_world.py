"""The fake world fails as the real one does: late bytes, stalls, lost answers, torn journals, crashes."""

from random import Random
from types import SimpleNamespace

import pytest

from tools.simulate import coverage
from tools.simulate.clock import Life, Lock, Loop, Task, TimedOut
from tools.simulate.faults import AMBUSH, KINDS, STEERED, WEIGHTS, Fault, draw
from tools.simulate.memory import ArenaFile, digest
from tools.simulate.network import Network, Weather
from tools.simulate.schedule import run
from tools.simulate.transfer import Wires, WriteCall
from tools.simulate.world import World
from weightsync_agent.peers.client import Unreachable

PROGRAM = "000000a0" + "0" * 24


def rng(seed):
    """A seed, no secret."""
    return Random(seed)  # noqa: S311


@pytest.fixture
def wires():
    """Writes into one arena of one receiver; the ledger judges nothing."""
    loop = Loop()
    ledger = SimpleNamespace(lands=lambda piece: None)
    return Wires(loop, rng(1), ledger, pieces=1)


def arena(content=1):
    """An arena of one bucket."""
    made = ArenaFile("arena", "b" * 32, PROGRAM, 1, 1)
    made.content[0] = (content,)
    return made


def write(wires, source, session):
    """One bucket through a fresh sender."""
    sender = wires.worker([])
    call = WriteCall(sender, source, session, "g" * 32, "source/0")
    return sender, wires.write(call, digest(PROGRAM, 0, source.content[0]))


def run_out(loop):
    """Until nothing happens."""
    while loop.step():
        pass


def test_bytes_land_after_their_sender_has_died(wires):
    """What is in the sockets still lands; what was not read never does."""
    landed = set()
    for seed in range(40):
        wires.rng.seed(seed)
        target = arena(0)
        session = next(iter(wires.worker([target]).arenas))
        sender, _ = write(wires, arena(7), session)
        sender.kill()
        run_out(wires.loop)
        landed.add(target.content[0][0])

    assert landed == {0, 7}


def test_the_death_of_the_receiver_ends_all_writes(wires):
    """The only fence."""
    target = arena(0)
    receiver = wires.worker([target])
    _, call = write(wires, arena(7), next(iter(receiver.arenas)))

    receiver.kill()
    run_out(wires.loop)

    assert target.content[0] == (0,)
    assert call.failed == "the peer is gone"


def test_a_failed_write_may_land_all_the_same(wires):
    """Mooncake says -1, and the bytes come: with what the arena held when it said so."""
    wires.fail = 1
    target, source = arena(0), arena(7)
    _, call = write(wires, source, next(iter(wires.worker([target]).arenas)))
    while not call.ended:
        wires.loop.step()
    assert source.outstanding == [0]
    source.content[0] = (8,)

    run_out(wires.loop)

    assert target.content[0] == (7,)
    assert wires.failure(call, "end").quiet is False


def test_a_stalled_write_holds_the_sources_arena(wires):
    """Until it lands, or its sender dies."""
    target, source = arena(0), arena(7)
    session = next(iter(wires.worker([target]).arenas))
    wires.stalls[session] = 5.0
    sender, _ = write(wires, source, session)
    wires.loop.step()
    assert source.outstanding == [1]

    sender.kill()

    assert source.outstanding == [0]


@pytest.fixture
def network():
    """One host that counts what it is asked."""
    loop = Loop()
    net = Network(loop, rng(1))
    host = SimpleNamespace(life=Life("host"), asked=0)

    def serve(path, body):
        host.asked += 1
        return body

    host.serve = serve
    net.hosts["h:1"] = host
    return net, host


def ask(net, seconds=1.0):
    """One exchange, to its end."""
    answer = net.call((Life("caller"), "c:1", "h:1"), "/v1/echo", "x", seconds)
    run_out(net.loop)
    return answer


def test_a_request_is_answered(network):
    """In calm weather."""
    net, host = network

    assert ask(net).value == "x"
    assert host.asked == 1


def test_a_lost_answer_leaves_its_effect(network):
    """The caller times out, and the callee may have done it, or not."""
    net, host = network
    net.weather = Weather(loss=0.5)
    done_unanswered = 0
    for _ in range(60):
        before = host.asked
        answer = ask(net)
        done_unanswered += isinstance(answer.error, Unreachable) and host.asked > before

    assert done_unanswered > 0


def test_a_request_can_come_twice(network):
    """And is answered once."""
    net, host = network
    net.weather = Weather(twice=1.0)

    assert ask(net).value == "x"
    assert host.asked == 2


def test_a_request_is_delivered_after_its_caller_has_given_up(network):
    """To a host that was stopped, once it goes on; and on a slow way."""
    net, host = network
    host.life.frozen_until = 5.0
    answer = net.call((Life("caller"), "c:1", "h:1"), "/v1/echo", "x", 1.0)
    while not answer.done:
        net.loop.step()
    assert (host.asked, net.loop.now) == (0, 1.0)
    run_out(net.loop)
    assert host.asked == 1

    net.weather = Weather(late=1.0, slow=9.0)
    late = [net.call((Life("caller"), "c:1", "h:1"), "/v1/echo", "x", 1.0) for _ in range(20)]
    run_out(net.loop)
    assert host.asked == 21
    assert any(isinstance(each.error, Unreachable) for each in late)


def test_a_dead_host_refuses(network):
    """At once, not at the deadline."""
    net, host = network
    host.life.end()

    answer = ask(net)

    assert isinstance(answer.error, Unreachable)
    assert "refused" in str(answer.error)


def test_a_task_is_never_run_after_its_life():
    """Kill -9 between any two steps."""
    loop, life, seen = Loop(), Life("agent"), []

    def work():
        seen.append("begun")
        yield loop.sleep(1.0)
        seen.append("ended")

    Task(loop, life, work())
    loop.drain()
    life.end()
    run_out(loop)

    assert seen == ["begun"]


def test_a_stopped_life_goes_on_later():
    """SIGSTOP and SIGCONT: nothing is lost, everything is late."""
    loop, life, seen = Loop(), Life("agent"), []

    def work():
        yield loop.sleep(1.0)
        seen.append(loop.now)

    Task(loop, life, work())
    loop.drain()
    life.frozen_until = 3.0
    run_out(loop)

    assert seen == [3.0]


def test_a_deadline_is_no_event_where_it_had_no_effect():
    """Only what happens is counted."""
    loop, life, seen = Loop(), Life("agent"), []

    def work():
        try:
            yield loop.within(loop.sleep(5.0), 1.0)
        except TimedOut:
            seen.append("late")
        seen.append((yield loop.within(loop.sleep(0.1), 1.0)))

    Task(loop, life, work())
    loop.drain()
    run_out(loop)

    assert seen == ["late", None]
    assert loop.events == 3


def test_a_cancelled_task_leaves_its_place_in_a_lock():
    """Or nobody behind it would ever get it."""
    loop, life, seen = Loop(), Life("agent"), []
    lock = Lock(loop)

    def holder():
        yield lock.acquire()
        yield loop.sleep(1.0)
        lock.release()

    def waiter(name):
        yield lock.acquire()
        seen.append(name)
        lock.release()

    Task(loop, life, holder())
    second = Task(loop, life, waiter("second"))
    Task(loop, life, waiter("third"))
    loop.drain()
    second.cancel()
    run_out(loop)

    assert seen == ["third"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_fault_strikes_and_ends(kind):
    """Whatever happens first, the schedule ends with all engines current."""
    for seed in range(4):
        ran = run(seed, (Fault(kind, 60, 0.7, 0.6, 0.3),))
        assert ran.failure is None, ran.failure.detail
        assert ran.syncs >= 1


def test_faults_are_drawn_of_every_kind():
    """Each kind has a weight, and comes up; so do ambushes, in their share of the schedules."""
    schedules = [{fault.kind for fault in draw(rng(seed), 160)} for seed in range(400)]
    steered = sum(AMBUSH in kinds for kinds in schedules) / len(schedules)

    assert {*WEIGHTS, AMBUSH} == set(KINDS) == set().union(*schedules)
    assert STEERED - 0.05 < steered < STEERED + 0.05


def test_coverage_counts_without_changing_a_machine():
    """The rows that a schedule takes, and the guards that did not hold."""
    coverage.install()
    coverage.COVERAGE.clear()
    World(5).run()

    rows, states = coverage.COVERAGE.rows, coverage.COVERAGE.states

    assert rows["Target", "FILLING", "Landed", 0] > 0
    assert states["EngineLeader", "CURRENT"] > 0
    assert len(coverage.missed(coverage.COVERAGE)) > 0
