"""Random walks through the source's machines: real Source and Route, everything around them decided by a seed."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.version import Version
from weightsync.wire.v1 import PlannedRoute, Region, SyncOrder
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.replica import ReplicaState
from weightsync_agent.protocol.source import Source, SourceState

PROGRAMS = ("a" * 32, "b" * 32)
LINEAGE, OTHER, D = "1" * 16, "2" * 16, "0" * 32
BUCKETS = (Bucket(offset=0, nbytes=10), Bucket(offset=10, nbytes=10))
DIGESTS = tuple(BucketDigest(offset=b.offset, nbytes=b.nbytes, digest=D) for b in BUCKETS)
STALL, DEADLINE = 5.0, 30.0


@dataclass
class Write:
    """One bucket that Mooncake has, or may have."""

    route: s.RouteId
    lane: int
    replica: s.ReplicaId
    offset: int
    stuck: bool = False


@dataclass
class Running:
    """A route and what its runner knows."""

    machine: r.Route
    replica: s.ReplicaId
    lane: int
    broke: bool = False
    stalled: set[int] = field(default_factory=set)
    last: bool = False


@dataclass
class Publish:
    """One call of publish()."""

    id: str
    programs: tuple[str, ...]
    filled: set[str] = field(default_factory=set)
    left: list[tuple[str, Bucket]] = field(default_factory=list)
    number: int = 0
    copied: bool = False
    over: bool = False
    settled: bool = False


class Walk:
    """A source between a Publisher and a coordinator that do anything that they may."""

    def __init__(self, seed: int, arenas: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - a walk, no secret
        self.source = Source("rank 0", arenas)
        self.now = 0.0
        self.publishes: list[Publish] = []
        self.routes: dict[s.RouteId, Running] = {}
        self.writes: list[Write] = []
        self.killed: set[int] = set()
        self.dead: set[int] = set()
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.started: set[s.RouteId] = set()
        self.orders: list[s.Ordered] = []
        self.sealed: dict[s.ReplicaId, str] = {}
        self.made: set[s.ReplicaId] = set()  # arenas that are there
        self.syncs = 0
        self.number = 0
        self.comparing: list[s.Compare] = []
        found = tuple(
            s.FoundReplica(s.ReplicaId(program, 0), Version(lineage=OTHER, number=7, root="0" * 64), turn, DIGESTS)
            for program, turn in zip(PROGRAMS, self.dice.choice([(3, 3), (3, 2)]), strict=True)
        )
        if self.dice.random() < 0.5:
            self.sealed = {each.replica: each.version.name for each in found if each.turn == 3}
            self.made = {each.replica for each in found}
            self.feed(s.Found(found))

    # --- the source's actions ---

    def feed(self, event: object) -> None:
        queue = [event]
        while queue:
            for action in self.source.handle(queue.pop(0), self.now):
                queue += self.do(action)

    def do(self, action: object) -> list[object]:  # noqa: C901 - a case for each action
        match action:
            case s.Fill(publish, replica) if replica not in self.made and self.dice.random() < 0.1:
                return [s.NoRoom(publish, replica, "m")]
            case s.Fill(publish, replica):
                self.made.add(replica)
                reading = [w for w in self.writes if w.replica == replica and w.lane not in self.dead]
                assert not reading, f"{replica} is filled while {reading} read it"
                self.sealed.pop(replica, None)
                found = next(p for p in self.publishes if p.id == publish)
                if found.over:
                    return []  # given up while its arena was on the way
                found.filled.add(replica.program)
                found.left += [(replica.program, bucket) for bucket in BUCKETS]
                return [s.Cut(publish, replica.program, BUCKETS)]
            case s.Seal(replica, version):
                self.sealed[replica] = version.name
            case s.Empty(replica) | s.Remove(replica):
                self.made -= {replica} if isinstance(action, s.Remove) else set()
                assert not isinstance(action, s.Remove) or not self.reads(replica)
                self.sealed.pop(replica, None)
            case s.TakeOrder(sync) | s.RefuseOrder(sync):
                self.answered[sync] = self.asked[sync]
            case s.StartRoute(route, planned, _, replica, lane):
                assert route not in self.started, "a route starts once"
                self.started.add(route)
                self.routes[route] = Running(r.Route(planned), replica, lane)
            case s.FeedRoute(route, event) if route in self.routes:
                return self.tell(route, event)
            case s.MoveRoute(route, lane) if route in self.routes:
                return self.move(route, lane)
            case s.KillLane(lane):
                assert lane not in self.killed, "killed once"
                self.killed.add(lane)
            case s.Compare():
                self.comparing.append(action)
            case s.Abandon(publish):
                next(p for p in self.publishes if p.id == publish).over = True
        return []

    def reads(self, replica: s.ReplicaId) -> bool:
        return any(w.replica == replica and w.lane not in self.dead for w in self.writes)

    # --- routes ---

    def tell(self, id_: s.RouteId, event: object) -> list[object]:
        running = self.routes[id_]
        events: list[object] = []
        for action in running.machine.handle(event, self.now):
            match action:
                case r.Write(buckets):
                    self.writes += [Write(id_, running.lane, running.replica, b.offset) for b in buckets]
                case r.StopWriting():
                    running.broke = True
                case r.Receipt(_, True, _):
                    assert not [w for w in self.writes if w.route == id_], "the last receipt while a write may land"
                    running.last = True
                case r.End(verified, _, _, _):
                    del self.routes[id_]
                    open_ = {w.lane for w in self.writes if w.route == id_ and w.lane not in self.dead}
                    return [*events, s.RouteOver(id_, verified, tuple(sorted(open_)))]
        return events

    def move(self, id_: s.RouteId, lane: int) -> list[object]:
        running = self.routes[id_]
        old, running.lane = running.lane, lane
        if running.broke:
            return []
        back = [
            w for w in self.writes if w.route == id_ and w.lane == old and not w.stuck and self.dice.random() < 0.5
        ]
        self.writes = [w for w in self.writes if w not in back]
        events: list[object] = []
        if not any(w.route == id_ and w.lane == old for w in self.writes):
            events.append(s.RouteMoved(id_, old))
        if back:
            events += self.tell(id_, r.Unsent(tuple(w.offset for w in back)))
        return events

    def finish(self, write: Write) -> None:
        """A write becomes terminal."""
        self.writes.remove(write)
        running = self.routes.get(write.route)
        if running is None:
            return
        if write.lane != running.lane and not any(
            w.route == write.route and w.lane == write.lane for w in self.writes
        ):
            self.feed(s.RouteMoved(write.route, write.lane))
        if write.route in self.routes:
            for event in self.tell(write.route, r.Written((write.offset,))):
                self.feed(event)

    def stall(self, write: Write) -> None:
        running = self.routes.get(write.route)
        if running is None or write.lane in self.dead:
            return
        write.stuck = True
        running.broke = True
        self.feed(s.RouteStalled(write.route, write.lane))
        if write.route in self.routes:
            for event in self.tell(write.route, r.WriteBroke(False, "Stalled", "m")):
                self.feed(event)

    # --- what may happen ---

    def step(self) -> None:
        self.now += self.dice.random()
        choices = [
            self.begin, self.fill, self.fill, self.copy, self.name, self.settle, self.order, self.order_again,
            self.end, self.write, self.write, self.write, self.check, self.check, self.stall_some, self.die, self.die,
            self.breaks, self.tick, self.decide, self.hold, self.compare, self.repair,
        ]  # fmt: skip
        self.dice.choice(choices)()

    def begin(self) -> None:
        if self.publishes and not (self.publishes[-1].copied or self.publishes[-1].over):
            return
        programs = tuple(self.dice.sample(PROGRAMS, self.dice.choice([1, 2])))
        self.publishes.append(Publish(f"p{len(self.publishes)}", programs))
        self.feed(s.Begin(self.publishes[-1].id, programs))

    def some(self, *, named: bool = False) -> Publish | None:
        found = [p for p in self.publishes if not p.over and (p.number or not named)]
        return self.dice.choice(found) if found else None

    def fill(self) -> None:
        publish = self.publishes[-1] if self.publishes else None
        if publish is None or publish.over or not publish.left:
            return
        program, bucket = publish.left.pop(0)
        self.feed(
            s.Digested(publish.id, program, (BucketDigest(offset=bucket.offset, nbytes=bucket.nbytes, digest=D),))
        )

    def copy(self) -> None:
        publish = self.publishes[-1] if self.publishes else None
        if publish and not publish.over and not publish.left and publish.filled == set(publish.programs):
            publish.copied = True
            self.feed(s.Copied(publish.id))

    def name(self) -> None:
        publish = self.some()
        if publish and not publish.number and publish.filled == set(publish.programs):
            self.number += 1
            publish.number = self.number
            self.feed(s.Named(publish.id, LINEAGE, publish.number))

    def version(self, publish: Publish) -> Version | None:
        """Decided mostly where its bytes are whole here; else those of another program are."""
        chance = self.dice.random()
        if not publish.number or chance < 0.3 or (not self.whole(publish) and chance < 0.9):
            return None
        return Version(lineage=LINEAGE, number=publish.number, root="0" * 64)

    def whole(self, publish: Publish) -> bool:
        return bool(publish.number) and not publish.left and publish.filled == set(publish.programs)

    def hold(self) -> None:
        """A worker's first contact does not end."""
        if self.dice.random() < 0.3:
            self.feed(s.LaneHeld(self.dice.choice(list(self.source.lanes.lanes))))

    def compare(self) -> None:
        if self.comparing:
            asked = self.comparing.pop()
            self.feed(s.Compared(asked.replica, self.dice.random() < 0.8))

    def repair(self) -> None:
        """An order for what a former life sealed."""
        self.send(s.Ordered(self.order_of(OTHER, 7, PROGRAMS[:1]), "c"))

    def settle(self) -> None:
        publish = self.some(named=True)
        if publish and not publish.settled:
            publish.settled = True
            self.feed(s.Settled(publish.id, self.version(publish)))

    def decide(self) -> None:
        publish = self.some(named=True)
        if publish and (version := self.version(publish)):
            self.feed(s.Decided(version))

    def order(self) -> None:
        publish = self.some()
        if publish is None:
            return
        number = publish.number or self.number + 1
        order = self.order_of(LINEAGE, number, tuple(sorted(publish.programs)))
        self.send(s.Ordered(order, self.dice.choice(["c", "c", "c", "d", ""])))

    def order_of(self, lineage: str, number: int, programs: tuple[str, ...]) -> SyncOrder:
        self.syncs += 1
        region = Region(session="t:1", address=0, nbytes=20)
        routes = tuple(
            PlannedRoute(
                engine="e", target=f"t{i}", rank=0, address="a", program=self.dice.choice(programs), layout=D,
                grant=D, region=region,
            )
            for i in range(self.dice.choice([1, 2, 3]))
        )  # fmt: skip
        return SyncOrder(
            sync=f"s{self.syncs}", term=1 if self.dice.random() < 0.98 else 2, lineage=lineage, number=number,
            bucket_size=4096, deadline_seconds=DEADLINE, stall_seconds=STALL, programs=programs, routes=routes,
        )  # fmt: skip

    def send(self, ordered: s.Ordered) -> None:
        self.orders.append(ordered)
        self.asked[ordered.order.sync] += 1
        self.feed(ordered)

    def order_again(self) -> None:
        if self.orders:
            self.send(self.dice.choice(self.orders[-4:]))

    def end(self) -> None:
        if not self.orders:
            return
        ordered = self.dice.choice(self.orders[-3:])
        publish = next((p for p in self.publishes if p.number == ordered.order.number), None)
        version = self.version(publish) if publish and not publish.over and not publish.settled else None
        self.feed(s.Ended(ordered.order.sync, ordered.order.term, ordered.coordinator, version))

    def write(self) -> None:
        able = [w for w in self.writes if not w.stuck and w.lane not in self.dead]
        if able:
            self.finish(self.dice.choice(able))

    def check(self) -> None:
        """The target answers what it was asked."""
        for id_, running in list(self.routes.items()):
            if id_ not in self.routes or self.dice.random() < 0.3:
                continue
            checking = tuple(running.machine.checking)
            unequal = tuple(o for o in checking if self.dice.random() < 0.1)
            equal = tuple(o for o in checking if o not in unequal)
            if checking or running.last:
                for event in self.tell(id_, r.Checked(equal, unequal)):
                    self.feed(event)

    def stall_some(self) -> None:
        able = [w for w in self.writes if not w.stuck and w.lane not in self.dead]
        if able and self.dice.random() < 0.5:
            self.stall(self.dice.choice(able))

    def die(self) -> None:
        """A killed worker ends; at times another does."""
        alive = self.killed - self.dead
        if not alive and self.dice.random() < 0.1:
            alive = {self.source.lanes.shared}
        for lane in sorted(alive):
            self.dead.add(lane)
            broken = {w.route for w in self.writes if w.lane == lane}
            self.writes = [w for w in self.writes if w.lane != lane]
            self.feed(s.LaneDead(lane))
            for route in sorted(broken):
                if route in self.routes:
                    self.routes[route].broke = True
                    others = [w for w in self.writes if w.route == route]
                    self.writes = [w for w in self.writes if w.route != route]
                    assert all(w.lane != lane for w in others)
                    for event in self.tell(route, r.WriteBroke(False, "WorkerDied", "m")):
                        self.feed(event)

    def breaks(self) -> None:
        publish = self.publishes[-1] if self.publishes else None
        if publish and not publish.over and self.dice.random() < (0.02 if publish.copied else 0.2):
            publish.over = True
            publish.left.clear()
            self.feed(s.Broken(publish.id, "Wrong", "m"))

    def tick(self) -> None:
        self.now += self.dice.choice([0.1, 3.0, 10.0])
        self.feed(s.Tick())

    # --- the end ---

    def rest(self) -> None:
        """Faults cease: everything that was begun comes to its end."""
        for _ in range(60):
            self.now += 10.0
            self.feed(s.Tick())
            for write in list(self.writes):
                if write in self.writes and write.lane not in self.dead and not write.stuck:
                    self.finish(write)
            self.die()
            self.check()
            self.compare()
            for publish in self.publishes:
                if not publish.over and publish.number and not publish.settled:
                    publish.settled = True
                    self.feed(s.Settled(publish.id, None))
            self.fill()
            self.copy()
            self.name()


@pytest.mark.parametrize("arenas", [1, 2], ids=["one arena", "two arenas"])
@pytest.mark.parametrize("block", range(4))
def test_no_arena_is_filled_while_it_is_read_and_everything_ends(arenas: int, block: int) -> None:
    """Whatever the order of events: the walk's own asserts hold, all orders are answered, all publishes served."""
    for seed in range(block * 40, block * 40 + 40):
        walk = Walk(seed, arenas)
        for _ in range(250):
            walk.step()
        walk.rest()
        unanswered = [sync for sync in walk.asked if not walk.answered[sync]]
        assert not unanswered, (seed, unanswered)
        assert walk.source.state is SourceState.IDLE, seed
        assert not walk.routes, seed
        served = [p.filled == set(p.programs) for p in walk.publishes if not p.over]
        assert all(served), seed
        held = {r.id: r.name for r in walk.source.shelf.all() if r.state is ReplicaState.SEALED}
        assert held == walk.sealed, seed
