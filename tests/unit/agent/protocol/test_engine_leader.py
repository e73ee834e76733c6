"""An engine's leader: torn first, whole or paused, gates that do not flip."""

from enum import Enum, auto
from typing import Any

import pytest

from weightsync.version import Version, torn_name
from weightsync_agent.engines.sequence import Step as Commit
from weightsync_agent.journal.records import Fresh, Keep, PauseAndReseed, Reapply
from weightsync_agent.protocol import engine_leader as m
from weightsync_agent.protocol.crew import Pod

V1 = Version(lineage="1" * 16, number=1, root="2" * 64)
V2 = Version(lineage="1" * 16, number=2, root="3" * 64)


class Step(Enum):
    A = auto()
    B = auto()


def ask(version: Version) -> m.CommitAsked:
    return m.CommitAsked(version, ((0, "g"),), (Step.A, Step.B))


def leader(*events: object) -> m.EngineLeader:
    machine = m.EngineLeader()
    for event in events:
        machine.handle(event, 0.0)
    return machine


FRESH = (m.Answers(), m.Seen("life", Fresh()))
CURRENT = (*FRESH, ask(V1), m.StepDone(), m.StepDone())


def test_a_fresh_engine_waits_for_its_welcome() -> None:
    """The gate opens only when somebody says that nothing was published."""
    machine = leader(*FRESH)
    assert machine.state is m.LeaderState.FRESH
    assert machine.handle(m.Welcomed(True), 0.0) == [
        m.SetGate(True, "BaseCheckpoint", "nothing has been published yet")
    ]


def test_steps_run_one_after_the_other_and_end_current() -> None:
    """Each done step starts the next; the last makes the version current."""
    machine = leader(*FRESH)
    assert machine.handle(ask(V1), 0.0) == [m.RunStep(Step.A, V1, ((0, "g"),))]
    assert machine.handle(m.StepDone(), 0.0) == [m.RunStep(Step.B, V1, ((0, "g"),))]
    assert machine.handle(m.StepDone(), 0.0) == [m.AnswerCommit()]
    assert machine.serves(V1)


def test_a_failed_step_leaves_it_paused_and_closes_the_gate() -> None:
    """Whatever failed: paused, torn, and the commit is answered with the step's name."""
    machine = leader(*FRESH, ask(V1))
    gate, paused, failure = machine.handle(m.StepFailed("EngineFailed", "why", True), 0.0)
    assert isinstance(gate, m.SetGate)
    assert not gate.open
    assert isinstance(paused, m.KeepPaused)
    assert failure == m.AnswerFailure("EngineFailed", f"step A of {V1.name}: why", True)
    assert machine.state is m.LeaderState.TORN


def test_a_torn_engine_is_committed_to_from_the_first_step() -> None:
    """The retry starts from the pause."""
    machine = leader(*FRESH, ask(V1), m.StepDone(), m.StepFailed("x", "y", True))
    assert machine.handle(ask(V1), 0.0) == [m.RunStep(Step.A, V1, ((0, "g"),))]


def test_a_served_version_is_answered_at_once() -> None:
    """Commits are idempotent; another version runs all steps."""
    machine = leader(*CURRENT)
    assert machine.handle(ask(V1), 0.0) == [m.AnswerCommit()]
    assert isinstance(machine.handle(ask(V2), 0.0)[0], m.RunStep)


def test_another_life_closes_the_gate_and_is_looked_at() -> None:
    """A current engine that names another version was replaced."""
    machine = leader(*CURRENT)
    assert machine.expects(V1.name, "default")
    assert not machine.expects("default", "default")
    gate, look = machine.handle(m.LifeChanged("default"), 0.0)
    assert isinstance(gate, m.SetGate)
    assert not gate.open
    assert look == m.Look()


def test_what_a_look_finds_decides_the_state() -> None:
    """Keep serves on; Reapply and PauseAndReseed are paused first; a problem is never written to."""
    keep = leader(m.Answers(), m.Seen("life", Keep(V1)))
    assert keep.serves(V1)
    for recovery in (Reapply(V1, (), {0: "g"}, "why"), PauseAndReseed("why")):
        machine = leader(m.Answers())
        actions = machine.handle(m.Seen("life", recovery), 0.0)
        assert m.KeepPaused("why") in actions
        assert machine.state is (m.LeaderState.REAPPLYING if isinstance(recovery, Reapply) else m.LeaderState.TORN)
    refused = leader(m.Answers(), m.Seen("life", Fresh(), "rank 0: x differs"))
    assert refused.state is m.LeaderState.REFUSED
    assert not refused.takes(ask(V1))


