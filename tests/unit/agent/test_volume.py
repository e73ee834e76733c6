"""The shared volume: folders that the other containers can use, the hook, and programs that arrive in their time."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.hook import HOOK_FILE
from weightsync.hook.python_path import python_files
from weightsync.layout import lay_out
from weightsync_agent.volume import PATIENCE, Volume

LAID = {"weightsync_hook.py": b"# a hook", "weightsync/__init__.py": b"", "weightsync/convert/trace.py": b"TRACE = 1"}
Meanwhile = Callable[..., None]


def program(rank: int) -> CopyProgram:
    """A copy program of one small tensor."""
    piece = Piece(box=((0, 4),), offset=0, strides=(4,), dtype="float32")
    tensor = TensorCopies(name="w", dtype="float32", shape=(4,), pieces=(piece,))
    return CopyProgram(rank=rank, layout=lay_out([("w", "float32", (4,))]), tensors=(tensor,))


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    """A prepared volume."""
    found = Volume(tmp_path / "volume")
    found.prepare(LAID)
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


def laid(volume: Volume) -> dict[str, bytes]:
    """What an engine's Python finds there."""
    files = (path for path in volume.python.rglob("*") if path.is_file())
    return {str(path.relative_to(volume.python)): path.read_bytes() for path in files}


def test_folders_are_open_to_the_users_of_other_containers(tmp_path: Path) -> None:
    """Whatever the agent's umask, an engine's user can write programs and results, and read arenas and the hook."""
    volume = Volume(tmp_path / "volume")
    before = os.umask(0o077)
    try:
        volume.prepare(LAID)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in volume.directory.iterdir()}
    assert modes == {"arenas": 0o755, "layouts": 0o777, "hook": 0o777, "python": 0o755}
    assert laid(volume) == LAID
    for path in volume.python.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_preparing_again_changes_nothing_that_is_right(volume: Volume) -> None:
    """A restarted agent leaves what an engine has imported, replaces what is another release's, drops the rest."""
    hook, package = volume.python / "weightsync_hook.py", volume.python / "weightsync"
    before = hook.stat().st_ino
    volume.prepare(LAID)
    assert hook.stat().st_ino == before
    newer = {"weightsync_hook.py": LAID["weightsync_hook.py"], "weightsync/__init__.py": b"RELEASE = 2"}
    volume.prepare(newer)
    assert laid(volume) == newer
    assert (hook.stat().st_ino, (package / "__init__.py").stat().st_mode & 0o777) == (before, 0o644)


def test_the_python_is_the_sdks(tmp_path: Path) -> None:
    """By default the engine gets the hook, byte for byte, and the package that makes copy programs."""
    volume = Volume(tmp_path / "volume")
    volume.prepare()
    assert laid(volume) == python_files()
    assert laid(volume)["weightsync_hook.py"] == HOOK_FILE.read_bytes()
    assert "weightsync/convert/program.py" in laid(volume)


def test_a_volume_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error says which path, why, and which variable names another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.*: .*: the agent needs a volume .* \(WEIGHTSYNC_DIR names another\)"):
        Volume(tmp_path / "file").prepare(LAID)


async def test_programs_are_waited_for_until_all_ranks_wrote(volume: Volume, meanwhile: Meanwhile) -> None:
    """Programs come by rank, whatever the order in which the ranks wrote them."""
    meanwhile(
        lambda: volume.rank_program(1).write_bytes(program(1).canonical()),
        lambda: volume.rank_program(0).write_bytes(program(0).canonical()),
    )
    assert await volume.wait_for_programs(range(2)) == (program(0), program(1))


async def test_what_is_missing_is_said_once_and_after_a_while(volume: Volume, meanwhile: Meanwhile) -> None:
    """Which ranks, where they are looked for, and what writes them there."""
    said: list[str] = []
    meanwhile(
        lambda: volume.rank_program(0).write_bytes(program(0).canonical()),
        *[lambda: None] * PATIENCE * 2,
        *(lambda rank=rank: volume.rank_program(rank).write_bytes(program(rank).canonical()) for rank in range(1, 6)),
    )
    await volume.wait_for_programs(range(6), said.append)
    path = volume.layouts / "rank-1.json"
    assert said == [
        f"no copy program for rank 1, 2, 3 and 2 more of 6: {path} is not there; an init container in the engine's "
        f"image writes it (python3 -m weightsync.replicas --model ... --tp ... --out {volume.layouts}; its log says "
        "why it could not), or WEIGHTSYNC_PROGRAMS names a folder that holds it"
    ]


async def test_programs_of_a_folder_that_was_made_beforehand(tmp_path: Path, meanwhile: Meanwhile) -> None:
    """WEIGHTSYNC_PROGRAMS: as a ConfigMap is mounted, by links; what lies in the volume is not looked at."""
    data, folder = tmp_path / "..data", tmp_path / "programs"
    volume = Volume(tmp_path / "volume", folder)
    volume.prepare(LAID)
    (volume.layouts / "rank-0.json").write_bytes(b"an engine that was here before")
    for path in (data, folder):
        path.mkdir()
    said: list[str] = []

    def mount() -> None:
        (data / "rank-0.json").write_bytes(program(0).canonical())
        (folder / "rank-0.json").symlink_to(data / "rank-0.json")

    meanwhile(*[lambda: None] * PATIENCE, mount)
    assert await volume.wait_for_programs(range(1), said.append) == (program(0),)
    assert said == [
        f"no copy program for rank 0 of 1: {folder}/rank-0.json is not there; WEIGHTSYNC_PROGRAMS names that folder: "
        "put rank-<r>.json of every rank there"
    ]


async def test_waiting_can_be_cancelled(volume: Volume) -> None:
    """An agent that is told to stop does not wait for an engine that never comes."""
    waiting = asyncio.create_task(volume.wait_for_programs(range(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_half_written_program_is_waited_for(volume: Volume, meanwhile: Meanwhile) -> None:
    """A writer that does not rename costs a wait, not an error, as long as its file grows."""
    whole, path = program(0).canonical(), volume.rank_program(0)
    path.write_bytes(b"")
    meanwhile(*(lambda n=n: path.write_bytes(whole[:n]) for n in (1, 100, 200, len(whole))))
    assert await volume.wait_for_programs(range(1)) == (program(0),)


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
        await volume.wait_for_programs(range(1))
