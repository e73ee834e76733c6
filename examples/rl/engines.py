"""The rollout engines behind one address: requests over HTTP, sent again where an engine went away meanwhile.

Every request has a connection of its own: the Service behind the address picks an engine for each connection, so
that new engines get their share and gone ones are left.
"""

import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rl.checker import Answer, Span

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two tries


class EnginesUnavailable(Exception):
    """No engine answered in time; the message says what was tried and what came of it."""


class RequestRefused(Exception):
    """An engine says that the request is wrong: sending it again would change nothing."""


class _Again(Exception):
    """This try failed in a way that another one may not."""


@dataclass(frozen=True)
class Question:
    """One or several prompts in one request, so that one engine answers them as a batch.

    params: SGLang's sampling_params, for each prompt; logprobs: of each token, too.
    """

    prompts: Sequence[Sequence[int]]
    params: Sequence[Mapping[str, Any]]
    logprobs: bool = False

    def body(self) -> bytes:
        """For POST /generate."""
        prompts, params = [list(prompt) for prompt in self.prompts], [dict(one) for one in self.params]
        return json.dumps({"input_ids": prompts, "sampling_params": params, "return_logprob": self.logprobs}).encode()


def read_answers(question: Question, document: Any, floors: Mapping[str, int]) -> list[Answer]:
    """The engine's answers, each with the floor that held for that engine when the request was sent."""
    answers = []
    for prompt, one in zip(question.prompts, document, strict=True):
        meta = one["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise _Again(f"{meta['engine']} aborted the request after {len(one['output_ids'])} tokens")
        logprobs = tuple(triple[0] for triple in meta.get("output_token_logprobs", ()))
        spans = tuple(Span(version, tokens) for version, tokens in meta["spans"])
        floor = floors.get(meta["engine"], 0)
        answers.append(Answer(meta["engine"], tuple(prompt), tuple(one["output_ids"]), spans, floor, logprobs))
    return answers


class Engines:
    """floors: engine -> the number of the version with which it was last reported current.

    request_seconds: for one try, pauses for a sync included; patience_seconds: for all tries of a request.
    """

    def __init__(
        self,
        host: str,
        port: int,
        floors: Callable[[], Mapping[str, int]],
        *,
        request_seconds: float = 30.0,
        patience_seconds: float = 180.0,
        at_once: int = 16,
    ) -> None:
        self._host, self._port, self._floors = host, port, floors
        self._request_seconds, self._patience_seconds = request_seconds, patience_seconds
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="ask")
        self.repeated = 0  # requests sent again, for the summary

    def ask(self, question: Question) -> Future[list[Answer]]:
        """Send it in the background. The future raises EnginesUnavailable or RequestRefused."""
        return self._pool.submit(self._until_answered, question)

    def _until_answered(self, question: Question) -> list[Answer]:
        began, pause, tries = time.monotonic(), FIRST_PAUSE, 0
        while True:
            tries += 1
            floors = dict(self._floors())  # before the request leaves: what is reported later does not bind it
            try:
                return read_answers(question, self._once(question), floors)
            except _Again as problem:
                waited = time.monotonic() - began
                if waited + pause > self._patience_seconds:
                    raise EnginesUnavailable(
                        f"no rollout engine at {self._host}:{self._port} answered within {waited:.0f} s and {tries} "
                        f"tries; the last one: {problem}. Are engine pods Ready (gate weightsync.io/WeightsCurrent)?"
                    ) from problem
                self.repeated += 1
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _once(self, question: Question) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._request_seconds)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request("POST", "/generate", question.body(), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise _Again(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer.status == http.HTTPStatus.OK:
            return json.loads(body)
        words = f"{answer.status} {body[:300].decode(errors='replace')}"
        if answer.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise RequestRefused(f"an engine at {self._host}:{self._port} refuses the request: {words}")
        raise _Again(words)

    def close(self) -> None:
        """Let go of the threads; requests that were not begun are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
