"""Writes the policy's first checkpoint: ``python -m rl.checkpoint FOLDER``, before the engine starts."""

import sys
from pathlib import Path

from reference.checkpoint import write_checkpoint
from rl.policy import CONFIG, first_state


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m rl.checkpoint FOLDER", file=sys.stderr)
        return 2
    write_checkpoint(Path(arguments[0]), CONFIG, first_state())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
