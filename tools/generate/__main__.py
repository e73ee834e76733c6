"""`python -m tools.generate`: write the generated files; `--check`: exit 1 where one differs."""

import argparse
import sys
from pathlib import Path

from tools.generate import outputs

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file differs")
    if parser.parse_args().check:
        stale = outputs.differing(ROOT)
        for path in stale:
            print(f"{path} is not what the code makes: run `python -m tools.generate` and commit it", file=sys.stderr)
        return 1 if stale else 0
    for path in outputs.write(ROOT):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
