"""A coordinator's relay: who is fed by whom in a sync, and what becomes of those whose parent is lost."""

from typing import Any, TypeVar

import pytest

from weightsync.announcement import SourceRank, TargetRank
from weightsync.digests import BucketDigest
from weightsync.plan import Engine, Plan, Relay, Route, Source, Strategy, Target, Transfer
from weightsync.wire.v1 import (
    Capabilities,
    CommitAnswer,
    Grant,
    PublishRequest,
    Region,
    RelayEnd,
    RouteEnd,
    ShardDigests,
    Way,
    WriterId,
)
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol.coordinator import Coordinator, CoordinatorState
from weightsync_agent.protocol.gather import Gathered

T = TypeVar("T")
HERE = Capabilities(mooncake="1", transport="tcp")
REGION = Region(session="s", address=1, nbytes=100)
WRITER = WriterId(uid="src", rank=0)
LAYOUT, PROGRAM, LINEAGE = "1" * 32, "2" * 32, "3" * 16
BUCKETS = (BucketDigest(offset=0, nbytes=100, digest="4" * 32),)
NAMES = ("a", "b", "c", "d", "e")


def engine(
    name: str, *, mode: str = "Staged", program: str = PROGRAM, pods: int = 1, near: tuple[str, ...] = ()
) -> Engine:
    routes = (Route(stage=0, source="src", rank=0),)
    targets = tuple(
        Target(
            uid=name if rank == 0 else f"{name}-{rank}", pod=name, address=name,
            rank=TargetRank(rank=rank, layout=LAYOUT, program=program), routes=routes,
        )
        for rank in range(pods)
    )  # fmt: skip
    return Engine.model_validate(
        {
            "name": name, "leader": name, "address": f"{name}:1", "incarnation": "1", "mode": mode, "near": near,
            "targets": targets,
        }
    )  # fmt: skip


def grant_of(name: str, rank: int = 0) -> str:
    return f"{name}{rank}".encode().hex().ljust(32, "0")


