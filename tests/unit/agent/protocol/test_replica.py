"""A replica: who may fill it, when it is sealed, and what is late."""

import pytest

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import ProtocolError
from weightsync.version import Version
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.replica import Recover, Replica, ReplicaState, Take, choose

PROGRAM, D = "a" * 32, "0" * 32
ID = s.ReplicaId(PROGRAM, 0)
BUCKETS = (Bucket(offset=0, nbytes=10), Bucket(offset=10, nbytes=10))
B0, B1 = (BucketDigest(offset=b.offset, nbytes=b.nbytes, digest=D) for b in BUCKETS)
V1 = Version(lineage="1" * 16, number=1, root="0" * 64)
V2 = V1.model_copy(update={"number": 2})
ROUTE = s.RouteId("s", "t", 0)

TAKE = Take("p", 1)
CUT = s.Cut("p", PROGRAM, BUCKETS)
HALF = s.Digested("p", PROGRAM, (B0,))
WHOLE = s.Digested("p", PROGRAM, (B0, B1))
NAMED = s.Named("p", V1.lineage, V1.number)
COPIED = s.Copied("p")
BROKEN = s.Broken("p", "Wrong", "m")
UNDECIDED = s.Settled("p", None)
SETTLED = s.Settled("p", V1)
DECIDED, OTHER = s.Decided(V1), s.Decided(V2)
FOUND = s.FoundReplica(ID, V1, 7, (B0, B1))
EQUAL, UNEQUAL = s.Compared(ID, True), s.Compared(ID, False)

TO: dict[ReplicaState, tuple[object, ...]] = {
    ReplicaState.EMPTY: (),
    ReplicaState.FILLING: (TAKE, CUT, NAMED),
    ReplicaState.FILLED: (TAKE, CUT, NAMED, WHOLE, COPIED),
    ReplicaState.SPENT: (TAKE, CUT, NAMED, WHOLE, COPIED, UNDECIDED),
    ReplicaState.FOUND: (Recover(FOUND, True),),
    ReplicaState.SEALED: (TAKE, CUT, NAMED, WHOLE, COPIED, DECIDED),
}
SEAL = s.Seal(ID, V1, 1, (B0, B1))


def walk(*events: object) -> tuple[Replica, list[object]]:
    """All actions of the last event."""
    replica, actions = Replica(ID), []
    for event in events:
        actions = replica.handle(event, 0.0)
    return replica, actions


S = ReplicaState
ROWS: list[tuple[ReplicaState, object, ReplicaState, list[object]]] = [
    (S.EMPTY, TAKE, S.FILLING, []),
    (S.EMPTY, DECIDED, S.EMPTY, []),
    (S.EMPTY, EQUAL, S.EMPTY, []),
    (S.EMPTY, Recover(FOUND, True), S.FOUND, [s.Compare(ID, V1, (B0, B1))]),
    (S.EMPTY, Recover(FOUND, False), S.SPENT, []),
    (S.FILLING, s.Cut("p", PROGRAM, BUCKETS[:1]), S.FILLING, []),
    (S.FILLING, HALF, S.FILLING, []),
    (S.FILLING, NAMED, S.FILLING, []),
    (S.FILLING, BROKEN, S.EMPTY, [s.Empty(ID)]),
    (S.FILLING, UNDECIDED, S.FILLING, []),
    (S.FILLING, SETTLED, S.FILLING, []),
    (S.FILLING, DECIDED, S.FILLING, []),
    (S.FILLING, OTHER, S.FILLING, []),
    (S.FILLING, EQUAL, S.FILLING, []),
    (S.FILLED, NAMED, S.FILLED, []),
    (S.FILLED, DECIDED, S.SEALED, [SEAL]),
    (S.FILLED, OTHER, S.FILLED, []),
    (S.FILLED, SETTLED, S.SEALED, [SEAL]),
    (S.FILLED, UNDECIDED, S.SPENT, []),
    (S.FILLED, BROKEN, S.EMPTY, [s.Empty(ID)]),
    (S.FILLED, COPIED, S.FILLED, []),
    (S.FILLED, EQUAL, S.FILLED, []),
    (S.SPENT, TAKE, S.FILLING, []),
    (S.SPENT, DECIDED, S.SEALED, [SEAL]),
    (S.SPENT, OTHER, S.SPENT, []),
    (S.SPENT, BROKEN, S.EMPTY, [s.Empty(ID)]),
    (S.SPENT, COPIED, S.SPENT, []),
    (S.SPENT, EQUAL, S.SPENT, []),
    (S.FOUND, TAKE, S.FILLING, []),
    (S.FOUND, EQUAL, S.SEALED, []),
    (S.FOUND, UNEQUAL, S.EMPTY, [s.Empty(ID)]),
    (S.FOUND, DECIDED, S.FOUND, []),
    (S.SEALED, TAKE, S.FILLING, []),
    (S.SEALED, BROKEN, S.SEALED, []),
    (S.SEALED, SETTLED, S.SEALED, []),
    (S.SEALED, OTHER, S.SEALED, []),
    (S.SEALED, COPIED, S.SEALED, []),
    (S.SEALED, UNEQUAL, S.SEALED, []),
]


