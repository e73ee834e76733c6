"""The simulated operator plans as the operator does, and its schedules hold what happens while trainers are away."""

from random import Random
from types import SimpleNamespace

import pytest

from tools.simulate import joining
from tools.simulate import world as worlds
from tools.simulate.clock import Loop
from tools.simulate.planner import Planner
from tools.simulate.world import World
from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync.plan import Strategy


class Cluster:
    """A planner with nobody to tell; stages: of the trainer, one pod for each."""

    def __init__(self, stages=1, copies=1):
        loop = Loop()
        world = SimpleNamespace(seed=0, rng=Random(0), loop=loop, fanout=0, strategy=Strategy())  # noqa: S311
        self.planner, self.loop, self.engines = Planner(world), loop, {}
        self.trainers = [
            SimpleNamespace(uid=f"source-{number}", name=f"trainer-{number}", address=f"s{number}:1", planned=list)
            for number in range(stages * copies)
        ]
        for number, pod in enumerate(self.trainers):
            who = SourceRank(rank=number, world_size=stages * copies, stage=number % stages, stages=stages,
                             nonce=f"{number:016x}")  # fmt: skip
            self.planner.connected(pod, who)

    def come(self, number, nodes=1, layout="b"):
        """An engine of two ranks, the second of which may be in a pod of its own."""
        pod = SimpleNamespace(
            uid=f"uid-{number}", name=f"engine-{number}", address=f"e{number}:1", ranks=2, nodes=nodes
        )
        member = SimpleNamespace(uid=f"{pod.uid}.1", name=f"{pod.name}.1", address=f"m{number}:1", leader=pod)
        self.engines[number] = (pod, member)
        ranks = [TargetRank(rank=rank, layout=layout * 32, program=layout * 32) for rank in range(2)]
        own = ranks[: 3 - nodes]
        self.planner.announced(
            pod, Announcement(address=pod.address, incarnation="1", ready=True, targets=tuple(own))
        )
        if nodes > 1:
            said = Announcement(address=member.address, incarnation="1", ready=True, targets=(ranks[1],))
            self.planner.member(member, said)

    def leave(self, number):
        """Its pods are deleted."""
        self.planner.engine_gone(self.engines[number][0])

    def away(self, *numbers):
        """These trainer pods are gone."""
        for number in numbers:
            self.planner.agent_died(self.trainers[number])

    def back(self, *numbers):
        """And there again."""
        for number in numbers:
            self.planner.agent_ready(self.trainers[number])

    @property
    def plan(self):
        """In force, once all is planned."""
        while self.loop.step():
            pass
        return self.planner.plan

    @property
    def names(self):
        """Of the plan's engines."""
        return [engine.name for engine in self.plan.engines]


def test_engines_come_and_go_while_the_trainer_is_away():
    """Who comes finds in the plan whom to read from; term and coordinator stay, as whoever holds the version knows
    them."""
    cluster = Cluster(stages=2)
    cluster.come(0)
    before = cluster.plan
    cluster.away(0, 1)
    cluster.come(1)
    both = cluster.names
    cluster.leave(0)
    after = cluster.plan

    assert both == ["engine-0", "engine-1"]
    assert cluster.names == ["engine-1"]
    assert (after.term, after.coordinator, after.sources) == (before.term, before.coordinator, before.sources)
    assert all(len(target.routes) == 2 for engine in after.engines for target in engine.targets)


def test_what_one_trainer_pod_fed_another_does_while_it_is_away():
    """Where each stage keeps a rank, the plan goes on without the pod; one that comes back coordinates no more."""
    cluster = Cluster(copies=2)
    cluster.come(0)
    cluster.come(1)
    before = cluster.plan
    cluster.away(0)
    without = cluster.plan
    cluster.back(0)
    after = cluster.plan

    assert before.coordinator == "source-0"
    assert [source.uid for source in without.sources] == ["source-1"]
    assert {route.source for e in without.engines for t in e.targets for route in t.routes} == {"source-1"}
    assert without.coordinator == after.coordinator == "source-1"
    assert without.term == after.term > before.term
    assert len(after.sources) == 2


@pytest.mark.parametrize("how", ["away", "shunned"])
@pytest.mark.parametrize("stages", [1, 2])
def test_another_pod_coordinates_where_there_is_one(how, stages):
    """In a new term; a pod that is alone coordinates on, in its old one."""
    cluster = Cluster(stages=stages)
    cluster.come(0)
    before = cluster.plan
    if how == "away":
        cluster.away(0)
        assert cluster.plan.coordinator == "source-0", "nobody can be chosen where a stage has no rank"
        cluster.back(0)
    else:
        cluster.planner.shun("source-0")
    after = cluster.plan

    assert after.coordinator == f"source-{stages - 1}"
    assert (after.term > before.term) == (stages > 1)


def test_engines_of_two_pods_and_of_several_layouts_are_planned_together():
    """An engine whose second pod is missing waits; all others are fed, whatever their parallelism."""
    cluster = Cluster()
    cluster.come(0)
    cluster.come(1, nodes=2)
    cluster.come(2, layout="c")
    planned = cluster.plan
    cluster.planner.member_gone(cluster.engines[1][0])

    assert [e.name for e in planned.engines] == ["engine-0", "engine-1", "engine-2"]
    assert [[t.uid for t in e.targets] for e in planned.engines][1] == ["uid-1", "uid-1.1"]
    assert cluster.names == ["engine-0", "engine-2"]


def test_nothing_new_is_no_plan():
    """An agent that says the same again wakes nobody."""
    cluster = Cluster()
    cluster.come(0)
    before = cluster.plan
    cluster.come(0)

    assert cluster.plan is before


def test_engines_read_from_those_that_came_while_the_trainer_was_away(monkeypatch):
    """Schedules hold a rolling update of engines without a trainer: the old ones leave, and who comes reads from the
    others."""
    monkeypatch.setattr(worlds, "LATE_COMERS", 1.0)
    monkeypatch.setattr(worlds, "LEAVING", 1.0)
    read = []

    def apply(self, decided, old=joining.Joining._apply):
        ended = yield from old(self, decided)
        world = self.world
        if not any(pod.agent.life.alive for pod in world.source_pods) and len(world.gone_pods) > 0:
            there = {engine.leader for engine in world.planner.plan.engines}
            read.append(there.isdisjoint(pod.uid for pod in world.gone_pods) and self.agent.pod.uid in there)
        return ended

    monkeypatch.setattr(joining.Joining, "_apply", apply)
    for seed in range(60):
        World(seed, faults=()).run()
        if any(read):
            break

    assert any(read)
