"""Plans without Kubernetes: asks the agents of an inventory what they hold, and writes a plan file.

An agent that does not answer keeps what it said last, as a pod keeps its annotation: it leaves the plan by leaving
the inventory.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import aiohttp

from weightsync.announcement import Announcement
from weightsync.errors import InputError
from weightsync.plan import Plan, PlanFile
from weightsync_operator.inventory import Agent, Draft, Inventory, draft

POLL_SECONDS = 0.5
ANSWER_SECONDS = 2.0
LIMIT_BYTES = 256 * 1024

Show = Callable[[Draft, dict[str, str], bool], None]


def read_secret(path: Path) -> str:
    """The shared secret, without the line's end. Raises InputError where there is none."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(f"{path}: the secret cannot be read: {error.strerror}") from error
    if not secret:
        raise InputError(f"{path}: the secret is empty")
    return secret


def read_previous(path: Path) -> Plan | None:
    """The plan that stands at ``path``, so that terms, coordinator and routes go on from it."""
    return PlanFile.load(path).plan if path.exists() else None


def write_plan(path: Path, plan: Plan, secret_file: str) -> None:
    """Replace ``path`` in one step: a reader sees the old plan or the new one, also after a power cut."""
    text = PlanFile(plan=plan, secret_file=secret_file).model_dump_json(indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise InputError(f"{path}: the plan cannot be written: {error.strerror}") from error


class Planner:
    """One inventory file and the plan file that follows it."""

    def __init__(self, inventory: Path, out: Path, secret_file: Path | None = None) -> None:
        self._inventory = inventory
        self._out = out
        self._secret_file = str(secret_file.resolve()) if secret_file else ""
        secret = read_secret(secret_file) if secret_file else ""
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._previous = read_previous(out)
        self._heard: dict[str, Announcement] = {}

    async def step(self, session: aiohttp.ClientSession) -> tuple[Draft, dict[str, str], bool]:
        """Ask everyone once, plan, and write the file if the plan changed.

        Returns what was planned, what went wrong by agent, and whether the file was written. Raises InputError for
        a wrong inventory; the plan file is then left as it is.
        """
        inventory = Inventory.load_yaml(self._inventory)
        silent = await self._ask(session, inventory)
        planned = draft(inventory, self._heard, self._previous)
        written = planned.plan is not None and planned.plan != self._previous
        if planned.plan is not None and written:
            write_plan(self._out, planned.plan, self._secret_file)
            self._previous = planned.plan
        return planned, silent, written

    async def _ask(self, session: aiohttp.ClientSession, inventory: Inventory) -> dict[str, str]:
        known = {agent.uid for agent in inventory.agents}
        self._heard = {uid: said for uid, said in self._heard.items() if uid in known}
        answers = await asyncio.gather(*(self._fetch(session, agent) for agent in inventory.agents))
        silent = {}
        for agent, answer in zip(inventory.agents, answers, strict=True):
            if isinstance(answer, Announcement):
                self._heard[agent.uid] = answer
            else:
                silent[agent.uid] = answer
        return silent

    async def _fetch(self, session: aiohttp.ClientSession, agent: Agent) -> Announcement | str:
        """The agent's announcement, or why there is none, in words."""
        url = f"http://{agent.address}/v1/announcement"
        try:
            async with session.get(url, headers=self._headers) as response:
                body = await response.content.read(LIMIT_BYTES)
                if response.status != HTTPStatus.OK:
                    return f"answered {response.status}: {body[:200].decode(errors='replace')}"
                return Announcement.read(body, url)
        except TimeoutError:
            return f"no answer within {ANSWER_SECONDS:.0f} s"
        except (aiohttp.ClientError, UnicodeError, InputError) as error:  # UnicodeError: of a host that is no name
            return str(error)


async def run_once(planner: Planner, show: Show) -> Draft:
    """One step, shown."""
    async with _session() as session:
        planned, silent, written = await planner.step(session)
        show(planned, silent, written)
        return planned


async def run_forever(
    planner: Planner,
    show: Show,
    complain: Callable[[InputError], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """A step each POLL_SECONDS until cancelled; an inventory that is being edited is waited for."""
    async with _session() as session:
        while True:
            try:
                show(*await planner.step(session))
            except InputError as error:
                complain(error)
            await sleep(POLL_SECONDS)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS))