@pytest.mark.parametrize(
    ("state", "event", "to", "actions"),
    ROWS,
    ids=[
        f"{state.name} takes {type(event).__name__} to {to.name} {i}" for i, (state, event, to, _) in enumerate(ROWS)
    ],
)
def test_each_row(state: ReplicaState, event: object, to: ReplicaState, actions: list[object]) -> None:
    """State, event: next state and actions."""
    replica, _ = walk(*TO[state])
    assert replica.state is state
    assert replica.handle(event, 0.0) == actions
    assert replica.state is to


@pytest.mark.parametrize("state", [S.EMPTY, S.SPENT, S.FOUND, S.SEALED], ids=lambda state: state.name)
def test_what_is_read_is_not_filled(state: ReplicaState) -> None:
    """A reader: Take raises and changes nothing."""
    replica, _ = walk(*TO[state])
    replica.readers.add(ROUTE)
    assert not replica.free
    with pytest.raises(ProtocolError):
        replica.handle(TAKE, 0.0)
    assert replica.state is state


@pytest.mark.parametrize("state", [S.FILLING, S.FILLED], ids=lambda state: state.name)
def test_what_is_awaited_is_not_filled(state: ReplicaState) -> None:
    """Its publish fills it, or its order may still come."""
    replica, _ = walk(*TO[state])
    assert not replica.free
    with pytest.raises(ProtocolError):
        replica.handle(TAKE, 0.0)


@pytest.mark.parametrize(
    ("events", "to"),
    [
        ((WHOLE, DECIDED), S.SEALED),
        ((WHOLE, SETTLED), S.SEALED),
        ((DECIDED, WHOLE, COPIED), S.SEALED),
        ((SETTLED, WHOLE, COPIED), S.SEALED),
        ((UNDECIDED, WHOLE, COPIED), S.SPENT),
        ((UNDECIDED, WHOLE, COPIED, DECIDED), S.SEALED),
        ((DECIDED, UNDECIDED, WHOLE, COPIED), S.SEALED),
        ((WHOLE, COPIED), S.FILLED),
    ],
    ids=[
        "whole, then decided", "whole, then its outcome", "decided, then whole", "outcome, then whole",
        "ended undecided, then whole", "and decided after all", "decided, then an outcome that does not say so",
        "whole only",
    ],
)  # fmt: skip
def test_sealed_once_decided_and_whole_in_any_order(events: tuple[object, ...], to: ReplicaState) -> None:
    """Whichever is known last seals it, once."""
    replica, actions = walk(*TO[S.FILLING], *events)
    assert replica.state is to
    assert (actions == [SEAL]) is (to is S.SEALED)


