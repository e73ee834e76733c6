"""Turns the words after `python3 tools/audit` into a call."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.audit import findings, sbom  # noqa: E402 - the path comes first
from tools.setup.errors import SetupError  # noqa: E402

COMMANDS = {"code": findings.report, "sbom": sbom.report}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tools/audit", description=__doc__)
    parser.add_argument("command", choices=COMMANDS, help="code: run bandit; sbom: list what the image holds")
    try:
        sys.exit(COMMANDS[parser.parse_args().command](ROOT))
    except SetupError as error:
        sys.exit(f"audit failed: {error}")
