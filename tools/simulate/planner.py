"""The operator, in one object: who is there, who coordinates, who writes to whom; plans reach agents late.

Term and coordinator are chosen by the operator's own pure functions.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from weightsync.announcement import Announcement, SourceRank
from weightsync.plan import Engine, Plan, Relay, Route, Source, Strategy, Target, Transfer
from weightsync_agent.plan_feed.heads import retired
from weightsync_operator.planning import coordinator as choice
from weightsync_operator.planning import term

if TYPE_CHECKING:
    from tools.simulate.member_side import MemberPod
    from tools.simulate.pods import EnginePod, SourcePod
    from tools.simulate.world import World

PASS = 0.06  # seconds until a change is planned, at most
SPREAD = 0.05  # and until a plan has reached an agent
LAGGING = 0.4  # share of schedules in which some agents know a plan long before others
LAG = 2.0  # seconds there


class Planner:
    """Observe, plan, tell."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.engines: dict[str, tuple[EnginePod, Announcement]] = {}
        self.members: dict[str, tuple[MemberPod, Announcement]] = {}  # by the leader's uid
        self.sources: dict[str, tuple[SourcePod, dict[int, SourceRank]]] = {}
        self.unready: set[str] = set()  # source pods whose agent was seen to be dead
        self.shunned: set[str] = set()  # may not coordinate: a fault
        self.plan: Plan | None = None
        self.planning = False
        self.down_until = 0.0
        self.lags = Random(f"{world.seed}/lags").random() < LAGGING  # noqa: S311 - a seed, no secret
        self.usual = LAG if self.lags else SPREAD
        self.spread = self.usual
        self.reached = 0  # the highest term that was ever given
        self.deleted = False

    # --- what is observed ---

    def announced(self, pod: EnginePod, announcement: Announcement) -> None:
        """An engine's agent said something of itself."""
        self.engines[pod.uid] = (pod, announcement)
        self._soon()

    def member(self, pod: MemberPod, announcement: Announcement) -> None:
        """The agent of an engine's second pod said something of itself."""
        self.members[pod.leader.uid] = (pod, announcement)
        self._soon()

    def member_gone(self, leader: EnginePod) -> None:
        """The pod was deleted."""
        self.members.pop(leader.uid, None)
        self._soon()

    def engine_gone(self, pod: EnginePod) -> None:
        """The pod was deleted."""
        self.engines.pop(pod.uid, None)
        self._soon()

    def connected(self, pod: SourcePod, who: SourceRank) -> None:
        """A Publisher connected to a source's agent."""
        self.sources.setdefault(pod.uid, (pod, {}))[1][who.rank] = who
        self._soon()

    def agent_died(self, pod: SourcePod) -> None:
        """Readiness is lost."""
        self.unready.add(pod.uid)
        self._soon()

    def agent_ready(self, pod: SourcePod) -> None:
        """And won."""
        self.unready.discard(pod.uid)
        self._soon()

    def shun(self, uid: str) -> None:
        """Let another pod coordinate, though this one lives."""
        self.shunned = {uid}
        self._soon()

    def delete(self) -> None:
        """The WeightSync is gone: nobody coordinates, and nobody is fed."""
        if self.plan is None or self.deleted:
            return
        self.deleted = True
        self.plan = retired(self.plan)
        self._spread()

    def make(self) -> None:
        """One of the same name: nothing is known of the one before."""
        if self.deleted:
            self.deleted, self.plan = False, None
            self._soon()

    # --- passes ---

    def _soon(self) -> None:
        if not self.planning:
            self.planning = True
            loop = self.world.loop
            delay = self.world.rng.random() * PASS
            loop.at(max(delay, self.down_until - loop.now), self._pass)

    def _pass(self) -> bool:
        self.planning = False
        if self.deleted:
            return False
        sources = self._sources()
        previous = self.plan
        ready = [s for s in sources if s.uid not in self.unready and s.uid not in self.shunned]
        leader = choice.choose(previous.coordinator if previous else "", ready)
        if not leader and previous is not None and any(s.uid == previous.coordinator for s in sources):
            leader = previous.coordinator  # nobody else can: it stays
        if not leader:
            return False
        number = term.next_term(previous, leader, choice.life(leader, sources), int(1000 * self.world.loop.now))
        wished = Plan(
            name="default/sim", term=number, generation=0, coordinator=leader, strategy=self.world.strategy,
            transfer=Transfer(bucket_size="4096", relay=Relay(fanout=self.world.fanout)),
            sources=tuple(sources), engines=tuple(self._engines(sources)),
        )  # fmt: skip
        if previous is not None and wished == previous.model_copy(update={"generation": 0}):
            return False
        generation = term.next_generation(previous, changed=True)
        plan = self.plan = wished.model_copy(update={"generation": generation})
        self.reached = max(self.reached, plan.term)
        self.world.loop.note("operator", "plan", f"term {plan.term}, {plan.coordinator} coordinates, "
                             f"engines {[e.key for e in plan.engines]}")  # fmt: skip
        self._spread()
        return True

    def _spread(self) -> None:
        for pod, _ in self.sources.values():
            share = self.world.rng.random()
            if self.lags and share < 0.5:
                share *= 0.02
            self.world.loop.at(share * self.spread, pod.planned)

    def _sources(self) -> list[Source]:
        return [
            Source(uid=uid, pod=pod.name, address=pod.address, ranks=tuple(ranks[r] for r in sorted(ranks)))
            for uid, (pod, ranks) in sorted(self.sources.items())
            if ranks
        ]

    def _engines(self, sources: list[Source]) -> list[Engine]:
        by_stage: dict[int, list[tuple[str, int]]] = {}
        for source in sources:
            for rank in source.ranks:
                by_stage.setdefault(rank.stage, []).append((source.uid, rank.rank))
        if set(by_stage) != set(range(self.world.stages)):
            return []
        engines = []
        for index, (uid, (pod, said)) in enumerate(sorted(self.engines.items())):
            held = [(uid, pod.name, pod.address, each) for each in said.targets]
            if pod.nodes > 1:
                member = self.members.get(uid)
                if member is None or not member[1].ready:
                    continue
                there = member[0]
                held += [(there.uid, there.name, there.address, each) for each in member[1].targets]
            if not said.ready or len(held) != pod.ranks:
                continue
            targets = []
            for holder, holders, address, each in held:
                routes = []
                for stage, ranks in sorted(by_stage.items()):
                    uid_, number = ranks[(index + each.rank) % len(ranks)]
                    routes.append(Route(stage=stage, source=uid_, rank=number))
                targets.append(Target(uid=holder, pod=holders, address=address, rank=each, routes=tuple(routes)))
            engines.append(
                Engine(name=pod.name, leader=uid, address=pod.address, incarnation=said.incarnation,
                       targets=tuple(targets))
            )  # fmt: skip
        return engines


__all__ = ["Planner", "Strategy"]
