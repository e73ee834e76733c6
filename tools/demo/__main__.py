"""Start of `python tools/demo`, in the development environment."""

from __future__ import annotations

import sys
from pathlib import Path

# Started as a folder, sys.path[0] is that folder: the packages below `tools` are found from the root.
ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)
sys.path[1:1] = [str(ROOT / "sdk")]

from tools.demo.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
