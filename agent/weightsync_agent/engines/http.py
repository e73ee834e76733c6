"""One call to the engine's HTTP API: its key, its deadline, and what it answered in its own words."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

from weightsync.errors import EngineError
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.engines.keys import Keys

WORDS = 300  # characters of an answer that are passed on


class Answer(NamedTuple):
    """Status and body of an answer; json is {} where the body is no JSON object."""

    status: int
    text: str
    json: dict[str, Any]

    @property
    def words(self) -> str:
        """The engine's own sentence: SGLang puts it under different names."""
        found = self.json.get("message") or self.json.get("error") or self.json.get("detail") or self.text
        if isinstance(found, dict):
            found = found.get("message") or json.dumps(found)
        return " ".join(str(found).split())[:WORDS] or "no word"


class EngineHttp:
    """Calls one engine. Made inside the running loop; ``close`` it there."""

    def __init__(self, url: str, keys: Keys) -> None:
        self.url = url.rstrip("/")
        self._keys = keys
        # A new connection for each call: the server closes idle ones after 5 s, and a POST that meets the closing
        # must not be repeated blindly.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float, control: bool = True
    ) -> Answer:
        """Any answer, whatever its status, but 401 and 403. Raises EngineError where there is none in ``seconds``."""
        where = f"{self.url}{path}"
        try:
            async with self._session.request(
                method,
                where,
                json=body,
                headers=self._keys.headers(control=control),
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                text = await response.text(errors="replace")
                status = response.status
        except TimeoutError as error:
            raise engine_error("EngineTimeout", f"{where}: no answer in {seconds:g} s") from error
        except aiohttp.ClientError as error:
            raise engine_error("EngineUnreachable", f"{where}: {type(error).__name__}: {error}") from error
        if status in {401, 403}:
            kind = self._keys.kind or "no"
            raise engine_error(
                "EngineUnauthorized", f"{where}: {status} for the call with {kind} key", retryable=False
            )
        return Answer(status, text, _object(text))

    async def expect(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float, control: bool = True
    ) -> Answer:
        """An answer below 400 that does not say ``success: false``. Raises EngineError with its words otherwise."""
        answer = await self.call(method, path, body, seconds=seconds, control=control)
        if answer.status >= 400 or answer.json.get("success") is False:
            raise refused(f"{self.url}{path}", answer)
        return answer


def refused(where: str, answer: Answer) -> EngineError:
    """The engine understood and said no."""
    return engine_error("EngineRefusedCall", f"{where}: {answer.status}: {answer.words}")


def _object(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
