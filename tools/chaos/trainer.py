"""One trainer rank as a process: ``python -m tools.chaos.trainer``. Reads orders from its input, says what came.

An order is a line of JSON: {"publish": number, "gate": path or ""}. With a gate, half of the tensors are yielded only
once that file is there. Said: ready, copied (seconds of publish() without the wait at the gate), outcome.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.chaos.model import RANKS, stage
from weightsync import Publisher, PublishHandle

ANSWER_SECONDS = 25.0  # for one answer of the agent: more than a sync's deadline
OUTCOME_SECONDS = 40.0
GATE_SECONDS = 30.0
POLL = 0.005


class Gate:
    """A wait in the middle of a generator. seconds: how long it took."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self.seconds = 0.0

    def between(self, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """All tensors, with the wait after the first half of them."""
        for at, pair in enumerate(tensors.items()):
            if at == len(tensors) // 2:
                self._wait()
            yield pair

    def _wait(self) -> None:
        began = time.monotonic()
        while self._path is not None and not self._path.exists() and time.monotonic() < began + GATE_SECONDS:
            time.sleep(POLL)
        self.seconds = time.monotonic() - began


def say(event: str, **more: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps({"event": event, "at": time.time(), **more}) + "\n")
    sys.stdout.flush()


def publish(publisher: Publisher, rank: int, number: int, gate: Gate) -> None:
    """One publish; its outcome is waited for in a thread."""
    tensors = stage(number, rank)
    began = time.monotonic()
    handle = publisher.publish(gate.between(tensors), label=f"publish {number}")
    handle.copied()
    say("copied", publish=number, seconds=time.monotonic() - began - gate.seconds, gate=gate.seconds)
    threading.Thread(target=_outcome, args=(handle, number), daemon=True).start()


def _outcome(handle: PublishHandle, number: int) -> None:
    try:
        outcome = handle.outcome(OUTCOME_SECONDS)
    except TimeoutError as error:
        say("outcome", publish=number, status="Unknown", reason="Timeout", message=str(error), engines={})
        return
    say(
        "outcome",
        publish=number,
        status=outcome.status,
        reason=outcome.reason,
        message=outcome.describe(),
        version=handle.version,
        seconds=outcome.seconds,
        engines={engine.engine: engine.outcome for engine in outcome.engines},
        reasons={engine.engine: engine.reason for engine in outcome.engines if engine.reason},
    )


def main(arguments: list[str]) -> None:
    """Until the input ends."""
    parser = argparse.ArgumentParser(prog="chaos.trainer", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with Publisher(
        options.rank, RANKS, options.rank, RANKS, directory=options.directory, timeout=ANSWER_SECONDS
    ) as publisher:
        say("ready")
        for line in sys.stdin:
            order = json.loads(line)
            publish(publisher, options.rank, order["publish"], Gate(order["gate"]))


if __name__ == "__main__":
    main(sys.argv[1:])
