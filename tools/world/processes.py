"""One child process with its log. Only what was started here is ever signalled."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol

ROOT = Path(__file__).resolve().parents[2]
CODE = [ROOT / folder for folder in ("sdk", "operator", "agent", "cli", "examples")]


class WorldError(Exception):
    """Something of the world did not come up or did not happen; the message holds the log's last lines."""


def stands_still(pid: int, seconds: float = 10.0) -> None:
    """Return once no thread of a process that was sent SIGSTOP runs: kill() returns before, and a busy machine lets
    some of them go on for a while.

    Raises WorldError for one that does not stop in time. One that is gone stands still.
    """
    until = time.monotonic() + seconds
    while running := _running(pid):
        if time.monotonic() > until:
            raise WorldError(f"process {pid} was sent SIGSTOP, and threads {running} run after {seconds} s")
        time.sleep(0.002)


def _running(pid: int) -> list[str]:
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            state = stat.read_text().rpartition(")")[2].split()[0]
            if state not in "TtZX":
                found.append(f"{stat.parent.name} ({state})")
    return found


class Process(Protocol):
    """What a child is to us: a subprocess.Popen, or what stands for one."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """What it listens to."""

    def poll(self) -> int | None:
        """The exit status; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""

    def send_signal(self, number: int, /) -> None:
        """To one that runs."""

    def terminate(self) -> None:
        """SIGTERM."""


class Child:
    """A running command; its output goes to ``log``. listens: it reads lines from its standard input (tell())."""

    def __init__(
        self, name: str, command: Sequence[str], environment: dict[str, str], log: Path, *, listens: bool = False
    ) -> None:
        self.name = name
        self.command = list(command)
        self.environment = environment
        self.log = log
        self._listens = listens
        self._process: Process | None = None

    def whole_environment(self) -> dict[str, str]:
        """Its own over what it inherits."""
        path = os.pathsep.join(map(str, CODE))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WEIGHTSYNC_", "MC_", "POD_"))}
        environment = {**inherited, "PYTHONUNBUFFERED": "1", **self.environment}
        # It finds packages as this process does: not every machine has them in its interpreter.
        paths = [self.environment.get("PYTHONPATH", ""), path, os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return environment

    def start(self) -> None:
        """Start it (again); the log is appended to."""
        self._process = self._begin()

    def _begin(self) -> Process:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.PIPE if self._listens else subprocess.DEVNULL,
                env=self.whole_environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the last start."""
        if self._process is None:
            raise WorldError(f"{self.name} was not started")
        return self._process.pid

    def tell(self, line: str) -> None:
        """Give a listening process a line. Raises WorldError where it has ended."""
        pipe = self._process.stdin if self._process is not None else None
        if pipe is None or not self.alive:
            raise WorldError(f"{self.name} does not listen:\n{self.tail()}")
        pipe.write(line.encode() + b"\n")
        pipe.flush()

    @property
    def alive(self) -> bool:
        """It runs (or is stopped)."""
        return self._process is not None and self._process.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL wait for the end, after SIGSTOP until it stands still."""
        if self.alive and self._process is not None:
            self._process.send_signal(number)
            if number == signal.SIGSTOP:
                stands_still(self._process.pid)
            if number == signal.SIGKILL:
                self._process.wait()
                self._let_go()

    def _let_go(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # what was told last, and never read
                self._process.stdin.close()

    def stop(self, seconds: float = 10.0) -> None:
        """SIGTERM, and SIGKILL where that does not end it in time."""
        if not self.alive or self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(seconds)
            self._let_go()
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self, lines: int = 25) -> str:
        """The log's last lines."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def python(module: str, *arguments: str) -> list[str]:
    """A command that runs a module by this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def wait(what: str, condition: Callable[[], bool], seconds: float, children: Sequence[Child] = ()) -> None:
    """Until ``condition`` holds. Raises WorldError at the deadline, or when one of ``children`` has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        for child in children:
            if not child.alive:
                raise WorldError(f"{child.name} ended while waiting for {what}:\n{child.tail()}")
        if time.monotonic() > deadline:
            tails = "\n".join(f"--- {child.name}\n{child.tail()}" for child in children)
            raise WorldError(f"{what} did not happen within {seconds:.0f} s\n{tails}")
        time.sleep(0.05)