class World:
    """A coordinator with a fanout; every engine grants at once."""

    def __init__(self, *engines: Engine, fanout: int = 2, relays: bool = True, **more: Any) -> None:
        self.machine = Coordinator("src", HERE, stall_seconds=5.0)
        self.now, self.asked, self.number, self.relays = 0.0, list[object](), 0, relays
        self.engines = {each.name: each for each in engines}
        transfer = Transfer.model_validate({"relay": Relay(fanout=fanout), **more.pop("transfer", {})})
        ranks = (SourceRank(rank=0, world_size=1, nonce=LINEAGE),)
        self.feed(e.PlanChanged(Plan(
            name="ns/x", term=1, generation=1, coordinator="src", transfer=transfer, strategy=Strategy(**more),
            sources=(Source(uid="src", pod="src", address="src:1", ranks=ranks),), engines=engines,
        )))  # fmt: skip

    def feed(self, *events: object) -> "World":
        for event in events:
            self.asked += self.machine.handle(event, self.now)
        return self

    def of(self, kind: type[T]) -> list[T]:
        """Every action of that kind since the last call."""
        found = [action for action in self.asked if isinstance(action, kind)]
        self.asked = [action for action in self.asked if not isinstance(action, kind)]
        return found

    @property
    def sync(self) -> str:
        assert self.machine.sync is not None
        return self.machine.sync.id

    def begin(self, *, transport: str = "tcp", lending: tuple[str, ...] = ()) -> "World":
        self.number += 1
        request = PublishRequest(writer=WRITER, world_size=1, stage=0, stages=1, nonce=LINEAGE, sequence=self.number)
        programs = frozenset(t.rank.program for each in self.engines.values() for t in each.targets)
        self.feed(e.Published(Gathered(LINEAGE, self.number, "", {0: request}, self.now, programs)))
        way = Way.model_validate({"transport": transport, "region": REGION})
        for each in self.engines.values():
            for target in each.targets:
                grant = Grant(
                    grant=grant_of(each.name, target.rank.rank), region=REGION, theirs=HERE, relays=self.relays,
                    lends=each.name in lending, ways={WRITER.key: way},
                )  # fmt: skip
                self.feed(e.GrantGiven(self.sync, each.key, target, grant))
        return self

    def written(self, *names: str) -> "World":
        for name in names:
            end = RouteEnd(
                term=1, sync=self.sync, writer=WRITER, target=name, rank=0, grant=grant_of(name), verified=True,
                nbytes=100, transport="tcp",
            )  # fmt: skip
            self.feed(e.RouteEnded(end))
        return self

    def failed(self, name: str) -> "World":
        end = RouteEnd(
            term=1, sync=self.sync, writer=WRITER, target=name, rank=0, grant=grant_of(name), verified=False,
            reason="Stalled",
        )  # fmt: skip
        return self.feed(e.RouteEnded(end))

    def relayed(self, *names: str, **end: Any) -> "World":
        for name in names:
            turn = self.machine.sync.members[f"{name}/1"].turn if self.machine.sync else 0
            said = RelayEnd(ended=True, **{"verified": not end, "nbytes": 100, "transport": "tcp", **end})
            self.feed(e.RelayEnded(self.sync, f"{name}/1", turn, said))
        return self

    def shard(self) -> "World":
        for program in {t.rank.program for each in self.engines.values() for t in each.targets}:
            digests = ShardDigests(term=1, sync=self.sync, writer=WRITER, stage=0, program=program, buckets=BUCKETS)
            self.feed(e.ShardFilled(digests))
        return self

    def fed(self) -> dict[str, str]:
        """By engine, who feeds it, as was ordered since the last call."""
        orders = {route.engine: "src" for order in self.of(e.SendOrder) for route in order.order.routes}
        return orders | {relay.engine.name: relay.order.engine for relay in self.of(e.SendRelay)}

    def commit(self) -> "World":
        """Everybody whose commit was sent serves the version."""
        for persist in self.of(e.PersistDecision):
            self.feed(e.DecisionPersisted(persist.sync))
        for sent in self.of(e.SendCommit):
            answer = CommitAnswer(
                version=sent.request.version.name, incarnation="1", pause_seconds=0.1, apply_seconds=0.1
            )
            self.feed(e.CommitDone(sent.request.sync, sent.engine.key, answer))
        return self

    def outcomes(self) -> dict[str, str]:
        [ended] = self.of(e.Outcome)
        return {each.engine: each.reason or each.outcome for each in ended.outcome.engines}


def five(**more: Any) -> World:
    return World(*map(engine, NAMES), **more)


def test_a_tree() -> None:
    """The sources write to as many as the fanout says; the others are told whom to read from, under which grant."""
    world = five().begin()
    [planted] = world.of(e.Planted)
    relays = {relay.engine.name: relay.order for relay in world.asked if isinstance(relay, e.SendRelay)}
    fed = world.fed()
    assert sorted(fed) == list(NAMES)
    assert sum(by == "src" for by in fed.values()) == 2
    assert {
        key.removesuffix("/1"): (parent or "src").removesuffix("/1") for key, parent in planted.tree.items()
    } == fed
    for name, order in relays.items():
        parent = fed[name]
        assert (order.uid, order.address, order.target) == (parent, f"{parent}:1", name)
        assert [(r.rank, r.grant, r.parent) for r in order.ranks] == [(0, grant_of(name), grant_of(parent))]
        assert (order.turn, order.stall_seconds, order.deadline_seconds) == (1, 5.0, 60.0)


