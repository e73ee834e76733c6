"""What an engine's leader does at its start, case by case."""

import pytest

from weightsync.arena import NO_GRANT, ArenaState, Header
from weightsync.version import Version
from weightsync_agent.journal.records import (
    BASE,
    UNKNOWN,
    EngineSeen,
    Fresh,
    Journal,
    JournalRank,
    JournalState,
    JournalWriter,
    Keep,
    PauseAndReseed,
    Reapply,
    Recovery,
    at_start,
    opened,
)

LAYOUT, PROGRAM, OTHER = "a" * 32, "b" * 32, "c" * 32
V1 = Version(lineage="1" * 16, number=1, root="0" * 64)
V2 = Version(lineage="1" * 16, number=2, root="2" * 64)
V2_OTHER_ROOT = Version(lineage="1" * 16, number=2, root="3" * 64)
GRANT = "d" * 32


def journal(state: JournalState = JournalState.CURRENT, ranks: int = 1) -> Journal:
    """A journal of V2 in life-1 with that many ranks."""
    rows = tuple(JournalRank(rank=r, program=PROGRAM, arena=f"arena-{r}", buckets=()) for r in range(ranks))
    return Journal(state=state, version=V2, incarnation="life-1", ranks=rows, term=3, coordinator="uid-t")


def sealed(version: Version = V2, program: str = PROGRAM) -> Header:
    """A header of a sealed arena."""
    return Header(ArenaState.SEALED, 4096, LAYOUT, program, GRANT, version)


def unsealed(state: ArenaState) -> Header:
    """A header of an arena that holds nothing."""
    return Header(state, 4096, LAYOUT, PROGRAM, GRANT if state is ArenaState.FILLING else NO_GRANT, None)


TORN, CURRENT = journal(JournalState.TORN), journal()
SAME = EngineSeen(V2.name, "life-1")
RESTARTED = EngineSeen("default", "life-2")

CASES = [
    pytest.param(None, {}, EngineSeen("default", "life-1"), Fresh, "", id="no journal and a base checkpoint: fresh"),
    pytest.param(None, {}, None, Fresh, "", id="no journal and no engine yet: fresh"),
    pytest.param(
        None, {0: sealed()}, SAME, PauseAndReseed, "no journal is left", id="no journal but a version: paused"
    ),
    pytest.param(
        None, {}, EngineSeen("torn:" + V2.name, "life-1"), PauseAndReseed, "torn:", id="no journal but torn: paused"
    ),
    pytest.param(CURRENT, {0: sealed()}, SAME, Keep, "", id="same life and version: keep"),
    pytest.param(CURRENT, {}, SAME, Keep, "", id="same life and version, arena lost: keep, engine memory is whole"),
    pytest.param(
        CURRENT, {0: unsealed(ArenaState.FILLING)}, SAME, Keep, "", id="same life, arena filling the next: keep"
    ),
    pytest.param(CURRENT, {0: sealed()}, RESTARTED, Reapply, "has restarted", id="engine restarted, sealed: reapply"),
    pytest.param(CURRENT, {0: sealed()}, None, Reapply, "does not answer", id="engine silent, sealed: reapply"),
    pytest.param(
        CURRENT, {0: sealed()}, EngineSeen("mine", "life-1"), Reapply, "names version mine", id="renamed: reapply"
    ),
    pytest.param(
        CURRENT, {0: sealed()}, EngineSeen("", "life-1"), Reapply, "(none)", id="nameless engine, sealed: reapply"
    ),
    pytest.param(TORN, {0: sealed()}, SAME, Reapply, "died while", id="torn though the engine names it: reapply"),
    pytest.param(
        TORN, {0: sealed()}, EngineSeen(V1.name, "life-1"), Reapply, "died while", id="torn before the pause: reapply"
    ),
    pytest.param(
        TORN,
        {0: sealed()},
        EngineSeen("torn:" + V2.name, "life-1"),
        Reapply,
        "died while",
        id="torn in apply: reapply",
    ),
    pytest.param(
        CURRENT,
        {0: unsealed(ArenaState.FILLING)},
        RESTARTED,
        PauseAndReseed,
        "Filling",
        id="restarted, filling: paused",
    ),
    pytest.param(
        CURRENT, {0: unsealed(ArenaState.EMPTY)}, RESTARTED, PauseAndReseed, "Empty", id="restarted, empty: paused"
    ),
    pytest.param(TORN, {}, SAME, PauseAndReseed, "cannot be read", id="torn and no arena: paused"),
    pytest.param(
        TORN, {0: sealed(V1)}, SAME, PauseAndReseed, f"version {V1.name}", id="torn, arena of another version: paused"
    ),
    pytest.param(
        TORN, {0: sealed(V2_OTHER_ROOT)}, SAME, PauseAndReseed, "holds version", id="same number, other root: paused"
    ),
    pytest.param(
        TORN, {0: sealed(program=OTHER)}, SAME, PauseAndReseed, "program", id="torn, other program's arena: paused"
    ),
]


