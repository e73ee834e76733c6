"""One source rank: fills replicas with what the Publisher publishes, writes them where the coordinator orders.

Couples the machines of source_events.py's names: replica.py (one per arena, kept by shelf.py), lane.py (one per
transfer worker, kept by lanes.py) and route.py (one per route; run by whoever drives this machine). This table holds
the order; everything else that can happen is taken in every state. Guarantees:

- Orders. One at a time: a newer one ends the older, whose routes become terminal first. An order of an older term,
  or of a second coordinator in one term, is refused (StaleTerm, TermHeld) and changes nothing; so is an Ended. An
  order that comes twice starts once; one that comes after its Ended never starts. Until the version's name is known
  here the order waits, at most its stall_seconds; then NotFilled. RefuseOrder means: not a byte was written.
- Bytes. No arena is filled anew before every write that reads it is terminal or its worker is dead (replica.py).
- Sealing. A decided version's replicas are sealed by whichever comes first of Decided, Settled with it, and Ended
  with it; the last sealed one is filled anew only where no other arena is free.
- copied(). With two arenas a Fill waits for nothing but the decision on the version before the last one; with one,
  a Begin ends the repair that reads it. What a target does holds a Fill for one stall timeout at most.
- Stalls. A write that stalls ends its own route only: the others go on in a fresh lane (lane.py, lanes.py).

Events, in source_events.py: Found, once at start; Begin, NoRoom, Cut, Digested, Copied, Broken, Named, Decided and
Settled of publishes; Ordered and Ended of the coordinator; RouteStalled, RouteMoved (both before its RouteOver),
RouteOver, LaneHeld and LaneDead of what runs; Tick after Wake. Actions there too: perform them in their order, all
before the next event is handled. The answer to an order (TakeOrder, RefuseOrder) may come with a later event.
"""

from dataclasses import dataclass, field
from enum import Enum

from weightsync.version import version_name
from weightsync.wire.v1 import SyncOrder
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.admission import Admission
from weightsync_agent.protocol.fence import Fence
from weightsync_agent.protocol.lanes import Lanes
from weightsync_agent.protocol.replica import Replica, ReplicaState
from weightsync_agent.protocol.route import AllFilled, Cancel, Filled
from weightsync_agent.protocol.shelf import Shelf
from weightsync_agent.protocol.table import Guard, Machine, Row

GRACE = 5.0  # seconds after an order's deadline until its routes are given up


class SourceState(Enum):
    """What becomes of orders."""

    IDLE = "no route runs"
    WAITING = "an order waits until its version's name is known here, or found bytes have been compared"
    RUNNING = "an order's routes run"
    ENDING = "an order's routes were given up, and are waited for; a newer order may wait behind them"


@dataclass
class Running:
    """The order whose routes run. live: which replica each route that has not ended reads."""

    order: SyncOrder
    live: dict[s.RouteId, Replica] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)  # programs
    until: float = 0.0


@dataclass
class Pending:
    """An order that is not answered yet."""

    order: SyncOrder
    until: float | None = None  # None: its wait has not begun, since an older one's routes still end

    @property
    def name(self) -> str:
        """The version that it is about."""
        return version_name(self.order.lineage, self.order.number)


