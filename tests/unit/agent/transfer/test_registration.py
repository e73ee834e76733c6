"""Arenas in a worker: one region per file, refused where another file takes the path, never unmapped while read."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightsync.errors import TransferError
from weightsync_agent.transfer.registration import Registry

PAYLOAD = 4096
NBYTES = 8192


class FakeEngine:
    """Remembers regions; ``code`` is what the next calls answer."""

    def __init__(self) -> None:
        self.regions: dict[int, int] = {}
        self.code = 0

    def batch_register_memory(self, addresses: list[int], lengths: list[int], /) -> int:
        if self.code == 0:
            self.regions.update(zip(addresses, lengths, strict=True))
        return self.code

    def unregister_memory(self, address: int, /) -> int:
        del self.regions[address]
        return self.code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a payload of 8192 bytes, "x" throughout."""
    file = tmp_path / "arena"
    file.write_bytes(bytes(PAYLOAD) + b"x" * NBYTES)
    return file


def test_same_file_is_one_region(path: Path) -> None:
    """The payload is registered, without the header; a second attach gives the same address and registers nothing."""
    engine = FakeEngine()
    registry = Registry(engine)
    address = registry.attach(str(path), PAYLOAD, NBYTES)
    assert engine.regions == {address: NBYTES}
    assert registry.attach(str(path), PAYLOAD, NBYTES) == address
    assert len(engine.regions) == 1


def test_writes_are_seen_in_the_file(path: Path) -> None:
    """The mapping is shared: what the payload's reader sees is what the file holds now."""
    registry = Registry(FakeEngine())
    registry.attach(str(path), PAYLOAD, NBYTES)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"new", PAYLOAD + 10)
    with registry.reading(str(path), [(10, 3)]) as payload:
        assert bytes(payload[10:13]) == b"new"


def test_replaced_file_is_refused(path: Path) -> None:
    """Another file at the path: remote writers may hold the old address, so only a new worker may map it."""
    registry = Registry(FakeEngine())
    registry.attach(str(path), PAYLOAD, NBYTES)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)
    with pytest.raises(TransferError, match="another file"):
        registry.attach(str(path), PAYLOAD, NBYTES)


def test_failed_registration_leaves_nothing(path: Path) -> None:
    """A code becomes a sentence that names the file, and the next attach tries again."""
    engine = FakeEngine()
    engine.code = -202
    registry = Registry(engine)
    with pytest.raises(TransferError, match=r"arena.*memlock"):
        registry.attach(str(path), PAYLOAD, NBYTES)
    engine.code = 0
    assert registry.attach(str(path), PAYLOAD, NBYTES) in engine.regions


@pytest.mark.parametrize(
    "bucket",
    [
        pytest.param((NBYTES, 1), id="behind the end"),
        pytest.param((NBYTES - 1, 2), id="across the end"),
        pytest.param((-1, 2), id="before the start"),
        pytest.param((0, 0), id="empty"),
    ],
)
def test_bucket_outside_the_payload_is_refused(path: Path, bucket: tuple[int, int]) -> None:
    """No address is given for bytes that are not the payload's."""
    registry = Registry(FakeEngine())
    registry.attach(str(path), PAYLOAD, NBYTES)
    with pytest.raises(TransferError, match="not within"):
        registry.address(str(path), [(0, 1), bucket])


def test_detach_unregisters_and_unmaps(path: Path) -> None:
    """Afterwards the path is unknown; a region that is being digested is refused."""
    engine = FakeEngine()
    registry = Registry(engine)
    registry.attach(str(path), PAYLOAD, NBYTES)
    with registry.reading(str(path), [(0, 1)]), pytest.raises(TransferError, match="being digested"):
        registry.detach(str(path))
    registry.detach(str(path))
    assert engine.regions == {}
    with pytest.raises(TransferError, match="not attached"):
        registry.address(str(path), [])


def resident(path: Path) -> int:
    """Bytes of the file that are mapped into this process now."""
    maps = Path("/proc/self/smaps").read_text().split(str(path))
    return sum(int(part.partition("Rss:")[2].split()[0]) * 1024 for part in maps[1:])


@pytest.fixture
def shared() -> Iterator[Path]:
    """A file in shared memory."""
    with tempfile.NamedTemporaryFile(prefix="weightsync-test-", dir="/dev/shm") as file:
        yield Path(file.name)


def test_allocated_pages_are_mapped_at_attach(shared: Path) -> None:
    """A pre-faulted arena is mapped whole, though nothing was written to it yet: the first version pays no faults."""
    with shared.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, PAYLOAD + (8 << 20))
    registry = Registry(FakeEngine())
    registry.attach(str(shared), PAYLOAD, 8 << 20)
    assert resident(shared) >= 8 << 20


def test_holes_stay_holes(shared: Path) -> None:
    """A source's arena has pages only where its shard lies: these are mapped, and the rest is not allocated."""
    with shared.open("r+b") as file:
        file.truncate(PAYLOAD + (64 << 20))
        os.pwrite(file.fileno(), b"y" * (1 << 20), 32 << 20)
    before = shared.stat().st_blocks
    registry = Registry(FakeEngine())
    registry.attach(str(shared), PAYLOAD, 64 << 20)
    assert shared.stat().st_blocks == before
    assert 1 << 20 <= resident(shared) < 2 << 20


def test_an_arena_can_be_taken_from_the_device_and_stays_mapped(path: Path) -> None:
    """Its bytes are still digested; it is not registered again under the writes that it ended; detach() takes it."""
    engine = FakeEngine()
    registry = Registry(engine)
    registry.attach(str(path), PAYLOAD, NBYTES)
    registry.unregister_all()
    registry.unregister_all()
    assert engine.regions == {}
    with registry.reading(str(path), [(0, 1)]) as payload:
        assert bytes(payload[:1]) == b"x"
    with pytest.raises(TransferError, match="a new worker must map it"):
        registry.attach(str(path), PAYLOAD, NBYTES)
    registry.detach(str(path))
    with pytest.raises(TransferError, match="not attached"):
        registry.address(str(path), [])


def test_a_file_that_may_not_be_written_is_a_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RDMA registers no read-only mapping: said when the file is opened, with what to do."""

    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(TransferError, match="mount the volume read-write"):
        Registry(FakeEngine()).attach(str(path), PAYLOAD, NBYTES)
