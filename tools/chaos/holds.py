"""The harness's end of weightsync_agent.failpoints: arm a place, wait until a process is there, let it go on."""

import json
import time
from pathlib import Path

from tools.world.processes import WorldError

POLL = 0.005


class Hold:
    """One armed place of one pod's agent. reached_at, released_at: seconds since 1970."""

    def __init__(self, folder: Path, name: str, content: str = "") -> None:
        self.name = name
        self._armed, self._held, self._reached = (folder / f"{name}{end}" for end in ("", ".held", ".reached"))
        self.reached_at = 0.0
        self.released_at = 0.0
        for path in (self._held, self._reached):
            path.unlink(missing_ok=True)
        self._armed.write_text(content)

    @property
    def reached(self) -> bool:
        """A process is there, or was."""
        return self._reached.exists()

    def wait(self, seconds: float) -> int:
        """Until a process is there; its pid. Raises WorldError."""
        deadline = time.monotonic() + seconds
        while not self.reached:
            if time.monotonic() > deadline:
                raise WorldError(f"nobody came to {self.name} within {seconds:.0f} s")
            time.sleep(POLL)
        self.reached_at = self._reached.stat().st_mtime
        return int(json.loads(self._reached.read_text())["pid"])

    def release(self) -> None:
        """Let the process go on, and hold nobody who comes later."""
        self.released_at = self.released_at or time.time()
        for path in (self._armed, self._held):
            path.unlink(missing_ok=True)
