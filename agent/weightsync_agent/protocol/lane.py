"""One lane of a source: a transfer worker, as the machines see it. Rules:

- Mooncake takes an engine-wide lock in its first contact with a peer, and a path that broke stays broken: so a
  worker through which a write stalled gets no new piece, and another one takes its place;
- it is killed as soon as the writes of all routes but the stalled ones are terminal, one stall timeout after the
  stall at the latest: only its end makes the arenas that the stalled writes read free;
- a kill says nothing of the targets' side: bytes of writes that were not terminal may land later, which is why
  their routes send no last receipt.
"""

from dataclasses import dataclass
from enum import Enum

from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.table import Machine, Row


class LaneState(Enum):
    """What its worker is used for."""

    OPEN = "routes write through it"
    RETIRED = "a write stalled: no new piece goes through it, and those in flight are waited for"
    KILLED = "its process was told to end, and has not yet"
    DEAD = "its process has ended: it reads no arena"


@dataclass(frozen=True)
class Join:
    """Event: a route writes through it from now on."""

    route: s.RouteId


@dataclass(frozen=True)
class Leave:
    """Event: all writes of the route through it are terminal, and it starts no other."""

    route: s.RouteId


@dataclass(frozen=True)
class Strand:
    """Event: a write of the route has stalled, or its end is not known. until: when to kill at the latest."""

    route: s.RouteId
    until: float


@dataclass(frozen=True)
class Retire:
    """Event: it takes no write any more. until: when to kill at the latest."""

    until: float


@dataclass(frozen=True)
class Close:
    """Event: nobody will write through it any more."""


class Lane(Machine[LaneState]):
    """See the module's rules. users: routes that may have writes in flight; stranded: those that wait for its end."""

    def __init__(self, number: int) -> None:
        super().__init__(LaneState.OPEN)
        self.number = number
        self.users: set[s.RouteId] = set()
        self.stranded: set[s.RouteId] = set()
        self.until = 0.0

    def _join(self, event: Join, now: float) -> None:
        self.users.add(event.route)

    def _leave(self, event: Leave, now: float) -> None:
        self.users.discard(event.route)

    def _leave_last(self, event: Leave, now: float) -> list[object]:
        self._leave(event, now)
        return [s.KillLane(self.number)]

    def _strand(self, event: Strand, now: float) -> list[object]:
        self.users.discard(event.route)
        self.stranded.add(event.route)
        if self.state is LaneState.OPEN:
            self.until = event.until
        if not self.users:
            self.state = LaneState.KILLED
            return [s.KillLane(self.number)]
        self.state = LaneState.RETIRED
        return [s.Wake(self.until)]

    def _retire(self, event: Retire, now: float) -> list[object]:
        self.until = event.until
        return [s.Wake(self.until)]

    def _expire(self, event: s.Tick, now: float) -> list[object]:
        if now < self.until:
            return []
        self.state = LaneState.KILLED
        return [s.KillLane(self.number)]

    def _kill(self, event: object, now: float) -> list[object]:
        return [s.KillLane(self.number)]


_S = LaneState


def _last(machine: Lane, event: Leave) -> bool:
    return machine.users <= {event.route}


Lane.table = {
    (_S.OPEN, Join): (Row(_S.OPEN, Lane._join, name="a route writes"),),
    (_S.OPEN, Leave): (Row(_S.OPEN, Lane._leave, name="a route's writes are terminal"),),
    (_S.OPEN, Strand): (
        Row(None, Lane._strand, name="a write stalled: nothing new goes through it", may=(_S.RETIRED, _S.KILLED)),
    ),
    (_S.OPEN, s.Tick): (Row(_S.OPEN, name="in use"),),
    (_S.OPEN, Retire): (
        Row(_S.RETIRED, Lane._retire, lambda m, e: bool(m.users), "held in a first contact"),
        Row(_S.KILLED, Lane._kill, name="held, and used by nobody"),
    ),
    (_S.OPEN, Close): (Row(_S.KILLED, Lane._kill, lambda m, e: not m.users, "nobody needs it"),),
    (_S.OPEN, s.LaneDead): (Row(_S.DEAD, name="its process has ended by itself"),),
    (_S.RETIRED, Leave): (
        Row(_S.KILLED, Lane._leave_last, _last, "only stalled writes are left: kill"),
        Row(_S.RETIRED, Lane._leave, name="a route's writes are terminal"),
    ),
    (_S.RETIRED, Strand): (Row(None, Lane._strand, name="another write stalled", may=(_S.RETIRED, _S.KILLED)),),
    (_S.RETIRED, Retire): (Row(_S.RETIRED, name="retired before"),),
    (_S.RETIRED, s.Tick): (
        Row(None, Lane._expire, name="kill it one stall timeout after the stall", may=(_S.RETIRED, _S.KILLED)),
    ),
    (_S.RETIRED, s.LaneDead): (Row(_S.DEAD, name="its process has ended by itself"),),
    (_S.KILLED, Leave): (Row(_S.KILLED, Lane._leave, name="killed already"),),
    (_S.KILLED, Strand): (Row(_S.KILLED, lambda m, e, now: m.stranded.add(e.route), name="waits for its end, too"),),
    (_S.KILLED, Retire): (Row(_S.KILLED, name="killed already"),),
    (_S.KILLED, s.Tick): (Row(_S.KILLED, name="killed already"),),
    (_S.KILLED, s.LaneDead): (Row(_S.DEAD, name="it reads no arena any more"),),
}
