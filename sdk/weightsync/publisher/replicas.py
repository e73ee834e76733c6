"""The arenas that a Publisher fills, opened once and kept from publish to publish.

A kept mapping also keeps the memory of an arena that the agent has replaced or deleted, so each publish first lets
go of those whose file is no longer the one at its path.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from weightsync.arena import Arena, ArenaState
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.wire.local import Replica

if TYPE_CHECKING:
    from weightsync.convert.replay import Replayer
    from weightsync.convert.strands import FillThreads


class OpenReplica:
    """One arena, its program, and the replayer for what was last known of owned names and buckets."""

    def __init__(self, directory: Path, replica: Replica, program: CopyProgram) -> None:
        self.path = directory / replica.arena_path
        self.program = program
        self._file = _identity(self.path)  # before it is opened: replaced in between, it looks stale and is reopened
        self.arena = Arena.open(self.path)
        self._known: tuple[object, object] | None = None
        self._replayer: Replayer | None = None

    @property
    def stale(self) -> bool:
        """Whether the path holds another file, or none, by now."""
        return _identity(self.path) != self._file

    @property
    def replayer(self) -> "Replayer":
        """What begin() prepared."""
        if self._replayer is None:
            raise InputError(f"{self.path}: nothing is being filled")
        return self._replayer

    def begin(self, replica: Replica, threads: "FillThreads | None") -> None:
        """Expect a publish, filled by these threads. Raises InputError where the arena is not to be written."""
        header = self.arena.reread()
        if header.state == ArenaState.SEALED or header.program != self.program.digest:
            raise InputError(
                f"{self.path}: {header.state.name} for program {header.program}; the agent must mark it as being "
                f"filled for program {self.program.digest} before it is written"
            )
        known = (replica.owned, replica.buckets)
        if self._replayer is None or known != self._known:
            self._replayer, self._known = self._prepare(replica, threads), known
        self._replayer.begin()

    def _prepare(self, replica: Replica, threads: "FillThreads | None") -> "Replayer":
        from weightsync.convert.replay import Replayer  # noqa: PLC0415 - torch comes with the first publish, not before
        from weightsync.replicas.rebuild import rebuilt  # noqa: PLC0415

        self._forget()
        owned = replica.owned if replica.buckets else None
        return Replayer(self.program, self.arena.view, owned, replica.buckets, load_with=rebuilt, threads=threads)

    def _forget(self) -> None:
        if self._replayer is not None:
            self._replayer.close()
            self._replayer = None

    def close(self) -> None:
        """Unmap the arena."""
        self._forget()
        self.arena.close()


class OpenReplicas:
    """All of them, by path. threads: how many fill them, all together."""

    def __init__(self, directory: Path, threads: int = 1) -> None:
        self._directory = directory
        self._count = threads
        self._threads: FillThreads | None = None
        self._programs: dict[str, CopyProgram] = {}
        self._open: dict[str, OpenReplica] = {}

    def begin(self, replica: Replica) -> OpenReplica:
        """Open what is not open yet. Raises InputError where program and arena are not what the agent says."""
        opened = self._open.get(replica.arena_path)
        if opened is None or opened.program.digest != replica.program:
            self._drop(replica.arena_path)
            opened = OpenReplica(self._directory, replica, self._program(replica))
            self._open[replica.arena_path] = opened
        opened.begin(replica, self._shared())
        return opened

    def _shared(self) -> "FillThreads | None":
        if self._threads is None and self._count > 1:
            from weightsync.convert.sharing import fill_threads  # noqa: PLC0415 - torch comes with the first publish

            self._threads = fill_threads(self._count)
        return self._threads

    def _program(self, replica: Replica) -> CopyProgram:
        program = self._programs.get(replica.program)
        if program is None:
            path = self._directory / replica.program_path
            program = CopyProgram.load(path)
            if program.digest != replica.program:
                raise InputError(f"{path}: is program {program.digest}, {replica.program} was announced")
            self._programs[replica.program] = program
        return program

    def refresh(self) -> None:
        """Before a publish: let go of arenas that the agent replaced or deleted."""
        for path in [path for path, opened in self._open.items() if opened.stale]:
            self._drop(path)
        used = {opened.program.digest for opened in self._open.values()}
        self._programs = {digest: program for digest, program in self._programs.items() if digest in used}

    def _drop(self, path: str) -> None:
        opened = self._open.pop(path, None)
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Unmap everything."""
        for path in list(self._open):
            self._drop(path)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
