"""How requests reach the hook of every rank, and its results come back: through this pod's volume, or other pods'."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from weightsync.errors import EngineError
from weightsync_agent.engines.hook_files import HookFiles


class HookAnswers(NamedTuple):
    """By rank, the hook's results, and why there is none."""

    records: dict[int, dict[str, Any]]
    failures: dict[int, EngineError]


class HookPost(Protocol):
    """One call of the hook at a time: its files have fixed names."""

    async def ask(self, op: str, requests: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
        """Leave the requests where each rank's process looks for them; their names, by rank.

        Raises WeightSyncError where one cannot be left; none is there then.
        """

    async def withdraw(self, ids: Mapping[int, str]) -> None:
        """A call that the engine runs late finds nothing to do. Does not fail where a pod cannot be reached."""

    async def answers(self, ids: Mapping[int, str]) -> HookAnswers:
        """What came of the requests."""


class LocalPost:
    """All ranks' processes are in this pod."""

    def __init__(self, files: HookFiles) -> None:
        self._files = files

    async def ask(self, op: str, requests: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
        """See HookPost."""
        ids: dict[int, str] = {}
        try:
            for rank, fields in requests.items():
                ids[rank] = self._files.ask(rank, op, fields)
        except BaseException:
            await self.withdraw(ids)
            raise
        return ids

    async def withdraw(self, ids: Mapping[int, str]) -> None:
        """See HookPost."""
        for rank in ids:
            self._files.withdraw(rank)

    async def answers(self, ids: Mapping[int, str]) -> HookAnswers:
        """See HookPost."""
        found = HookAnswers({}, {})
        for rank, request in ids.items():
            try:
                # In a thread: the table of a big model is megabytes of JSON.
                found.records[rank] = await asyncio.to_thread(self._files.answer, rank, request)
            except EngineError as error:
                found.failures[rank] = error
        return found
