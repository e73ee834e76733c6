"""What an agent keeps in its volume to find again, and can do without."""

from pathlib import Path

import pytest

from weightsync.errors import InputError
from weightsync.plan import Plan
from weightsync_agent.drivers.kept import Kept
from weightsync_agent.drivers.kept_term import KeptTerm, OwnTerms
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import TermSeen
from weightsync_agent.protocol.fence import Fence


def seen(term: int) -> TermSeen:
    return TermSeen(term=term, coordinator="u")


def kept(folder: Path) -> Kept[TermSeen]:
    return Kept(StateFile(folder / "record", TermSeen), "a record")


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the volume takes nothing."""

    def write(self: StateFile[TermSeen], record: TermSeen) -> None:
        raise InputError(f"{self.path}: cannot be written: No space left on device")

    monkeypatch.setattr(StateFile, "write", write)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    """None before the first; then the last."""
    first = kept(tmp_path)
    assert first.value is None
    first.keep(seen(1))
    first.keep(seen(2))
    assert kept(tmp_path).value == seen(2)


def test_nothing_is_written_where_nothing_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fsync a change, not one a request."""
    kept(tmp_path).keep(seen(1))
    again = kept(tmp_path)
    monkeypatch.setattr(StateFile, "write", lambda *_: pytest.fail("written again"))
    again.keep(seen(1))


def test_a_full_volume_fails_nobody(tmp_path: Path) -> None:
    """The value holds in this life, and is written with the next chance, though it has not changed since."""
    record = kept(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        full(patch)
        record.keep(seen(1))
    assert record.value == seen(1)
    assert kept(tmp_path).value is None
    record.keep(seen(1))
    assert kept(tmp_path).value == seen(1)


def test_a_torn_record_counts_as_none(tmp_path: Path) -> None:
    """It is written anew."""
    (tmp_path / "record").write_bytes(b"weightsync/1 TermSe")
    record = kept(tmp_path)
    assert record.value is None
    record.keep(seen(3))
    assert kept(tmp_path).value == seen(3)


def test_a_term_outlives_the_agent(tmp_path: Path) -> None:
    """With who held it; a fence that saw nothing leaves no file."""
    KeptTerm(tmp_path, "engine").keep(Fence())
    assert list(tmp_path.iterdir()) == []
    KeptTerm(tmp_path, "engine").keep(Fence(4, "u"))
    assert KeptTerm(tmp_path, "engine").fence() == Fence(4, "u")


def plan(coordinator: str) -> Plan:
    return Plan(name="p", term=7, generation=1, coordinator=coordinator)


def test_a_plan_files_term_begins_with_the_agent(tmp_path: Path) -> None:
    """One that starts again within a millisecond, or under a clock that went back, goes on above its last."""
    first = OwnTerms(tmp_path, "t0")
    assert first.put_into(plan("t0"), 5000).term == 5000
    assert first.put_into(plan("t0"), 9000).term == 5000
    assert OwnTerms(tmp_path, "t0").put_into(plan("t0"), 5000).term == 5001
    assert OwnTerms(tmp_path, "t0").put_into(plan("t0"), 10).term == 5002


def test_who_is_named_after_another_begins_above_it(tmp_path: Path) -> None:
    """Also where it started first, and where its volume knows nothing: engines remember the other's term."""
    old, new = OwnTerms(tmp_path / "a", "t0"), OwnTerms(tmp_path / "b", "t1")
    new.put_into(plan("t0"), 1000)
    former = old.put_into(plan("t0"), 2000).term
    taken = new.put_into(plan("t1"), 3000).term
    assert taken > former
    old.put_into(plan("t1"), 3001)
    assert old.put_into(plan("t0"), 4000).term > taken
    assert OwnTerms(tmp_path / "lost", "t0").put_into(plan("t0"), 5000).term > taken
