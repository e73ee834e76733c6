"""Copy programs by digest: own ones from the volume, others fetched from the agents that announced them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from weightsync.bounds import PROGRAM
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError, PeerError
from weightsync.plan import Plan
from weightsync.records import read_file, replace_file
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.threads import in_thread

log = structlog.get_logger(__name__)

FETCH_SECONDS = 30.0  # for one holder's answer


class Programs:
    """A cache in the volume, so that the Publisher can read the program that it is asked to replay."""

    def __init__(self, folder: Path, client: PeerClient, plan: Callable[[], Plan | None]) -> None:
        self._folder = folder
        self._client = client
        self._plan = plan
        self._known: dict[str, CopyProgram] = {}
        self._fetching = asyncio.Lock()

    def path(self, digest: str) -> Path:
        """Where the program lies in the volume."""
        return self._folder / f"{digest}.json"

    def put(self, program: CopyProgram) -> None:
        """Keep a program of our own."""
        replace_file(self.path(program.digest), program.model_dump_json().encode())
        self._known[program.digest] = program

    def text(self, digest: str) -> bytes:
        """The program as a file's bytes. Raises InputError where it is not here."""
        try:
            return read_file(self.path(digest), PROGRAM)
        except OSError as error:
            raise InputError(f"program {digest} is not here") from error

    async def get(self, digest: str) -> CopyProgram:
        """From memory, the volume, or any agent of the plan that announced it.

        Raises PeerError where no holder answers with the program that it announced.
        """
        async with self._fetching:
            if digest not in self._known:
                kept = await in_thread(self._kept, digest)
                if kept is not None:
                    self._known[digest] = kept
                else:
                    await in_thread(self.put, await self._fetch(digest))
            return self._known[digest]

    def _kept(self, digest: str) -> CopyProgram | None:
        """From the volume, where others write too: what is not that program is fetched anew and replaced."""
        path = self.path(digest)
        if not path.exists():
            return None
        try:
            program = CopyProgram.load(path)
        except InputError as error:
            log.warning("a kept copy program cannot be read", why=str(error))
            return None
        if program.digest != digest:
            log.warning("a kept copy program is another one", path=str(path), found=program.digest)
            return None
        return program

    async def _fetch(self, digest: str) -> CopyProgram:
        plan = self._plan()
        holders = sorted(
            {t.address for e in (plan.engines if plan else ()) for t in e.targets if t.rank.program == digest}
        )
        problems = []
        for address in holders:
            try:
                path = f"/v1/programs/{digest}"
                text = await self._client.text(address, path, seconds=FETCH_SECONDS, limit=PROGRAM)
                program = await in_thread(CopyProgram.read, text, f"{address}, program {digest}")
            except (PeerError, InputError) as error:
                problems.append(str(error))
                continue
            if program.digest == digest:
                return program
            problems.append(f"{address} answered program {program.digest} when asked for {digest}")
        raise PeerError(f"program {digest} cannot be had: {'; '.join(problems) or 'no engine of the plan holds it'}")
