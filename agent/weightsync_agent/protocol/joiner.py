"""How one engine gets its first version, or its version again, from another engine. Rules:

- it looks for the newest decided version while the engine needs one and nobody else brings it: a grant that is given
  to a coordinator ends everything here, and the engine is a member of that sync;
- nothing is read that was not decided, is older than what the engine was told to serve before, or whose program roots
  do not make its root; the buckets' digests must make the root of their program before a byte is read;
- our own worker reads; a bucket counts only once its digest was computed here. A holder whose bytes are others, that
  stalls or goes, is left, and the next one is asked for what is not verified yet;
- while it reads it lends what it has verified to others that join, and not once it reads no more. It turns to such an
  engine itself only where that one is less far behind a whole one than it ever was: so nobody waits in a circle;
- what a sync brings may be decided before an engine holds it: until one does, the version before it is read;
- while a sync begins it waits for a moment, until it is known which engines pass that on: their links are in use;
- our reading worker has ended before anybody else may fill the arena, and before it is sealed;
- what lies sealed in the engine's own arenas already is applied from there, and nobody is read;
- where nobody holds it, the coordinator is told so, and the sources write it. Whoever waits for a free place at a
  holder is not that far yet.
"""

from dataclasses import dataclass
from enum import Enum

from weightsync.digests import program_root, version_root
from weightsync.wire.v1 import Decided, Lease
from weightsync_agent.protocol.holders import MOST_BEHIND, Offer, goal, order, share
from weightsync_agent.protocol.repair import backoff
from weightsync_agent.protocol.table import Machine, Row

BUSY_SECONDS = 0.5  # until holders that had no place are asked again, at most at first
BUSY_LONGEST = 4.0  # where many wait, and what they read takes long
BUSY_SHARE = 0.1  # of the time that was waited by then: what a pause may cost of it
FULL_ASKED = 4  # holders that had no place, until it waits: what they said a moment ago holds for the others, too
BEGIN_WAITS = 4  # rounds in which a sync that begins is waited for: one handshake may take as long as its deadline


class JoinerState(Enum):
    """Where the engine's join stands."""

    IDLE = "the engine needs nothing, or somebody brings it"
    SEEKING = "the coordinator and engines are asked what was decided, and who holds it"
    LEASING = "a holder is asked whether it may be read from"
    PULLING = "our own worker reads a holder's arenas"
    APPLYING = "every bucket is verified, and the engine takes it over"
    RESTING = "nobody had it, or nothing came of it: it looks again later"


@dataclass(frozen=True)
class Needs:
    """The engine needs a version, and no sync brings it. Told again and again for as long as that is so.

    own: the newest that it was told to serve; sealed: that one lies whole in its own arenas.
    """

    own: Decided | None
    sealed: bool


@dataclass(frozen=True)
class NeedsNothing:
    """It is served, is written to, or is gone."""

    why: str


@dataclass(frozen=True)
class Asked:
    """What agents said. said: by the coordinator, None where it knows of none; answered: it did.

    limit: the newest term that has begun, None where nobody says: no decision is of a later one. syncing: a sync goes
    on; begins: and who passes it on is not known yet.
    """

    offers: tuple[Offer, ...]
    said: Decided | None
    answered: bool
    limit: int | None = None
    syncing: bool = False
    begins: bool = False


@dataclass(frozen=True)
class AskFailed:
    """Nobody is known who could be asked."""

    message: str


@dataclass(frozen=True)
class Leased:
    """The holder may be read from."""

    lease: Lease


@dataclass(frozen=True)
class NotLeased:
    """It refused, or did not answer. busy: others read from it."""

    message: str
    busy: bool = False


@dataclass(frozen=True)
class Pulled:
    """Every bucket of every rank is verified, and no worker of ours reads any more."""


@dataclass(frozen=True)
class PullBroke:
    """The holder stalled, is gone, or its bytes are others; no worker of ours reads any more."""

    message: str


@dataclass(frozen=True)
class Applied:
    """The engine serves it."""


@dataclass(frozen=True)
class NotApplied:
    """It could not be sealed, or the engine could not take it."""

    message: str


@dataclass(frozen=True)
class Seek:
    """Action: ask the coordinator and engines what they hold; then Asked or AskFailed."""


@dataclass(frozen=True)
class AskLease:
    """Action: ask that holder; then Leased or NotLeased."""

    offer: Offer
    aim: Decided


@dataclass(frozen=True)
class BeginPull:
    """Action: read what is not verified yet; then Pulled or PullBroke."""

    offer: Offer
    lease: Lease


@dataclass(frozen=True)
class StopPull:
    """Action: end the reading workers, close what they filled. Nothing is told of it."""


@dataclass(frozen=True)
class GiveBack:
    """Action: tell the holder that nobody reads what it lends, in its place others may."""

    offer: Offer