class Source(Machine[SourceState]):
    """See the module. rank: for messages; arenas: how many each program gets; fence: as a former life left it.

    Whoever drives it keeps ``admission.fence`` on disk, before an answer goes out, wherever an event raised it.
    """

    def __init__(self, rank: str, arenas: int, fence: Fence | None = None) -> None:
        super().__init__(SourceState.IDLE)
        self.rank = rank
        self.shelf = Shelf(arenas)
        self.lanes = Lanes()
        self.admission = Admission(rank, fence or Fence())
        self.running: Running | None = None
        self.pending: Pending | None = None

    # --- taking an order ---

    def _refuse_order(self, event: s.Ordered, now: float) -> list[object]:
        return [s.RefuseOrder(event.order.sync, *self.admission.why(event))]

    def _again(self, event: s.Ordered, now: float) -> list[object]:
        return [s.TakeOrder(event.order.sync)]

    def _after_end(self, event: s.Ordered, now: float) -> list[object]:
        return [s.RefuseOrder(event.order.sync, "OrderOver", f"{self.rank}: that sync has ended")]

    def _order(self, event: s.Ordered, now: float) -> list[object]:
        """Take it up; an older one is ended, or refused where it still waits."""
        self.admission.enter(event)
        newer = f"sync {event.order.sync} came"
        actions = self._drop_pending("Superseded", newer)
        self.pending = Pending(event.order)
        if self.running is not None:
            return actions + self._cancel("Superseded", newer)
        return actions + self._place(now)

    def _drop_pending(self, reason: str, message: str) -> list[object]:
        pending, self.pending = self.pending, None
        if pending is None:
            return []
        self.admission.end(pending.order.sync)
        return [s.RefuseOrder(pending.order.sync, reason, f"{self.rank}: {message}")]

    def _place(self, now: float) -> list[object]:
        """Start the pending order, if its bytes have a name; else it waits, or is refused."""
        self.state = SourceState.IDLE
        pending = self.pending
        if pending is None:
            return []
        order = pending.order
        wrong = _wrong(order)
        if wrong:
            return self._drop_pending("InvalidOrder", wrong)
        trouble = self.shelf.trouble(pending.name) or self._needed(order, pending.name)
        found = {program: self.shelf.find(program, pending.name) for program in order.programs}
        replicas = {program: replica for program, replica in found.items() if replica is not None}
        if not trouble and len(replicas) == len(found):
            return self._start(order, replicas, now)
        pending.until = now + order.stall_seconds if pending.until is None else pending.until
        if trouble or now >= pending.until or not self.shelf.may_come(pending.name):
            lacking = next((program for program, replica in found.items() if replica is None), "(any)")
            never = f" and never will: {trouble}" if trouble else ""
            return self._drop_pending("NotFilled", f"has no {pending.name} of program {lacking}{never}")
        self.state = SourceState.WAITING
        return [s.Wake(pending.until)]

    def _needed(self, order: SyncOrder, name: str) -> str:
        """A publish waits for an arena that this repair would read."""
        held = [self.shelf.find(program, name) for program in self.shelf.starving & set(order.programs)]
        sealed = any(replica is not None and replica.state is ReplicaState.SEALED for replica in held)
        return "its arena is about to be filled with a newer version" if sealed else ""

    def _start(self, order: SyncOrder, replicas: dict[str, Replica], now: float) -> list[object]:
        self.pending = None
        self.admission.take(order.sync)
        running = Running(order, until=now + order.deadline_seconds + GRACE)
        actions: list[object] = [s.TakeOrder(order.sync)]
        for planned in order.routes:
            route = s.RouteId(order.sync, planned.target, planned.rank)
            replica = running.live[route] = replicas[planned.program]
            replica.readers.add(route)
            actions.append(s.StartRoute(route, planned, order, replica.id, self.lanes.place(route, now)))
            if replica.digests:
                actions.append(s.FeedRoute(route, Filled(replica.ordered_bytes)))
        self.running = running
        for replica in replicas.values():
            actions += self._report(replica)
        self.state = SourceState.RUNNING if running.live else SourceState.IDLE
        self.running = running if running.live else None
        return [*actions, s.Wake(running.until)]

    def _report(self, replica: Replica) -> list[object]:
        """The shard is whole: its routes learn it, and the coordinator gets the digests, once."""
        running, program = self.running, replica.id.program
        if running is None or not replica.complete or program in running.reported:
            return []
        if replica not in running.live.values():
            return []  # of a later publish: this order's version is in another replica, or never asked for here
        running.reported.add(program)
        order = running.order
        complete: list[object] = [s.FeedRoute(r, AllFilled()) for r, read in running.live.items() if read is replica]
        return [*complete, s.ReportShard(order.sync, order.term, program, replica.ordered_bytes)]

    # --- ending one ---

    def _cancel(self, reason: str, why: str) -> list[object]:
        """Give up the routes that have not ended; they are waited for."""
        if self.running is None:
            return []
        self.state = SourceState.ENDING
        message = f"{self.rank}, sync {self.running.order.sync}: {why}"
        return [s.FeedRoute(route, Cancel(reason, message)) for route in self.running.live]

    def _refuse_end(self, event: s.Ended, now: float) -> list[object]:
        return [s.RefuseEnd(event.sync, *self.admission.why(event))]

    def _end(self, event: s.Ended, now: float) -> list[object]:
        """Whatever of that sync runs or waits is given up; its bytes have a name now, or never will."""
        self.admission.enter(event)
        self.admission.end(event.sync)
        actions: list[object] = []
        if self.pending is not None and event.sync == self.pending.order.sync:
            actions += self._drop_pending("OrderOver", "that sync has ended")
        elif self.pending is not None and self.pending.order.term < self.admission.fence.term:
            actions += self._drop_pending("StaleTerm", f"term {self.admission.fence.term} has begun")
        if event.version is not None:
            actions += self.shelf.tell(self.shelf.all(), s.Decided(event.version), now)
        if self.state is SourceState.WAITING and self.pending is None:
            self.state = SourceState.IDLE
        running = self.running
        if self.state is SourceState.RUNNING and running is not None:
            if event.sync == running.order.sync:
                actions += self._cancel("Superseded", "the sync has ended")
            elif running.order.term < self.admission.fence.term:
                actions += self._cancel("StaleTerm", f"term {self.admission.fence.term} has begun")
        return actions + self._serve(now)

    # --- routes and lanes ---

    def live(self, event: s.RouteStalled | s.RouteMoved | s.RouteOver) -> bool:
        """The route runs, and has not ended."""
        return self.running is not None and event.route in self.running.live

    def _until(self, now: float) -> float:
        return now + (self.running.order.stall_seconds if self.running is not None else 0.0)

    def _stalled(self, event: s.RouteStalled, now: float) -> list[object]:
        return self.lanes.stalled(event.route, event.lane, self._until(now), now)

    def _held(self, event: s.LaneHeld, now: float) -> list[object]:
        return self.lanes.held(event.lane, self._until(now), now)

    def _moved(self, event: s.RouteMoved, now: float) -> list[object]:
        return self.lanes.moved(event.route, event.lane, now)

    def _over(self, event: s.RouteOver, now: float) -> list[object]:
        actions, free = self.lanes.over(event, self._until(now), now)
        if self.running is not None:
            self.running.live.pop(event.route)
            if free:
                self.shelf.release([event.route])
            if not self.running.live:
                self.running = None
                actions += self._place(now)
        return actions + self._serve(now)

    def _dead(self, event: s.LaneDead, now: float) -> list[object]:
        actions, waiting = self.lanes.dead(event.lane, now)
        live = self.running.live if self.running is not None else {}
        self.shelf.release(route for route in waiting if route not in live)
        return actions + self._serve(now)

    def _tick(self, event: s.Tick, now: float) -> list[object]:
        actions = self.lanes.tick(now)
        if self.state is SourceState.WAITING:
            return actions + self._place(now)
        if self.state is SourceState.RUNNING and self.running is not None and now >= self.running.until:
            actions += self._cancel("DeadlineExceeded", "not ended in time")
        return actions

    # --- publishes ---

    def _recover(self, event: s.Found, now: float) -> list[object]:
        return self.shelf.recover(event.replicas, now)

    def _begin(self, event: s.Begin, now: float) -> list[object]:
        self.shelf.begin(event)
        return self._serve(now)

    def _no_room(self, event: s.NoRoom, now: float) -> list[object]:
        return self.shelf.no_room(event, now) + self._serve(now)

    def _cut(self, event: s.Cut, now: float) -> list[object]:
        uncut = [r for r in self.shelf.owned(event.publish, event.program) if r.buckets is None]
        actions = self.shelf.tell(uncut, event, now)  # told twice: it was cut before, and may be full by now
        return actions + self._grown(event.publish, event.program)

    def _digested(self, event: s.Digested, now: float) -> list[object]:
        actions = self.shelf.tell(self.shelf.owned(event.publish, event.program), event, now)
        return actions + self._grown(event.publish, event.program, event)

    def _grown(self, publish: str, program: str, digested: s.Digested | None = None) -> list[object]:
        """More of a replica is known: routes that read it write it."""
        running, actions = self.running, list[object]()
        if running is None or self.state is not SourceState.RUNNING:
            return []
        for replica in self.shelf.owned(publish, program):
            known = {bucket.offset: bucket for bucket in digested.buckets} if digested is not None else {}
            new = Filled(tuple(b for b in replica.ordered_bytes if known.get(b.offset) == b))
            routes = [route for route, read in running.live.items() if read is replica and new.buckets]
            actions += [s.FeedRoute(route, new) for route in routes]
            actions += self._report(replica)
        return actions

    def lacks(self, publish: str) -> str:
        """A program of which the publish has buckets that were never filled; "" where all are."""
        owned = self.shelf.owned(publish)
        return next((r.id.program for r in owned if r.state is ReplicaState.FILLING and not r.complete), "")

    def _copied(self, event: s.Copied, now: float) -> list[object]:
        return self.shelf.tell(self.shelf.owned(event.publish), event, now) + self._serve(now)

    def _broken(self, event: s.Broken, now: float) -> list[object]:
        """Its replicas hold no version.

        Routes that read one go on until the coordinator, which is told why, ends them: their failure would be taken
        for their engines'.
        """
        actions = self.shelf.broken(event, now)
        if self.state is SourceState.WAITING:
            actions += self._place(now)
        return actions + self._serve(now)

    def _named(self, event: s.Named, now: float) -> list[object]:
        self.shelf.named(event, now)
        return self._place(now) if self.state is SourceState.WAITING else []

    def _decided(self, event: s.Decided, now: float) -> list[object]:
        return self.shelf.tell(self.shelf.all(), event, now) + self._serve(now)

    def _settled(self, event: s.Settled, now: float) -> list[object]:
        actions = self.shelf.settled(event, now)
        if self.state is SourceState.WAITING:
            actions += self._place(now)
        return actions + self._serve(now)

    def _compared(self, event: s.Compared, now: float) -> list[object]:
        held = [r for r in self.shelf.replicas.get(event.replica.program, []) if r.id == event.replica]
        actions = self.shelf.tell(held, event, now)
        if self.state is SourceState.WAITING:
            actions += self._place(now)
        return actions + self._serve(now)

    def _serve(self, now: float) -> list[object]:
        """Fills for publishes that wait. With no arena free, a repair that reads a sealed one ends for them."""
        actions = self.shelf.serve(now)
        starving = self.shelf.starving
        if self.state is SourceState.RUNNING and self.running is not None:
            read = self.running.live.values()
            if any(r.id.program in starving and r.state is ReplicaState.SEALED for r in read):
                actions += self._cancel("Superseded", "publish() needs the arena that this repair reads")
        return actions