def test_to_the_end() -> None:
    """Barrier decides once all have verified, whoever fed them; outcomes say who did."""
    world = five().begin()
    fed = world.fed()
    roots = [name for name, by in fed.items() if by == "src"]
    rest = [name for name in NAMES if name not in roots]
    world.shard().written(*roots).relayed(*rest[:-1])
    assert world.machine.state is CoordinatorState.STAGING
    world.relayed(rest[-1]).commit()
    [ended] = world.of(e.Outcome)
    by = {each.engine: [(r.source, r.engine) for r in each.routes] for each in ended.outcome.engines}
    assert by == {name: [(WRITER.key, "")] if fed[name] == "src" else [("", fed[name])] for name in NAMES}
    assert ended.outcome.nbytes == 500


def test_one_that_lends_to_a_joiner_feeds_nobody() -> None:
    """Whoever it fed before reads from another; without the joiner it would have fed again."""
    world = five().begin()
    first = world.fed()
    feeder = next(by for by in first.values() if by != "src")
    roots = [name for name, by in first.items() if by == "src"]
    world.shard().written(*roots).relayed(*(name for name in NAMES if name not in roots)).commit()
    fed = world.begin(lending=(feeder,)).fed()
    assert sorted(fed) == list(NAMES)
    assert feeder not in fed.values()


def test_the_tree_stays() -> None:
    """The next version goes the same ways."""
    world = five().begin()
    first = world.fed()
    roots = [name for name, by in first.items() if by == "src"]
    world.shard().written(*roots).relayed(*(name for name in NAMES if name not in roots)).commit()
    assert world.begin().fed() == first


@pytest.mark.parametrize(
    ("more", "options"),
    [
        pytest.param({"fanout": 0}, {}, id="a fanout of 0 is no relay"),
        pytest.param({"relays": False}, {}, id="agents of an older release are written to"),
        pytest.param({}, {"transport": "rdma"}, id="where routes take another transport than readers"),
        pytest.param({"transfer": {"protocol": "RDMA"}}, {}, id="where readers may not take their own transport"),
    ],
)
def test_no_relay(more: dict[str, Any], options: dict[str, Any]) -> None:
    """The sources write to all."""
    world = five(**more).begin(**options)
    assert world.fed() == dict.fromkeys(NAMES, "src")
    assert not world.of(e.Planted)


def test_who_cannot_relay() -> None:
    """Engines in Direct mode and of several pods are written to, and feed nobody; layouts have trees of their own."""
    other = "5" * 32
    world = World(
        engine("direct", mode="Direct"), engine("pair", pods=2), *map(engine, ("a", "b", "c")),
        *(engine(name, program=other) for name in ("x", "y")), fanout=1,
    ).begin()  # fmt: skip
    fed = world.fed()
    assert (fed["direct"], fed["pair"]) == ("src", "src")
    chains = {name: by for name, by in fed.items() if by != "src"}
    assert len(chains) == 3
    assert {by for name, by in chains.items() if name in "xy"} <= {"x", "y"}
    assert {by for name, by in chains.items() if name in "abc"} <= {"a", "b", "c"}


def lost(world: World) -> tuple[str, str, list[str]]:
    """A root, another root, and the root's children."""
    fed = world.fed()
    one, other = (name for name, by in fed.items() if by == "src")
    below = [name for name, by in fed.items() if by == one]
    return (one, other, below) if below else (other, one, [name for name, by in fed.items() if by == other])


def test_a_parent_that_is_taken_out() -> None:
    """Its children turn to others at once, with the same grant, and none of them to one that waits for it itself."""
    world = five().begin()
    root, _, below = lost(world)
    grants = {name: grant_of(name) for name in NAMES}
    world.failed(root)
    relays = world.of(e.SendRelay)
    assert sorted(relay.engine.name for relay in relays) == sorted(below)
    for relay in relays:
        assert relay.order.turn == 2
        assert relay.order.engine not in {root, relay.engine.name}
        assert relay.order.ranks[0].grant == grants[relay.engine.name]