@dataclass(frozen=True)
class Apply:
    """Action: seal what was pulled as that version, and commit it; then Applied or NotApplied."""

    decided: Decided


@dataclass(frozen=True)
class Told:
    """Action: say why it goes on, or not."""

    message: str


def busy_pause(reader: str, waits: int, waited: float) -> float:
    """Seconds until holders are asked again, after so many rounds (>= 1) that found all of them busy.

    waited: seconds since the first of these rounds. Those who wait do not ask in step, and the longer they wait, the
    less often: hundreds may.
    """
    longest = min(BUSY_LONGEST, max(BUSY_SECONDS, BUSY_SHARE * waited))
    return float(longest * (0.5 + share(reader, str(waits)) / 2))


class Joiner(Machine[JoinerState]):
    """See the module's rules. reader: the uid of this engine's leader; programs: of its ranks, by rank."""

    def __init__(self, reader: str) -> None:
        super().__init__(JoinerState.IDLE)
        self.reader = reader
        self.programs: dict[int, str] = {}
        self.own: Decided | None = None
        self.sealed = False
        self.aim: Decided | None = None
        self.offers: list[Offer] = []  # that have not been asked in this round
        self.offer: Offer | None = None
        self.lease: Lease | None = None  # of the holder that is read from
        self.below = MOST_BEHIND  # it was never less far behind a whole engine, as long as it reads what it aims at
        self.busy = False  # a holder of this round had no place, or may have one soon
        self.full = 0  # holders of this round that had none
        self.failures = 0
        self.waits = 0  # rounds in a row that found all holders busy
        self.waiting_since = 0.0  # the first of them
        self.again_at = 0.0

    @property
    def hopes(self) -> bool:
        """It is on its way by itself: nobody need write to the engine. Not so once a round found nobody."""
        return self.state is not JoinerState.IDLE and not (self.state is JoinerState.RESTING and not self.busy)

    @property
    def grows(self) -> Lease | None:
        """What it reads, and may lend as it comes; None while it reads nothing."""
        return self.lease if self.state in (JoinerState.PULLING, JoinerState.APPLYING) else None

    def _seek(self, event: Needs, now: float) -> list[object]:
        self.own, self.sealed, self.lease, self.below = event.own, event.sealed, None, MOST_BEHIND
        self.aim, self.offers, self.busy, self.failures, self.waits = None, [], False, 0, 0
        return [Seek()]

    def _again(self, event: Needs, now: float) -> list[object]:
        if now < self.again_at and (event.own, event.sealed) == (self.own, self.sealed):
            return []
        self.own, self.sealed, self.busy = event.own, event.sealed, False
        self.state = JoinerState.SEEKING
        return [Seek()]

    def _asked(self, event: Asked, now: float) -> list[object]:
        said, limit = event.said, event.limit
        offers = [o for o in event.offers if limit is None or o.decided.term <= limit]
        if event.answered and said is None:
            return self._rest("nothing is known to have been decided", now)
        if said is not None and limit is not None and said.term > limit:
            return self._rest(f"{said.version.name} is of term {said.term}, and the plan of term {limit}", now)
        aim = goal(self.own, offers, said, syncing=event.syncing)
        if aim is None:
            return self._rest("no engine holds a version that may follow the one before", now)
        if self.aim is not None and self.aim.version != aim.version:
            self.below = MOST_BEHIND  # others read what it had of the other one, and learn that it is no more
        self.aim = aim
        if self.sealed and self.own is not None and self.own.version == aim.version:
            self.state = JoinerState.APPLYING
            return [Apply(self.own)]
        self.offers, self.full = order(offers, aim, self.reader, self.below), 0
        if self.offers and event.begins and self.waits < BEGIN_WAITS:
            self.busy = True
            return self._rest("a sync begins: who passes it on is not known yet", now)
        return self._next(f"no engine holds {aim.version.name}", now)

    def _next(self, why: str, now: float) -> list[object]:
        """Ask the next holder; rest where none is left. Some of what was offered may be too far behind by now."""
        self.offers = [offer for offer in self.offers if offer.behind < self.below]
        if not self.offers or self.aim is None:
            return self._rest(why, now)
        self.offer = self.offers.pop(0)
        self.state = JoinerState.LEASING
        return [AskLease(self.offer, self.aim)]

    def _rest(self, why: str, now: float) -> list[object]:
        self.state, self.offer, self.lease = JoinerState.RESTING, None, None
        self.failures += not self.busy
        self.waits = self.waits + 1 if self.busy else 0
        if self.waits == 1:
            self.waiting_since = now
        waited = now - self.waiting_since
        pause = busy_pause(self.reader, self.waits, waited) if self.busy else backoff(self.failures)
        self.again_at = now + pause
        return [Told(why)]

    def _unasked(self, event: AskFailed, now: float) -> list[object]:
        return self._rest(event.message, now)

    def wrong(self, lease: Lease) -> str:
        """Why what the holder says cannot be the decided version; "" where it can."""
        if self.aim is None or lease.decided.version != self.aim.version:
            return f"it lends {lease.decided.version.name}"
        if lease.behind >= self.below:
            return f"it reads from another itself, and is {lease.behind} engines behind a whole one by now"
        v, roots = lease.decided.version, lease.decided.programs
        if version_root(v.lineage, v.number, roots) != v.root:
            return f"the root of {v.name} does not follow from its programs"
        ranks = {each.rank: each for each in lease.ranks}
        if {rank: each.program for rank, each in ranks.items()} != self.programs:
            return "its ranks are others"
        for rank, each in sorted(ranks.items()):
            if program_root(each.buckets) != roots.get(each.program):
                return f"the digests of rank {rank} are not those that were decided"
        return ""

    def _leased(self, event: Leased, now: float) -> list[object]:
        why = self.wrong(event.lease)
        if self.offer is None:
            return self._next(f"nobody: {why}", now)
        if why:
            return [GiveBack(self.offer), *self._next(f"{self.offer.address}: {why}", now)]
        self.state, self.waits = JoinerState.PULLING, 0
        self.lease, self.below = event.lease, min(self.below, event.lease.behind + 1)
        return [BeginPull(self.offer, event.lease)]

    def _not_leased(self, event: NotLeased, now: float) -> list[object]:
        self.busy = self.busy or event.busy
        self.full += event.busy
        if self.full >= FULL_ASKED:
            return self._rest(f"{self.full} holders had no place, the last of them: {event.message}", now)
        return self._next(event.message, now)

    def _broke(self, event: PullBroke, now: float) -> list[object]:
        # With an engine that reads itself all break at once that read behind it: those that find nobody else now ask
        # again soon, and nobody need write to them all.
        self.busy = self.busy or (self.lease is not None and self.lease.behind > 0)
        return [Told(event.message), *self._next(event.message, now)]

    def _pulled(self, event: Pulled, now: float) -> list[object]:
        return [Apply(self.aim)] if self.aim is not None else []

    def _not_applied(self, event: NotApplied, now: float) -> list[object]:
        self.busy = False
        return self._rest(event.message, now)

    def _served(self, event: object, now: float) -> list[object]:
        self.failures, self.busy, self.offers = 0, False, []
        return []

    def _end(self, event: NeedsNothing, now: float) -> list[object]:
        self.offers, self.busy = [], False
        return [StopPull(), Told(event.why)]