def test_silence_in_a_commit_is_left_to_the_running_step() -> None:
    """The step's own failure tells; until then the commit goes on."""
    assert leader(*FRESH, ask(V1), m.Silent()).state is m.LeaderState.COMMITTING
    assert leader(*CURRENT, m.Silent()).state is m.LeaderState.ABSENT


STEPS = tuple(Commit)


def torn_at(step: Commit, *before: object) -> m.EngineLeader:
    machine = leader(*(before or FRESH), m.CommitAsked(V2, ((0, "g"),), STEPS))
    for _ in range(STEPS.index(step)):
        machine.handle(m.StepDone(), 0.0)
    machine.handle(m.StepFailed("x", "y", True), 0.0)
    return machine


@pytest.mark.parametrize(
    ("machine", "same", "other"),
    [
        (torn_at(Commit.PAUSE), {"default"}, set()),
        (torn_at(Commit.PAUSE, *CURRENT), {V1.name}, {"default", torn_name(V2.name)}),
        (torn_at(Commit.MARK_TORN, *CURRENT), {V1.name, torn_name(V2.name)}, {"default", V2.name}),
        (torn_at(Commit.APPLY), {torn_name(V2.name)}, {"default", V2.name}),
        (torn_at(Commit.MARK_CURRENT), {torn_name(V2.name), V2.name}, {"default"}),
        (torn_at(Commit.CONTINUE), {V2.name}, {"default", torn_name(V2.name)}),
        (torn_at(Commit.CONFIRM), {V2.name}, {"default", torn_name(V2.name)}),
        (leader(m.Answers(), m.Seen("life", PauseAndReseed("why"), "", "n")), {"n"}, {"default"}),
    ],
    ids=[
        "before its name was touched, fresh", "before its name was touched", "while it was named torn",
        "while bytes moved", "while it was named whole", "after it was named whole", "after it was told to go on",
        "found torn at a start",
    ],
)  # fmt: skip
def test_a_torn_engine_of_another_name_is_another_process(
    machine: m.EngineLeader, same: set[str], other: set[str]
) -> None:
    """Only the names that the last commit can have left are the same life's; a restarted one runs unpaused."""
    assert machine.state is m.LeaderState.TORN
    assert {name for name in same | other if machine.expects(name, "default")} == same


@pytest.mark.parametrize("open_", [True, False], ids=["open", "closed"])
def test_a_welcome_is_for_the_fresh_life_that_it_finds(open_: bool) -> None:
    """It ends with that life's silence, and with the first commit; before the look it says nothing."""
    machine = leader(*FRESH)
    (gate,) = machine.handle(m.Welcomed(open_), 0.0)
    assert isinstance(gate, m.SetGate)
    assert gate.open is open_
    machine.handle(m.Silent(), 0.0)
    machine.handle(m.Answers(), 0.0)
    assert machine.handle(m.Welcomed(open_), 0.0) == []
    assert machine.handle(m.Seen("life", Fresh()), 0.0) == [m.Announce()]
    for events in (CURRENT, (*FRESH, ask(V1)), (m.Answers(), m.Seen("life", PauseAndReseed("why")))):
        assert leader(*events).handle(m.Welcomed(open_), 0.0) == []


def at(number: int, root: str, lineage: str = "1") -> Version:
    return Version(lineage=lineage * 16, number=number, root=root * 64)


TORN = (*CURRENT, ask(V2), m.StepFailed("x", "y", True))
FOUND = {
    "serving": CURRENT,
    "torn in a commit": TORN,
    "found torn": (m.Answers(), m.Seen("life", PauseAndReseed("why"), floor=V2)),
    "to be given it back": (m.Answers(), m.Seen("life", Reapply(V2, (), {0: "g"}, "why"), floor=V2)),
}


@pytest.mark.parametrize("events", FOUND.values(), ids=FOUND)
def test_the_number_never_falls_within_a_lineage_and_has_one_root(events: tuple[object, ...]) -> None:
    """Whatever became of the newest commit; a new lineage begins anywhere."""
    floor = V1 if events is CURRENT else V2
    for bad in (at(floor.number - 1, "9"), at(floor.number, "9")) if floor.number > 1 else (at(1, "9"),):
        (answer,) = leader(*events).handle(ask(bad), 0.0)
        assert isinstance(answer, m.AnswerFailure)
        assert (answer.reason, answer.retryable) == ("StaleVersion", False)
    for good in (at(3, "9"), at(1, "9", lineage="7")):
        assert isinstance(leader(*events).handle(ask(good), 0.0)[0], m.RunStep)


