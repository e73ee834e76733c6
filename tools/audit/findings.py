"""What bandit finds in the packages, against what was looked at and accepted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.setup import tools_env
from tools.setup.errors import SetupError

PACKAGES = ("sdk", "operator", "agent", "cli")
# (rule, file): why it is right. A file may have several of one rule for one reason.
ACCEPTED: dict[tuple[str, str], str] = {
    ("B506", "agent/weightsync_agent/plan_feed/from_file.py"): "the loader is one that makes nothing but text",
    ("B311", "agent/weightsync_agent/plan_feed/from_slices.py"): "spreads retries over time; no secret hangs on it",
    ("B101", "agent/weightsync_agent/protocol/target.py"): "what the transition table guarantees; guards no call",
    ("B108", "cli/weightsync_cli/preflight.py"): "memory-backed folder for the check's own arenas, made by mkdtemp",
    ("B103", "sdk/weightsync/arena.py"): "containers of one pod run as different users and share the arena",
}  # fmt: skip


def report(root: Path) -> int:
    """Print what is not accepted, and what was accepted and is not found any more. 0 where there is neither."""
    new, gone = judge(found(root))
    for line in new:
        print(line, file=sys.stderr)
    for rule, path in gone:
        print(f"{path}: {rule} is accepted in tools/audit/findings.py, but not found: take it out", file=sys.stderr)
    return 1 if new or gone else 0


def judge(results: Iterable[dict[str, Any]]) -> tuple[list[str], list[tuple[str, str]]]:
    """Findings that nobody accepted, as sentences; accepted ones that are none."""
    seen: set[tuple[str, str]] = set()
    new = []
    for one in results:
        key = (one["test_id"], one["filename"].removeprefix("./"))
        seen.add(key)
        if key not in ACCEPTED:
            new.append(
                f"{key[1]}:{one['line_number']}: {one['test_id']} ({one['issue_severity']}): {one['issue_text']}"
            )
    return new, sorted(set(ACCEPTED) - seen)


def found(root: Path) -> list[dict[str, Any]]:
    """bandit's results. Raises SetupError where it cannot read a file."""
    command = [str(tools_env.prepare(root) / "bandit"), "--quiet", "--recursive", "--format", "json", *PACKAGES]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SetupError(f"bandit ended with {done.returncode}: {done.stderr.strip()}")
    document = json.loads(done.stdout)
    if document["errors"]:
        raise SetupError(f"bandit could not read {document['errors'][0]}")
    results: list[dict[str, Any]] = document["results"]
    return results
