"""Programs that are forked from one process which has imported them: in an emulated guest the imports take half a
minute, and a world has half a dozen programs.

`python -m tests.rdma.nursery MODULE [ARGUMENT...]` runs a module so, and itself serves what that one asks for by
`Forked`. Nothing that lives before a fork has threads, an event loop, or Mooncake.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tools.world.processes import Child, WorldError, stands_still

PLACE = "NURSERY"  # the variable that holds the descriptor to ask by
HIDDEN = "NURSERY_HIDDEN"  # in a program's environment: a folder that is empty for it
# What the programs of a world import: agents, the planner, the reference engine, and who looks at them.
IMPORTED = (
    "weightsync_agent.app", "weightsync_agent.observability.logs", "reference.server", "weightsync_cli.plan",
    "weightsync_cli.preflight", "weightsync.publisher", "tools.world.world", "pytest", "pytest_asyncio.plugin",
    "pytest_timeout",
)  # fmt: skip
NEW_MOUNTS = 0x00020000  # CLONE_NEWNS


# --- in the process that forks ---


def main(arguments: Sequence[str]) -> int:
    """The exit status is the first module's."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # no child looks through, or copies, what all of them have
    ours, theirs = socket.socketpair()
    environment = {**os.environ, PLACE: str(theirs.fileno())}
    first = _fork(list(arguments), environment, None, ours)
    theirs.close()
    _serve(ours)
    _, status = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(status)


def _serve(ours: socket.socket) -> None:
    """Until whoever may ask has ended. Others that were forked do not hold its end."""
    ended: dict[int, int] = {}
    with ours.makefile("rw", encoding="utf-8") as asked:
        for line in asked:
            request = json.loads(line)
            if "poll" in request:
                pid = request["poll"]
                if pid not in ended:
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        ended[pid] = os.waitstatus_to_exitcode(status)
                answer = ended.get(pid)
            else:
                answer = _fork(request["command"], request["environment"], request["log"], ours)
            asked.write(f"{json.dumps(answer)}\n")
            asked.flush()


def _fork(command: list[str], environment: Mapping[str, str], log: str | None, ours: socket.socket) -> int:
    """The child's pid. command: a module and its arguments; log: None where it says what it says to our streams."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ours.close()
        _run(command, environment, log)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - told as an interpreter tells it, and the status says so
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(command: list[str], environment: Mapping[str, str], log: str | None) -> None:
    """As a fresh interpreter would run the module."""
    os.environ.clear()
    os.environ.update(environment)
    if log is not None:
        os.setsid()
        with Path(log).open("ab") as said, Path(os.devnull).open("rb") as nothing:
            for stream, number in ((nothing, 0), (said, 1), (said, 2)):
                os.dup2(stream.fileno(), number)
    if HIDDEN in environment:
        _hide(environment[HIDDEN])
    known = set(sys.path)
    sys.path[:0] = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each not in known]
    sys.argv = list(command)
    if not hasattr(sys.modules.get(command[0]), "__path__"):
        sys.modules.pop(command[0], None)  # it was imported for what it imports
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def _hide(folder: str) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare: no mount namespace of its own")
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "tmpfs", folder]):
        subprocess.run(command, check=True)


# --- in the process that asks ---


class _Asked:
    """What the nursery answers, over the descriptor that the first module was given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: TextIO | None = None

    def __call__(self, **request: object) -> int | None:
        with self._lock:
            self._stream = self._stream or self._open()
            self._stream.write(f"{json.dumps(request)}\n")
            self._stream.flush()
            answer: int | None = json.loads(self._stream.readline())
            return answer

    @staticmethod
    def _open() -> TextIO:
        number = os.environ.get(PLACE)
        if number is None:
            raise WorldError(f"{PLACE} is not set: run this by `python -m tests.rdma.nursery`")
        return socket.socket(fileno=int(number)).makefile("rw", encoding="utf-8")


_ask = _Asked()


class Forked(Child):
    """A child whose command is `python -m MODULE ...`; see the module."""

    _pid: int | None = None

    def start(self) -> None:
        """Start it (again); the log is appended to."""
        interpreter, flag, *module = self.command
        if (interpreter, flag) != (sys.executable, "-m"):
            raise WorldError(f"{self.name}: only modules are forked, not {self.command}")
        self._pid = _ask(command=module, environment=self.whole_environment(), log=str(self.log))

    @property
    def pid(self) -> int:
        """Of the last start."""
        if self._pid is None:
            raise WorldError(f"{self.name} was not started")
        return self._pid

    @property
    def alive(self) -> bool:
        """It runs (or is stopped)."""
        return self._pid is not None and _ask(poll=self._pid) is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL wait for the end, after SIGSTOP until it stands still."""
        if not self.alive:
            return
        os.kill(self.pid, number)  # nobody reaps it but the nursery, when it is asked
        if number == signal.SIGSTOP:
            stands_still(self.pid)
        if number == signal.SIGKILL:
            self._ends(seconds=30.0)

    def stop(self, seconds: float = 10.0) -> None:
        """SIGTERM, and SIGKILL where that does not end it in time."""
        if not self.alive:
            return
        os.kill(self.pid, signal.SIGCONT)
        os.kill(self.pid, signal.SIGTERM)
        if not self._ends(seconds):
            self.kill()

    def _ends(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
