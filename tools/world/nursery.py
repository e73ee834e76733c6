"""Programs that are forked from one process which has imported them: an interpreter that imports torch takes seconds
of a processor, half a minute in an emulated guest, and a world has half a dozen programs that end and start again.

`Forked` asks for them. Whom it asks: the nursery that `python -m tools.world.nursery [--import MODULE]... MODULE
[ARGUMENT...]` ran this program by, or else one that it starts when first something is to be forked. Nothing that
lives before a fork has threads, an event loop, or Mooncake.
"""

import argparse
import atexit
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

from tools.world.processes import ROOT, Child, Process, WorldError, python

PLACE = "NURSERY"  # the variable that holds the descriptor to ask by
HIDDEN = "NURSERY_HIDDEN"  # in a program's environment: a folder that is empty for it
# What the programs of a world import: agents, the planner, the reference engine. Not the operator: the Kubernetes
# client takes KUBECONFIG for what it is when it is imported, and the operator leaves it to the client.
IMPORTED = ("weightsync_agent.app", "weightsync_agent.observability.logs", "reference.server", "weightsync_cli.plan")
AT_IMPORT = "weightsync_agent.failpoints"  # reads its variable when it is imported
NEW_MOUNTS = 0x00020000  # CLONE_NEWNS


# --- in the process that forks ---


def main(arguments: Sequence[str]) -> int:
    """The exit status: the first module's; 0 where there is none, and whoever gave us a descriptor asks."""
    parser = argparse.ArgumentParser(prog="tools.world.nursery", description=__doc__)
    parser.add_argument("--import", dest="more", action="append", default=[], help="a module to import before")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a module to run, and its arguments")
    options = parser.parse_args(arguments)
    for module in (*IMPORTED, *options.more):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # no child looks through, or copies, what all of them have
    if not options.command:
        with socket.socket(fileno=int(os.environ.pop(PLACE))) as ours:
            _serve(ours)
        return 0
    ours, theirs = socket.socketpair()
    environment = {**os.environ, PLACE: str(theirs.fileno())}
    first = _fork(options.command, environment, None, ours)
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
                ended.pop(answer, None)  # another one's number before
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
    importlib.reload(importlib.import_module(AT_IMPORT))
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
    """What the nursery answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: TextIO | None = None

    def __call__(self, **request: object) -> int | None:
        with self._lock:
            self._stream = self._stream or self._open()
            self._stream.write(f"{json.dumps(request)}\n")
            self._stream.flush()
            said = self._stream.readline()
        if not said:
            raise WorldError("the nursery has ended: what it forked can neither be looked after nor started again")
        answer: int | None = json.loads(said)
        return answer

    def _open(self) -> TextIO:
        number = os.environ.get(PLACE)
        with self._begin() if number is None else socket.socket(fileno=int(number)) as ours:
            return ours.makefile("rw", encoding="utf-8")

    def _begin(self) -> socket.socket:
        """One of our own, which ends when our end of the socket is closed: at the latest with us."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                python("tools.world.nursery"), cwd=ROOT, env={**os.environ, PLACE: str(theirs.fileno())},
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        atexit.register(self._end, process)
        return ours

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        if self._stream is not None:
            self._stream.close()
        process.wait(30)


_ask = _Asked()


class _Process:
    """What the nursery forked, as subprocess tells of a process."""

    stdin = None

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        pid = _ask(command=list(command), environment=dict(environment), log=str(log))
        if pid is None:
            raise WorldError(f"the nursery forked nothing for {command}")
        self.pid = pid

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return _ask(poll=self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        began = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        return status

    def send_signal(self, number: int) -> None:
        """To one that runs: it keeps its number until the nursery was asked for its status."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Forked(Child):
    """A child that is forked, see the module, where its command is `python -m MODULE ...`; any other is started."""

    def _begin(self) -> Process:
        if self.command[:2] != python("")[:2] or self._listens:
            return super()._begin()
        return _Process(self.command[2:], self.whole_environment(), self.log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
