"""Files and records under bad input: read for what they are, or refused by an error of ours that names them."""

import base64
import contextlib
import os
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jwt
import pytest
import xxhash
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.fuzz.budget import examples
from tests.fuzz.running import PROGRAM
from tests.fuzz.strategies import JSON, RAW, bodies, dumped, mutated
from weightsync import names
from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync.arena import CHECKSUM, FIELDS, MAGIC, PAYLOAD, Arena
from weightsync.buckets import bucket_size, cut, needed
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.errors import EngineError, InputError, Refused, WeightSyncError
from weightsync.layout import Layout
from weightsync.plan import Plan, PlanFile, Source
from weightsync.records import Record
from weightsync.report import Report
from weightsync.version import Version
from weightsync_agent.engines.base import Applied, Description, ReadBack
from weightsync_agent.engines.hook_files import HookFiles
from weightsync_agent.journal import records as journal_records
from weightsync_agent.journal.file import FORMAT, DecisionFile, JournalFile, StateFile
from weightsync_agent.peers.tokens import ALGORITHMS, key_id, read_keys
from weightsync_agent.plan_feed.from_file import read_plan_file
from weightsync_agent.plan_feed.heads import read_slice, read_weightsync
from weightsync_agent.volume import read_program

VERSION = Version(lineage="1" * 16, number=7, root="2" * 64)
RANKS = (SourceRank(rank=0, world_size=1, nonce="0" * 16),)
PLAN = Plan(
    name="p", term=1, generation=1, coordinator="t", sources=(Source(uid="t", pod="t", address="h:1", ranks=RANKS),)
)
PLAN_DOCUMENT = PlanFile(plan=PLAN, secret_file="/s").model_dump(mode="json")  # noqa: S106 - a path
SAID = Announcement(
    address="h:1", incarnation="l", ready=True, sources=RANKS,
    targets=(TargetRank(rank=0, layout="a" * 32, program="b" * 32),),
).model_dump(mode="json")  # fmt: skip
WEIGHTSYNC = {
    "trainer": {"selector": {"matchLabels": {"app": "t"}}},
    "rollout": {"selector": {"matchLabels": {"app": "r"}}},
}
STATUS = {"head": {"term": 1, "generation": 1, "coordinator": "t", "slices": ["s"]}}


Read = TypeVar("Read")


def tried(read: Callable[[], Read], kind: type[WeightSyncError] = InputError) -> tuple[Read | None, str]:
    """What is read, or the words of an error of ours of that kind; any other error fails the test."""
    try:
        return read(), ""
    except kind as error:
        return None, str(error)


def encoded(data: bytes) -> str:
    """As a token carries it."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def write(folder: Path, name: str, data: bytes) -> Path:
    """A file of that content."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


@examples(80)
@given(data=st.one_of(bodies(PLAN_DOCUMENT), mutated(PLAN_DOCUMENT).map(lambda d: yaml.safe_dump(d).encode())))
def test_a_plan_file_is_a_plan_or_refused_by_name(tmp_path: Path, data: bytes) -> None:
    """What is read can be carried out: its buckets have a size, its routes lead to sources."""
    path = write(tmp_path, "plan", data)
    found, error = tried(lambda: read_plan_file(path))
    if found is None:
        assert error.startswith(str(path))
        return
    plan = found.plan
    assert 4096 <= plan.transfer.bucket_bytes <= 2**40
    assert 1 <= plan.strategy.deadline_seconds <= 3600


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [" % (c, c) + b",".join([b"*%c" % (c - 1)] * 9) + b"]\n" for c in range(ord("b"), ord("k"))
)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(BOMB, "an alias", id="lines that name one another"),
        pytest.param(b"[" * 5000, "more than 32 lists", id="lists in lists"),
        pytest.param(b"{a: " * 5000, "JSON", id="maps in maps, as JSON"),
        pytest.param(
            b"x:\n" + b"".join(b" " * n + b"x:\n" for n in range(1, 500)), "more than 32", id="maps in maps"
        ),
        pytest.param(b"x: 1\n" * 300_000, "of YAML, more than", id="YAML without end"),
        pytest.param(b"{" + b" " * (64 * 2**20), "more than", id="JSON without end"),
        pytest.param(b"? [a]\n: b\n", "YAML", id="a list as a key"),
        pytest.param(
            b"x: !!python/object/apply:os.system [id]\n", "Field required", id="a tag that would make objects"
        ),
    ],
)
def test_a_plan_file_that_would_unfold_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    """By the first bound that it meets."""
    with pytest.raises(InputError, match=words):
        read_plan_file(write(tmp_path, "plan", data))


