"""Programs that are forked do as they do when an interpreter starts them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.world.nursery import Forked
from tools.world.processes import Child, python, wait

PROGRAM = """
import os, signal, sys, time
from weightsync_agent import failpoints

def told(number, frame):
    print("ended by a signal", flush=True)
    sys.exit(7)

signal.signal(signal.SIGTERM, told)
print(__name__, sys.argv[1:], os.environ.get("SAID"), failpoints._FOLDER, os.getsid(0) == os.getpid(), flush=True)
sys.stderr.write("and aloud\\n")
if sys.argv[1] == "raise":
    raise ValueError("on purpose")
time.sleep(float(sys.argv[2]))
"""

Make = Callable[..., Child]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A child of either kind that runs PROGRAM; none is left at the end."""
    (tmp_path / "said_program.py").write_text(PROGRAM)
    made: list[Child] = []

    def make(kind: type[Child], *arguments: str) -> Child:
        log = tmp_path / f"{kind.__name__}.log"
        environment = {"PYTHONPATH": str(tmp_path), "SAID": "hello", "WEIGHTSYNC_FAILPOINTS": "/nowhere"}
        child = kind("program", python("said_program", *arguments), environment, log)
        made.append(child)
        child.start()
        return child

    yield make
    for child in made:
        child.stop()


def said(child: Child) -> list[str]:
    """Its log, once it has said all that it says before it sleeps."""
    wait("both streams", lambda: "and aloud" in child.tail(), 60)
    return sorted(child.tail().splitlines())


def test_it_says_what_it_says_when_it_is_started(make: Make) -> None:
    """Name, arguments, environment, what is read at import, a session of its own; both streams in the log."""
    forked, started = (said(make(kind, "wait", "30")) for kind in (Forked, Child))
    assert forked == started == ["__main__ ['wait', '30'] hello /nowhere True", "and aloud"]


def test_signals_reach_it(make: Make) -> None:
    """One that stops it, one that it hears, one that it does not."""
    child = make(Forked, "wait", "30")
    said(child)
    child.kill(signal.SIGSTOP)
    assert child.alive
    child.stop()
    assert not child.alive
    assert "ended by a signal" in child.tail()
    child.start()
    first = child.pid
    child.kill()
    assert not child.alive
    assert not Path(f"/proc/{first}").exists()  # nobody's zombie


def test_what_it_raises_is_in_its_log(make: Make) -> None:
    """As an interpreter says it."""
    child = make(Forked, "raise", "0")
    wait("the end", lambda: not child.alive, 60)
    assert "ValueError: on purpose" in child.tail()


def test_what_is_no_module_is_started(tmp_path: Path) -> None:
    """A command in a pod's network, a program in another language."""
    child = Forked("env", ["env"], {"SAID": "hello"}, tmp_path / "log")
    child.start()
    wait("the end", lambda: not child.alive, 10)
    assert "SAID=hello" in child.tail(200)


def test_it_ends_with_whoever_asked_and_its_status_is_told(tmp_path: Path) -> None:
    """No nursery is left behind by a program that has ended."""
    script = (
        "from pathlib import Path\n"
        "from tools.world.nursery import Forked, _ask, _Process\n"
        f"process = _Process(['this'], {{}}, Path({str(tmp_path / 'log')!r}))\n"
        "print(process.wait(30), open(f'/proc/{process.pid}/stat').read() if process.poll() is None else 'gone')\n"
        "import subprocess, os\n"
        "print(subprocess.run(['pgrep', '-P', str(os.getpid()), '-f', 'tools.world.nursery'],"
        " capture_output=True, text=True).stdout)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    first, nursery = run.stdout.split("\n")[:2]
    assert first == "0 gone", run.stdout
    assert not os.path.exists(f"/proc/{int(nursery)}")  # noqa: PTH110 - a number
    assert "Namespaces are one honking great idea" in (tmp_path / "log").read_text()
