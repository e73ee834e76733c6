"""The shared volume: folders that the other containers can use, the hook, and programs that arrive in their time."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.hook import HOOK_FILE
from weightsync.layout import lay_out
from weightsync_agent.volume import Volume

HOOK = b'"""A hook."""\n'
Meanwhile = Callable[..., None]


def program(rank: int) -> CopyProgram:
    """A copy program of one small tensor."""
    piece = Piece(box=((0, 4),), offset=0, strides=(4,), dtype="float32")
    tensor = TensorCopies(name="w", dtype="float32", shape=(4,), pieces=(piece,))
    return CopyProgram(rank=rank, layout=lay_out([("w", "float32", (4,))]), tensors=(tensor,))


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """The hook's source."""
    path = tmp_path / "source.py"
    path.write_bytes(HOOK)
    return path


@pytest.fixture
def volume(tmp_path: Path, hook: Path) -> Volume:
    """A prepared volume."""
    found = Volume(tmp_path / "volume")
    found.prepare(hook)
    return found


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Called with functions: one of them runs in each pause between two looks. No time passes; the end must come."""

    def between(*steps: Callable[[], object]) -> None:
        queue = list(steps)

        async def sleep(_: float) -> None:
            assert queue, "still waiting after the last step"
            queue.pop(0)()

        monkeypatch.setattr(asyncio, "sleep", sleep)

    return between


def test_folders_are_open_to_the_users_of_other_containers(tmp_path: Path, hook: Path) -> None:
    """Whatever the agent's umask, an engine's user can write programs and results, and read arenas and the hook."""
    volume = Volume(tmp_path / "volume")
    before = os.umask(0o077)
    try:
        volume.prepare(hook)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in volume.directory.iterdir()}
    assert modes == {"arenas": 0o755, "layouts": 0o777, "hook": 0o777, "python": 0o755}
    laid = volume.python / "weightsync_hook.py"
    assert (laid.read_bytes(), laid.stat().st_mode & 0o777) == (HOOK, 0o644)


def test_preparing_again_changes_nothing_that_is_right(volume: Volume, hook: Path) -> None:
    """A restarted agent leaves the hook that an engine has imported, and replaces one of another release whole."""
    laid = volume.python / "weightsync_hook.py"
    first = laid.stat().st_ino
    volume.prepare(hook)
    assert laid.stat().st_ino == first
    hook.write_bytes(HOOK + b"RELEASE = 2\n")
    volume.prepare(hook)
    assert laid.read_bytes() == HOOK + b"RELEASE = 2\n"
    assert [path.name for path in volume.python.iterdir()] == ["weightsync_hook.py"]


def test_the_hook_is_the_sdks(tmp_path: Path) -> None:
    """By default the engine gets the file that the sdk carries, byte for byte, and no other of its folder."""
    volume = Volume(tmp_path / "volume")
    volume.prepare()
    assert (volume.python / "weightsync_hook.py").read_bytes() == HOOK_FILE.read_bytes()
    assert len(list(volume.python.iterdir())) == 1


def test_a_volume_that_cannot_be_written_is_named(tmp_path: Path, hook: Path) -> None:
    """The error says which path, why, and which variable names another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.*: .*: the agent needs a volume .* \(WEIGHTSYNC_DIR names another\)"):
        Volume(tmp_path / "file").prepare(hook)


async def test_programs_are_waited_for_until_all_ranks_wrote(volume: Volume, meanwhile: Meanwhile) -> None:
    """Programs come by rank, whatever the order in which the ranks wrote them."""
    missing: list[tuple[int, ...]] = []
    meanwhile(
        lambda: volume.rank_program(1).write_bytes(program(1).canonical()),
        lambda: missing.append(volume.missing_programs(2)),
        lambda: volume.rank_program(0).write_bytes(program(0).canonical()),
    )
    assert await volume.wait_for_programs(2) == (program(0), program(1))
    assert missing == [(0,)]


async def test_waiting_can_be_cancelled(volume: Volume) -> None:
    """An agent that is told to stop does not wait for an engine that never comes."""
    waiting = asyncio.create_task(volume.wait_for_programs(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_half_written_program_is_waited_for(volume: Volume, meanwhile: Meanwhile) -> None:
    """A writer that does not rename costs a wait, not an error, as long as its file grows."""
    whole, path = program(0).canonical(), volume.rank_program(0)
    path.write_bytes(b"")
    meanwhile(*(lambda n=n: path.write_bytes(whole[:n]) for n in (1, 100, 200, len(whole))))
    assert await volume.wait_for_programs(1) == (program(0),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"{", "rank-0.json: document: Invalid JSON", id="no JSON"),
        pytest.param(b"{}", "rank-0.json: layout: Field required", id="no program"),
        pytest.param(program(3).canonical(), "holds the copy program of rank 3, not of rank 0", id="another rank's"),
    ],
)
async def test_a_file_at_rest_that_is_no_program_is_an_error(
    volume: Volume, meanwhile: Meanwhile, content: bytes, words: str
) -> None:
    """The error names the file and its first wrong field."""
    volume.rank_program(0).write_bytes(content)
    meanwhile(lambda: None)
    with pytest.raises(InputError, match=words):
        await volume.wait_for_programs(1)