def test_what_cannot_be_certified_is_refused_and_stays_paused() -> None:
    """By name; a new life is looked at anew."""
    machine = leader(m.Answers(), m.Seen("life", PauseAndReseed("why")), ask(V1))
    assert not machine.certified
    actions = machine.handle(m.StepFailed(m.NOT_CERTIFIED, "rank 0: w differs", False), 0.0)
    assert m.KeepPaused("rank 0: w differs") in actions
    assert m.AnswerFailure(m.NOT_CERTIFIED, "rank 0: w differs", False) in actions
    assert (machine.state, machine.stays_paused, machine.problem) == (
        m.LeaderState.REFUSED,
        True,
        "rank 0: w differs",
    )
    assert not machine.takes(ask(V2))
    machine.handle(m.LifeChanged("default"), 0.0)
    machine.handle(m.Seen("life-2", Fresh()), 0.0)
    assert (machine.state, machine.stays_paused) == (m.LeaderState.FRESH, False)


@pytest.mark.parametrize(
    ("recovery", "certified"),
    [(Keep(V1), True), (Fresh(), True), (PauseAndReseed("x"), False), (Reapply(V1, (), {0: "g"}, "x"), False)],
    ids=["serving", "fresh, certified by the look", "torn", "to be given it back"],
)
def test_which_lives_are_certified_already(recovery: Any, certified: bool) -> None:
    """What serves was certified before it did; a new life, or one of unknown memory, was not; a commit does it."""
    machine = leader(m.Answers(), m.Seen("life", recovery))
    assert machine.certified is certified
    for event in (ask(V2), m.StepDone(), m.StepDone()):
        machine.handle(event, 0.0)
    assert machine.certified


def test_a_version_that_cannot_be_given_back_is_waited_for() -> None:
    """Before a step ran: the engine waits for a sync, and takes the commit of one."""
    machine = leader(m.Answers(), m.Seen("life", Reapply(V1, (), {0: "g"}, "why")), m.ReapplyFailed("no"))
    assert machine.state is m.LeaderState.TORN
    assert machine.stays_paused
    assert isinstance(machine.handle(ask(V1), 0.0)[0], m.RunStep)


def test_a_step_that_met_another_life_is_followed_by_a_look() -> None:
    """The engine restarted unseen: nothing was written to the new process, which is looked at before the next try."""
    machine = leader(*CURRENT, ask(V2))
    gate, answer, look = machine.handle(m.StepFailed(m.ANOTHER_LIFE, "rank 0: 1-2 is meant", False), 0.0)
    assert (isinstance(gate, m.SetGate) and gate.open) is False
    assert answer == m.AnswerFailure(m.ANOTHER_LIFE, "rank 0: 1-2 is meant", True)
    assert (look, machine.state) == (m.Look(), m.LeaderState.LOOKING)


def test_a_look_that_silence_ended_says_nothing_more() -> None:
    """Its failure comes late: the engine is absent already."""
    machine = leader(m.Answers(), m.Silent())
    assert machine.handle(m.LookFailed("late"), 0.0) == []
    assert machine.state is m.LeaderState.ABSENT


OPEN = (Commit.JOURNAL_TORN, Commit.PAUSE, Commit.SAME_LIFE, Commit.MARK_TORN)
UNDECIDED = Version(lineage="1" * 16, number=2, root="0" * 64)


def let_in(sync: str = "x") -> m.OpenAsked:
    return m.OpenAsked(sync, UNDECIDED, OPEN)


OPENED = (*CURRENT, let_in(), *(m.StepDone(),) * 4)


@pytest.mark.parametrize("before", [FRESH, CURRENT], ids=["a fresh engine", "a current one"])
def test_writers_are_let_in_only_after_every_step(before: tuple[object, ...]) -> None:
    """Journal first, then the pause; the answer comes with the last, and the gate has not flipped."""
    machine = leader(*before)
    actions = machine.handle(let_in(), 0.0)
    for step in OPEN:
        assert actions == [m.RunStep(step, UNDECIDED, ())]
        actions = machine.handle(m.StepDone(), 0.0)
    assert actions == [m.AnswerOpen()]
    assert machine.state is m.LeaderState.TORN
    assert machine.version is None
    assert machine.names == frozenset({torn_name(UNDECIDED.name)})


def test_each_rank_of_a_sync_is_journalled_and_paused_once() -> None:
    """The second rank's writers go on disk; the engine is paused already."""
    machine = leader(*OPENED)
    assert machine.handle(let_in(), 0.0) == [m.RunStep(OPEN[0], UNDECIDED, ())]
    assert machine.handle(m.StepDone(), 0.0) == [m.AnswerOpen()]


