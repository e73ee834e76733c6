"""`python -m tests.rdma_e2e.weights FOLDER` makes, with torch, the trial's checkpoints and their tokens."""

import json
import sys
from pathlib import Path

from reference.checkpoint import greedy_tokens, read_checkpoint
from tests.rdma import plane
from tests.rdma_e2e.site import BASE, EXPECTED


def make(folder: Path) -> None:
    """Those of the tests in guests, and what engines must answer with each of them."""
    plane.make(folder)
    config, state = read_checkpoint(folder / BASE)
    tokens = json.loads((folder / "tokens.json").read_text())
    tokens[BASE] = greedy_tokens(state, config, plane.PROMPT, plane.TOKENS)
    expected = {"prompt": plane.PROMPT, "count": plane.TOKENS, "tokens": tokens}
    (folder / EXPECTED).write_text(json.dumps(expected))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
