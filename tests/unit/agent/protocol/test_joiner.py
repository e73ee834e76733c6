"""A join by pull: what is read, from whom, and when it is given up."""

from typing import Any

import pytest

from weightsync.digests import BucketDigest, program_root, version_root
from weightsync.errors import ProtocolError
from weightsync.version import Version
from weightsync.wire.v1 import Decided, HeldRank, Lease, Region
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol.holders import MOST_BEHIND, Offer
from weightsync_agent.protocol.joiner import JoinerState as S

PROGRAM, LINEAGE = "2" * 32, "3" * 16
BUCKETS = (BucketDigest(offset=0, nbytes=50, digest="4" * 32), BucketDigest(offset=50, nbytes=50, digest="5" * 32))
ROOTS = {PROGRAM: program_root(BUCKETS)}


def decided(number: int = 1, term: int = 1, **change: Any) -> Decided:
    root = version_root(LINEAGE, number, ROOTS)
    return Decided(**{"version": Version(lineage=LINEAGE, number=number, root=root), "term": term, "programs": ROOTS,
                      **change})  # fmt: skip


def offer(uid: str = "h", holds: Decided | None = None, **more: int) -> Offer:
    return Offer(uid, f"{uid}:1", holds or decided(), **{"most": 2, **more})


def lease(holds: Decided | None = None, buckets: tuple[BucketDigest, ...] = BUCKETS, rank: int = 0) -> Lease:
    region = Region(session="s", address=0, nbytes=100)
    held = HeldRank(rank=rank, program=PROGRAM, region=region, buckets=buckets)
    return Lease(uid="h", decided=holds or decided(), seconds=9.0, ranks=(held,))


def joiner(*events: object, own: Decided | None = None) -> j.Joiner:
    machine = j.Joiner("me")
    machine.programs = {0: PROGRAM}
    for event in events:
        machine.handle(event, 0.0)
    return machine


NEEDS = j.Needs(None, sealed=False)
ASKED = j.Asked((offer(),), decided(), answered=True)
LEASING = (NEEDS, ASKED)
PULLING = (*LEASING, j.Leased(lease()))
APPLYING = (*PULLING, j.Pulled())
ALONE = j.Asked((), decided(), answered=True)


def test_a_join_from_need_to_served() -> None:
    """It asks, is let in, reads, applies; it hopes all the way, and needs nothing afterwards."""
    machine = joiner()
    assert not machine.hopes
    assert machine.handle(NEEDS, 0.0) == [j.Seek()]
    assert machine.handle(ASKED, 0.0) == [j.AskLease(offer(), decided())]
    assert machine.handle(j.Leased(lease()), 0.0) == [j.BeginPull(offer(), lease())]
    assert machine.hopes
    assert machine.handle(j.Pulled(), 0.0) == [j.Apply(decided())]
    assert machine.handle(j.Applied(), 0.0) == []
    assert (machine.state, machine.hopes) == (S.IDLE, False)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param(j.Asked((offer(),), None, answered=True), "nothing is known", id="nothing was ever decided"),
        pytest.param(ALONE, f"no engine holds {LINEAGE}.1", id="no engine has it"),
        pytest.param(j.Asked((), None, answered=False), "may follow", id="nobody answers"),
        pytest.param(
            j.Asked((offer(),), decided(term=8), answered=True, limit=7), "of term 8", id="a term that never began"
        ),
        pytest.param(j.AskFailed("no plan"), "no plan", id="nobody is known"),
    ],
)  # fmt: skip
def test_where_nobody_has_it_the_sources_are_let_write(asked: object, words: str) -> None:
    """It rests, hopes for nothing, says why, and asks again later, each time after a longer while."""
    machine = joiner(NEEDS)
    [told] = machine.handle(asked, 0.0)
    assert isinstance(told, j.Told)
    assert words in told.message
    assert (machine.state, machine.hopes) == (S.RESTING, False)
    assert machine.handle(NEEDS, 0.1) == []
    assert machine.handle(NEEDS, 0.3) == [j.Seek()]
    machine.handle(asked, 0.3)
    assert machine.again_at - 0.3 > 0.2


def test_an_offer_of_a_term_that_never_began_is_none() -> None:
    """Whoever makes up a term is not read from."""
    machine = joiner(NEEDS, j.Asked((offer(holds=decided(term=9)),), None, answered=False, limit=7))
    assert machine.state is S.RESTING


def test_what_it_had_changed_so_it_asks_at_once() -> None:
    """A commit that failed left a version sealed here: no reason to wait."""
    machine = joiner(NEEDS, ALONE)
    assert machine.handle(j.Needs(decided(), sealed=True), 0.0) == [j.Seek()]


def test_what_lies_sealed_here_is_applied_without_a_read() -> None:
    """Where it is the newest; else the newer one is read."""
    has = j.Needs(decided(), sealed=True)
    assert joiner(has).handle(ASKED, 0.0) == [j.Apply(decided())]
    newer = j.Asked((offer(holds=decided(2)),), decided(2), answered=True)
    assert joiner(has).handle(newer, 0.0) == [j.AskLease(offer(holds=decided(2)), decided(2))]


