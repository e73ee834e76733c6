"""A target rank: whose bytes may land, and what they are."""

import pytest

from weightsync.digests import BucketDigest, program_root, version_root
from weightsync.errors import ProtocolError, Refused
from weightsync.plan import Strategy
from weightsync.version import Version
from weightsync.wire.v1 import Capabilities, CommitRequest, GrantRequest, RankCommit, WriterId
from weightsync_agent.protocol import target as t

LAYOUT, PROGRAM, G1, G2 = "1" * 32, "2" * 32, "a" * 32, "b" * 32
LINEAGE = "3" * 16
B0 = BucketDigest(offset=0, nbytes=50, digest="4" * 32)
B1 = BucketDigest(offset=50, nbytes=50, digest="5" * 32)
WRITERS = (WriterId(uid="s", rank=0), WriterId(uid="s", rank=1))


def request(sync: str = "x", number: int = 1, program: str = PROGRAM) -> GrantRequest:
    return GrantRequest(
        term=1, coordinator="c", sync=sync, rank=0, layout=LAYOUT, program=program, lineage=LINEAGE, number=number,
        writers=WRITERS, ours=Capabilities(mooncake="1", transport="tcp"),
    )  # fmt: skip


def commit(
    grant: str = G1, number: int = 1, buckets: tuple[BucketDigest, ...] = (B0, B1), **more: str
) -> CommitRequest:
    programs = {PROGRAM: program_root(buckets)}
    root = more.get("root") or version_root(LINEAGE, number, programs)
    return CommitRequest(
        term=1, coordinator="c", sync="x", version=Version(lineage=LINEAGE, number=number, root=root),
        programs=programs, ranks=(RankCommit(rank=0, grant=grant, program=PROGRAM),), strategy=Strategy(),
    )  # fmt: skip


def target(*events: object) -> t.Target:
    machine = t.Target(0, LAYOUT, PROGRAM, [(0, 100)])
    for event in events:
        machine.handle(event, 0.0)
    return machine


ASK = t.Ask(request(), G1)
LANDED = (t.Landed(G1, (B0, B1), (B0, B1)),)
CLOSED = (t.LastReceipt(G1, "s/0", ""), t.LastReceipt(G1, "s/1", ""))
VERIFIED = (ASK, *LANDED, *CLOSED)


def test_a_grant_marks_the_arena_before_it_is_given() -> None:
    """Filling is written first, then the answer."""
    assert target().handle(ASK, 0.0) == [t.WriteFilling(G1), t.GiveGrant(G1)]


def test_a_version_before_the_one_that_was_given_up_is_granted() -> None:
    """A repair after a publish that failed: its number is lower, and the arena is fenced for it as for any other."""
    machine = target(t.Ask(request("c/1/2", number=2), G1))
    assert machine.handle(t.Ask(request("c/1/3", number=1), G2), 0.0)[0] == t.ReplaceWorker()
    machine.handle(t.Fenced(), 0.0)
    assert machine.handle(t.Ask(request("c/1/3", number=1), G2), 0.0) == [t.WriteFilling(G2), t.GiveGrant(G2)]


def test_a_second_grant_waits_for_the_death_of_the_receiver() -> None:
    """A writer of the first is not terminal: the asker is refused until the worker has been replaced."""
    machine = target(ASK)
    replace, refuse = machine.handle(t.Ask(request("y", 2), G2), 0.0)
    assert replace == t.ReplaceWorker()
    assert isinstance(refuse, t.RefuseAsk)
    with pytest.raises(Refused) as caught:
        machine.check_ask(request("y", 2))
    assert caught.value.reason == "Fencing"
    assert machine.handle(t.Fenced(), 0.0) == []
    assert machine.handle(t.Ask(request("y", 2), G2), 0.0) == [t.WriteFilling(G2), t.GiveGrant(G2)]


def test_a_second_grant_needs_no_fence_once_all_writers_are_terminal() -> None:
    """Quiet by receipts alone."""
    assert target(ASK, *CLOSED).handle(t.Ask(request("y", 2), G2), 0.0) == [t.WriteFilling(G2), t.GiveGrant(G2)]


def test_a_failed_fence_gives_no_grant() -> None:
    """Without a new worker the arena is nothing, and nobody's bytes are verified."""
    machine = target(*VERIFIED[:-1], t.Ask(request("y", 2), G2), t.FenceFailed("why"))
    assert machine.state is t.TargetState.EMPTY
    assert machine.missing()


def test_only_equal_digests_verify_a_bucket() -> None:
    """The digest computed here must be the one that the writer claims."""
    other = B1.model_copy(update={"digest": "6" * 32})
    assert target(ASK).handle(t.Landed(G1, (B0, other), (B0, B1)), 0.0) == [t.AnswerReceipt((0,), (50,))]


