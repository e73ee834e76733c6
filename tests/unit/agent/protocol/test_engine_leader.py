"""An engine's leader: torn first, whole or paused, gates that do not flip."""

from enum import Enum, auto

from weightsync.version import Version
from weightsync_agent.journal.records import Fresh, Keep, PauseAndReseed, Reapply
from weightsync_agent.protocol import engine_leader as m

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
        assert machine.state is m.LeaderState.TORN
    refused = leader(m.Answers(), m.Seen("life", Fresh(), "rank 0: x differs"))
    assert refused.state is m.LeaderState.REFUSED
    assert not refused.takes(ask(V1))


def test_silence_in_a_commit_is_left_to_the_running_step() -> None:
    """The step's own failure tells; until then the commit goes on."""
    assert leader(*FRESH, ask(V1), m.Silent()).state is m.LeaderState.COMMITTING
    assert leader(*CURRENT, m.Silent()).state is m.LeaderState.ABSENT