OTHERS = (BUCKETS[0], BucketDigest(offset=50, nbytes=50, digest="6" * 32))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        pytest.param(lease(decided(2)), "it lends", id="another version"),
        pytest.param(lease(decided(programs={PROGRAM: "7" * 64})), "does not follow", id="roots of another version"),
        pytest.param(lease(rank=1), "its ranks are others", id="other ranks"),
        pytest.param(lease(buckets=OTHERS), "not those that were decided", id="digests of other bytes"),
        pytest.param(lease(buckets=BUCKETS[:1]), "not those that were decided", id="a bucket less"),
    ],
)
def test_a_holder_that_says_something_else_is_not_read_from(wrong: Lease, words: str) -> None:
    """Before a byte is read: the digests must make the root that was decided. Its place is free again, and the next
    one is asked."""
    machine = joiner(NEEDS, j.Asked((offer(), offer("i")), decided(), answered=True))
    first = machine.offer
    assert first is not None
    assert words in machine.wrong(wrong)
    back, asked = machine.handle(j.Leased(wrong), 0.0)
    assert back == j.GiveBack(first)
    assert isinstance(asked, j.AskLease)
    assert machine.wrong(lease()) == ""


def test_the_next_holder_is_asked_where_one_refuses_or_breaks() -> None:
    """In their order; after the last it rests."""
    both = j.Asked((offer("h"), offer("i", readers=1)), decided(), answered=True)
    machine = joiner(NEEDS, both)
    assert machine.handle(j.NotLeased("gone"), 0.0) == [j.AskLease(offer("i", readers=1), decided())]
    machine.handle(j.Leased(lease()), 0.0)
    told = machine.handle(j.PullBroke("i: stalled"), 0.0)
    assert told[0] == j.Told("i: stalled")
    assert (machine.state, machine.hopes) == (S.RESTING, False)


def test_whoever_waits_for_a_place_still_hopes() -> None:
    """All holders lend to others just now: no reason for the sources to write; it asks again soon."""
    machine = joiner(*LEASING)
    machine.handle(j.NotLeased("full", busy=True), 0.0)
    assert (machine.state, machine.hopes, machine.failures) == (S.RESTING, True, 0)
    assert machine.handle(NEEDS, j.BUSY_SECONDS) == [j.Seek()]
    machine.handle(ALONE, j.BUSY_SECONDS)
    assert not machine.hopes


def test_of_many_full_holders_it_asks_a_few_and_then_waits() -> None:
    """One after another sixty would have been asked, by each of a thousand. One that refuses is no full one."""
    offers = tuple(offer(f"h{n}", readers=2) for n in range(20))
    machine = joiner(NEEDS, j.Asked(offers, decided(), answered=True))
    for _ in range(j.FULL_ASKED - 1):
        [action] = machine.handle(j.NotLeased("full", busy=True), 0.0)
        assert isinstance(action, j.AskLease)
        [action] = machine.handle(j.NotLeased("not held here"), 0.0)
        assert isinstance(action, j.AskLease)
    machine.handle(j.NotLeased("full", busy=True), 0.0)
    assert (machine.state, machine.hopes, machine.waits) == (S.RESTING, True, 1)
    assert machine.handle(NEEDS, 10.0) == [j.Seek()]
    machine.handle(j.Asked(offers, decided(), answered=True), 10.0)
    [action] = machine.handle(j.NotLeased("full", busy=True), 10.0)
    assert isinstance(action, j.AskLease)


def test_while_a_sync_begins_it_waits_a_moment() -> None:
    """Until it is known whose links that takes; not for ever, and not where nobody could be asked."""
    begins = j.Asked((offer(),), decided(), answered=True, begins=True)
    machine, now = joiner(NEEDS), 0.0
    for _ in range(j.BEGIN_WAITS):
        assert isinstance(machine.handle(begins, now)[0], j.Told)
        assert (machine.state, machine.hopes, machine.again_at <= now + j.BUSY_SECONDS) == (S.RESTING, True, True)
        now = machine.again_at
        machine.handle(NEEDS, now)
    assert machine.handle(begins, now) == [j.AskLease(offer(), decided())]
    nobody = joiner(NEEDS, j.Asked((), decided(), answered=True, begins=True))
    assert (nobody.state, nobody.hopes) == (S.RESTING, False)


def behind(count: int) -> Lease:
    return lease().model_copy(update={"behind": count})


def test_what_is_read_is_lent_while_it_is_read_and_until_it_is_served() -> None:
    """Its lease says what will be there, and how far behind a whole one it is."""
    machine = joiner(*LEASING)
    assert machine.grows is None
    machine.handle(j.Leased(behind(2)), 0.0)
    assert machine.grows == behind(2)
    machine.handle(j.Pulled(), 0.0)
    assert machine.grows == behind(2)
    machine.handle(j.NotApplied("torn"), 0.0)
    assert machine.grows is None
    broken = joiner(*LEASING, j.Leased(behind(2)), j.PullBroke("stalled"))
    assert broken.grows is None


