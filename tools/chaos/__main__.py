"""Start of `python tools/chaos`."""

import sys
from pathlib import Path

# Started as a folder, sys.path[0] is that folder: the packages below `tools` are found from the root.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.chaos.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