def test_a_plan_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe is not waited for; a folder is none."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError):
            read_plan_file(path)


FIELD = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 3, 4096, 2**63 - 1, 2**63, 2**64 - 1]))


@examples(200)
@given(
    fields=st.tuples(st.sampled_from([0, 1, 2, 3, 2**64 - 1]), FIELD, st.binary(min_size=56, max_size=56), FIELD),
    magic=st.sampled_from([MAGIC, MAGIC, MAGIC, b"WSARENA2", b"\x00" * 8]),
    right=st.sampled_from([True, True, True, False]),
    size=st.sampled_from([0, 1, PAYLOAD, PAYLOAD + 64, None]),
)
def test_an_arenas_header_is_whole_or_refused(
    tmp_path: Path, fields: tuple[int, int, bytes, int], magic: bytes, right: bool, size: int | None
) -> None:
    """Any fields with any checksum in a file of any size: opened with what the header says, or InputError."""
    state, nbytes, digests, number = fields
    nbytes = 64 if size is None or size == PAYLOAD + 64 else nbytes
    words = [digests[n : n + 16] for n in (0, 16, 32)]
    packed = FIELDS.pack(magic, state, nbytes, *words, digests[48:56], number, b"\x07" * 32)
    packed += CHECKSUM.pack(zlib.crc32(packed) if right else 1)
    path = tmp_path / "arena"
    with path.open("wb") as file:
        file.write(packed if size is None or size >= len(packed) else packed[:size])
        file.truncate(PAYLOAD + 64 if size is None else size)
    arena, error = tried(lambda: Arena.open(path, lock=True))
    if arena is None:
        assert str(path) in error
        return
    with arena:
        assert PAYLOAD + len(arena.view) == PAYLOAD + nbytes == path.stat().st_size
        assert (arena.header.version is None) == (state != 2)


def test_a_header_of_a_huge_sparse_file_is_refused_or_mapped(tmp_path: Path) -> None:
    """A terabyte of nothing: opened, or an error of ours; and the descriptor is closed."""
    before = descriptors()
    nbytes = 2**40
    packed = FIELDS.pack(MAGIC, 0, nbytes, bytes(16), bytes(16), bytes(16), bytes(8), 0, bytes(32))
    path = write(tmp_path, "arena", packed + CHECKSUM.pack(zlib.crc32(packed)))
    os.truncate(path, PAYLOAD + nbytes)
    arena, _ = tried(lambda: Arena.open(path))
    if arena is not None:
        arena.close()
    assert descriptors() == before


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_what_is_no_file_is_no_arena(tmp_path: Path, make: Any) -> None:
    """InputError at once, and no descriptor is left open."""
    make(tmp_path / "arena")
    before = descriptors()
    with pytest.raises(InputError):
        Arena.open(tmp_path / "arena", lock=True)
    assert descriptors() == before


JOURNAL = journal_records.Journal(
    state=journal_records.JournalState.TORN,
    version=VERSION,
    incarnation="l",
    ranks=(
        journal_records.JournalRank(
            rank=0, program="b" * 32, arena="a", buckets=(BucketDigest(offset=0, nbytes=16, digest="c" * 32),)
        ),
    ),
    term=2,
    coordinator="u",
)
DECISION = journal_records.Decision(sync="s", version=VERSION, term=2, programs={"b" * 32: "4" * 64})


