"""A source rank's replicas and the publishes that fill them: who gets which arena, and when. Pure, no table.

A publish gets one replica of each program that it serves, as soon as one may be filled; those that wait are served
in the order in which they came. With two arenas v+1 is filled while v is on the wire, and v+2 waits for v's
decision at most; with one, v+1 waits until v's routes have ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from weightsync.version import version_name
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.replica import Recover, Replica, ReplicaState, Take, choose

KEPT = 16  # publishes that are remembered after they have ended

_ORDERED = (ReplicaState.FILLING, ReplicaState.FILLED, ReplicaState.SPENT, ReplicaState.SEALED)


@dataclass
class Publish:
    """One call of publish(). waiting: programs whose replica it does not have yet."""

    id: str
    programs: tuple[str, ...]
    turn: int
    waiting: list[str] = field(default_factory=list)
    name: str = ""
    trouble: tuple[str, str] | None = None
    settled: bool = False

    @property
    def unnamed(self) -> bool:
        """It may still turn out to be any version."""
        return not self.name and self.trouble is None and not self.settled


class Shelf:
    """See the module. count: arenas per program."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.replicas: dict[str, list[Replica]] = {}
        self.publishes: dict[str, Publish] = {}
        self.turn = 0

    def all(self) -> list[Replica]:
        """Every replica."""
        return [replica for replicas in self.replicas.values() for replica in replicas]

    # --- what is asked of it ---

    def owned(self, publish: str, program: str = "") -> list[Replica]:
        """The replicas that this publish filled last, of one program or of all."""
        found = self.replicas.get(program, []) if program else self.all()
        return [replica for replica in found if replica.owner == publish]

    def find(self, program: str, name: str) -> Replica | None:
        """The replica that holds that version, or is being filled with it; what is still compared is none."""
        held = (r for r in self.replicas.get(program, []) if r.name == name and r.state in _ORDERED)
        return next(held, None)

    def trouble(self, name: str) -> str:
        """Why that version will never be whole; "" where nothing is known against it."""
        broken = (p.trouble for p in self.publishes.values() if p.name == name and p.trouble)
        return next((message for _, message in broken), "")

    def may_come(self, name: str) -> bool:
        """A publish without a name may turn out to be that version, or a found replica of it is being compared."""
        compared = any(r.state is ReplicaState.FOUND and r.name == name for r in self.all())
        return compared or any(p.unnamed for p in self.publishes.values())

    @property
    def starving(self) -> set[str]:
        """Programs of which a publish waits for a replica."""
        return {program for publish in self.publishes.values() for program in publish.waiting}

    # --- what happens to it ---

    def recover(self, found: Iterable[s.FoundReplica], now: float) -> list[object]:
        """At start. Only the newest version is compared; older arenas are there to be filled."""
        actions: list[object] = []
        found = list(found)
        self.turn = max((f.turn for f in found), default=self.turn)
        for each in found:
            replica = Replica(each.replica)
            self.replicas.setdefault(each.replica.program, []).append(replica)
            actions += replica.handle(Recover(each, each.turn == self.turn), now)
        return actions

    def begin(self, event: s.Begin) -> None:
        """A publish that waits for its replicas."""
        self.turn += 1
        programs = tuple(sorted(set(event.programs)))
        self.publishes[event.publish] = Publish(event.publish, programs, self.turn, list(programs))
        for old in [p.id for p in self.publishes.values() if p.settled or p.trouble][:-KEPT]:
            del self.publishes[old]

    def serve(self, now: float) -> list[object]:
        """Give replicas that may be filled to the publishes that wait, and the memory of unwanted ones back."""
        actions = self._tidy()
        for publish in self.publishes.values():
            for program in list(publish.waiting):
                replicas = self.replicas.setdefault(program, [])
                chosen = choose(replicas, self.count)
                if chosen is None:
                    continue
                if isinstance(chosen, int):
                    replicas.append(Replica(s.ReplicaId(program, chosen)))
                replica = replicas[-1] if isinstance(chosen, int) else chosen
                publish.waiting.remove(program)
                replica.handle(Take(publish.id, publish.turn, publish.name), now)
                actions.append(s.Fill(publish.id, replica.id))
        return actions

    def no_room(self, event: s.NoRoom, now: float) -> list[object]:
        """The arena was not made: give up one that nobody wants and try again, else the publish."""
        publish = self.publishes.get(event.publish)
        held = self.replicas.get(event.replica.program, [])
        # Whoever it is filled for by now, if the publish was given up meanwhile: that Fill makes it, or fails too.
        held[:] = [r for r in held if r.id != event.replica or r.owner not in ("", event.publish)]
        if publish is None or publish.trouble is not None:
            return []
        publish.waiting.append(event.replica.program)
        spare = self._unwanted()
        if spare:
            return self._remove(min(spare, key=lambda r: (r.kept, r.turn)))
        return self.broken(s.Broken(event.publish, "NoRoom", event.message), now)

    def broken(self, event: s.Broken, now: float) -> list[object]:
        """The publish is given up, or one program of it: its replicas hold no version."""
        publish = self.publishes.get(event.publish)
        if publish is None or publish.trouble is not None:
            return []
        if event.program:
            publish.waiting = [program for program in publish.waiting if program != event.program]
            return self.tell(self.owned(event.publish, event.program), event, now)
        publish.trouble = (event.reason, event.message)
        actions: list[object] = [s.Abandon(publish.id, *publish.trouble)] if publish.waiting else []
        publish.waiting.clear()
        return actions + self.tell(self.owned(event.publish), event, now)

    def named(self, event: s.Named, now: float) -> None:
        """The coordinator told which version the publish is."""
        publish = self.publishes.get(event.publish)
        if publish is not None:
            publish.name = version_name(event.lineage, event.number)
            if publish.trouble is None:
                self.tell(self.owned(event.publish), event, now)

    def settled(self, event: s.Settled, now: float) -> list[object]:
        """The publish has its outcome."""
        publish = self.publishes.get(event.publish)
        if publish is not None:
            publish.settled = True
        return self.tell(self.owned(event.publish), event, now)

    def tell(self, replicas: Iterable[Replica], event: object, now: float) -> list[object]:
        """Hand an event to some replicas."""
        return [action for replica in replicas for action in replica.handle(event, now)]

    def release(self, routes: Iterable[s.RouteId]) -> None:
        """These routes read nothing any more."""
        gone = set(routes)  # a generator would be spent on the first replica
        for replica in self.all():
            replica.readers.difference_update(gone)

    # --- memory ---

    def _unwanted(self) -> list[Replica]:
        """Free replicas of programs that the last publish does not serve."""
        last = max(self.publishes.values(), key=lambda p: p.turn, default=None)
        wanted = set(last.programs) | self.starving if last is not None else set(self.replicas)
        return [r for program, replicas in self.replicas.items() if program not in wanted for r in replicas if r.free]

    def _tidy(self) -> list[object]:
        """An engine may be away for a moment: what repairs may need is kept until a newer version is sealed."""
        newest = max((r.turn for r in self.all() if r.state is ReplicaState.SEALED), default=0)
        return [a for r in self._unwanted() if not r.kept or r.turn < newest for a in self._remove(r)]

    def _remove(self, replica: Replica) -> list[object]:
        self.replicas[replica.id.program].remove(replica)
        return [s.Remove(replica.id)]