def _wrong(order: SyncOrder) -> str:
    """Why this is no order; "" where it is one."""
    alien = [route.program for route in order.routes if route.program not in order.programs]
    if alien:
        return f"a route of program {alien[0]}, which the order does not name"
    targets = {(route.target, route.rank) for route in order.routes}
    return "" if len(targets) == len(order.routes) else "two routes to one rank of one target"


_S = SourceState


def _stale(machine: Source, event: s.Ordered | s.Ended) -> bool:
    return machine.admission.stale(event)


def _second(machine: Source, event: s.Ordered | s.Ended) -> bool:
    return machine.admission.second(event)


_WAITS = (
    Row(
        None,
        None,
        lambda m, e: m.pending is not None and m.pending.order.sync == e.order.sync,
        "told again: it waits",
    ),
)


def _ordered(*may: SourceState, waits: tuple[Row, ...] = ()) -> tuple[Row, ...]:
    return (
        Row(None, Source._refuse_order, _stale, "a term that is over"),
        Row(None, Source._refuse_order, _second, "a second coordinator in one term"),
        Row(None, Source._again, lambda m, e: e.order.sync in m.admission.taken, "told again: it started once"),
        *waits,
        Row(None, Source._after_end, lambda m, e: m.admission.ended(e.order.sync), "it ended before"),
        Row(None, Source._order, name="take it up", may=may),
    )


