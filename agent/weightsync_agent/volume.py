"""The volume that the pod's containers share: its folders, the hook laid into it, and the engine's copy programs.

The containers may run as different users, so the folders that others write to are open to all. The files in them
come whole, by a rename; a writer that does not is waited for until its file has come to rest.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from weightsync import names
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.hook import HOOK_FILE

OPEN = 0o777  # engine or trainer create files there
READABLE = 0o755  # only the agent does
POLL_SECONDS = 0.2

Rest = tuple[int, int, int]  # inode, modification time in ns, bytes: equal twice means that nobody is writing


@dataclass(frozen=True)
class Volume:
    """Paths inside ``directory``."""

    directory: Path

    @property
    def socket(self) -> Path:
        """The Unix socket that the trainer dials."""
        return self.directory / names.SOCKET

    @property
    def arenas(self) -> Path:
        """The folder of arena files, all owned by the agent."""
        return self.directory / names.ARENAS

    @property
    def layouts(self) -> Path:
        """The folder where engine ranks leave their copy programs, and agents those that they fetched."""
        return self.directory / names.LAYOUTS

    @property
    def hook(self) -> Path:
        """The folder of the hook's requests and results."""
        return self.directory / names.HOOK

    @property
    def python(self) -> Path:
        """The folder for the engine's PYTHONPATH."""
        return self.directory / names.PYTHON

    def rank_program(self, rank: int) -> Path:
        """Where engine rank ``rank`` leaves its copy program."""
        return self.layouts / f"rank-{rank}.json"

    def prepare(self, hook_source: Path = HOOK_FILE) -> None:
        """Make the folders and lay the hook into its own. Once, before the engine starts.

        hook_source: the hook's text; the sdk's by default. Raises InputError where the volume cannot be written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for folder, mode in (
                (self.arenas, READABLE),
                (self.layouts, OPEN),
                (self.hook, OPEN),
                (self.python, READABLE),
            ):
                _folder(folder, mode)
            _lay(hook_source.read_bytes(), self.python / HOOK_FILE.name)
        except OSError as error:
            raise InputError(
                f"{error.filename or self.directory}: {error.strerror}: the agent needs a volume at "
                f"{self.directory} that it can write ({names.DIRECTORY_ENV} names another)"
            ) from error

    async def wait_for_programs(self, ranks: int, poll_seconds: float = POLL_SECONDS) -> tuple[CopyProgram, ...]:
        """The copy programs of ranks 0 to ``ranks`` - 1, by rank, once all are there.

        Waits without a deadline (an engine may load for many minutes): cancel it to give up. Raises InputError
        that names the file where one has come to rest and is no copy program of its rank.
        """
        found: dict[int, CopyProgram] = {}
        seen: dict[int, Rest] = {}
        while True:
            for rank in range(ranks):
                if rank in found:
                    continue
                path = self.rank_program(rank)
                rest = _rest(path)
                if rest is None:
                    continue
                try:
                    # In a thread: the table of a big model is tens of megabytes of JSON.
                    found[rank] = await asyncio.to_thread(read_program, path, rank)
                except InputError:
                    if seen.get(rank) == rest:
                        raise
                    seen[rank] = rest  # perhaps half-written: broken only if it looks the same next time
            if len(found) == ranks:
                return tuple(found[rank] for rank in range(ranks))
            await asyncio.sleep(poll_seconds)

    def missing_programs(self, ranks: int) -> tuple[int, ...]:
        """Ranks whose copy program is not there yet, for messages."""
        return tuple(rank for rank in range(ranks) if _rest(self.rank_program(rank)) is None)


def read_program(path: Path, rank: int) -> CopyProgram:
    """One rank's copy program. Raises InputError where the file is none, or is another rank's."""
    program = CopyProgram.load(path)
    if program.rank != rank:
        raise InputError(f"{path}: holds the copy program of rank {program.rank}, not of rank {rank}")
    return program


def _folder(path: Path, mode: int) -> None:
    path.mkdir(exist_ok=True)
    if path.stat().st_mode & 0o777 != mode:  # another user's folder is left as it is where it already fits
        path.chmod(mode)


def _lay(content: bytes, path: Path) -> None:
    """Write ``content`` whole or not at all; untouched where it is there already."""
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    temporary.chmod(0o644)
    temporary.rename(path)


def _rest(path: Path) -> Rest | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
