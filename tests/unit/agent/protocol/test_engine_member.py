"""A pod that is not its engine's leader: whom it obeys, what it holds, when it lets go."""

import pytest

from weightsync.errors import ProtocolError, Refused
from weightsync.version import Version
from weightsync.wire.members import Call, EngineOf
from weightsync_agent.journal.records import BASE
from weightsync_agent.protocol.engine_member import (
    EngineMember,
    HoldAsked,
    LeaderAnswered,
    LendAsked,
    LetGo,
    MemberState,
    Released,
    TakeBack,
    Tell,
)

LIFE, LEADERS, CERTIFICATE = "1" * 16, "2" * 16, "5" * 16
V1, V2 = (Version(lineage="3" * 16, number=n, root=str(n) * 64) for n in (1, 2))
G1, G2 = ((1, "a" * 32),), ((1, "b" * 32),)


def engine(**fields: object) -> EngineOf:
    said = {"leader": "pod-0", "life": LEADERS, "ranks": (1,), "engine_ranks": 2, "ready": True, **fields}
    return EngineOf.model_validate(said)


def following() -> EngineMember:
    machine = EngineMember("pod-1", LIFE)
    assert machine.handle(LeaderAnswered(engine(), 0.0), 0.0) == [Tell()]
    return machine


def held() -> EngineMember:
    machine = following()
    assert machine.handle(HoldAsked(V1, G1), 10.0) == []
    return machine


def call(**fields: str) -> Call:
    return Call.model_validate({"leader": "pod-0", "target": "pod-1", "life": LIFE, **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"target": "pod-2"}, "WrongPod", id="another pod is meant, at whose address this one came"),
        pytest.param({"life": "9" * 16}, "WrongLife", id="the agent has restarted since"),
        pytest.param({"leader": "pod-7"}, "NotLeader", id="a pod asks that does not lead this engine"),
    ],
)
def test_what_is_not_the_leaders_or_not_for_this_life_is_refused(fields: dict[str, str], reason: str) -> None:
    """Before anything is sealed, applied or let go."""
    machine = following()
    machine.check_call(call())
    with pytest.raises(Refused) as refused:
        machine.check_call(call(**fields))
    assert refused.value.reason == reason


def test_nobody_is_obeyed_before_a_leader_has_answered() -> None:
    """And no grant is given: the engine may not run."""
    machine = EngineMember("pod-1", LIFE)
    with pytest.raises(Refused, match="nobody yet"):
        machine.check_call(call())
    with pytest.raises(Refused, match="does not say"):
        machine.check_grantable()
    with pytest.raises(ProtocolError):
        machine.handle(HoldAsked(V1, G1), 0.0)


def test_only_what_is_held_is_applied() -> None:
    """The very version, from the very grants, between seal and release."""
    machine = following()
    with pytest.raises(Refused, match="holds nothing"):
        machine.check_apply(V1.root, dict(G1))
    machine.handle(HoldAsked(V1, G1), 1.0)
    machine.check_apply(V1.root, dict(G1))
    with pytest.raises(Refused, match=V1.name):
        machine.check_apply(V2.root, dict(G1))
    with pytest.raises(Refused, match="rank 1"):
        machine.check_apply(V1.root, dict(G2))
    machine.handle(Released(), 2.0)
    with pytest.raises(Refused, match="holds nothing"):
        machine.check_apply(V1.root, dict(G1))


def test_nothing_is_granted_while_it_is_held() -> None:
    """Bytes that are being applied do not change; afterwards they may."""
    machine = held()
    with pytest.raises(Refused, match="committed to"):
        machine.check_grantable()
    assert machine.handle(Released(G2), 10.5) == []  # of a commit before: it came late
    assert machine.state is MemberState.HELD
    assert machine.handle(Released(G1), 11.0) == [LetGo(G1)]
    machine.check_grantable()
    assert machine.handle(Released(), 12.0) == []


def test_a_leader_that_is_not_ready_grants_nothing() -> None:
    """Its engine is being looked at, or refused."""
    machine = following()
    machine.handle(LeaderAnswered(engine(ready=False), 1.0), 1.0)
    with pytest.raises(Refused, match="does not say"):
        machine.check_grantable()


