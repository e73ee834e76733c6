"""What lies in the folder that an engine's PYTHONPATH names: the hook, and this package for what makes copy programs.

An engine's image has torch and pydantic, and nothing of ours; it is not changed.
"""

from pathlib import Path

from weightsync.hook import HOOK_FILE

PACKAGE = Path(__file__).resolve().parents[1]
LEFT_OUT = frozenset({"testing"})  # of no use there, and imports what the image need not have


def python_files() -> dict[str, bytes]:
    """By path below the folder, the file's bytes: ``weightsync_hook.py``, and the modules of ``weightsync``."""
    found = {HOOK_FILE.name: HOOK_FILE.read_bytes()}
    for path in sorted(PACKAGE.rglob("*.py")):
        below = path.relative_to(PACKAGE)
        if below.parts[0] not in LEFT_OUT:
            found[str(PACKAGE.name / below)] = path.read_bytes()
    return found