_S = JoinerState
_AFTER_ASK = (_S.RESTING, _S.LEASING, _S.APPLYING)
_AFTER_HOLDER = (_S.LEASING, _S.RESTING)
Joiner.table = {
    (_S.IDLE, Needs): (Row(_S.SEEKING, Joiner._seek, name="ask who holds what"),),
    (_S.RESTING, Needs): (
        Row(None, Joiner._again, name="ask again, once it is time, or what it had is another", may=(_S.SEEKING,)),
    ),
    **{
        (state, Needs): (Row(state, name="on its way"),)
        for state in (_S.SEEKING, _S.LEASING, _S.PULLING, _S.APPLYING)
    },
    (_S.IDLE, NeedsNothing): (Row(_S.IDLE, name="as before"),),
    (_S.APPLYING, NeedsNothing): (Row(_S.APPLYING, name="the engine is being committed to: its end is told"),),
    **{
        (state, NeedsNothing): (Row(_S.IDLE, Joiner._end, name="end what reads"),)
        for state in (_S.SEEKING, _S.LEASING, _S.PULLING, _S.RESTING)
    },
    (_S.SEEKING, Asked): (Row(None, Joiner._asked, name="aim at the newest, and ask for a place", may=_AFTER_ASK),),
    (_S.SEEKING, AskFailed): (Row(None, Joiner._unasked, name="later", may=(_S.RESTING,)),),
    (_S.LEASING, Leased): (
        Row(None, Joiner._leased, name="read what was decided, and nothing else", may=(_S.PULLING, *_AFTER_HOLDER)),
    ),
    (_S.LEASING, NotLeased): (Row(None, Joiner._not_leased, name="ask the next", may=_AFTER_HOLDER),),
    (_S.PULLING, Pulled): (Row(_S.APPLYING, Joiner._pulled, name="verified: apply"),),
    (_S.PULLING, PullBroke): (Row(None, Joiner._broke, name="ask the next for the rest", may=_AFTER_HOLDER),),
    (_S.APPLYING, Applied): (Row(_S.IDLE, Joiner._served, name="it serves"),),
    (_S.APPLYING, NotApplied): (Row(None, Joiner._not_applied, name="later", may=(_S.RESTING,)),),
}
