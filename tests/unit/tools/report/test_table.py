"""The table of reports: what is printed, and with which exit status."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tools.report.environment import describe
from tools.report.table import main
from tools.report.writing import write
from weightsync.measures import Measure, Measures


def measure(**changes: Any) -> Measure:
    """A ratio that keeps its bound, with changes."""
    fields = {"name": "ratio", "value": 0.8, "unit": "1", "bound": 0.75, "better": "higher", "how": "by [hand]"}
    return Measure.model_validate({**fields, **changes})


@pytest.fixture
def console() -> Console:
    """A wide terminal that records."""
    return Console(record=True, width=200, file=io.StringIO())


def printed(build: Path, console: Console) -> tuple[int, str]:
    """Exit status and text."""
    status = main([str(build)], console)
    return status, console.export_text()


def test_kept_bounds_pass(tmp_path: Path, console: Console) -> None:
    """Each measure is a row with value, unit, bound and how; the status is 0."""
    write(
        "bench", "transfer", [measure(), measure(name="rate", value=2.4321, unit="GB/s", bound=None)], build=tmp_path
    )
    status, text = printed(tmp_path, console)
    assert status == 0
    assert all(part in text for part in ("bench/transfer", "ratio", "0.8", ">= 0.75", "ok", "2.432", "GB/s"))
    assert "BROKEN" not in text


def test_broken_bound_fails(tmp_path: Path, console: Console) -> None:
    """One broken bound in one of several reports: status 1, and it is named with its report."""
    write("bench", "transfer", [measure()], build=tmp_path)
    write("chaos", "kill", [measure(name="torn", value=3, bound=0, better="lower")], build=tmp_path)
    status, text = printed(tmp_path, console)
    assert status == 1
    assert "BROKEN" in text
    assert "broken bounds: chaos/kill: torn" in text


def test_unreadable_report_fails(tmp_path: Path, console: Console) -> None:
    """A report that does not have the form is no pass; readable ones are still printed."""
    write("bench", "transfer", [measure()], build=tmp_path)
    (tmp_path / "bench" / "old.json").write_text('{"measures": [{"name": "x"}]}')
    status, text = printed(tmp_path, console)
    assert status == 1
    assert "old.json" in text
    assert "ratio" in text


def test_nothing_measured_fails(tmp_path: Path, console: Console) -> None:
    """No report at all says what to run; a table of nothing must not pass."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "report.json").write_text('{"reward_first": 0.1}')
    status, text = printed(tmp_path, console)
    assert status == 1
    assert "make bench-transfer" in text


def test_written_report_has_the_form(tmp_path: Path) -> None:
    """What write() writes is read back equal, with machine and conditions, and no temporary file stays."""
    path = write("bench", "one", [measure()], conditions={"bytes": 5}, build=tmp_path)
    assert path == tmp_path / "bench" / "one.json"
    assert list(path.parent.iterdir()) == [path]
    report = Measures.load(path)
    assert report.measures == (measure(),)
    assert report.environment["bytes"] == 5


def test_environment_names_no_host() -> None:
    """Machine and packages, but neither this host's name nor a path."""
    found = describe()
    assert {"cpu", "cores", "memoryGiB", "kernel", "python"} <= set(found)
    assert "/" not in json.dumps({key: value for key, value in found.items() if key != "cpu"})
    host = Path("/proc/sys/kernel/hostname").read_text().strip()
    assert host not in found.values()
