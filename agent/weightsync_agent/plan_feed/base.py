"""A feed of plans, level-based: what should be now, not what changed. No I/O."""

import asyncio
from typing import Protocol

from weightsync.plan import Plan


class PlanFeed(Protocol):
    """The newest plan that concerns this agent. With its origin away the last one stays."""

    @property
    def current(self) -> Plan | None:
        """The newest plan; None until there is one."""
        ...

    async def next(self) -> Plan:
        """The newest plan: at once if it changed since the last call, else when it changes. For one caller."""
        ...

    async def head(self) -> tuple[int, str] | None:
        """Term and coordinator, read now; None where nothing names this agent.

        Raises WeightSyncError where they cannot be read: then nothing is known, and nobody new is obeyed.
        """
        ...

    async def start(self) -> None:
        """Begin to follow the origin."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


class Latest:
    """The newest plan, and a wait for the next one."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._changed = asyncio.Event()

    @property
    def plan(self) -> Plan | None:
        """The newest plan."""
        return self._plan

    def put(self, plan: Plan) -> bool:
        """Take in what was read; an equal plan is no change. Returns whether it was one."""
        if plan == self._plan:
            return False
        self._plan = plan
        self._changed.set()
        return True

    async def next(self) -> Plan:
        """As PlanFeed.next(): what came and went between two calls is left out."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._plan is not None:
                return self._plan
