"""The container's memory limit, as either version of control groups tells it."""

from pathlib import Path

import pytest

from weightsync.errors import InputError
from weightsync_agent.memory import memory_limit


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        pytest.param("memory.max", "8589934592\n", 8589934592, id="version 2, limited"),
        pytest.param("memory.max", "max\n", None, id="version 2, not limited"),
        pytest.param("memory/memory.limit_in_bytes", "1073741824\n", 1073741824, id="version 1, limited"),
        pytest.param("memory/memory.limit_in_bytes", "9223372036854771712\n", None, id="version 1, not limited"),
    ],
)
def test_limit_from_the_control_group(tmp_path: Path, file: str, text: str, expected: int | None) -> None:
    """Bytes, or None where nothing limits."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert memory_limit(None, tmp_path) == expected


def test_a_setting_wins_and_nothing_found_is_no_limit(tmp_path: Path) -> None:
    """The setting, else None where no control group is mounted."""
    assert memory_limit(None, tmp_path) is None
    (tmp_path / "memory.max").write_text("5\n")
    assert memory_limit(7, tmp_path) == 7


def test_a_file_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """A limit that cannot be understood is not taken for none."""
    (tmp_path / "memory.max").write_text("lots\n")
    with pytest.raises(InputError, match=r"'lots' is no number of bytes: set WEIGHTSYNC_MEMORY_LIMIT"):
        memory_limit(None, tmp_path)
