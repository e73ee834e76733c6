"""Which route writes through which worker. Pure, no table: one protocol.lane.Lane for each worker.

All routes share one lane, but for targets that stalled when they were written to last: each of those gets a lane of
its own, so that no other route pays for it again. Where a write stalls in a shared lane, the others move to a fresh
one.
"""

from collections.abc import Iterable

from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.lane import Close, Join, Lane, LaneState, Leave, Retire, Strand

SUSPECTS = 256  # that are remembered: pods come and go

Suspect = tuple[str, int]  # a target's pod uid and rank


class Lanes:
    """See the module. shared: the number of the lane for digests and for routes to targets that never stalled."""

    def __init__(self) -> None:
        self.shared = 0
        self.count = 0
        self.lanes: dict[int, Lane] = {0: Lane(0)}
        self.suspects: dict[Suspect, None] = {}

    def place(self, route: s.RouteId, now: float) -> int:
        """The lane that a new route writes through."""
        lane = self._fresh() if (route.target, route.rank) in self.suspects else self.shared
        self.lanes[lane].handle(Join(route), now)
        return lane

    def of(self, route: s.RouteId) -> set[int]:
        """Lanes through which a write of the route may be in flight."""
        return {number for number, lane in self.lanes.items() if route in lane.users}

    def stalled(self, route: s.RouteId, number: int, until: float, now: float) -> list[object]:
        """A write of the route stalled in that lane: nothing new goes through it."""
        self._suspect(route)
        lane = self.lanes.get(number)
        if lane is None:
            return []
        moved = self._moved(lane, lane.users - {route}, now) if lane.state is LaneState.OPEN else []
        return moved + lane.handle(Strand(route, until), now)

    def held(self, number: int, until: float, now: float) -> list[object]:
        """The worker takes no write: its routes go on elsewhere."""
        lane = self.lanes.get(number)
        if lane is None:
            return []
        moved = self._moved(lane, lane.users, now) if lane.state is LaneState.OPEN else []
        return moved + lane.handle(Retire(until), now)

    def moved(self, route: s.RouteId, number: int, now: float) -> list[object]:
        """The route's writes through that lane are terminal."""
        lane = self.lanes.get(number)
        return lane.handle(Leave(route), now) if lane is not None else []

    def over(self, event: s.RouteOver, until: float, now: float) -> tuple[list[object], bool]:
        """The route has ended. Also: whether all its writes are terminal, else the end of a lane frees its arena."""
        if event.verified:
            self.suspects.pop((event.route.target, event.route.rank), None)
        actions: list[object] = []
        for number in event.open:
            if number in self.lanes and event.route not in self.lanes[number].stranded:
                actions += self.stalled(event.route, number, until, now)
        for number in self.of(event.route):
            actions += self.lanes[number].handle(Leave(event.route), now)
            actions += self._close(number, now)
        waits = any(number in self.lanes for number in event.open)
        return actions, not waits

    def dead(self, number: int, now: float) -> tuple[list[object], set[s.RouteId]]:
        """A worker has ended: those that used it go on elsewhere. Also: routes that only waited for this end."""
        lane = self.lanes.pop(number, None)
        if lane is None:
            return [], set()
        was_open = lane.state is LaneState.OPEN
        lane.handle(s.LaneDead(number), now)
        actions = self._moved(lane, lane.users, now) if was_open else []
        waiting = {route for other in self.lanes.values() for route in other.stranded}
        return actions, lane.stranded - waiting

    def tick(self, now: float) -> list[object]:
        """Kill what is due."""
        return [action for lane in list(self.lanes.values()) for action in lane.handle(s.Tick(), now)]

    # --- small ---

    def _fresh(self) -> int:
        self.count += 1
        self.lanes[self.count] = Lane(self.count)
        return self.count

    def _suspect(self, route: s.RouteId) -> None:
        self.suspects[route.target, route.rank] = None
        while len(self.suspects) > SUSPECTS:
            self.suspects.pop(next(iter(self.suspects)))

    def _moved(self, lane: Lane, routes: Iterable[s.RouteId], now: float) -> list[object]:
        """The lane takes no piece any more: its routes go on in a fresh one."""
        going = sorted(routes)
        if not going and lane.number != self.shared:
            return []
        to = self._fresh()
        if lane.number == self.shared:
            self.shared = to
        for route in going:
            self.lanes[to].handle(Join(route), now)
        return [s.MoveRoute(route, to) for route in going]

    def _close(self, number: int, now: float) -> list[object]:
        """A lane of one target's own is of no use after its route."""
        lane = self.lanes[number]
        if number == self.shared or lane.state is not LaneState.OPEN or lane.users:
            return []
        return lane.handle(Close(), now)