def test_digests_of_an_older_grant_are_not_taken() -> None:
    """A digest that was computed under another grant raises."""
    with pytest.raises(ProtocolError):
        target(ASK).handle(t.Landed(G2, (B0,), (B0,)), 0.0)


@pytest.mark.parametrize(
    ("events", "asked", "reason"),
    [
        ((ASK, *LANDED, CLOSED[0]), commit(), "NotQuiet"),
        ((ASK, t.Landed(G1, (B0,), (B0,)), *CLOSED), commit(), "NotVerified"),
        (VERIFIED, commit(number=2), "WrongVersion"),
        (VERIFIED, commit(buckets=(B0,)), "DigestMismatch"),
        (VERIFIED, commit(root="7" * 64), "BadRoot"),
        (VERIFIED, commit(grant=G2), "GrantClosed"),
        ((), commit(), "GrantClosed"),
    ],
    ids=[
        "a writer may still write", "a bucket is missing", "the grant was for another version",
        "other bytes were decided", "the root does not follow from its programs", "another grant", "no grant at all",
    ],
)  # fmt: skip
def test_a_commit_is_refused(events: tuple[object, ...], asked: CommitRequest, reason: str) -> None:
    """Nothing is sealed unless every byte is verified, quiet, and what was decided."""
    with pytest.raises(Refused) as caught:
        target(*events).check_commit(asked)
    assert caught.value.reason == reason


def test_a_commit_seals_once_and_is_idempotent() -> None:
    """The second commit of the same version changes nothing and is not refused."""
    machine, asked = target(*VERIFIED), commit()
    machine.check_commit(asked)
    assert machine.handle(t.Commit(asked, 0), 0.0) == [t.Seal(G1, asked.version)]
    machine.check_commit(asked)
    assert machine.handle(t.Commit(asked, 0), 0.0) == []


def test_no_grant_while_somebody_needs_the_bytes() -> None:
    """The commit and the engine's copy each keep it: asked again once both have ended."""
    machine = target(*VERIFIED)
    assert machine.awaits_commit()
    machine.handle(t.Commit(commit(), 0), 0.0)
    assert not machine.awaits_commit()
    for _ in range(2):
        machine.handle(t.Keep(), 0.0)
    for _ in range(2):
        with pytest.raises(Refused, match="being committed"):
            machine.check_ask(request("y", 2))
        assert not machine.takes(t.Pull(commit().version, 1, "g"))
        machine.handle(t.Release(), 0.0)
    machine.check_ask(request("y", 2))


def test_another_program_is_refused_before_anything_is_marked() -> None:
    """The plan is older than the engine: both sides' digests are named."""
    with pytest.raises(Refused, match="9999") as caught:
        target().check_ask(request(program="9" * 32))
    assert caught.value.reason == "LayoutMismatch"


@pytest.mark.parametrize(
    "events", [(), VERIFIED, (*VERIFIED, t.Commit(commit(), 0))], ids=["empty", "filled and quiet", "sealed"]
)
def test_a_quiet_arena_is_lent_and_what_was_in_it_is_forgotten(events: tuple[object, ...]) -> None:
    """No receipt, commit or grant of before counts, nor is another given until it is returned; then it is empty."""
    machine = target(*events)
    assert machine.handle(t.Lend(), 0.0) == []
    assert machine.handle(t.Lend(), 0.0) == []
    with pytest.raises(Refused, match="certified") as caught:
        machine.check_ask(request("y", 2))
    assert (caught.value.reason, caught.value.status) == ("Busy", 503)
    for check in (lambda: machine.check_grant(G1), lambda: machine.check_commit(commit())):
        with pytest.raises(Refused) as caught:
            check()
        assert caught.value.reason == "GrantClosed"
    machine.handle(t.Returned(), 0.0)
    assert (machine.state, machine.verified, machine.version) == (t.TargetState.EMPTY, {}, None)


def test_an_arena_with_an_open_writer_is_lent_after_its_fence_only() -> None:
    """Late bytes would mix with the engine's own checkpoint."""
    machine = target(ASK, *LANDED)
    replace, refuse = machine.handle(t.Lend(), 0.0)
    assert replace == t.ReplaceWorker()
    assert isinstance(refuse, t.RefuseAsk)
    (again,) = machine.handle(t.Lend(), 0.0)
    assert isinstance(again, t.RefuseAsk)
    machine.handle(t.Fenced(), 0.0)
    assert machine.handle(t.Lend(), 0.0) == []
    assert machine.state is t.TargetState.LENT


# --- our own reader ---

V1 = commit().version
PULL = t.Pull(V1, 1, G2)


def pulled(*events: object) -> t.Target:
    return target(PULL, t.Landed(G2, (B0, B1), (B0, B1)), *events)


def test_what_was_pulled_whole_is_sealed_as_what_was_decided() -> None:
    """Once our reader has ended; before, it is not quiet and no commit finds a grant."""
    machine = pulled()
    with pytest.raises(Refused, match="not open"):
        machine.check_commit(commit(G2))
    machine.handle(t.PullEnded(), 0.0)
    machine.check_commit(commit(G2))
    assert machine.handle(t.Commit(commit(G2), 0), 0.0) == [t.Seal(G2, V1)]


