"""How much memory this container may use, so that an arena too big for it is refused before it is allocated."""

from pathlib import Path

from weightsync.errors import InputError

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # version 1 writes "no limit" as a number near 2**63, rounded to pages


def memory_limit(configured: int | None = None, cgroup: Path = CGROUP) -> int | None:
    """Bytes that this container may use; None where nothing limits it.

    configured: a setting, which wins. Else the control group's own file, of version 2 or 1. Inside a container
    both lie at the top of ``cgroup``, as its namespace shows them. Raises InputError where the file is no number.
    """
    if configured is not None:
        return configured
    for path in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}: set WEIGHTSYNC_MEMORY_LIMIT") from error
        return _parse(text, path)
    return None


def _parse(text: str, path: Path) -> int | None:
    if text == "max":
        return None
    if not text.isdigit():
        raise InputError(f"{path}: {text!r} is no number of bytes: set WEIGHTSYNC_MEMORY_LIMIT")
    limit = int(text)
    return None if limit >= UNLIMITED else limit
