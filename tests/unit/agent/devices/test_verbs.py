"""What keeps this pod from opening a device, and how much memory may be locked."""

import ctypes
import resource
from pathlib import Path
from typing import Any

import pytest

from weightsync_agent.devices import verbs
from weightsync_agent.devices.records import Device

RXE = Device("rxe0", (), uverbs="uverbs0")
STATUS = "Name:\tx\nCapEff:\t{}\n"


class FakeLibrary:
    """libibverbs with one device; ``opens`` and ``answers`` are what its calls do."""

    def __init__(self, *, name: bytes = b"rxe0", opens: bool = True, answers: int = 0) -> None:
        self.name, self.opens, self.answers = name, opens, answers
        self.open = 0

    def ibv_get_device_list(self, count: Any) -> list[int]:
        count._obj.value = 1
        return [7]

    def ibv_free_device_list(self, listed: list[int]) -> None:
        assert listed == [7]

    def ibv_get_device_name(self, handle: int) -> bytes:
        return self.name

    def ibv_open_device(self, handle: int) -> int | None:
        self.open += self.opens
        return 9 if self.opens else None

    def ibv_close_device(self, context: int) -> None:
        self.open -= 1

    def ibv_query_device(self, context: int, attributes: Any) -> int:
        ctypes.memmove(ctypes.addressof(attributes) + 80, (1 << 40).to_bytes(8, "little"), 8)
        return self.answers


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """/dev/infiniband of a pod that has the device."""
    (tmp_path / "uverbs0").touch()
    return tmp_path


def asked(monkeypatch: pytest.MonkeyPatch, dev: Path, library: FakeLibrary | None, device: Device = RXE) -> Device:
    """The device after it was opened."""
    monkeypatch.setattr(verbs, "_library", lambda: library)
    (found,) = verbs.opened((device,), dev)
    assert library is None or library.open == 0, "a device was left open"
    return found


def test_a_device_that_opens_tells_its_largest_region(monkeypatch: pytest.MonkeyPatch, dev: Path) -> None:
    """And has no problem."""
    found = asked(monkeypatch, dev, FakeLibrary())
    assert (found.max_mr_bytes, found.problems) == (1 << 40, ())


@pytest.mark.parametrize(
    ("library", "part"),
    [
        pytest.param(None, "libibverbs is not installed", id="no library"),
        pytest.param(FakeLibrary(name=b"mlx5_0"), "provider", id="no provider"),
        pytest.param(FakeLibrary(opens=False), "cannot open it", id="it does not open"),
        pytest.param(FakeLibrary(answers=22), "cannot query it", id="it does not answer"),
    ],
)
def test_what_the_library_refuses_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, dev: Path, library: FakeLibrary | None, part: str
) -> None:
    """A sentence, and no size."""
    found = asked(monkeypatch, dev, library)
    assert found.max_mr_bytes is None
    assert part in found.problems[0]


def test_a_device_of_another_pod_has_no_file_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library is not even asked."""
    found = asked(monkeypatch, tmp_path, FakeLibrary())
    assert f"{tmp_path}/uverbs0 is not in this container" in found.problems[0]


def test_a_kernel_without_uverbs_is_a_problem(monkeypatch: pytest.MonkeyPatch, dev: Path) -> None:
    """With the module to load."""
    found = asked(monkeypatch, dev, FakeLibrary(), Device("rxe0", ()))
    assert "ib_uverbs" in found.problems[0]


@pytest.mark.parametrize(
    ("effective", "limit", "lockable"),
    [
        pytest.param("0000000000004000", 65536, None, id="CAP_IPC_LOCK lifts the limit"),
        pytest.param("00000000a80425fb", 65536, 65536, id="a container's capabilities do not"),
        pytest.param("0000000000000000", resource.RLIM_INFINITY, None, id="no limit"),
    ],
)
def test_lockable_memory(monkeypatch: pytest.MonkeyPatch, effective: str, limit: int, lockable: int | None) -> None:
    """By capability or limit of this process."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: STATUS.format(effective))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = verbs.Lockable.of_this_process()
    assert found.nbytes == lockable
    assert found.covers(65537) == (lockable is None)