def line(body: bytes, form: bytes = FORMAT, kind: bytes = b"Journal") -> bytes:
    """A record's line whose checksum fits, whatever it says."""
    head = form + b" " + kind
    return head + b" " + xxhash.xxh3_128_hexdigest(head + b" " + body).encode() + b" " + body + b"\n"


@pytest.mark.parametrize(
    ("kind", "record"),
    [pytest.param(JournalFile, JOURNAL, id="journal"), pytest.param(DecisionFile, DECISION, id="decision")],
)
@examples(80)
@given(data=st.data())
def test_a_journal_is_whole_or_refused(tmp_path: Path, kind: Any, record: Record, data: st.DataObject) -> None:
    """Also with a checksum that fits: what is read can be written into headers and digests again."""
    body = data.draw(bodies(record.model_dump(mode="json")))
    name = data.draw(st.sampled_from([type(record).__name__.encode()] * 3 + [b"Other", b"\xff"]))
    form = data.draw(st.sampled_from([FORMAT, FORMAT, FORMAT, b"weightsync/9", b"\xff\xfe"]))
    whole = data.draw(st.sampled_from([line(body, form, name)] * 3 + [body, line(body)[:-1]]))
    file: StateFile[Any] = kind(write(tmp_path, "record", whole))
    found, error = tried(file.read)
    if found is None:
        assert str(tmp_path) in error
        return
    bytes.fromhex(found.version.lineage + found.version.root)
    struct.pack("<Q", found.version.number)
    file.write(found)
    assert file.read() == found


RESULT = {
    "id": "r", "op": "apply", "rank": 0, "incarnation": "l", "ok": True, "touched": True, "nbytes": 1, "seconds": 1.0,
    "equal": True, "difference": "", "digests": {}, "parameters": [],
}  # fmt: skip


@examples(100)
@given(data=bodies(RESULT), kind=st.sampled_from([Applied, ReadBack, Description]))
def test_a_hooks_result_is_one_or_an_engines_failure(tmp_path: Path, data: bytes, kind: Any) -> None:
    """The engine writes it, and an engine may be broken: an EngineError whose words are bounded, never another."""
    files = HookFiles(tmp_path)
    write(tmp_path / names.HOOK, "result-0.json", data)
    found, error = tried(lambda: files.answer(0, "r"), EngineError)
    if found is None:
        assert 0 < len(error) < 10_000
        return
    assert found["ok"]
    with contextlib.suppress(ValidationError):
        kind.model_validate(found)


def test_a_hooks_result_that_is_a_pipe_is_an_engines_failure(tmp_path: Path) -> None:
    """Nobody waits for a writer that never comes."""
    (tmp_path / names.HOOK).mkdir()
    os.mkfifo(tmp_path / names.HOOK / "result-0.json")
    with pytest.raises(EngineError, match="no regular file"):
        HookFiles(tmp_path).answer(0, "r")


@examples(80)
@given(data=bodies(SAID))
def test_an_announcement_is_one_or_refused(data: bytes) -> None:
    """Any pod may write any annotation of its own: what is read is small, and is written back as it was read."""
    found, error = tried(lambda: Announcement.read(data, "pod x"))
    if found is None:
        assert error.startswith("pod x: ")
        return
    assert len(found.targets) <= 64 >= len(found.sources)
    assert Announcement.read(found.canonical(), "pod x") == found


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        pytest.param(Layout, PROGRAM.layout.model_dump(mode="json"), id="layout"),
        pytest.param(CopyProgram, PROGRAM.model_dump(mode="json"), id="program"),
        pytest.param(Report, Report(term=1).model_dump(mode="json"), id="report"),
    ],
)
@examples(80)
@given(data=st.data())
def test_a_record_is_one_or_refused(kind: type[Record], document: dict[str, Any], data: st.DataObject) -> None:
    """Layouts, programs and reports from other processes; a program that is read can be cut into buckets."""
    body = data.draw(bodies(document))
    found, error = tried(lambda: kind.read(body, "x"))
    assert found is not None or error.startswith("x: ")
    if isinstance(found, CopyProgram):
        bytes.fromhex(found.digest)
        total = found.layout.nbytes
        assert all(0 <= start < stop <= total for start, stop in needed(found))
        if total < 2**24:
            assert sum(b.nbytes for b in cut([(0, total)], bucket_size(total, 2**20))) == total


