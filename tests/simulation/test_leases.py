"""Leases in the simulation: they are asked for again as the agent's own driver does, and each answer is judged."""

import asyncio
from types import SimpleNamespace

import pytest

from tools.simulate.clock import Future, Life, Loop, Task
from tools.simulate.coverage import COVERAGE
from tools.simulate.invariants import Violation
from tools.simulate.joining import Joining as Simulated
from tools.simulate.leases import Leases
from tools.simulate.schedule import run
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import Capabilities, Decided, Lease, LeaseRequest
from weightsync_agent.drivers import joining as driver
from weightsync_agent.drivers.joining import Joining
from weightsync_agent.peers.client import Unreachable

V1, V2 = (Version(lineage="1" * 16, number=number, root="2" * 64) for number in (1, 2))
DECIDED = Decided(version=V1, term=1)


def lease(seconds):
    """Of a holder whose leases last so long."""
    return Lease(uid="h", decided=DECIDED, seconds=seconds, ranks=())


SCRIPTS = [
    pytest.param([Refused("filled anew", reason="NotHeld")], id="the first answer is a refusal"),
    pytest.param([lease(6.0), lease(3.0), Refused("filled anew", reason="Busy")], id="leases of other lengths"),
    pytest.param([Unreachable("lost"), lease(9.0), Unreachable("lost"), Refused("gone", reason="NotHeld")],
                 id="two answers are lost"),
]  # fmt: skip


def as_the_agent_does(script, monkeypatch):
    """When the real driver asks, and what ends it."""
    now, asked, answers = [0.0], [], iter(script)

    async def sleep(seconds):
        now[0] += seconds

    async def ask(offer, aim):
        asked.append((round(now[0], 6), aim))
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(driver, "asyncio", SimpleNamespace(sleep=sleep))
    made = object.__new__(Joining)
    monkeypatch.setattr(made, "_ask_lease", ask, raising=False)
    return asyncio.run(made._stay(SimpleNamespace(address="h:1"), lease(9.0))), asked


def as_the_simulation_does(script, monkeypatch):
    """The same of its copy."""
    loop, asked, answers = Loop(), [], iter(script)

    def ask(offer, aim):
        asked.append((round(loop.now, 6), aim))
        answer, done = next(answers), Future(loop)
        done.fail(answer) if isinstance(answer, Exception) else done.set(answer)
        return done

    made = object.__new__(Simulated)
    made.world = SimpleNamespace(loop=loop, ledger=SimpleNamespace(renewals=0))
    made.agent = SimpleNamespace(life=Life("reader"))
    monkeypatch.setattr(made, "_ask_lease", ask, raising=False)
    staying = Task(loop, made.agent.life, made._stay(SimpleNamespace(address="h:1"), lease(9.0)))
    loop.drain()
    while loop.step():
        pass
    return staying.value, asked


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_lease_is_asked_for_again_as_the_agents_own_driver_does(script, monkeypatch):
    """At the same moments, for the same version, and to the same end: else the simulation shows nothing of it."""
    assert as_the_simulation_does(script, monkeypatch) == as_the_agent_does(script, monkeypatch)


def request(reader="r", version=V1):
    """May it read?"""
    return LeaseRequest(reader=reader, version=version, programs={}, ours=Capabilities(mooncake="1", transport="tcp"))


def test_each_answer_is_judged_by_what_was_answered_before():
    """By time alone, and by the ends that were told."""
    leases = Leases("e", 2)
    leases.lent(request("a"), 10.0, 0.0, own=True)
    leases.lent(request("b"), 10.0, 5.0, own=True)
    leases.refused(request("c"), "Busy", 9.0, lies=True)
    with pytest.raises(Violation, match="has no place"):
        leases.refused(request("c"), "Busy", 10.0, lies=True)
    leases.lent(request("b"), 10.0, 14.0, own=False)
    with pytest.raises(Violation, match="new reader"):
        leases.lent(request("a"), 10.0, 14.0, own=False)
    with pytest.raises(Violation, match="sends one away"):
        leases.refused(request("b"), "NotHeld", 15.0, lies=True)
    leases.refused(request("b"), "NotHeld", 15.0, lies=False)
    leases.lent(request("a", V2), 10.0, 15.0, own=True)
    leases.lent(request("c", V2), 10.0, 15.0, own=True)
    with pytest.raises(Violation, match="lends to 3"):
        leases.lent(request("b", V2), 10.0, 15.0, own=True)
    leases.ended("a")
    leases.ended("b")
    leases.lent(request("d", V2), 10.0, 15.0, own=True)


def test_schedules_prolong_leases():
    """Of those in which engines come at once, and read slowly."""
    before = COVERAGE.renewals, COVERAGE.joins
    for seed in range(1, 400, 2):
        ran = run(seed, faults=())
        assert ran.failure is None
        if COVERAGE.renewals > before[0]:
            break
    assert COVERAGE.joins > before[1]
    assert COVERAGE.renewals > before[0]
