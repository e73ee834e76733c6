"""What a run of guests returns, and what a guest is told; nothing is booted."""

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.guest import run
from tools.guest.errors import GuestError
from tools.guest.kernel import Boot
from tools.guest.machine import ALONE, Machine, Shape

SHAPE = Shape("1G", 1, 4200, "tcg")


def ended(status: int | None, *, in_time: bool = True) -> Any:
    """A guest that has come to this end."""
    return SimpleNamespace(
        node=1, status=status, wait=lambda seconds: in_time, kill=lambda: None, last_words=lambda: "Kernel panic"
    )


@pytest.mark.parametrize(
    ("guests", "expected"),
    [
        pytest.param([ended(0), ended(0)], 0, id="all well"),
        pytest.param([ended(0), ended(3)], 3, id="one failed"),
        pytest.param([ended(5), ended(3)], 5, id="the first that failed counts"),
        pytest.param([ended(None, in_time=False)], 124, id="time limit"),
        pytest.param([ended(None)], 125, id="it died"),
        pytest.param([ended(7, in_time=False)], 7, id="a status counts, also of a guest that did not power off"),
    ],
)
def test_the_outcome_is_the_commands(guests: list[Any], expected: int) -> None:
    """Of several guests the first status that is not 0."""
    assert run._outcome(guests, time.monotonic(), 1.0) == expected


def test_a_dead_guests_console_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Its last words, with its number."""
    run._outcome([ended(None)], time.monotonic(), 1.0)
    assert "guest 1 died; its last words:\nKernel panic" in capsys.readouterr().err


@pytest.mark.parametrize("nodes", [0, 251])
def test_so_many_guests_cannot_be(nodes: int) -> None:
    """Said before anything is made."""
    with pytest.raises(GuestError, match=f"{nodes} guests"):
        run.run(run.Job(("true",), nodes=nodes))


def test_a_command_reaches_the_guest_as_it_was_given(tmp_path: Path) -> None:
    """Words with blanks and quotes, and variables with them, survive the shell of the guest."""
    told = Machine(
        2, Boot(Path("k"), Path("i"), Path("m")), shape=SHAPE, network=ALONE, control=tmp_path / "c", out=tmp_path
    )
    told._prepare(["printf", "%s|", "a b", "c'd", "$HOME"], {"GIVEN": "x 'y' $z"}, 2)
    job = (tmp_path / "c" / "job.sh").read_text()
    done = subprocess.run(
        ["bash", "-c", f'{job}\necho "$GIVEN $GUEST_NODE/$GUEST_NODES"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == "a b|c'd|$HOME|x 'y' $z 2/2\n"


def test_the_guest_sees_the_host_and_cannot_write_to_it(tmp_path: Path) -> None:
    """The root is shared read-only; the command's two streams have ports of their own."""
    qemu = Machine(
        1, Boot(Path("k"), Path("i"), Path("m")), shape=SHAPE, network=ALONE, control=tmp_path, out=tmp_path
    )._qemu([5, 6])
    (root,) = (word for word in qemu if "id=root," in word)
    assert "path=/,readonly=on" in root
    assert {"fd=5,set=1", "fd=6,set=2"} <= set(qemu)


def test_a_disk_can_only_be_read(tmp_path: Path) -> None:
    """Several guests have the same file, and it is a cache's."""
    shape = Shape("1G", 1, 4200, "tcg", (Path("/x/images"),))
    boot = Boot(Path("k"), Path("i"), Path("m"))
    qemu = Machine(1, boot, shape=shape, network=ALONE, control=tmp_path, out=tmp_path)._qemu([5, 6])
    (disk,) = (word for word in qemu if "/x/images" in word)
    assert "read-only=on" in disk
    assert "virtio-blk-pci,drive=disk0" in qemu
