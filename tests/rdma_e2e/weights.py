"""`python -m tests.rdma_e2e.weights FOLDER` makes, with torch, the trial's checkpoints and their tokens."""

import json
import sys
from pathlib import Path

from tests.rdma import plane
from tests.rdma_e2e.site import BASE, EXPECTED


def make(folder: Path) -> None:
    """Those of the tests in guests, and what engines must answer with each of them."""
    plane.make(folder)
    (folder / str(plane.BASE)).rename(folder / BASE)
    tokens = json.loads((folder / "tokens.json").read_text())
    tokens[BASE] = tokens.pop(str(plane.BASE))
    expected = {"prompt": plane.PROMPT, "count": plane.TOKENS, "tokens": tokens}
    (folder / EXPECTED).write_text(json.dumps(expected))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