def _ended(*may: SourceState) -> tuple[Row, ...]:
    return (
        Row(None, Source._refuse_end, _stale, "a term that is over"),
        Row(None, Source._refuse_end, _second, "a second coordinator in one term"),
        Row(None, Source._end, name="end it; seal what was decided", may=may),
    )


_EVERYWHERE = (
    (s.Begin, Source._begin, "arenas for a publish"),
    (s.NoRoom, Source._no_room, "another arena must go, or the publish"),
    (s.Cut, Source._cut, "its buckets"),
    (s.Digested, Source._digested, "write what is full"),
    (s.Copied, Source._copied, "all is full"),
    (s.Broken, Source._broken, "no version"),
    (s.Named, Source._named, "the version's name"),
    (s.Decided, Source._decided, "seal it"),
    (s.Settled, Source._settled, "its outcome"),
    (s.Compared, Source._compared, "found bytes are the version, or nothing"),
    (s.LaneHeld, Source._held, "a worker takes no write"),
    (s.LaneDead, Source._dead, "a worker has ended"),
    (s.Tick, Source._tick, "what is due"),
)
_GUARDS: dict[type, Guard] = {
    s.Begin: lambda m, e: e.publish not in m.shelf.publishes,
    s.Copied: lambda m, e: not m.lacks(e.publish),
}
_MAY = {
    _S.IDLE: (),
    _S.WAITING: (_S.IDLE, _S.RUNNING),
    _S.RUNNING: (_S.ENDING,),
    _S.ENDING: (),
}

