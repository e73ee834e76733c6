"""A rank that is written to itself: who is let in, and when the last one let in is known to have ended."""

import pytest

from tests.unit.agent.protocol.test_target import B0, B1, G1, G2, LAYOUT, PROGRAM, WRITERS, commit, request
from weightsync.errors import ProtocolError, Refused
from weightsync.wire.v1 import RankCommit
from weightsync_agent.protocol import direct as d
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.fence import OpenGrant

KEYS = tuple(writer.key for writer in WRITERS)
ASK, AGAIN = t.Ask(request(), G1), t.Ask(request("y", 2), G2)
LANDED = t.Landed(G1, (B0, B1), (B0, B1))
CLOSED = (t.LastReceipt(G1, KEYS[0], ""), t.LastReceipt(G1, KEYS[1], ""))
VERIFIED = (ASK, LANDED, *CLOSED)
COMMIT = t.Commit(commit(), 0)


def target(*events: object) -> d.DirectTarget:
    machine = d.DirectTarget(0, LAYOUT, PROGRAM, [(0, 100)])
    for event in events:
        machine.handle(event, 0.0)
    return machine


def test_a_first_grant_is_given_at_once() -> None:
    """Nothing is marked: there is no arena. Whoever drives it has paused the engine before."""
    machine = target()
    assert machine.handle(ASK, 0.0) == [t.GiveGrant(G1)]
    assert machine.state is d.DirectState.OPEN
    assert machine.fresh(ASK).open == set(KEYS)


@pytest.mark.parametrize(
    ("before", "given"),
    [
        pytest.param((ASK,), False, id="while both writers may write nobody else is let in"),
        pytest.param((ASK, CLOSED[0]), False, id="nor while one of them may"),
        pytest.param((ASK, *CLOSED), True, id="once both are terminal the next is let in"),
        pytest.param((ASK, AGAIN, *CLOSED), True, id="also where they end after their grant was void"),
        pytest.param((ASK, AGAIN, d.Gone(G1, KEYS)), True, id="or where they are known to have ended"),
        pytest.param((ASK, AGAIN, d.Gone(G1, KEYS[:1])), False, id="but not where one of them is not"),
        pytest.param((ASK, AGAIN, d.Gone(G1, KEYS[:1]), CLOSED[1]), True, id="one ended and one terminal are both"),
        pytest.param((ASK, d.NewLife()), True, id="to another process nobody was let in"),
        pytest.param((ASK, AGAIN, d.NewLife()), True, id="whoever was waited for before"),
        pytest.param((*VERIFIED, COMMIT), True, id="a version may be written over"),
    ],
)
def test_when_the_next_is_let_in(before: tuple[object, ...], given: bool) -> None:
    """A grant, or its refusal with what is to be found out first."""
    machine = target(*before)
    actions = machine.handle(AGAIN, 0.0)
    if given:
        assert actions == [t.GiveGrant(G2)]
    else:
        drain, refuse = actions
        assert isinstance(drain, d.Drain)
        assert set(drain.writers) <= set(KEYS)
        assert isinstance(refuse, t.RefuseAsk)
        assert machine.state is d.DirectState.DRAINING
        assert machine.verified == {}


def test_a_void_grant_verifies_nothing_more() -> None:
    """Its receipts are refused, but for the last one, which ends the wait."""
    machine = target(ASK, AGAIN)
    with pytest.raises(Refused, match="not open"):
        machine.check_grant(G1, KEYS[0])
    with pytest.raises(ProtocolError):
        machine.handle(LANDED, 0.0)
    assert machine.takes(CLOSED[0])
    assert not machine.takes(d.Gone(G2, KEYS))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        pytest.param((ASK, LANDED), "NotQuiet", id="a writer is not terminal"),
        pytest.param((ASK, LANDED, CLOSED[0]), "NotQuiet", id="one of two is not"),
        pytest.param((ASK, *CLOSED), "NotVerified", id="nothing was read back"),
        pytest.param((ASK, t.Landed(G1, (B0,), (B0,)), *CLOSED), "NotVerified", id="half of it was"),
        pytest.param((ASK, LANDED, *CLOSED, AGAIN), "GrantClosed", id="others were let in since"),
        pytest.param((ASK, LANDED, *CLOSED, d.NewLife()), "GrantClosed", id="it is another process"),
    ],
)
def test_what_is_not_whole_is_not_committed(before: tuple[object, ...], reason: str) -> None:
    """As an arena that is not verified, not quiet or not of this grant is not sealed."""
    with pytest.raises(Refused) as refused:
        target(*before).check_commit(COMMIT.request)
    assert refused.value.reason == reason


def test_a_verified_version_is_whole_and_can_be_committed_again() -> None:
    """The same commit twice, and no other."""
    machine = target(*VERIFIED)
    machine.check_commit(COMMIT.request)
    machine.handle(COMMIT, 0.0)
    assert machine.state is d.DirectState.WHOLE
    machine.check_commit(COMMIT.request)
    assert machine.handle(COMMIT, 0.0) == []
    other = COMMIT.request.model_copy(update={"ranks": (RankCommit(rank=0, grant=G2, program=PROGRAM),)})
    with pytest.raises(Refused, match="not open"):
        machine.check_commit(other)


def test_an_agent_that_comes_back_waits_for_those_that_its_journal_names() -> None:
    """They were let in by an agent before it: as if their grant were void."""
    grant = OpenGrant(G1, 0, "", "", "0" * 16, 0, PROGRAM, frozenset(KEYS), set(KEYS))
    machine = target(d.Restored(grant))
    assert machine.state is d.DirectState.DRAINING
    drain, _ = machine.handle(AGAIN, 0.0)
    assert drain == d.Drain(tuple(sorted(KEYS)))
    machine.handle(d.Gone(G1, KEYS), 0.0)
    assert machine.handle(AGAIN, 0.0) == [t.GiveGrant(G2)]
