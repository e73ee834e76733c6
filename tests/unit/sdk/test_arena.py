"""An arena says truly what its bytes may be trusted for, whatever was killed when."""

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.arena import CHECKSUM, FIELDS, NO_GRANT, PAYLOAD, Arena, ArenaState, Header
from weightsync.buckets import PAGE
from weightsync.errors import InputError
from weightsync.version import Version

LAYOUT, PROGRAM, GRANT = "1" * 32, "2" * 32, "3" * 32
VERSION = Version(lineage="00000000000000aa", number=7, root="4" * 64)


def create(folder: Path, nbytes: int = 10_000) -> Arena:
    """A new one."""
    return Arena.create(folder / "arenas" / "a", layout=LAYOUT, program=PROGRAM, nbytes=nbytes)


def header(**changes: Any) -> Header:
    """A sealed one."""
    return Header(ArenaState.SEALED, 10_000, LAYOUT, PROGRAM, GRANT, VERSION)._replace(**changes)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(header(), id="sealed"),
        pytest.param(header(state=ArenaState.FILLING, version=None), id="filling"),
        pytest.param(header(state=ArenaState.EMPTY, version=None, grant=NO_GRANT), id="empty"),
    ],
)
def test_a_header_is_read_as_it_was_written(made: Header) -> None:
    """Every field, in every state."""
    assert Header.unpack(made.pack(), "here") == made


@given(st.integers(0, 8 * (FIELDS.size + CHECKSUM.size) - 1))
def test_a_flipped_bit_is_no_header(bit: int) -> None:
    """A header that was torn by a kill or damaged otherwise is never half believed."""
    data = bytearray(header().pack())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InputError, match="here: "):
        Header.unpack(bytes(data), "here")


def with_state(state: int) -> bytes:
    """A header with a checksum that fits and a state that does not exist."""
    fields = bytearray(header().pack()[: FIELDS.size])
    struct.pack_into("<Q", fields, 8, state)
    return bytes(fields) + CHECKSUM.pack(zlib.crc32(fields))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "0 bytes are no arena header", id="an empty file"),
        pytest.param(b"\0" * PAGE, "not an arena", id="a page of zeros"),
        pytest.param(with_state(9), "state 9 is not known", id="a state of a later release"),
    ],
)
def test_what_is_no_header(data: bytes, words: str) -> None:
    """Named with its origin."""
    with pytest.raises(InputError, match=f"here: .*{words}"):
        Header.unpack(data, "here")


def test_the_life_of_an_arena(volume: Path) -> None:
    """Each state is in the file at once, for whoever opens or rereads it."""
    with create(volume) as arena, Arena.open(arena.path) as other:
        assert other.header == header(state=ArenaState.EMPTY, version=None, grant=NO_GRANT)
        arena.fill(GRANT)
        assert other.reread() == header(state=ArenaState.FILLING, version=None)
        arena.view[:3] = b"abc"
        arena.seal(GRANT, VERSION)
        assert other.reread() == arena.header == header()
        assert bytes(other.view[:4]) == b"abc\0"
        arena.empty()
        assert other.reread().state == ArenaState.EMPTY
    with pytest.raises(ValueError, match="released"):
        arena.view[0]


def test_a_new_arena_replaces_the_file_and_not_the_mapping(volume: Path) -> None:
    """Whoever still maps the old one keeps its bytes: a late write cannot land in the new one."""
    with create(volume) as old:
        old.view[:1] = b"x"
        with create(volume, nbytes=PAGE) as new:
            old.view[1:2] = b"y"
            assert bytes(new.view[:2]) == b"\0\0"
            assert bytes(old.view[:2]) == b"xy"
            with Arena.open(old.path) as found:
                assert found.header.nbytes == PAGE
    assert [path.name for path in (volume / "arenas").iterdir()] == ["a"]


def test_an_arena_has_one_owner(volume: Path) -> None:
    """A second one is refused, in this process or another, until the first is gone; readers are not."""
    with create(volume) as arena:
        script = (
            "from pathlib import Path; from weightsync.arena import Arena; "
            f"Arena.open(Path({str(arena.path)!r}), lock=True)"
        )
        with pytest.raises(InputError, match="another process owns"):
            Arena.open(arena.path, lock=True)
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "another process owns this arena" in run.stderr
        Arena.open(arena.path).close()
    with Arena.open(arena.path, lock=True) as mine:
        assert mine.header.state == ArenaState.EMPTY


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(lambda path: path.unlink(), "cannot be opened: No such file", id="it is missing"),
        pytest.param(lambda path: os.truncate(path, 9000), "9000 bytes, 14096 expected", id="it is short"),
        pytest.param(lambda path: os.truncate(path, 0), "0 bytes are no arena header", id="it is empty"),
    ],
)
def test_files_that_are_no_arena(volume: Path, damage: object, words: str) -> None:
    """InputError with the path."""
    arena = create(volume)
    arena.close()
    damage(arena.path)  # type: ignore[operator]
    with pytest.raises(InputError, match=f"{arena.path}: {words}"):
        Arena.open(arena.path)


def test_prefault_allocates_the_pages_of_its_extents(volume: Path) -> None:
    """And no others: a stage's arena holds memory for its own shard only."""
    with create(volume, nbytes=64 * PAGE) as arena:
        before = arena.path.stat().st_blocks * 512
        arena.prefault([(0, PAGE), (10 * PAGE + 5, 12 * PAGE)])
        assert arena.path.stat().st_blocks * 512 - before == 3 * PAGE


def test_an_arena_is_allocated_once_all_of_its_payload_is(volume: Path) -> None:
    """Neither the header's page nor a part of the payload makes it so."""
    with create(volume, nbytes=3 * PAGE) as arena:
        assert not arena.allocated
        arena.prefault([(0, 2 * PAGE)])
        assert not arena.allocated
        arena.prefault([(2 * PAGE, 3 * PAGE)])
        assert arena.allocated


def test_a_full_volume_is_said(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bytes that are missing and what to raise, instead of a SIGBUS in the middle of a copy."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with create(volume) as arena, pytest.raises(InputError, match=r"no room for 4096 bytes.*sizeLimit"):
        arena.prefault([(0, PAGE)])


def test_a_failed_create_leaves_nothing(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a half-made file nor an open descriptor."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(OSError, match="No space"):
        create(volume)
    assert list((volume / "arenas").iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


def test_the_payload_is_page_aligned(volume: Path) -> None:
    """Registration and pinning want whole pages."""
    with create(volume) as arena:
        assert PAYLOAD % PAGE == 0
        assert arena.path.stat().st_size == PAYLOAD + arena.header.nbytes
