"""Lines that agents have written, and the moments in them."""

import json
from pathlib import Path

import pytest

from tools.chaos.records import Records, committed_after, first_after, moment

COMMIT = {"was": "COMMITTING", "now": "CURRENT", "timestamp": "1970-01-01T00:00:20Z"}


def test_a_growing_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    """A line that is only half written waits; what is no object of JSON is passed over."""
    log = tmp_path / "log"
    records = Records(log)
    assert records.lines() == []
    log.write_text('{"event": "one"}\nTraceback: no JSON\n[1]\n{"event": "tw')
    assert [line["event"] for line in records.lines()] == ["one"]
    with log.open("a") as file:
        file.write('o"}\n')
    assert [line["event"] for line in records.lines()] == ["one", "two"]


@pytest.mark.parametrize(
    ("at", "first", "commit"),
    [
        pytest.param(0.0, 10.0, 20.0, id="from the beginning"),
        pytest.param(15.0, 20.0, 20.0, id="from between two lines"),
        pytest.param(21.0, None, None, id="nothing came afterwards"),
    ],
)
def test_moments(at: float, first: float | None, commit: float | None) -> None:
    """Times are those of the lines, not of their reading."""
    lines = [{"event": "agent", "timestamp": "1970-01-01T00:00:10Z"}, json.loads(json.dumps(COMMIT))]
    assert moment(lines[0]) == 10.0
    assert first_after(lines, at) == first
    assert committed_after(lines, at) == commit
