"""Greedy requests to every engine all the time, each answer judged against the versions' own weights.

An engine gets requests while its pod would be ready: not from the moment at which its process was killed until its
gate was seen False and then True again. A request that fails is no wrong answer; it is counted.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rl.checker import Answer, Span, check
from tools.chaos.ledger import Ledger

PROMPTS: Sequence[Sequence[int]] = ((3, 1, 4), (1, 5, 9), (2, 6, 5), (35, 8, 9), (7, 9, 32), (38, 4, 6))
TOKENS = (10, 10, 24)  # of successive answers: a long one has better chances of meeting a switch
PAUSE = 0.3  # seconds between two requests to one engine
REQUEST_SECONDS = 60.0  # a paused engine answers when it goes on


@dataclass
class Judged:
    """Counts of one case, and the first sentences about what was wrong."""

    answers: int = 0
    switched: int = 0
    distinguishable: int = 0
    torn: int = 0
    stale: int = 0
    unanswered: int = 0
    sentences: list[str] = field(default_factory=list)


class Traffic:
    """One thread for each engine. Use as a context manager."""

    def __init__(self, ledger: Ledger, addresses: Mapping[str, str]) -> None:
        self._ledger = ledger
        self._addresses = addresses
        self._floors = dict.fromkeys(addresses, 0)
        self._open = {name: threading.Event() for name in addresses}
        self._answers: list[Answer] = []
        self._unanswered = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(name,), daemon=True) for name in addresses]

    def __enter__(self) -> Self:
        for event in self._open.values():
            event.set()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def current(self, engine: str, number: int) -> None:
        """The engine was reported current: what is asked from now on may not be answered from an older version."""
        with self._lock:
            self._floors[engine] = max(self._floors.get(engine, 0), number)

    def close(self, engine: str) -> None:
        """The pod is not ready: no request goes there."""
        self._open[engine].clear()

    def open(self, engine: str) -> None:
        """It is ready again; an engine that came later gets no requests."""
        if engine in self._open:
            self._open[engine].set()

    def take(self) -> Judged:
        """Judge what was answered since the last call."""
        with self._lock:
            answers, self._answers = self._answers, []
            judged, self._unanswered = Judged(unanswered=self._unanswered), 0
        for answer in answers:
            verdict = check(answer, self._ledger)
            judged.answers += 1
            judged.switched += len(answer.spans) > 1
            judged.distinguishable += verdict.distinguishable
            judged.torn += bool(verdict.torn)
            judged.stale += bool(verdict.stale)
            judged.sentences += [sentence for sentence in (verdict.torn, verdict.stale) if sentence]
        return judged

    def _ask(self, engine: str) -> None:
        count = 0
        while not self._ended.is_set():
            self._open[engine].wait(1.0)
            if self._open[engine].is_set():
                with self._lock:
                    floor = self._floors[engine]
                answer = ask(
                    self._addresses[engine], engine, PROMPTS[count % len(PROMPTS)], TOKENS[count % len(TOKENS)], floor
                )
                with self._lock:
                    if answer is None:
                        self._unanswered += 1
                    else:
                        self._answers.append(answer)
                count += 1
            self._ended.wait(PAUSE)


def ask(
    address: str, engine: str, prompt: Sequence[int], tokens: int, floor: int, *, seconds: float = REQUEST_SECONDS
) -> Answer | None:
    """One greedy request; None where it was not answered whole, or not in time."""
    body = {
        "input_ids": list(prompt),
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=seconds)
    try:
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        document: Any = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK or document["meta_info"]["finish_reason"]["type"] == "abort":
        return None
    spans = tuple(Span(version, count) for version, count in document["meta_info"]["spans"])
    return Answer(engine, tuple(prompt), tuple(document["output_ids"]), spans, floor)


def until(condition: Callable[[], bool], seconds: float, pause: float = 0.1) -> bool:
    """Whether ``condition`` came to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
