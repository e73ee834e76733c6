"""Arena files of a source: sealed with a record, found again after a kill at any instant, or removed."""

import asyncio
import fcntl
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from weightsync.announcement import SourceRank
from weightsync.arena import NO_GRANT, Arena, ArenaState
from weightsync.buckets import Extent, shard
from weightsync.digests import BucketDigest
from weightsync.errors import InputError
from weightsync.testing.programs import plain_program
from weightsync.version import Version
from weightsync_agent.arenas.files import Cut, SourceArenas, sealed_in
from weightsync_agent.arenas.record import SealedRecord, record_path
from weightsync_agent.arenas.sizing import HEADROOM, Room
from weightsync_agent.journal.file import StateFile

PROGRAM = plain_program({"a": ("float32", (1024,)), "b": ("float32", (1024,))})
OWNED = frozenset({"a", "b"})
WHO = SourceRank(rank=3, world_size=8, stage=1, stages=2, nonce="a" * 16)
V1 = Version(lineage="1" * 16, number=1, root="2" * 64)
BUCKETS = tuple(BucketDigest(offset=at, nbytes=4096, digest="0" * 32) for at in (0, 4096))
KEY = (PROGRAM.digest, 0)


def prepare(arenas: SourceArenas, key: tuple[str, int]) -> None:
    asyncio.run(arenas.prepare(key, Cut(4096, OWNED), shard(PROGRAM, OWNED)))


def made(folder: Path, room: Room | None = None, index: int = 0) -> SourceArenas:
    arenas = SourceArenas(folder, 3, room or Room(None))
    arenas.make(PROGRAM, index)
    prepare(arenas, (PROGRAM.digest, index))
    return arenas


def sealed(folder: Path) -> Path:
    """A sealed arena whose agent is gone; its path."""
    arenas = made(folder)
    arenas.fill(KEY)
    arenas.seal(KEY, WHO, V1, 5, BUCKETS)
    arenas.close()
    return arenas.path(KEY)


def test_what_was_sealed_is_found_and_opened_again(tmp_path: Path) -> None:
    """With who published it, its version, its turn and its digests; its memory is counted."""
    path = sealed(tmp_path)
    (record,) = sealed_in(tmp_path)[3]
    assert (record.who, record.version, record.turn, record.buckets) == (WHO, V1, 5, BUCKETS)
    assert (record.limit, record.owned) == (4096, ("a", "b"))
    room = Room(HEADROOM + PROGRAM.layout.nbytes)
    arenas = SourceArenas(tmp_path, 3, room)
    inode = path.stat().st_ino
    assert arenas.reopen([record]) == [record]
    assert room.held == PROGRAM.layout.nbytes
    with pytest.raises(InputError, match="memory limit"):
        arenas.make(PROGRAM, 1)
    prepare(arenas, KEY)
    arenas.fill(KEY)
    assert path.stat().st_ino == inode
    arenas.close()


def no_record(path: Path) -> None:
    record_path(path).unlink()


def torn_record(path: Path) -> None:
    record_path(path).write_bytes(record_path(path).read_bytes()[:-9])


def filled_again(path: Path) -> None:
    with Arena.open(path) as arena:
        arena.fill(NO_GRANT)


def emptied(path: Path) -> None:
    with Arena.open(path) as arena:
        arena.empty()


def another_version(path: Path) -> None:
    with Arena.open(path) as arena:
        arena.seal(NO_GRANT, V1.model_copy(update={"number": 2}))


