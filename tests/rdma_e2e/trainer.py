"""The trainer's program in its pod: publishes a checkpoint when it is asked to, and answers with the outcome.

`python -m trainer MODELS PORT`: POST /<checkpoint>; one at a time. numpy stands for torch there (tests/rdma/light).
Nothing is judged here.
"""

import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from reference.checkpoint import read_checkpoint
from weightsync import Publisher

PATIENT = 600.0  # seconds: everything is emulated


class Server(HTTPServer):
    """Has the Publisher and the folder of checkpoints."""

    def __init__(self, publisher: Publisher, models: Path, port: int) -> None:
        super().__init__(("", port), Ask)
        self.publisher = publisher
        self.models = models


class Ask(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_POST(self) -> None:
        name = self.path.strip("/")
        _, state = read_checkpoint(self.server.models / name)
        outcome = self.server.publisher.publish(state, label=name).outcome(timeout=PATIENT)
        body = json.dumps({"outcome": outcome.model_dump(mode="json"), "payload": payload(state)}).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def payload(state: dict[str, Any]) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state.values())


if __name__ == "__main__":
    with Publisher(rank=0, world_size=1, timeout=PATIENT, connect_timeout=PATIENT) as made:
        sys.stderr.write("the agent is there\n")
        Server(made, Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
