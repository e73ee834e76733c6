"""Running other programs: output goes to a log file, whose end is shown when the program fails."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.setup.errors import SetupError

SHOWN_LINES = 25


def run(
    argv: Sequence[str | Path],
    log: Path,
    *,
    cwd: Path | None = None,
    extra_env: Mapping[str, str] | None = None,
) -> None:
    """Run `argv`, appending its output to `log`.

    Raises:
        SetupError: the program is absent or failed; with the command, the status and the end of its output.
    """
    words = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **(extra_env or {})}
    with log.open("a", encoding="utf-8") as sink:
        sink.write(f"$ {shlex.join(words)}\n")
        sink.flush()
        try:
            status = subprocess.run(
                words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=False
            ).returncode
        except FileNotFoundError as error:
            raise SetupError(f"{words[0]} is not installed; `python3 tools/setup debian` installs it") from error
    if status != 0:
        raise SetupError(f"`{shlex.join(words)}` ended with status {status}; {log} ends with:\n{tail(log)}")


def output(argv: Sequence[str | Path], *, extra_env: Mapping[str, str] | None = None) -> str:
    """Return what `argv` prints, stripped.

    Raises:
        SetupError: the program is absent or failed.
    """
    words = [str(word) for word in argv]
    try:
        environment = {**os.environ, **(extra_env or {})}
        answer = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SetupError(f"{words[0]} is not installed") from error
    if answer.returncode != 0:
        raise SetupError(f"`{shlex.join(words)}` ended with status {answer.returncode}: {answer.stderr.strip()}")
    return answer.stdout.strip()


def tail(log: Path, lines: int = SHOWN_LINES) -> str:
    """Return the last `lines` lines of `log`, indented."""
    with log.open(encoding="utf-8", errors="replace") as source:
        return "".join("    " + line for line in deque(source, maxlen=lines)).rstrip()