def torn_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def cut_off(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(4096)


def beyond(path: Path) -> None:
    far = BucketDigest(offset=1 << 30, nbytes=4096, digest="0" * 32)
    file = StateFile(record_path(path), SealedRecord)
    record = file.read()
    assert record is not None
    file.write(record.model_copy(update={"buckets": (*record.buckets, far)}))


def of_another_rank(path: Path) -> None:
    file = StateFile(record_path(path), SealedRecord)
    record = file.read()
    assert record is not None
    file.write(record.model_copy(update={"who": WHO.model_copy(update={"rank": 4})}))


@pytest.mark.parametrize(
    "spoil",
    [no_record, torn_record, filled_again, emptied, another_version, torn_header, cut_off, beyond, of_another_rank],
    ids=lambda spoil: spoil.__name__.replace("_", " "),
)
def test_what_is_not_sealed_as_its_record_says_is_removed(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Whatever a kill or a fault left: no version is made of it, and its memory is given back."""
    spoil(sealed(tmp_path))
    assert sealed_in(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_half_made_files_and_records_without_an_arena_are_removed_and_others_are_left(tmp_path: Path) -> None:
    """A target's arena is none of ours."""
    path = sealed(tmp_path)
    half = path.with_name(path.name + ".new")
    half.touch()
    orphan = record_path(path.with_name(path.name[:-1] + "7"))
    orphan.touch()
    target = tmp_path / f"{PROGRAM.layout.digest}-0-0"
    target.touch()
    assert list(sealed_in(tmp_path)) == [3]
    assert sorted(tmp_path.iterdir()) == sorted([path, record_path(path), target])


def test_an_arena_that_another_process_holds_is_left_to_it(tmp_path: Path) -> None:
    """Not opened, not counted."""
    path = sealed(tmp_path)
    (record,) = sealed_in(tmp_path)[3]
    room = Room(None)
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert SourceArenas(tmp_path, 3, room).reopen([record]) == []
    assert room.held == 0


def test_the_header_says_sealed_only_when_the_record_is_there(tmp_path: Path) -> None:
    """The record cannot be written: the header still says Filling."""
    arenas = made(tmp_path)
    arenas.fill(KEY)
    record_path(arenas.path(KEY)).mkdir()
    with pytest.raises(InputError):
        arenas.seal(KEY, WHO, V1, 5, BUCKETS)
    with Arena.open(arenas.path(KEY)) as arena:
        assert arena.header.state is ArenaState.FILLING
    arenas.close()


def test_what_was_never_cut_is_not_sealed(tmp_path: Path) -> None:
    """There is nothing in it."""
    arenas = SourceArenas(tmp_path, 3, Room(None))
    arenas.make(PROGRAM, 0)
    with pytest.raises(InputError, match="never cut"):
        arenas.seal(KEY, WHO, V1, 5, ())
    arenas.close()


def test_a_removed_arena_gives_its_memory_back_and_its_path_is_told(tmp_path: Path) -> None:
    """Workers may still map it."""
    told: list[Path] = []
    room = Room(HEADROOM + PROGRAM.layout.nbytes)
    arenas = made(tmp_path, room)
    arenas.removed = told.append
    arenas.seal(KEY, WHO, V1, 5, BUCKETS)
    with pytest.raises(InputError, match="memory limit"):
        arenas.make(PROGRAM, 1)
    arenas.remove(KEY)
    assert told == [tmp_path / f"source-3-{PROGRAM.digest}-0"]
    assert list(tmp_path.iterdir()) == []
    arenas.make(PROGRAM, 1)
    arenas.close()


def test_a_file_that_cannot_be_made_counts_nothing(tmp_path: Path) -> None:
    """And says where."""
    room = Room(None)
    path = tmp_path / f"source-3-{PROGRAM.digest}-0"
    path.mkdir()
    (path / "x").touch()
    with pytest.raises(InputError, match="cannot be made"):
        SourceArenas(tmp_path, 3, room).make(PROGRAM, 0)
    assert room.held == 0


@pytest.mark.parametrize(
    "buckets", [(BUCKETS[1], BUCKETS[0]), (BUCKETS[0], BUCKETS[0])], ids=["in another order", "twice"]
)
def test_a_record_of_overlapping_buckets_is_none(buckets: tuple[BucketDigest, ...]) -> None:
    """Its arena is then removed."""
    with pytest.raises(ValueError, match="apart and in order"):
        SealedRecord(
            who=WHO, program=PROGRAM.digest, index=0, version=V1, turn=1, limit=4096, owned=("a",), buckets=buckets
        )


async def test_an_arena_that_goes_while_its_pages_are_allocated_is_closed_afterwards(tmp_path: Path) -> None:
    """Whoever waits is told, and no thread works on a file that is closed under it."""
    arenas = SourceArenas(tmp_path, 3, Room(None))
    arenas.make(PROGRAM, 0)
    begun, go_on = threading.Event(), threading.Event()
    arena = arenas._held[KEY].arena
    allocate = arena.prefault
    closed: list[bool] = []

    def slowly(extents: Iterable[Extent]) -> None:
        begun.set()
        assert go_on.wait(10)
        assert not closed
        allocate(extents)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "prefault", slowly)
        patch.setattr(arena, "close", lambda: closed.append(True))
        waiting = asyncio.create_task(arenas.prepare(KEY, Cut(4096, OWNED), [(0, 4096), (4096, 8192)]))
        await asyncio.to_thread(begun.wait, 10)
        arenas.remove(KEY)
        assert not closed
        go_on.set()
        with pytest.raises(InputError, match="given away while its pages"):
            await waiting
        assert closed
    arena.close()
    assert not arenas.path(KEY).exists()


async def test_a_publish_that_lost_its_arena_does_not_say_how_it_is_cut(tmp_path: Path) -> None:
    """It was slow to get its pages, and another publish fills the arena by then: what is sealed is that one's cut."""
    arenas = SourceArenas(tmp_path, 3, Room(None))
    arenas.make(PROGRAM, 0)
    arenas.fill(KEY)
    begun, go_on = threading.Event(), threading.Event()
    allocate = arenas._held[KEY].arena.prefault

    def slowly(extents: Iterable[Extent]) -> None:
        begun.set()
        assert go_on.wait(10)
        allocate(extents)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arenas._held[KEY].arena, "prefault", slowly)
        waiting = asyncio.create_task(arenas.prepare(KEY, Cut(4096, frozenset({"a"})), [(0, 4096)]))
        await asyncio.to_thread(begun.wait, 10)
    arenas.fill(KEY)
    await arenas.prepare(KEY, Cut(8192, OWNED), [(0, 8192)])
    go_on.set()
    with pytest.raises(InputError, match="given away while its pages"):
        await waiting
    assert arenas._held[KEY].cut == Cut(8192, OWNED)
    arenas.remove(KEY)
    with pytest.raises(InputError, match="was removed before"):
        await arenas.prepare(KEY, Cut(8192, OWNED), [(0, 8192)])
    arenas.close()
