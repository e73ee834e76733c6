"""Places where a trial of faults holds this process. They cost one comparison where WEIGHTSYNC_FAILPOINTS is unset.

That variable names a folder. A place is armed by a file ``<role>-<phase>`` in it and taken once: the file becomes
``<role>-<phase>.held``, and ``<role>-<phase>.reached`` says which process is there (JSON: pid, role, phase). The
process goes on when somebody removes the ``.held`` file. So one that was restarted is not held again.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

ENV: Final = "WEIGHTSYNC_FAILPOINTS"
LATE_WRITE: Final = "late-write"  # of a worker; the file holds the seconds by which the next write is submitted late
CORRUPT: Final = "corrupt"  # of a worker; the next bucket to be digested is changed in memory before that

_FOLDER: Final = os.environ.get(ENV)
_POLL = 0.01  # seconds; only while held


async def reach(role: str, phase: str) -> None:
    """Return at once, or, where this place is armed, once it was released. Other tasks of the process go on."""
    if _FOLDER is None:
        return
    held = _take(Path(_FOLDER), role, phase)
    while held is not None and _there(held):  # noqa: ASYNC110 - whoever releases it is another process
        await asyncio.sleep(_POLL)


def later(submit: Callable[[], None]) -> None:
    """Call ``submit``: now, or, once where that is armed, so many seconds later and from another thread."""
    held = _take(Path(_FOLDER), "worker", LATE_WRITE) if _FOLDER is not None else None
    if held is None:
        submit()
    else:
        threading.Timer(float(held.read_text()), submit).start()


def corrupt(bucket: memoryview) -> None:
    """Flip the bits of the bucket's first byte, once, where that is armed."""
    if _FOLDER is not None and _take(Path(_FOLDER), "worker", CORRUPT) is not None:
        bucket[0] ^= 0xFF


def _take(folder: Path, role: str, phase: str) -> Path | None:
    """The file that holds us; None where the place is not armed, or another task or process took it."""
    armed = folder / f"{role}-{phase}"
    held = folder / f"{role}-{phase}.held"
    try:
        armed.rename(held)
    except FileNotFoundError:
        return None
    temporary = folder / f"{role}-{phase}.new"
    temporary.write_text(json.dumps({"pid": os.getpid(), "role": role, "phase": phase}))
    temporary.rename(folder / f"{role}-{phase}.reached")
    return held


def _there(path: Path) -> bool:
    return path.exists()
