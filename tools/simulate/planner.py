"""The operator, in one object: who is there, who coordinates, who writes to whom; plans reach agents late.

What is planned is the operator's own: its pure functions make the plan from records of pods. Here are its passes, and
what it sees of pods, late.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from tools.simulate import invariants as i
from weightsync.announcement import Announcement, SourceRank
from weightsync.plan import Plan, Relay, Strategy, Transfer
from weightsync_agent.plan_feed.heads import retired
from weightsync_operator.planning import membership
from weightsync_operator.planning.compose import Wish, compose
from weightsync_operator.planning.grouping import group
from weightsync_operator.planning.grouping.workloads import LWS
from weightsync_operator.planning.layouts import Member
from weightsync_operator.planning.memo import Memo
from weightsync_operator.planning.pods import Pod
from weightsync_operator.planning.sources import Sources, gather

if TYPE_CHECKING:
    from tools.simulate.member_side import MemberPod
    from tools.simulate.pods import EnginePod, SourcePod
    from tools.simulate.world import World

PASS = 0.06  # seconds until a change is planned, at most
SPREAD = 0.05  # and until a plan has reached an agent
LAGGING = 0.4  # share of schedules in which some agents know a plan long before others
LAG = 2.0  # seconds there
CHECKPOINT = "c" * 32


class Planner:
    """Observe, plan, tell."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.engines: dict[str, Pod] = {}
        self.members: dict[str, Pod] = {}  # by the leader's uid
        self.sources: dict[str, tuple[SourcePod, Pod]] = {}
        self.away: set[str] = set()  # source pods whose agent was seen to be dead: gone, as far as plans go
        self.younger: set[str] = set()  # back since the last plan of all stages: new pods, for plans
        self.shunned: set[str] = set()  # may not coordinate: a fault
        self.plan: Plan | None = None
        self.memo = Memo()
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
        self.engines[pod.uid] = _engine_pod(pod.name, pod.uid, pod, 0, announcement)
        self._soon()

    def member(self, pod: MemberPod, announcement: Announcement) -> None:
        """The agent of an engine's second pod said something of itself."""
        self.members[pod.leader.uid] = _engine_pod(pod.name, pod.uid, pod.leader, 1, announcement)
        self._soon()

    def member_gone(self, leader: EnginePod) -> None:
        """The pod was deleted."""
        self.members.pop(leader.uid, None)
        self._soon()

    def engine_gone(self, pod: EnginePod) -> None:
        """The pod was deleted, and its second one with it."""
        self.engines.pop(pod.uid, None)
        self.members.pop(pod.uid, None)
        self._soon()

    def connected(self, pod: SourcePod, who: SourceRank) -> None:
        """A Publisher connected to a source's agent."""
        known = self.sources[pod.uid][1].announcement if pod.uid in self.sources else None
        others = [rank for rank in known.sources if rank.rank != who.rank] if known is not None else []
        said = Announcement(address=pod.address, ready=True, sources=(*others, who))
        self.sources[pod.uid] = (pod, Pod("default", pod.name, pod.uid, announcement=said))
        self._soon()

    def agent_died(self, pod: SourcePod) -> None:
        """And the pod is gone."""
        self.away.add(pod.uid)
        self._soon()

    def agent_ready(self, pod: SourcePod) -> None:
        """There is one again; what the volume holds says which ranks are its own."""
        if pod.uid in self.away:
            self.away.discard(pod.uid)
            self.younger.add(pod.uid)
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
            self.deleted, self.plan, self.memo = False, None, Memo()
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
        sources, engines = self._sources(), self._engines()
        plan = compose(self._wish(), sources, engines, self._before(sources), int(1000 * self.world.loop.now),
                       memo=self.memo)  # fmt: skip
        if sources.usable:
            self.younger.clear()
        if plan is not None:
            i.planned({engine.leader.uid for engine in engines}, {engine.leader for engine in plan.engines})
        if plan is None or (self.plan is not None and plan.generation == self.plan.generation):
            return False
        self.plan = plan
        self.reached = max(self.reached, plan.term)
        self.world.loop.note("operator", "plan", f"term {plan.term}, {plan.coordinator} coordinates, "
                             f"engines {[e.key for e in plan.engines]}")  # fmt: skip
        self._spread()
        return True

    def _before(self, sources: Sources) -> Plan | None:
        """The plan in force; its coordinator counts as gone where another pod is to coordinate, and one can."""
        plan = self.plan
        if plan is None or not sources.usable or plan.coordinator not in self._last:
            return plan
        if all(source.uid in self._last for source in sources.pods):
            return plan
        return plan.model_copy(update={"coordinator": ""})

    def _wish(self) -> Wish:
        transfer = Transfer(bucket_size="4096", relay=Relay(fanout=self.world.fanout))
        return Wish("default/sim", transfer=transfer, strategy=self.world.strategy)

    def _spread(self) -> None:
        for pod, _ in self.sources.values():
            share = self.world.rng.random()
            if self.lags and share < 0.5:
                share *= 0.02
            self.world.loop.at(share * self.spread, pod.planned)

    @property
    def _last(self) -> set[str]:
        """Source pods that coordinate only where nobody else can: the youngest."""
        return self.shunned | self.younger

    def _sources(self) -> Sources:
        there = [pod for uid, (_, pod) in self.sources.items() if uid not in self.away]
        return gather(sorted(there, key=lambda pod: (pod.uid in self._last, pod.uid)), "app=trainer")

    def _engines(self) -> Sequence[Member]:
        pods = []
        for uid, pod in self.engines.items():
            pods += [pod, self.members[uid]] if uid in self.members else [pod]
        return membership.judge(group(pods), self.memo).members


def _engine_pod(name: str, uid: str, engine: EnginePod, place: int, said: Announcement) -> Pod:
    """As the API would show it. All engines serve one checkpoint, whatever their layouts."""
    labels = {}
    if engine.nodes > 1:
        kind, number = engine.name.rsplit("-", 1)
        labels = {f"{LWS}/name": kind, f"{LWS}/group-index": number, f"{LWS}/worker-index": str(place)}
    said = said.model_copy(update={"checkpoint": CHECKPOINT, "engine_ranks": engine.ranks})
    return Pod("default", name, uid, labels=labels, announcement=said, size=engine.nodes)


__all__ = ["Planner", "Strategy"]
