"""Each invariant's function can fail, and says what is wrong."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tools.simulate import invariants as i
from tools.simulate import leases
from tools.simulate import source_invariants as own
from tools.simulate.clock import Loop
from tools.simulate.ledger import Ledger
from tools.simulate.memory import ArenaFile, digest
from weightsync.arena import ArenaState
from weightsync_agent.journal.records import JournalState

CURRENT = JournalState.CURRENT
STEPS = {"default": 0, "l.1": 1, "l.2": 2}


def engine(**change):
    """A whole engine that serves l.1 on two ranks."""
    parts = {
        "name": "engine-0", "answers": True, "paused": False, "memory": [[(1,), (1,)], [(1,), (1,)]],
        "name_shown": "l.1", "cached": 1, "in_place": False,
    }  # fmt: skip
    return SimpleNamespace(**{**parts, **change})


def piece(bucket=0, grant="g" * 32, writer="source/0"):
    """A write on its way."""
    return SimpleNamespace(bucket=bucket, writer=writer, call=SimpleNamespace(grant=grant))


def journal(state=JournalState.TORN, name="l.1"):
    """A record."""
    return SimpleNamespace(state=state, version=SimpleNamespace(name=name))


def busy_arena():
    """A source's arena that a submit still reads."""
    arena = ArenaFile("arena", "b" * 32, "a" * 32, 1, 1)
    arena.outstanding[0] = 1
    return arena