Source.table = {
    (_S.IDLE, s.Found): (
        Row(
            _S.IDLE,
            Source._recover,
            lambda m, e: not m.shelf.publishes and not m.shelf.all(),
            "what outlived the agent",
        ),
    ),
    **{
        (state, event): (Row(None, do, _GUARDS.get(event), name, _MAY[state]),)
        for state in _S
        for event, do, name in _EVERYWHERE
    },
    (_S.IDLE, s.Ordered): _ordered(_S.WAITING, _S.RUNNING),
    (_S.WAITING, s.Ordered): _ordered(_S.IDLE, _S.RUNNING, waits=_WAITS),
    (_S.RUNNING, s.Ordered): _ordered(_S.ENDING),
    (_S.ENDING, s.Ordered): _ordered(waits=_WAITS),
    (_S.IDLE, s.Ended): _ended(),
    (_S.WAITING, s.Ended): _ended(_S.IDLE),
    (_S.RUNNING, s.Ended): _ended(_S.ENDING),
    (_S.ENDING, s.Ended): _ended(),
    **{
        (state, s.RouteStalled): (Row(None, Source._stalled, Source.live, "its lane takes no new piece"),)
        for state in (_S.RUNNING, _S.ENDING)
    },
    **{
        (state, s.RouteMoved): (Row(None, Source._moved, Source.live, "a lane has one user less"),)
        for state in (_S.RUNNING, _S.ENDING)
    },
    (_S.RUNNING, s.RouteOver): (Row(None, Source._over, Source.live, "a route has ended", (_S.IDLE, _S.ENDING)),),
    (_S.ENDING, s.RouteOver): (
        Row(None, Source._over, Source.live, "a route has ended", (_S.IDLE, _S.WAITING, _S.RUNNING)),
    ),
}