@pytest.mark.parametrize("events", [(), (HALF,)], ids=["nothing is filled", "one bucket is not"])
def test_copied_needs_all_buckets(events: tuple[object, ...]) -> None:
    """Copied before all is digested raises and changes nothing."""
    replica, _ = walk(*TO[S.FILLING], *events)
    with pytest.raises(ProtocolError):
        replica.handle(COPIED, 0.0)
    assert replica.state is S.FILLING


def test_unknown_buckets_are_none() -> None:
    """What is no bucket of the cut is not counted."""
    replica, _ = walk(*TO[S.FILLING])
    replica.handle(s.Digested("p", PROGRAM, (BucketDigest(offset=5, nbytes=5, digest=D), B1)), 0.0)
    assert replica.ordered_bytes == (B1,)
    assert not replica.complete


def test_a_fill_begins_with_nothing_of_the_version_before() -> None:
    """Name, digests, decision: all of the former publish."""
    replica, _ = walk(*TO[S.SEALED], Take("q", 2, "x.2"))
    assert (replica.owner, replica.turn, replica.name) == ("q", 2, "x.2")
    assert (replica.buckets, replica.digests, replica.version, replica.settled) == (None, {}, None, False)
    assert walk(*TO[S.SEALED], BROKEN)[0].name == V1.name
    assert walk(*TO[S.FILLED], BROKEN)[0].name == ""


def test_an_older_find_is_nothing_that_can_be_ordered() -> None:
    """It was never compared: no name, no digests."""
    replica, _ = walk(Recover(FOUND, False))
    assert (replica.name, replica.digests, replica.turn, replica.kept) == ("", {}, 7, False)


def made(state: ReplicaState, index: int, turn: int = 1, *, read: bool = False) -> Replica:
    replica, _ = walk(*TO[state])
    replica.id, replica.turn = s.ReplicaId(PROGRAM, index), turn
    replica.readers = {ROUTE} if read else set()
    return replica


@pytest.mark.parametrize(
    ("held", "count", "chosen"),
    [
        ([], 2, "fresh 0"),
        ([made(S.SEALED, 0)], 2, "fresh 1"),
        ([made(S.SEALED, 1)], 2, "fresh 0"),
        ([made(S.SEALED, 0)], 1, "0"),
        ([made(S.SEALED, 0, 1), made(S.SPENT, 1, 2)], 2, "1"),
        ([made(S.SEALED, 0, 2), made(S.SEALED, 1, 1)], 2, "1"),
        ([made(S.FOUND, 0, 1), made(S.EMPTY, 1, 2)], 2, "1"),
        ([made(S.SPENT, 0, 2), made(S.SPENT, 1, 1)], 2, "1"),
        ([made(S.SPENT, 0)], 2, "0"),
        ([made(S.SEALED, 0, read=True), made(S.FILLED, 1)], 2, "none"),
        ([made(S.FILLING, 0), made(S.FILLED, 1)], 2, "none"),
        ([made(S.SEALED, 0, 1), made(S.FILLED, 1)], 2, "0"),
        ([made(S.SPENT, 0, 1, read=True), made(S.SEALED, 1, 2)], 2, "1"),
    ],
    ids=[
        "the first one is made", "what is sealed is kept while another can be made", "the index that is not taken",
        "the only one, sealed", "what nobody needs, before what is sealed", "of two sealed the older",
        "what is empty, before what is being compared", "of two spent the older", "a spent one before a fresh one",
        "sealed and read, the other awaited", "both belong to publishes", "sealed, for the other is on the wire",
        "sealed, for the other is read",
    ],
)  # fmt: skip
def test_which_is_filled_next(held: list[Replica], count: int, chosen: str) -> None:
    """What repairs read is taken last."""
    found = choose(held, count)
    said = f"fresh {found}" if isinstance(found, int) else "none" if found is None else str(found.id.index)
    assert said == chosen
