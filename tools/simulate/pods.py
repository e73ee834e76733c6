"""Pods: what outlives their processes, and one life of an agent after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.simulate.clock import Life
from tools.simulate.member_side import MemberPod
from tools.simulate.rank_target import RankTarget
from tools.simulate.serving import Serving
from tools.simulate.source_agent import SourceAgent
from tools.simulate.target_side import EngineAgent
from tools.simulate.volume import Volume

if TYPE_CHECKING:
    from tools.simulate.world import World

PAIRS = 0.6  # share of the engines of two ranks that are of two pods


class EnginePod:
    """One engine, the pod of its first rank, and the agent there. member: the pod of its last rank, if it has one."""

    def __init__(self, world: World, number: int, address: str, ranks: int) -> None:
        self.world = world
        self.number = number
        self.name = f"engine-{number}"
        self.uid = f"uid-{number}"
        self.address = address
        self.ranks = ranks
        self.first = ranks * (number % world.layouts)  # of its ranks, among those of all layouts
        self.begin_end = world.begin_end
        self.volume = Volume()
        self.writing = False
        self.removed = False
        self.starts = 0
        self.direct = world.direct and world.shape_of(number).random() < 0.7
        self.engine = Serving(self.name, world, ranks, direct=self.direct)
        self.engine.agent = self
        pair = ranks > 1 and not self.direct and (world.pairs or world.shape_of(number).random() < PAIRS)
        self.nodes = 2 if pair else 1
        self.own = ranks - 1 if pair else ranks  # its ranks that are in this pod
        self.member: MemberPod | None = None
        self.agent: EngineAgent
        self.start_agent()
        if pair:
            self.member = MemberPod(world, self)

    @property
    def targets(self) -> dict[int, RankTarget]:
        """Of the agents that live now: for the ledger. A member's that has restarted knows nothing of its grants."""
        there = self.member.agent.targets if self.member is not None else {}
        known = {r: t for r, t in there.items() if any(each.machine.grant is not None for each in t.arenas)}
        return self.agent.targets | known

    def finds(self, rank: int) -> bool:
        """Whether the rank's process finds a request for its hook, when a call comes."""
        return rank < self.own or (self.member is not None and bool(self.member.request))

    def hook_done(self, rank: int) -> None:
        """It has left its result."""
        if rank >= self.own and self.member is not None:
            self.member.result, self.member.request = self.member.request, ""

    @property
    def life(self) -> Life:
        """Of the agent that lives now."""
        return self.agent.life

    def start_agent(self) -> None:
        """An agent starts from what is in the volume."""
        if self.removed or (self.starts and self.agent.life.alive):
            return
        self.starts += 1
        self.agent = EngineAgent(self.world, self, Life(f"{self.name}.agent#{self.starts}"))
        self.world.network.hosts[self.address] = self.agent

    def crash_agent(self, *, torn: bool) -> None:
        """Kill -9: agent and its workers. torn: a journal that was being written is found torn."""
        if not self.agent.life.alive:
            return
        self.world.loop.note(self.agent.life.name, "killed")
        if torn and self.writing:
            self.volume.torn = True
        self.writing = False
        self.agent.life.end()

    def start_engine(self) -> None:
        """Another life of the engine's process begins, if none has."""
        if not self.removed and not self.engine.alive:
            self.engine.begin_life()

    def replace_engine(self) -> None:
        """Its process ends, and the next begins at once."""
        if self.engine.alive:
            self.engine.end_life()
            self.start_engine()

    def remove(self) -> None:
        """The pod is deleted."""
        self.removed = True
        self.crash_agent(torn=False)
        if self.member is not None:
            self.member.remove()
        self.engine.end_life()
        self.world.planner.engine_gone(self)


class SourcePod:
    """One trainer pod's agent."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"trainer-{number}"
        self.uid = f"source-{number}"
        self.address = f"s{number}:1"
        self.volume = Volume()
        self.starts = 0
        self.deaf_until = 0.0  # it learns of no plan
        self.agent: SourceAgent
        self.start_agent()

    def start_agent(self) -> None:
        """An agent starts from what is in the volume."""
        if self.starts and self.agent.life.alive:
            return
        self.starts += 1
        self.agent = SourceAgent(self.world, self, Life(f"{self.name}.agent#{self.starts}"))
        self.world.network.hosts[self.address] = self.agent
        self.world.planner.agent_ready(self)
        self.world.loop.at(0.02, self.planned)

    def crash_agent(self) -> None:
        """Kill -9."""
        if not self.agent.life.alive:
            return
        self.world.loop.note(self.agent.life.name, "killed")
        self.agent.life.end()
        self.world.loop.at(1.0, self._seen_dead)

    def _seen_dead(self) -> bool:
        if self.agent.life.alive:
            return False
        self.world.planner.agent_died(self)
        return True

    def planned(self) -> bool:
        """The newest plan reaches the agent, if it listens."""
        plan = self.world.planner.plan
        if plan is None or not self.agent.life.alive or self.world.loop.now < self.deaf_until:
            return False
        frozen = self.agent.life.frozen_until - self.world.loop.now
        if frozen > 0:
            self.world.loop.at(frozen, self.planned)
            return False
        return self.agent.planned(plan)
