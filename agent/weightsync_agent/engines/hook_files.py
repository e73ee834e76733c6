"""The hook's requests and results, as files in the shared volume: one of each per rank, whole or not there.

The engine runs the hook in every rank's process at one call; each rank looks for its own request. A result counts
only with the request's id, and the old one is removed before a request is written, so none is taken for another.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_core

from weightsync import names
from weightsync.errors import EngineError
from weightsync.records import read_file, replace_file
from weightsync_agent.engines.errors import engine_error

# The engine's process writes the results, and an engine may be broken.
LARGEST = 256 * 2**20  # bytes: the table of a very big model
LONGEST_ERROR = 4096  # characters


@dataclass(frozen=True)
class HookFiles:
    """The files in ``directory``, the volume as the agent sees it."""

    directory: Path

    def request_path(self, rank: int) -> Path:
        """What the rank is asked to do."""
        return self.directory / names.HOOK / f"request-{rank}.json"

    def result_path(self, rank: int) -> Path:
        """What came of it."""
        return self.directory / names.HOOK / f"result-{rank}.json"

    def ask(self, rank: int, op: str, fields: Mapping[str, Any]) -> str:
        """Write the rank's request and return its id. Raises EngineError where the volume cannot be written."""
        request = secrets.token_hex(8)
        path = self.request_path(rank)
        try:
            self.result_path(rank).unlink(missing_ok=True)
            replace_file(path, json.dumps({"id": request, "op": op, **fields}).encode())
        except OSError as error:
            raise engine_error("HookSilent", f"{path}: the hook's request cannot be written: {error}") from error
        return request

    def withdraw(self, rank: int) -> None:
        """Remove the request: a call that the engine runs late, after its deadline, finds nothing to do."""
        self.request_path(rank).unlink(missing_ok=True)

    def answer(self, rank: int, request: str) -> dict[str, Any]:
        """The result of that request. Raises EngineError where it is missing, another's, or a failure."""
        path = self.result_path(rank)
        try:
            result = pydantic_core.from_json(read_file(path, LARGEST))
        except FileNotFoundError:
            raise engine_error(
                "HookSilent",
                f"rank {rank} wrote no {path.name}: does {names.DIRECTORY_ENV} name the shared volume in the "
                "engine's container, and may its user write there?",
            ) from None
        except (OSError, ValueError) as error:
            raise engine_error("HookSilent", f"{path}: cannot be read: {error}") from error
        if not isinstance(result, dict):
            raise engine_error("HookSilent", f"{path}: holds no result: {type(result).__name__}")
        if result.get("id") != request:
            raise engine_error(
                "HookSilent", f"{path}: the result of request {result.get('id')!r:.64}, not of {request}"
            )
        if not result.get("ok"):
            raise _failure(rank, result)
        return result


def _failure(rank: int, result: Mapping[str, Any]) -> EngineError:
    sentence = str(result.get("error") or f"rank {rank}: failed without a word")[:LONGEST_ERROR]
    if result.get("touched"):
        sentence += " (after the first byte: its parameters are torn)"
    return engine_error(str(result.get("reason") or "HookFailed")[:64], sentence)


def combined(failures: Mapping[int, EngineError]) -> EngineError:
    """One error for several ranks: the lowest rank's reason, every distinct sentence, retryable only if all are."""
    ordered = [failures[rank] for rank in sorted(failures)]
    sentences = dict.fromkeys(str(error) for error in ordered)
    retryable = all(error.retryable for error in ordered)
    return engine_error(ordered[0].reason, "; ".join(sentences), retryable=retryable)
