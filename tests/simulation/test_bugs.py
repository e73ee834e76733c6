"""What was broken on purpose is found: otherwise an invariant that holds would say nothing."""

import re
from pathlib import Path

import pytest

from tools.simulate import hunt, world
from tools.simulate.bugs import BUGS, Bug, Patches, as_ever
from tools.simulate.coverage import machines, rows
from tools.simulate.mutants import Mutant, changed, every
from tools.simulate.schedule import run
from weightsync_agent.protocol.gather import Gather
from weightsync_agent.protocol.table import Machine
from weightsync_agent.protocol.target import Target

# Found within few schedules; the command runs the others, with a larger budget.
QUICK = (
    "drop-fence", "trust-unregister", "receipt-before-landing", "filled-too-early",
    "keep-arena-for-ever", "stages-overlap", "no-torn-journal", "no-pause", "no-flush", "no-continue", "no-name",
    "current-too-early", "continue-before-flush", "failed-step-is-done", "resume-after-failure", "answer-too-early",
    "decide-without-persisting", "no-barrier", "silence-is-success", "rosy-outcome", "forget-outcome", "mix-steps",
    "reuse-sync-id", "any-grant", "direct-grant-before-pause", "direct-grant-before-journal",
    "direct-verify-before-terminal", "direct-continue-while-open", "direct-regrant-while-open",
    "direct-trust-old-table", "direct-word-is-enough", "pull-without-verifying", "no-confirm",
    "frozen-while-away",
    "keep-verified-for-ever", "lend-while-filling", "grant-while-it-reads", "grow-without-reading",
    "lease-without-end", "renewal-needs-a-place", "send-readers-away",
    "relay-without-verifying", "written-and-relayed",
    "commit-without-the-member", "forget-a-members-restart", "certify-own-ranks-only", "let-go-at-once",
)  # fmt: skip
BUDGET = 500
DOC = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"


@pytest.mark.parametrize("name", QUICK)
def test_a_bug_is_found(name):
    """Within the budget a schedule violates an invariant that holds without the bug."""
    found = hunt.seeded(name, 2_000_000, BUDGET)

    assert found.number is not None, f"{name}: {BUGS[name].sentence}: not found in {BUDGET} schedules"


def test_a_schedule_that_fails_without_the_bug_counts_for_nothing(monkeypatch):
    """Nor does one that is aimed at the bug's moment, and fails at that."""
    bug = Bug("none", "nothing", as_ever, lambda p: p.set(world, "HEAL_SECONDS", -1.0))
    monkeypatch.setitem(BUGS, bug.name, bug)

    assert hunt.seeded(bug.name, 0, 5).number is None
    assert world.HEAL_SECONDS > 0


def test_a_bug_that_breaks_itself_counts_for_nothing(monkeypatch):
    """What it replaces was given another argument, say: every schedule would find that."""
    bug = Bug("old", "nothing", lambda p: p.set(Gather, "given", lambda self: None), as_ever)
    monkeypatch.setitem(BUGS, bug.name, bug)
    bug.install()
    failure = run(0).failure
    bug.remove()

    assert failure is not None
    assert failure.detail.startswith("TypeError")
    assert hunt.seeded(bug.name, 0, 3).number is None


def test_there_are_enough_bugs_and_all_say_what_they_break():
    """At least twenty, each with a sentence of its own."""
    assert len(BUGS) >= 20
    assert len({bug.sentence for bug in BUGS.values()}) == len(BUGS)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_bug_leaves_nothing_behind(name):
    """Installed and removed, the machines are what they were."""
    before = {cls: (cls.table, dict(vars(cls))) for cls in machines()}

    BUGS[name].aim()
    BUGS[name].install()
    BUGS[name].remove()

    for cls, (table, held) in before.items():
        assert cls.table is table
        assert {key: value for key, value in vars(cls).items() if key in held} == held


def test_every_row_and_every_guard_has_a_mutant():
    """Rows are removed, guards hold always."""
    mutants = every()
    all_rows = {key: row for cls in machines() for key, row in rows(cls).items()}

    assert {m.key for m in mutants if not m.guard} == set(all_rows)
    assert {m.key for m in mutants if m.guard} == {key for key, row in all_rows.items() if row.guard is not None}


def test_survivors_that_are_explained_are_mutants():
    """A row that is renamed or gone has no explanation left over."""
    known = {(f"{m.key[0]}: {m.key[1]} + {m.key[2]} [{m.key[3]}]", "guard" if m.guard else "row") for m in every()}
    explained = re.findall(r"^\| `([^`]+)`, (row|guard) \|", DOC.read_text(), re.MULTILINE)

    assert len(explained) > 10
    assert set(explained) <= known
    assert len(set(explained)) == len(explained)


def test_a_mutant_changes_one_row_of_one_table():
    """The others stay as they are."""
    key = next(key for key, row in rows(Target).items() if row.guard is not None)
    row, guard = Mutant(key, guard=False, row=""), Mutant(key, guard=True, row="")

    fewer, freer = changed(Target, row), changed(Target, guard)

    assert sum(map(len, fewer.values())) == sum(map(len, Target.table.values())) - 1
    assert sum(map(len, freer.values())) == sum(map(len, Target.table.values()))
    at = next(place for place in Target.table if (place[0].name, place[1].__name__) == key[1:3])
    assert freer[at][key[3]].guard is None


def test_a_removed_row_is_found():
    """A machine that meets an event which its table does not hold raises, and that is a violation."""
    patches = Patches()
    mutant = next(m for m in every() if m.key[:3] == ("Target", "FILLING", "Landed"))

    tried, failure = hunt.search(hunt.first_courses(range(20)), lambda: mutant.install(patches), patches.undo)

    assert failure is not None
    assert failure.number == 0
    assert tried <= 20


def test_machines_are_found_by_their_tables():
    """Every machine that is simulated is counted and mutated."""
    names = {cls.__name__ for cls in machines()}

    assert names >= {"Coordinator", "EngineLeader", "Route", "Target", "Source", "Lane", "Replica", "Joiner"}
    assert all(issubclass(cls, Machine) for cls in machines())