BROKEN = [
    (1, "ranks of two versions", lambda: i.whole(engine(memory=[[(1,)], [(2,)]]), STEPS)),
    (1, "a bucket of two versions", lambda: i.whole(engine(memory=[[(1, 2)]]), STEPS)),
    (1, "a label of another version", lambda: i.whole(engine(name_shown="l.2"), STEPS)),
    (1, "a label that is torn", lambda: i.whole(engine(name_shown="torn:l.1"), STEPS)),
    (1, "a cache of other weights", lambda: i.whole(engine(cached=0), STEPS)),
    (2, "written to unpaused", lambda: i.torn_first(engine(), journal(), "l.1")),
    (2, "no journal", lambda: i.torn_first(engine(paused=True), None, "l.1")),
    (2, "a journal that says Current", lambda: i.torn_first(engine(paused=True), journal(state=CURRENT), "l.1")),
    (2, "a journal of another version", lambda: i.torn_first(engine(paused=True), journal(), "l.2")),
    (3, "a piece is on its way", lambda: i.quiet_before_verified("r", 0, [piece()])),
    (4, "sealed", lambda: i.no_late_byte("r", ArenaState.SEALED, False, 0, "w")),
    (4, "verified", lambda: i.no_late_byte("r", ArenaState.FILLING, True, 0, "w")),
    (5, "granted while one writes", lambda: i.granted_once("r", "h" * 32, [piece()])),
    (5, "landed in another grant", lambda: i.landed_in_grant("r", "h" * 32, "g" * 32, "w")),
    (5, "closed while a piece flies", lambda: i.nothing_follows("r", "w", 1)),
    (6, "not what was digested", lambda: own.as_digested("r", [0])),
    (6, "filled while a submit reads", lambda: own.unchanged_on_the_wire(busy_arena(), 0)),
    (7, "other bytes", lambda: i.verified_before_applied("r", [(1,), (2,)], 1, 0)),
    (7, "unverified buckets", lambda: i.verified_before_applied("r", [(1,)], 1, 1)),
    (7, "sealed as another version", lambda: own.sealed_as_it_is("s", "l.1", [(1,), (2,)], 1)),
    (7, "given free while it is applied", lambda: i.held_while_applied("m", applied=True)),
    (7, "given to somebody else", lambda: i.kept_since_sealed("e", "APPLY", "GrantClosed")),
    (7, "an unknown version", lambda: i.verified_before_applied("r", [(1,)], None, 0)),
    (8, "an older term", lambda: i.term_holds("e", "a grant", 1, 2)),
    (8, "a sync that was followed by another", lambda: i.not_ended("e", "a grant", "uid/life/2", 3)),
    (8, "refused in the newest term", lambda: i.not_over("r", 2, 2)),
    (8, "refused as a second one", lambda: i.no_second("r", 2, "a", "a")),
    (8, "two coordinators", lambda: i.one_coordinator(1, "a", "b")),
    (9, "two roots", lambda: i.one_root("l.1", "a" * 64, "b" * 64)),
    (9, "a root of other bytes", lambda: i.decided_as_it_is("l.1", ["a" * 32])),
    (9, "a number that falls", lambda: i.never_falls("e", "l.1", 1, 2)),
    (10, "no decision on disk", lambda: i.decided_first("l.1", "")),
    (10, "a member that is not staged", lambda: i.all_staged("l.1", ["engine-1"])),
    (10, "decided after it was given up", lambda: i.not_ended_before("l.1", ended=True)),
    (10, "aborted after a commit", lambda: i.not_aborted("l.1", True, "RanksDiffer")),
    (11, "current and never served", lambda: i.honest("engine-0", "l.1", False)),
    (11, "answered and called failed", lambda: i.told_of("engine-0", "l.1", "Failed")),
    (11, "failed, says nobody", lambda: i.somebody_said_so("engine-0", "Unreachable", told=False)),
    (11, "ranks that do not differ", lambda: i.really_differ("l.1", 1)),
    (11, "late with all its routes verified", lambda: i.late_for_a_reason("engine-0", 0)),
    (11, "another process that is the same", lambda: i.another_process("engine-0", "Silent", same=True)),
    (11, "an outcome too few", lambda: i.one_outcome_each("l.1", ["a", "b"], ["a"])),
    (11, "an outcome twice", lambda: i.one_outcome_each("l.1", ["a"], ["a", "a"])),
    (11, "an outcome too late", lambda: i.in_time("l.1", 9.0, 8.0)),
    (12, "copied() waits", lambda: i.copied_alone("rank 0", 9.0, 8.0)),
    (13, "commits late", lambda: i.commits_by("l.1", 9.0, 8.0)),
    (5, "refused and started", lambda: own.never_started("r", "s", started=True)),
    (5, "refused as over", lambda: own.ended_before("r", "s", known=False)),
    (5, "started after its end", lambda: own.not_after_its_end("r", "s", known=True)),
    (7, "not certified and not refused", lambda: i.refused_by_name("e", refused=False)),
    (11, "another reason", lambda: i.true_reason("engine-0", "DeadlineExceeded", "GrantRefused")),
    (13, "fenced for nothing", lambda: i.fenced_for_a_reason("r", 0, 0)),
    (13, "an order without an answer", lambda: own.answered("r", ["s"])),
    (13, "a worker that others need", lambda: own.spares_the_others("r", 0, ["route"], 0.1, 1.0)),
    (13, "a parent that was out", lambda: i.another_parent("engine-0", "EngineGone")),
    (13, "taken and not carried out", lambda: own.carried_out("r", "s", started=False)),
    (14, "two stages", lambda: i.one_stage("r", 0, 1, 0)),
    (15, "its own version refused", lambda: i.gets_it_back("e", "REAPPLYING", takes=False)),
    (15, "a free arena that is not read into", lambda: i.may_be_read_into("r", "EMPTY", free=True)),
    (15, "an engine that no plan has", lambda: i.planned({"a", "b"}, {"a"})),
    (15, "an engine that is gone", lambda: i.planned({"a"}, {"a", "b"})),
    (15, "more readers than places", lambda: leases.few_at_a_time("e", 3, 2)),
    (15, "a place that nobody has", lambda: leases.full_of_readers("e", 1, 2)),
    (15, "a reader sent away from what lies there", lambda: leases.reads_on("e", "l.1", "NotHeld", lies=True)),
    (15, "lent to a new one, and served no more", lambda: leases.lends_its_own("e", "l.1", own=False, again=False)),
    (15, "the last version overwritten", lambda: own.keeps_the_last("s", "l.1", ["arena-1"])),
    (15, "an engine that stays behind", lambda: i.healed(["engine-0 is paused"], 100.0)),
]  # fmt: skip