@pytest.mark.parametrize(("record", "arenas", "engine", "kind", "words"), CASES)
def test_at_start(
    record: Journal | None,
    arenas: dict[int, Header],
    engine: EngineSeen | None,
    kind: type[Recovery],
    words: str,
) -> None:
    """Only what is known to be whole is kept or applied again; all else is paused, with the reason in words."""
    recovery = at_start(record, arenas, engine)
    assert isinstance(recovery, kind)
    if words:
        assert isinstance(recovery, Reapply | PauseAndReseed)
        assert words in recovery.reason


@pytest.mark.parametrize("missing", [0, 1], ids=["the first rank's", "the second rank's"])
def test_one_unsealed_rank_pauses_all(missing: int) -> None:
    """An engine is whole on all ranks or not at all, so one rank's arena decides."""
    arenas = {rank: sealed() for rank in range(2) if rank != missing}
    recovery = at_start(journal(ranks=2), arenas, RESTARTED)
    assert isinstance(recovery, PauseAndReseed)
    assert f"rank {missing} (arena-{missing})" in recovery.reason


def test_reapply_carries_what_the_apply_needs() -> None:
    """Version, each rank with its arena and program, and the grant under which its header was sealed."""
    recovery = at_start(journal(JournalState.TORN, ranks=2), {0: sealed(), 1: sealed()}, SAME)
    assert isinstance(recovery, Reapply)
    assert recovery.version == V2
    assert [(rank.rank, rank.arena, rank.program) for rank in recovery.ranks] == [
        (0, "arena-0", PROGRAM),
        (1, "arena-1", PROGRAM),
    ]
    assert recovery.grants == {0: GRANT, 1: GRANT}


LET_IN = (JournalWriter(rank=0, grant=GRANT, key="uid-s/0", address="10.0.0.1:8960"),)


@pytest.mark.parametrize("before", [None, journal(), journal(JournalState.TORN)], ids=["none", "Current", "Torn"])
def test_an_engine_that_is_let_into_is_torn_and_names_who_was(before: Journal | None) -> None:
    """In this life, under the version before: what is being written was decided by nobody."""
    record = opened(before, life="life-3", ranks=journal().ranks, writers=LET_IN)
    assert (record.state, record.incarnation, record.writers) == (JournalState.TORN, "life-3", LET_IN)
    assert record.version == (before.version if before is not None else BASE)
    assert record.decided is (before is not None)
    assert isinstance(at_start(record, {}, EngineSeen(f"torn:{V2.name}", "life-3")), PauseAndReseed)


def test_after_a_journal_that_could_not_be_read_no_version_counts_as_decided() -> None:
    """And no other life of the engine as fresh: it may have served a version."""
    version = V2.model_copy(update={"root": UNKNOWN})
    record = opened(None, life="life-3", ranks=journal().ranks, writers=LET_IN, unreadable=version)
    assert not record.decided
    assert not record.base
    assert isinstance(at_start(record, {}, EngineSeen("default", "life-4")), PauseAndReseed)
