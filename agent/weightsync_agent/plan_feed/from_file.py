"""Plans from a file, JSON or YAML: looked at every 0.3 s, replaced by a rename. No Kubernetes."""

import asyncio
import re
import stat
from pathlib import Path
from typing import Any

import structlog
import yaml
from pydantic import ValidationError

from weightsync.errors import InputError
from weightsync.plan import Plan, PlanFile
from weightsync.records import first_problem
from weightsync_agent import lasting
from weightsync_agent.observability import metrics
from weightsync_agent.plan_feed.base import Latest, PlanFeed

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.3
LARGEST = 64 * 2**20  # bytes: some ten thousand engines
LARGEST_YAML = 2**20  # bytes: what people write; programs write JSON, which is read a hundred times as fast
DEEPEST = 32  # lists and maps in one another; a plan has 8

_NULL = "tag:yaml.org,2002:null"

State = tuple[int, int, int] | None  # inode, modification time in ns, bytes


class _Plain(yaml.BaseLoader):
    """Every scalar as text, for the models to read: a digest of digits only must not become a number.

    All but null, which no text stands for.
    Without references: a few lines that name one another would become more items than fit into any memory.
    """

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As the base does, within bounds."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias: write the value out")
        if self._depth >= DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} lists and maps in one another")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_Plain.add_implicit_resolver(_NULL, re.compile(r"(~|null|Null|NULL)\Z"), list("~nN"))
_Plain.add_constructor(_NULL, lambda loader, node: None)


class FileFeed(PlanFeed):
    """The plan in ``path``. A broken or missing file keeps the last good plan, and says why once."""

    def __init__(self, path: Path, poll_seconds: float = POLL_SECONDS) -> None:
        self._path = path
        self._poll = poll_seconds
        self._latest = Latest()
        self._problem = ""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def current(self) -> Plan | None:
        """The last good plan."""
        return self._latest.plan

    @property
    def problem(self) -> str:
        """Why the file as it is now cannot be used; empty where it can."""
        return self._problem

    async def next(self) -> Plan:
        """The plan, once it has changed."""
        return await lasting.meanwhile(self._latest.next(), self._tasks)

    async def head(self) -> tuple[int, str] | None:
        """Term and coordinator as the file has them now. The term of a file fences nothing: it is seldom changed."""
        plan = (await asyncio.to_thread(read_plan_file, self._path)).plan
        return plan.term, plan.coordinator

    async def start(self) -> None:
        """Begin to look."""
        self._tasks = [lasting.begin(f"plan file {self._path}", self._run())]

    async def stop(self) -> None:
        """End."""
        await lasting.end(self._tasks)

    async def _run(self) -> None:
        read: State | str = "never"
        while True:
            state = _state(self._path)
            if state != read:
                await self._read()
                # Changed under the reader: what it read is not what ``state`` was, so look again.
                read = state if _state(self._path) == state else "never"
            await asyncio.sleep(self._poll)

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(read_plan_file, self._path)
        except InputError as error:
            if str(error) != self._problem:
                metrics.ERRORS.labels(part="plan_feed", reason=error.reason).inc()
                log.warning("the plan file cannot be used", problem=str(error), kept=self.current is not None)
            self._problem = str(error)
            return
        self._problem = ""
        if self._latest.put(found.plan):
            plan = found.plan
            log.info("a plan", origin=str(self._path), engines=len(plan.engines), sources=len(plan.sources))


def read_plan_file(path: Path) -> PlanFile:
    """The file as it is. Raises InputError that names the path, and the first wrong field or line."""
    text = _text(path)
    if text.lstrip().startswith("{"):
        return PlanFile.read(text, str(path))
    if len(text) > LARGEST_YAML:
        raise InputError(f"{path}: {len(text)} characters of YAML, more than {LARGEST_YAML}: write it as JSON")
    try:
        document: Any = yaml.load(text, Loader=_Plain)  # noqa: S506 - makes nothing but text and null
        return PlanFile.model_validate(document)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: is no YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}") from error


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise InputError(f"{path}: is no file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise InputError(f"{path}: holds more than {LARGEST} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _state(path: Path) -> State:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
