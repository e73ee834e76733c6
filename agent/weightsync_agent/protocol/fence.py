"""Which requests are too old, and when a region is quiet. Pure.

A request may be delivered long after its caller has given up: a pod that was stopped finds all that came meanwhile.
So nobody obeys a term that is over, gives a grant for a sync that its coordinator has ended, or writes for it; and it
has ended one once it speaks of another. A version's number does not tell that: after a publish that was given up, an
engine gets the version before it by a repair, while the writers of the one that was given up still hold the grant.

Measured: a write goes on landing after its region was unregistered, after its writer timed out and after its
writer's process was killed. So a region is quiet only when every writer that was granted it has said that its
writes are terminal, or the receiving worker has been killed. Nothing else is trusted.
"""

from dataclasses import dataclass, field

from weightsync.errors import Refused

PULL = "pull/"  # in place of a sync's name, before the root of what an engine reads by itself
LONGEST_COUNT = 18  # digits
LIVES = 8  # of coordinators whose newest sync is remembered


def sync_id(uid: str, life: str, count: int) -> str:
    """The name of a coordinator's sync. life: of its process; count: of its syncs, which follow each other."""
    return f"{uid}/{life}/{count}"


def ended(sync: str, newest: str) -> bool:
    """That sync was over when ``newest`` began. Of another life's, or what is no sync's name, nothing is known."""
    (life, _, count), (other, _, last) = sync.rpartition("/"), newest.rpartition("/")
    known = life == other != "" and all(each.isdecimal() and len(each) <= LONGEST_COUNT for each in (count, last))
    return known and int(count) < int(last)


@dataclass
class Fence:
    """The highest term seen, and who holds it: one coordinator per term.

    syncs: the newest heard of, by the coordinator's life.
    """

    term: int = 0
    coordinator: str = ""
    syncs: dict[str, str] = field(default_factory=dict)

    def check(self, term: int, coordinator: str = "") -> None:
        """Raises Refused(StaleTerm) for an older term, Refused(TermHeld) for a second coordinator in one term."""
        if term < self.term:
            raise Refused(
                f"term {term} is over: {self.coordinator or 'another coordinator'} holds term {self.term}",
                reason="StaleTerm",
            )
        if term == self.term and coordinator and self.coordinator and coordinator != self.coordinator:
            raise Refused(f"term {term} belongs to {self.coordinator}, not {coordinator}", reason="TermHeld")

    def check_sync(self, term: int, coordinator: str, sync: str) -> None:
        """Raises Refused as check does, and (SyncEnded) for a sync that its coordinator has ended."""
        self.check(term, coordinator)
        if self.over(sync):
            raise Refused(f"sync {sync} is over: its coordinator has begun another since", reason="SyncEnded")

    def over(self, sync: str) -> bool:
        """Its coordinator has begun another since."""
        return ended(sync, self.syncs.get(sync.rpartition("/")[0], ""))

    def hear(self, sync: str) -> None:
        """It has begun, whatever becomes of it here: those before it are over."""
        if not self.over(sync):
            life = sync.rpartition("/")[0]
            self.syncs.pop(life, None)  # the last that was heard of stays longest
            self.syncs[life] = sync
            while len(self.syncs) > LIVES:
                self.syncs.pop(next(iter(self.syncs)))

    def raise_to(self, term: int, coordinator: str) -> None:
        """Take over a checked term."""
        self.check(term, coordinator)
        self.term, self.coordinator = term, coordinator


@dataclass
class OpenGrant:
    """One permission to fill one arena: who may write, and who may still."""

    grant: str
    term: int
    coordinator: str
    sync: str
    lineage: str
    number: int
    program: str
    writers: frozenset[str] = frozenset()
    open: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def pulled(self) -> bool:
        """Our own worker was to read a version by itself, in no sync."""
        return self.sync.startswith(PULL)

    @property
    def quiet(self) -> bool:
        """No granted writer can land another byte."""
        return not self.open
