"""One pod of the world: its place, its volume, its processes."""

from dataclasses import dataclass, field
from pathlib import Path

from tools.world.processes import Child

HOST = "127.0.0.1"  # of every pod, where pods have no network of their own


@dataclass
class Pod:
    """One pod: its volume and its processes. uid: what plans and outcomes call it, the name but for a replaced pod.

    host: its address; prefix: the command that puts a process into its network namespace.
    """

    name: str
    role: str
    volume: Path
    port: int
    agent: Child
    engine: Child | None = None
    engine_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    uid: str = ""
    host: str = HOST
    prefix: tuple[str, ...] = ()
    group: str = ""  # of an engine of several pods: the leader's name

    @property
    def address(self) -> str:
        """host:port of the agent."""
        return f"{self.host}:{self.port}"

    @property
    def engine_address(self) -> str:
        """host:port of the engine."""
        return f"{self.host}:{self.engine_port}"

    @property
    def children(self) -> list[Child]:
        """All processes."""
        return [self.agent, *([self.engine] if self.engine else [])]
