"""The volume that the pod's containers share: its folders, the Python laid into it, and the engine's copy programs.

The containers may run as different users, so the folders that others write to are open to all. The files in them
come whole, by a rename; a writer that does not is waited for until its file has come to rest.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from weightsync import names
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.hook.python_path import python_files

OPEN = 0o777  # engine or trainer create files there
READABLE = 0o755  # only the agent does
POLL_SECONDS = 0.2
PATIENCE = 10  # looks in vain before it is said what is missing: the engine may write it right after it answers

PROGRAMS_ENV = "WEIGHTSYNC_PROGRAMS"

Rest = tuple[int, int, int]  # inode, modification time in ns, bytes: equal twice means that nobody is writing


@dataclass(frozen=True)
class Volume:
    """Paths inside ``directory``. programs: the folder of the engine's copy programs, None: ``layouts`` inside."""

    directory: Path
    programs: Path | None = None

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
        """Where the copy program of engine rank ``rank`` is expected."""
        return (self.programs or self.layouts) / f"rank-{rank}.json"

    def prepare(self, python: Mapping[str, bytes] | None = None) -> None:
        """Make the folders and lay the Python files into theirs. Once, before the engine starts.

        python: by path; the sdk's by default. Raises InputError where the volume cannot be written.
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
            self._lay_python(python_files() if python is None else python)
        except OSError as error:
            raise InputError(
                f"{error.filename or self.directory}: {error.strerror}: the agent needs a volume at "
                f"{self.directory} that it can write ({names.DIRECTORY_ENV} names another)"
            ) from error

    def _lay_python(self, files: Mapping[str, bytes]) -> None:
        """File by file, each whole: an engine may be importing them. What another release laid goes away."""
        for name, content in files.items():
            path = self.python / name
            for folder in reversed(path.relative_to(self.python).parents[:-1]):
                _folder(self.python / folder, READABLE)
            _lay(content, path)
        for path in self.python.rglob("*.py"):
            if str(path.relative_to(self.python)) not in files:
                path.unlink()

    async def wait_for_programs(
        self, ranks: range, tell: Callable[[str], None] | None = None, poll_seconds: float = POLL_SECONDS
    ) -> tuple[CopyProgram, ...]:
        """The copy programs of these ranks, by rank, once all are there.

        Waits without a deadline (an engine may load for many minutes): cancel it to give up. tell: called with a
        sentence about what is missing, where some is after a while. Raises InputError that names the file where one
        has come to rest and is no copy program of its rank.
        """
        found: dict[int, CopyProgram] = {}
        seen: dict[int, Rest] = {}
        looks = 0
        while True:
            for rank in ranks:
                if rank in found:
                    continue
                path = self.rank_program(rank)
                rest = _rest(path)
                if rest is None:
                    continue
                try:
                    # In a thread: reading may take long, and a file may be large.
                    found[rank] = await asyncio.to_thread(read_program, path, rank)
                except InputError:
                    if seen.get(rank) == rest:
                        raise
                    seen[rank] = rest  # perhaps half-written: broken only if it looks the same next time
            if len(found) == len(ranks):
                return tuple(found[rank] for rank in ranks)
            looks += 1
            if looks == PATIENCE and tell is not None:
                tell(self._missing([rank for rank in ranks if rank not in found], len(ranks)))
            await asyncio.sleep(poll_seconds)

    def _missing(self, missing: list[int], ranks: int) -> str:
        which = ", ".join(map(str, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        where = self.rank_program(missing[0])
        return f"no copy program for rank {which} of {ranks}: {where} is not there; {self._advice()}"

    def _advice(self) -> str:
        if self.programs is not None:
            return f"{PROGRAMS_ENV} names that folder: put rank-<r>.json of every rank there"
        return (
            "an init container in the engine's image writes it (python3 -m weightsync.replicas --model ... --tp ... "
            f"--out {self.layouts}; its log says why it could not), or {PROGRAMS_ENV} names a folder that holds it"
        )


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