def test_with_a_holder_that_reads_itself_all_behind_it_break_and_ask_again_soon() -> None:
    """Those of the round before that are too far behind by now take no place from others; nobody need write to it."""
    deep = j.Asked((offer("h", behind=1), offer("i", behind=2)), decided(), answered=True)
    machine = joiner(NEEDS, deep, j.Leased(behind(1)))
    told = machine.handle(j.PullBroke("h: gone"), 0.0)
    assert not any(isinstance(each, j.AskLease) for each in told)
    assert (machine.state, machine.hopes) == (S.RESTING, True)
    whole = joiner(NEEDS, j.Asked((offer("h"),), decided(), answered=True), j.Leased(behind(0)), j.PullBroke("bad"))
    assert (whole.state, whole.hopes) == (S.RESTING, False)


def test_it_turns_to_nobody_who_is_as_far_behind_as_it_was_itself() -> None:
    """That one may wait for it. A version that it had read nothing of begins anew."""
    machine = joiner(*LEASING, j.Leased(behind(1)), j.PullBroke("stalled"))
    offers = (offer("h", behind=2), offer("i", behind=1))
    machine.handle(NEEDS, 9.0)
    assert machine.handle(j.Asked(offers, decided(), answered=True), 9.0) == [j.AskLease(offers[1], decided())]
    assert "2 engines behind" in machine.wrong(behind(2))
    machine.handle(j.NotLeased("gone"), 9.0)
    newer = tuple(offer(each.uid, decided(2), behind=each.behind) for each in offers)
    machine.handle(NEEDS, 99.0)
    [asked] = machine.handle(j.Asked(newer, decided(2), answered=True), 99.0)
    assert (asked, machine.below) == (j.AskLease(newer[1], decided(2)), MOST_BEHIND)


@pytest.mark.parametrize(
    ("waited", "longest"), [(0.0, 0.5), (5.0, 0.5), (12.0, 1.2), (40.0, 4.0), (10_000.0, 4.0)], ids=str
)
def test_whoever_waits_long_asks_less_often(waited: float, longest: float) -> None:
    """And not in step with the others: between half of that and all of it."""
    pauses = {j.busy_pause(f"reader-{n}", 3, waited) for n in range(100)}
    assert len(pauses) == 100
    assert longest / 2 <= min(pauses) < 0.55 * longest
    assert 0.95 * longest < max(pauses) <= longest


def test_the_pause_grows_with_the_time_that_was_waited() -> None:
    """From the first round that found all busy, however many rounds those were."""
    machine = joiner(*LEASING)
    for now, most in ((100.0, 0.5), (120.0, 2.0), (400.0, 4.0)):
        machine.handle(j.NotLeased("full", busy=True), now)
        assert most / 2 <= machine.again_at - now <= most
        machine.handle(NEEDS, now + most)
        machine.handle(LEASING[-1], now + most)


def test_a_place_that_was_found_ends_the_waiting() -> None:
    """The next time that all are busy is the first again."""
    machine = joiner(*LEASING)
    for round_ in range(6):
        machine.handle(j.NotLeased("full", busy=True), 0.0)
        assert machine.waits == round_ + 1
        machine.handle(NEEDS, 100.0)
        machine.handle(LEASING[-1], 100.0)
    machine.handle(j.Leased(lease()), 100.0)
    assert (machine.state, machine.waits) == (S.PULLING, 0)


@pytest.mark.parametrize(
    "events", [(NEEDS,), LEASING, PULLING, (NEEDS, ALONE)], ids=["seeking", "leasing", "pulling", "resting"]
)
def test_a_sync_that_comes_ends_what_reads(events: tuple[object, ...]) -> None:
    """Wherever it stands."""
    machine = joiner(*events)
    assert machine.handle(j.NeedsNothing("a sync"), 0.0) == [j.StopPull(), j.Told("a sync")]
    assert (machine.state, machine.hopes) == (S.IDLE, False)


def test_what_is_being_applied_is_not_ended() -> None:
    """Nothing reads any more, and the commit tells its end; an idle one has nothing to end."""
    machine = joiner(*APPLYING)
    assert machine.handle(j.NeedsNothing("a sync"), 0.0) == []
    assert machine.state is S.APPLYING
    assert joiner().handle(j.NeedsNothing("a sync"), 0.0) == []


def test_a_version_that_could_not_be_applied_is_no_hope() -> None:
    """The coordinator may repair the engine meanwhile."""
    machine = joiner(*APPLYING)
    assert machine.handle(j.NotApplied("torn"), 0.0) == [j.Told("torn")]
    assert (machine.state, machine.hopes) == (S.RESTING, False)


@pytest.mark.parametrize(
    "events", [(NEEDS,), LEASING, PULLING, APPLYING], ids=["seeking", "leasing", "pulling", "applying"]
)
def test_a_need_that_is_told_again_changes_nothing(events: tuple[object, ...]) -> None:
    """It is on its way."""
    machine = joiner(*events)
    state = machine.state
    assert machine.handle(NEEDS, 99.0) == []
    assert machine.state is state


def test_what_was_not_asked_for_is_refused() -> None:
    """An answer without a question is a driver's bug."""
    with pytest.raises(ProtocolError):
        joiner().handle(j.Pulled(), 0.0)