def test_nobody_is_granted_an_arena_that_our_reader_fills() -> None:
    """The driver ends the reader first; one that forgot to is refused."""
    machine = pulled()
    with pytest.raises(Refused, match="its own reader") as refused:
        machine.check_ask(request())
    assert refused.value.reason == "Fencing"
    with pytest.raises(ProtocolError):
        machine.handle(ASK, 0.0)
    with pytest.raises(ProtocolError):
        machine.handle(t.Lend(), 0.0)


def test_a_pull_goes_on_with_what_was_verified_of_the_same_version() -> None:
    """From another holder; of another version, or after a grant to writers, it begins anew."""
    machine = target(PULL, t.Landed(G2, (B0,), (B0,)), t.PullEnded())
    machine.handle(t.Pull(V1, 1, G1), 0.0)
    assert machine.verified == {0: B0}
    machine.handle(t.PullEnded(), 0.0)
    machine.handle(t.Pull(commit(number=2).version, 1, G2), 0.0)
    assert machine.verified == {}
    after_a_grant = target(PULL, t.Landed(G2, (B0,), (B0,)), t.PullEnded(), ASK, *CLOSED)
    after_a_grant.handle(t.Pull(V1, 1, G2), 0.0)
    assert after_a_grant.verified == {}


def test_what_our_reader_verifies_is_lent_as_long_as_it_reads_or_has_all() -> None:
    """Whoever waits for more of it is refused once none comes; a new pull lends under another name."""
    machine = target(PULL)
    assert (machine.grows(V1), machine.grows(commit(number=2).version)) == (G2, "")
    assert machine.check_growing(G2, 0) == ()
    machine.handle(t.Landed(G2, (B0,), (B0,)), 0.0)
    assert machine.check_growing(G2, 0) == (B0,)
    assert machine.check_growing(G2, 1) == ()
    machine.handle(t.PullEnded(), 0.0)
    assert machine.grows(V1) == ""
    with pytest.raises(Refused, match="reads no more") as ended:
        machine.check_growing(G2, 1)
    assert ended.value.reason == "NotHeld"
    machine.handle(t.Pull(V1, 1, G1), 0.0)
    assert machine.grows(V1) == G1
    with pytest.raises(Refused, match="not open"):
        machine.check_growing(G2, 0)


@pytest.mark.parametrize(
    "events", [(), (t.Commit(commit(G2), 0),), (t.Commit(commit(G2), 0), t.Keep())],
    ids=["all is there", "it is sealed", "it is applied"],
)  # fmt: skip
def test_what_was_pulled_whole_is_lent_under_the_same_name(events: tuple[object, ...]) -> None:
    """Whoever still reads it reads on."""
    machine = pulled(t.PullEnded(), *events)
    assert machine.grows(V1) == G2
    assert machine.check_growing(G2, 1) == (B1,)


def test_what_a_sync_fills_is_not_lent_to_joiners() -> None:
    """It is not decided yet."""
    assert target(*VERIFIED).grows(V1) == ""


def test_an_unequal_bucket_is_not_verified_by_a_pull() -> None:
    """The holder's arena changed under the read."""
    machine = target(PULL)
    [answer] = machine.handle(t.Landed(G2, (B1,), (B0,)), 0.0)
    assert answer == t.AnswerReceipt((), (0,))
    assert machine.verified == {}


def test_an_arena_that_others_may_write_to_is_pulled_into_only_once_they_are_fenced() -> None:
    """And that only where they were silent for longer than a sync lasts."""
    machine = target(ASK)
    assert not machine.takes(PULL)
    replace, refuse = machine.handle(t.Pull(V1, 1, G2, fence=True), 0.0)
    assert replace == t.ReplaceWorker()
    assert isinstance(refuse, t.RefuseAsk)
    machine.handle(t.Fenced(), 0.0)
    assert machine.handle(PULL, 0.0) == [t.WriteFilling(G2)]


@pytest.mark.parametrize("events", [VERIFIED, (*VERIFIED, t.Commit(commit(), 0))], ids=["filled", "sealed"])
def test_a_quiet_arena_can_be_pulled_into(events: tuple[object, ...]) -> None:
    """What it held is given up."""
    machine = target(*events)
    assert machine.handle(t.Pull(commit(number=2).version, 1, G2), 0.0) == [t.WriteFilling(G2)]
    assert (machine.verified, machine.version) == ({}, None)


def test_the_arena_that_is_pulled_into_stays_the_one() -> None:
    """Two of a rank are never filled at once."""
    arenas = [t.RankArena(t.TargetState.EMPTY), t.RankArena(t.TargetState.PULLING)]
    assert t.choose(arenas, None) == 1