HOLDING = [
    ("whole", lambda: i.whole(engine(), STEPS)),
    ("paused engines may hold a mixture", lambda: i.whole(engine(answers=False, memory=[[(1,)], [(2,)]]), STEPS)),
    ("a cache that was kept on purpose", lambda: i.whole(engine(cached=0, in_place=True), STEPS)),
    ("paused and journalled", lambda: i.torn_first(engine(paused=True), journal(), "l.1")),
    ("an unreadable journal means torn", lambda: i.torn_first(engine(paused=True), None, "l.1", unreadable=True)),
    ("quiet", lambda: i.quiet_before_verified("r", 0, [piece(bucket=1)])),
    ("filling", lambda: i.no_late_byte("r", ArenaState.FILLING, False, 0, "w")),
    ("granted to nobody else", lambda: i.granted_once("r", "h" * 32, [])),
    ("all verified", lambda: i.verified_before_applied("r", [(1,), (1,)], 1, 0)),
    ("nothing flies", lambda: i.nothing_follows("r", "w", 0)),
    ("sealed as what it is", lambda: own.sealed_as_it_is("s", "l.1", [(1, 1)], 1)),
    ("as digested", lambda: own.as_digested("r", [])),
    ("told", lambda: i.somebody_said_so("engine-0", "Unreachable", told=True)),
    ("ranks that differ", lambda: i.really_differ("l.1", -2)),
    ("late with a route that is open", lambda: i.late_for_a_reason("engine-0", 1)),
    ("a worker that had its time", lambda: own.spares_the_others("r", 0, ["route"], 1.0, 1.0)),
    ("as many readers as places", lambda: leases.few_at_a_time("e", 2, 2)),
    ("others read", lambda: leases.full_of_readers("e", 2, 2)),
    ("it is filled anew", lambda: leases.reads_on("e", "l.1", "NotHeld", lies=False)),
    ("one that reads it already", lambda: leases.lends_its_own("e", "l.1", own=False, again=True)),
    ("a parent that was late itself", lambda: i.another_parent("engine-0", "DeadlineExceeded")),
    ("healed", lambda: i.healed([], 100.0)),
]  # fmt: skip


@pytest.mark.parametrize(("number", "check"), [(n, c) for n, _, c in BROKEN], ids=[f"{n}: {t}" for n, t, _ in BROKEN])
def test_a_violation_is_seen(number, check):
    """The function raises, with its number and a sentence."""
    with pytest.raises(i.Violation) as caught:
        check()

    assert caught.value.number == number
    assert i.SENTENCES[number] in str(caught.value)


@pytest.mark.parametrize("check", [c for _, c in HOLDING], ids=[t for t, _ in HOLDING])
def test_what_holds_is_no_violation(check):
    """And does not raise where all is well."""
    check()


def test_every_invariant_has_a_test_that_shows_that_it_can_fail():
    """1 to 15."""
    assert {number for number, _, _ in BROKEN} == set(range(1, 16)) == set(i.SENTENCES) - {0}


def test_a_digest_tells_programs_buckets_and_contents_apart():
    """Symbols stand for bytes: what differs must differ in its digest."""
    found = {
        digest(program, bucket, content).digest
        for program in ("000000a0" + "0" * 24, "000000a1" + "0" * 24)
        for bucket in (0, 1)
        for content in ((0,), (1,), (-1,), (1, 1), (1, 2), (2, 1))
    }

    assert len(found) == 2 * 2 * 6


@pytest.mark.parametrize("lives", [True, False], ids=["a worker that lives", "a dead worker"])
@pytest.mark.parametrize(
    "does",
    [
        pytest.param(lambda ledger, target: ledger.granted(target, "h" * 32, 1, "s"), id="grants"),
        pytest.param(lambda ledger, target: ledger.reads(target, "h" * 32), id="reads itself"),
        pytest.param(lambda ledger, target: ledger.verified(target, [0]), id="verifies"),
        pytest.param(lambda ledger, target: ledger.closed("r", "w1.0", "g" * 32, "source/0"), id="closes"),
    ],
)
def test_what_flies_to_a_dead_worker_forbids_nothing(does, lives):
    """Its agent may not know yet; what Mooncake said had failed still flies, and never lands."""
    ledger = Ledger(Loop(), [0])
    ledger.flying, ledger.sessions = {"w1.0": [piece()]}, {"w1.0": None} if lives else {}
    with pytest.raises(i.Violation) if lives else nullcontext():
        does(ledger, SimpleNamespace(where="engine-0, rank 0", session="w1.0"))