def test_another_sync_goes_through_all_steps_again_and_closes_the_gate() -> None:
    """The one before has ended without a commit."""
    machine = leader(*OPENED)
    gate, run = machine.handle(let_in("y"), 0.0)
    assert gate.open is False  # type: ignore[attr-defined]
    assert run == m.RunStep(OPEN[0], UNDECIDED, ())
    assert machine.steps == OPEN


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_nobody_is_let_in_where_a_step_fails(done: int) -> None:
    """It stays paused, with its gate closed, and the next sync begins from the first step."""
    machine = leader(*CURRENT, let_in(), *(m.StepDone(),) * done)
    gate, paused, failure = machine.handle(m.StepFailed("EngineFailed", "why", True), 0.0)
    assert gate.open is False  # type: ignore[attr-defined]
    assert isinstance(paused, m.KeepPaused)
    assert isinstance(failure, m.AnswerFailure)
    assert OPEN[done].name in failure.message
    assert machine.stays_paused
    machine.handle(let_in(), 0.0)
    assert machine.steps == OPEN


def test_another_process_that_meets_the_opening_is_looked_at() -> None:
    """Nobody is let in there."""
    machine = leader(*CURRENT, let_in(), m.StepDone(), m.StepDone())
    actions = machine.handle(m.StepFailed(m.ANOTHER_LIFE, "another", False), 0.0)
    assert machine.state is m.LeaderState.LOOKING
    assert m.Look() in actions


def test_an_open_engine_is_committed_to_and_what_was_undecided_is_no_floor() -> None:
    """The version before may still come back, where nobody decided what was being written."""
    machine = leader(*OPENED)
    assert not machine.older(V1)
    assert machine.handle(m.CommitAsked(V2, (), (Step.A,)), 0.0) == [m.RunStep(Step.A, V2, ())]
    assert machine.handle(m.StepDone(), 0.0) == [m.AnswerCommit()]
    assert machine.serves(V2)


def test_a_gate_is_left_open_for_a_routine_sync_and_no_longer() -> None:
    """A sync whose commit does not come closes it, once."""
    machine = leader(*OPENED)
    assert machine.handle(m.Answers(), m.OPEN_SECONDS - 1) == []
    (gate,) = machine.handle(m.Answers(), m.OPEN_SECONDS + 1)
    assert gate.open is False  # type: ignore[attr-defined]
    assert machine.handle(m.Answers(), m.OPEN_SECONDS + 2) == []


def test_a_fresh_engine_that_was_not_certified_is_in_its_first_commit() -> None:
    """There is no replica to certify it with before."""
    assert leader(*FRESH).certified
    assert not leader(m.Answers(), m.Seen("life", Fresh(), certified=False)).certified


# --- engines of several pods ---

POD = Pod(1, "pod-1", "4" * 16)
PAIR = (m.Answers(), m.Seen("life", Keep(V1), pods=frozenset({POD})))


@pytest.mark.parametrize(
    ("pods", "closed"),
    [
        pytest.param({Pod(1, "pod-1", "5" * 16)}, False, id="the member's agent restarted: the engine serves on"),
        pytest.param({Pod(1, "pod-1b", "4" * 16)}, True, id="another pod took the member's place: another life"),
    ],
)
def test_other_pods_than_those_that_were_looked_at_are_looked_at(pods: set[Pod], *, closed: bool) -> None:
    """In whichever life they are: what was known of the old ones is void."""
    machine = leader(*PAIR)
    assert machine.crew_changed(frozenset({POD})) is None
    changed = machine.crew_changed(frozenset(pods))
    assert changed is not None
    actions = machine.handle(changed, 0.0)
    assert actions[-1] == m.Look()
    assert [type(action) for action in actions[:-1]] == ([m.SetGate] if closed else [])
    assert machine.state is m.LeaderState.LOOKING


def test_a_member_that_restarts_in_a_commit_is_not_forgotten() -> None:
    """The running step fails, or the first look after the commit finds it."""
    machine = leader(*PAIR, ask(V2))
    restarted = frozenset({Pod(1, "pod-1", "5" * 16)})
    changed = machine.crew_changed(restarted)
    assert changed is not None
    assert machine.handle(changed, 0.0) == []
    machine.handle(m.StepDone(), 0.0)
    machine.handle(m.StepDone(), 0.0)
    assert machine.serves(V2)
    assert machine.crew_changed(restarted) is not None


def test_while_it_is_being_looked_at_the_look_sees_who_is_there() -> None:
    """Nothing is to be told then, nor while the engine does not answer."""
    machine = leader(m.Answers())
    assert machine.crew_changed(frozenset({POD})) is None
    machine.handle(m.Silent(), 0.0)
    assert machine.crew_changed(frozenset({POD})) is None
