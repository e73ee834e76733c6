"""Pods: what outlives their processes, and one life of an agent after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.simulate.clock import Life
from tools.simulate.serving import Serving
from tools.simulate.source_agent import SourceAgent
from tools.simulate.target_side import EngineAgent
from tools.simulate.volume import Volume

if TYPE_CHECKING:
    from tools.simulate.world import World


class EnginePod:
    """One engine with all its ranks, and its agent."""

    def __init__(self, world: World, number: int, address: str, ranks: int) -> None:
        self.world = world
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
        self.agent: EngineAgent
        self.start_agent()

    @property
    def targets(self) -> object:
        """Of the agent that lives now: for the ledger."""
        return self.agent.targets

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