def test_a_parent_that_fails_its_child() -> None:
    """The child turns to another; the parent stays in the sync, and is a leaf of the next tree."""
    world = five().begin()
    root, other, below = lost(world)
    world.relayed(below[0], verified=False, lost=True, reason="Stalled", message="it stalled")
    [relay] = world.of(e.SendRelay)
    assert (relay.engine.name, relay.order.turn) == (below[0], 2)
    assert relay.order.engine != root
    rest = [name for name in NAMES if name not in (root, other)]
    world.shard().written(root, other).relayed(*rest).commit()
    assert set(world.outcomes().values()) == {"Current"}
    assert root not in set(world.begin().fed().values())


def test_nobody_is_left() -> None:
    """In a chain whose first is lost nobody can feed the others: they are taken out, and are no suspects for it."""
    world = World(*map(engine, ("a", "b", "c")), fanout=1).begin()
    fed = world.fed()
    [root] = [name for name, by in fed.items() if by == "src"]
    world.failed(root)
    assert not world.of(e.SendRelay)
    voided = {void.request.grant for void in world.of(e.VoidGrant)}
    assert {grant_of(name) for name in fed if name != root} <= voided
    outcomes = world.outcomes()
    assert {outcomes[name] for name in fed if name != root} == {"RelayLost"}
    assert {key.removesuffix("/1") for key in world.machine.suspects} == {root}


def test_who_has_all_of_it_can_feed() -> None:
    """Also below an engine that is lost."""
    world = World(*map(engine, ("a", "b", "c")), fanout=1).begin()
    fed = world.fed()
    [root] = [name for name, by in fed.items() if by == "src"]
    [middle] = [name for name, by in fed.items() if by == root]
    [last] = [name for name, by in fed.items() if by == middle]
    world.shard().relayed(middle).relayed(last, verified=False, lost=True, reason="Stalled")
    assert [relay.order.engine for relay in world.of(e.SendRelay)] == [root]
    world.written(root).relayed(last).commit()
    assert set(world.outcomes().values()) == {"Current"}


def test_an_engine_that_fails_itself() -> None:
    """It is taken out with its own reason, and its grant's writers are known not to write."""
    world = five().begin()
    _, _, below = lost(world)
    world.relayed(below[0], verified=False, reason="GrantClosed", message="replaced")
    assert [void.request.grant for void in world.of(e.VoidGrant)] == [grant_of(below[0])]
    sync = world.machine.sync
    assert sync is not None
    outcome = sync.members[f"{below[0]}/1"].outcome
    assert outcome is not None
    assert (outcome.outcome, outcome.reason) == ("Failed", "GrantClosed")


def test_late_words() -> None:
    """What is told of an earlier parent, or twice, changes nothing."""
    world = five().begin()
    root, _, below = lost(world)
    world.failed(root)
    world.of(e.SendRelay)
    said = RelayEnd(ended=True, verified=True)
    world.feed(e.RelayEnded(world.sync, f"{below[0]}/1", 1, said), e.RelayEnded("other", f"{below[0]}/1", 2, said))
    world.feed(e.RelayEnded(world.sync, "unknown/1", 1, said))
    sync = world.machine.sync
    assert sync is not None
    assert sync.members[f"{below[0]}/1"].pending
    assert not world.of(e.SendRelay)


def test_rolling_relays_on() -> None:
    """An engine that has committed goes on feeding those below it."""
    world = five(type="Rolling", max_unavailable=5).begin()
    root, other, below = lost(world)
    world.shard().commit().written(root).commit()
    assert not world.of(e.SendRelay)
    world.relayed(below[0]).commit()
    rest = [name for name in NAMES if name not in (root, other, below[0])]
    world.written(other).relayed(*rest).commit()
    assert set(world.outcomes().values()) == {"Current"}


def test_a_zone_is_entered_once() -> None:
    """By the engine that others of its zone read from, one after another."""
    zones = {name: zone for zone, names in {"y": "abc", "z": "def"}.items() for name in names}
    fed = World(*(engine(name, near=(zone, name)) for name, zone in zones.items())).begin().fed()
    assert sum(by == "src" or zones[by] != zones[name] for name, by in fed.items()) == 2