@pytest.mark.parametrize(
    ("said", "asked_at", "free"),
    [
        pytest.param({"busy": True}, 11.0, False, id="the commit runs: kept"),
        pytest.param({"busy": False}, 9.0, False, id="the question was asked before the hold: kept"),
        pytest.param({"busy": False}, 11.0, True, id="no commit runs: the release was lost"),
        pytest.param({"busy": True, "life": "4" * 16}, 11.0, False, id="its next agent may have asked for it"),
        pytest.param({"life": "4" * 16}, 11.0, True, id="its next agent commits nothing: free"),
        pytest.param({"busy": True, "leader": "pod-9"}, 9.0, True, id="another pod leads: free"),
    ],
)
def test_what_no_commit_needs_any_more_is_let_go(said: dict[str, object], asked_at: float, *, free: bool) -> None:
    """A leader that died, or whose release was lost, holds no arena for ever."""
    machine = held()
    actions = machine.handle(LeaderAnswered(engine(**said), asked_at), 11.0)
    assert (LetGo(G1) in actions) is free
    assert machine.state is (MemberState.FOLLOWING if free else MemberState.HELD)


def test_a_commit_anew_holds_its_own_grants_only() -> None:
    """What an earlier one held, whose release was lost, is let go; the same again is kept."""
    machine = held()
    assert machine.handle(HoldAsked(V1, G1), 11.0) == []
    assert machine.handle(HoldAsked(V2, G2), 12.0) == [LetGo(G1)]
    machine.check_apply(V2.root, dict(G2))


@pytest.mark.parametrize(
    ("said", "asked_at", "back"),
    [
        pytest.param({"busy": True}, 11.0, False, id="it is being certified: stays lent"),
        pytest.param({"busy": False}, 9.0, False, id="the question is older than the certificate: stays lent"),
        pytest.param({"life": "4" * 16, "ready": False}, 11.0, False, id="the leader's agent died in it: stays lent"),
        pytest.param({"life": "4" * 16}, 11.0, True, id="its next one does without: taken back"),
        pytest.param({"busy": False}, 11.0, True, id="nothing is certified: taken back"),
    ],
)
def test_what_is_lent_comes_back_once_the_engine_needs_no_certificate(
    said: dict[str, object], asked_at: float, *, back: bool
) -> None:
    """Not before: the copy of its checkpoint may be the last. And no arena stays lent for ever."""
    machine = held()
    assert machine.handle(LendAsked(CERTIFICATE), 10.0) == [LetGo(G1)]
    machine.check_apply(BASE.root, dict(G2))
    with pytest.raises(Refused, match="holds nothing"):
        machine.check_apply(V1.root, dict(G1))
    with pytest.raises(Refused, match="certified"):
        machine.check_grantable()
    actions = machine.handle(LeaderAnswered(engine(**said), asked_at), 11.0)
    assert (TakeBack() in actions) is back
    assert machine.state is (MemberState.FOLLOWING if back else MemberState.LENT)


def test_a_certificate_ends_with_its_arenas_taken_back() -> None:
    """Asked for again it goes on."""
    machine = following()
    assert machine.handle(LendAsked(CERTIFICATE), 1.0) == []
    assert machine.handle(LendAsked(CERTIFICATE), 2.0) == []
    assert machine.handle(Released(), 3.0) == [TakeBack()]
    machine.check_grantable()


def test_a_step_that_comes_late_or_again_destroys_no_copy_of_the_checkpoint() -> None:
    """Each is taken once, in the certificate that runs."""
    machine = following()
    machine.check_certificate(CERTIFICATE, "Lend")
    machine.handle(LendAsked(CERTIFICATE), 1.0)
    for step in ("Fill", "Seal", "Seal"):
        machine.check_certificate(CERTIFICATE, step)
    for certificate, step in ((CERTIFICATE, "Fill"), (CERTIFICATE, "Lend"), ("6" * 16, "Fill"), ("6" * 16, "Seal")):
        with pytest.raises(Refused, match="too late"):
            machine.check_certificate(certificate, step)
    machine.check_certificate(CERTIFICATE, "Return")
    machine.handle(Released(), 2.0)
    for step in ("Lend", "Fill", "Seal", "Return"):
        with pytest.raises(Refused, match="too late"):
            machine.check_certificate(CERTIFICATE, step)


def test_it_tells_the_operator_only_what_is_new() -> None:
    """An answer that says the same changes nothing."""
    machine = following()
    assert machine.handle(LeaderAnswered(engine(), 1.0), 1.0) == []
    assert machine.handle(LeaderAnswered(engine(incarnation="x"), 2.0), 2.0) == [Tell()]