HUGE_SHAPE = PROGRAM.model_dump(mode="json")
HUGE_SHAPE["layout"]["parameters"][0]["shape"] = [int("9" * 4000)] * 500


@pytest.mark.parametrize(
    "data",
    [dumped(HUGE_SHAPE), b"[" * 10**6, b'{"tensors": [' + b"{}," * 10**6 + b"{}]}"],
    ids=["a shape of huge numbers", "lists in lists", "a million tensors without names"],
)
@pytest.mark.timeout(20)
def test_a_program_that_would_take_for_ever_is_refused(tmp_path: Path, data: bytes) -> None:
    """In time, and by its name."""
    with pytest.raises(InputError, match=r"rank-0\.json: "):
        read_program(write(tmp_path, "rank-0.json", data), 0)


def test_a_program_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """The engine's container writes into that folder: a pipe there holds nobody."""
    os.mkfifo(tmp_path / "rank-0.json")
    with pytest.raises(InputError, match="no regular file"):
        read_program(tmp_path / "rank-0.json", 0)


KEYS: dict[str, Any] = {
    "keys": [
        {"kty": "RSA", "use": "sig", "kid": "k", "alg": "RS256", "n": "sXchDaQebHnPiGvyDOAT4saGEUetSyo9", "e": "AQAB"}
    ]
}


@examples(80)
@given(document=st.one_of(mutated(KEYS), JSON.filter(lambda value: isinstance(value, dict))))
def test_a_key_set_is_one_or_refused(document: dict[str, Any]) -> None:
    """Whatever answers in the API server's place: keys of the kinds that we take, or InputError."""
    found, error = tried(lambda: read_keys("i", document))
    assert found is not None or error
    assert all(key.jwk.algorithm_name in ALGORITHMS for key in (found or {}).values())


TOKEN = jwt.encode({"aud": "weightsync", "sub": "s"}, "k" * 32, "HS256", headers={"kid": "k"})


@examples(150)
@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(TOKEN.split(".")), st.text(max_size=60), JSON.map(dumped).map(encoded), RAW.map(encoded)
        ),
        max_size=5,
    )
)
def test_what_is_no_token_is_refused(parts: list[str]) -> None:
    """Any text in a token's place, with any JSON in its parts, before a signature can say anything: 401."""
    found, error = tried(lambda: key_id(".".join(parts)), Refused)
    assert found is not None or error
    assert len(error) < 2000


METADATA = {"namespace": "n", "name": "x", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}


@examples(80)
@given(
    spec=st.one_of(mutated(WEIGHTSYNC), JSON), status=st.one_of(mutated(STATUS), JSON), part=mutated(PLAN_DOCUMENT)
)
def test_a_resource_is_read_or_refused_by_name(spec: Any, status: Any, part: Any) -> None:
    """A newer operator may write what this agent does not know; another writer anything."""
    for raw, read in (
        ({"metadata": METADATA, "spec": spec, "status": status}, read_weightsync),
        ({"metadata": METADATA, "status": status}, read_weightsync),
        ({"metadata": METADATA, "spec": part.get("plan") if isinstance(part, dict) else part}, read_slice),
        ({"metadata": METADATA}, read_slice),
    ):
        found, error = tried(partial(read, raw), WeightSyncError)
        assert found is not None or "x: " in error


@examples(60)
@given(data=RAW)
def test_no_record_takes_what_is_no_document(data: bytes) -> None:
    """Every kind of record that is read from bytes says so by one kind of error."""
    for kind in (Announcement, CopyProgram, Layout, PlanFile, Report, Version, journal_records.Journal):
        found, error = tried(partial(kind.read, data, "x"))
        assert found is not None or error.startswith("x: ")
