"""How many threads fill: what was asked for, else what the cores of this rank give."""

import os
from pathlib import Path

import pytest

from weightsync import cores
from weightsync.errors import InputError


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 6, id="no control group to be seen: the affinity alone"),
        pytest.param({"cpu.max": "max 100000\n"}, 6, id="no quota"),
        pytest.param({"cpu.max": "350000 100000\n"}, 3, id="a quota of three and a half"),
        pytest.param({"cpu.max": "50000 100000\n"}, 1, id="half a core is one thread all the same"),
        pytest.param({"cpu.max": "6400000 100000\n"}, 6, id="a quota above the affinity"),
        pytest.param({"cpu.max": "what is this\n"}, 6, id="a file that nobody knows"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2, id="version 1: two cores"
        ),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 6, id="version 1: no quota"
        ),
    ],
)  # fmt: skip
def test_usable_cores(files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six in the affinity, and what the control group's files say."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.usable_cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("given_cores", "ranks", "expected"),
    [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 1, 3), (16, 1, 6), (192, 8, 6), (16, 8, 1), (32, 8, 3), (4, 8, 1)],
)
def test_each_rank_takes_its_share_but_one(given_cores: int, ranks: int, expected: int) -> None:
    """One thread where two cores or fewer are there for a rank; never more than six."""
    assert cores.derived(given_cores, ranks) == expected


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        pytest.param(5, {"WEIGHTSYNC_FILL_THREADS": "2"}, 5, id="the argument wins"),
        pytest.param(None, {"WEIGHTSYNC_FILL_THREADS": "2", "LOCAL_WORLD_SIZE": "8"}, 2, id="the variable is next"),
        pytest.param(None, {"LOCAL_WORLD_SIZE": "4"}, 3, id="torchrun's ranks share the cores"),
        pytest.param(None, {"LOCAL_WORLD_SIZE": "many", "WEIGHTSYNC_FILL_THREADS": ""}, 6, id="nothing is known"),
    ],
)  # fmt: skip
def test_what_was_asked_for_wins(
    given: int | None, environment: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 16 cores."""
    monkeypatch.setattr(cores, "usable_cores", lambda: 16)
    assert cores.fill_threads(given, environment) == expected


@pytest.mark.parametrize(
    ("given", "text", "words"),
    [(0, "", "0 threads"), (-1, "4", "-1 threads"), (None, "0", "0 threads"), (None, "two", "'two'")],
)
def test_numbers_that_cannot_be(given: int | None, text: str, words: str) -> None:
    """The sentence says which, and what to set."""
    with pytest.raises(InputError, match=words):
        cores.fill_threads(given, {"WEIGHTSYNC_FILL_THREADS": text})
