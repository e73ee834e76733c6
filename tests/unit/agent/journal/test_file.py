"""A record on disk is whole, absent, or an error: it never reads as something else."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.digests import BucketDigest
from weightsync.errors import InputError
from weightsync.version import Version
from weightsync_agent.journal.file import DecisionFile, JournalFile, decode, encode
from weightsync_agent.journal.records import Decision, Journal, JournalRank, JournalState

VERSION = Version(lineage="1" * 16, number=7, root="2" * 64)
RANK = JournalRank(
    rank=0, program="b" * 32, arena="b-0-0", buckets=(BucketDigest(offset=0, nbytes=4096, digest="c" * 32),)
)
TORN = Journal(
    state=JournalState.TORN,
    version=VERSION,
    label="step 7",
    incarnation="life-1",
    ranks=(RANK,),
    term=2,
    coordinator="u",
)
CURRENT = TORN.model_copy(update={"state": JournalState.CURRENT})
DECISION = Decision(sync="s", version=VERSION, label="step 7", term=2, programs={"b" * 32: "4" * 64})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """None before the first write, then the last record, for journal and decision alike."""
    folder = tmp_path / "d"
    journal, decision = JournalFile.within(folder), DecisionFile.within(folder)
    assert journal.read() is None
    assert decision.read() is None
    for record in (TORN, CURRENT):
        journal.write(record)
        assert journal.read() == record
    decision.write(DECISION)
    assert decision.read() == DECISION
    assert sorted(p.name for p in folder.iterdir()) == ["decision", "journal"]


def test_a_write_is_synced_before_and_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content first, then the rename, then the folder: any other order can lose or tear the record."""
    steps: list[str] = []
    real_write, real_fsync, real_rename = os.write, os.fsync, Path.rename

    def write(descriptor: int, data: bytes) -> int:
        steps.append("write")
        return real_write(descriptor, data[:100])  # a short write must be continued

    def fsync(descriptor: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        real_fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return real_rename(path, target)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    file = JournalFile(tmp_path / "journal")
    file.write(TORN)
    count = -(-len(encode(TORN)) // 100)
    assert steps == ["write"] * count + ["sync file", "rename", "sync folder"]
    assert file.read() == TORN


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A full volume is an error in words, and the record before is still there."""
    file = JournalFile(tmp_path / "journal")
    file.write(CURRENT)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path if step == "rename" else os, step, fail)
        with pytest.raises(InputError, match=r"journal: cannot be written: No space left on device: free the volume"):
            file.write(TORN)
    assert file.read() == CURRENT
    file.write(TORN)  # the left-over temporary file stands in nobody's way
    assert file.read() == TORN


def test_no_part_of_a_line_passes_for_a_record() -> None:
    """Every proper prefix is an error that names the file."""
    line = encode(TORN)
    for length in range(len(line)):
        with pytest.raises(InputError, match=r"^/j: (torn|corrupted)"):
            decode(line[:length], "Journal", "/j")


@given(position=st.integers(0, 8 * len(encode(TORN)) - 1))
def test_no_flipped_bit_passes_for_a_record(position: int) -> None:
    """One flipped bit anywhere is an error."""
    line = bytearray(encode(TORN))
    line[position // 8] ^= 1 << position % 8
    with pytest.raises(InputError):
        decode(bytes(line), "Journal", "/j")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "torn: 0 bytes", id="an empty file"),
        pytest.param(bytes(4096), "torn: 4096 bytes", id="pages that were never written"),
        pytest.param(encode(DECISION), "holds a Decision, not a Journal", id="another record"),
    ],
)
def test_a_file_that_is_no_journal_is_an_error(tmp_path: Path, content: bytes, words: str) -> None:
    """Never None: that would mean that nothing was ever applied."""
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(InputError, match=words):
        JournalFile(tmp_path / "journal").read()


def test_an_unreadable_journal_is_an_error(tmp_path: Path) -> None:
    """A folder in its place is not an absent journal."""
    (tmp_path / "journal").mkdir()
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        JournalFile(tmp_path / "journal").read()
