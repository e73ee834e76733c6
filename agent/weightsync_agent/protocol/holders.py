"""Which version a joining engine aims at, and whom it reads it from. Pure.

An engine that reads a version itself lends what it has verified of it so far; others do not wait for its end. Nobody
ever waits for somebody who waits for him, whoever loses his holder and turns to another one: he who reads from an
engine that grows is farther behind a whole one than that was ever before (MOST_BEHIND, order()).

The coordinator knows what was decided last; where it does not answer, the newest of what engines hold counts. Of two
decided versions of one lineage the higher number is newer, of two lineages the one of the later term. Two lineages of
one term cannot be ordered: a trainer's rank restarted alone in it. Then most holders' word counts, and an engine that
had one of the two takes the other from nobody but the coordinator.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weightsync.wire.v1 import Decided, Held

MOST_BEHIND = 20  # engines one behind another; each lends to two
ASKED = 64  # engines that a joiner asks, at most: there are holders among them, or there are few

Ring = Sequence[tuple[bytes, str]]


@dataclass(frozen=True)
class Offer:
    """An engine whose arenas hold a decided version, or get it. near: how far it is, 0 the nearest.

    behind: how many engines the bytes pass through until they are there, 0 where all of them are. feeds: others read
    from it in a sync.
    """

    uid: str
    address: str
    decided: Decided
    readers: int = 0
    most: int = 0
    near: int = 0
    behind: int = 0
    feeds: bool = False

    @property
    def free(self) -> bool:
        """It lends to one more."""
        return self.readers < self.most


def offers_of(held: Held, address: str, *, feeds: bool) -> list[Offer]:
    """What an engine said: of what it holds, and of what it gets."""
    each = [(held.decided, 0), (held.grows, max(1, held.behind))]
    return [
        Offer(held.uid, address, decided, held.readers, held.most, behind=behind, feeds=feeds)
        for decided, behind in each
        if decided is not None
    ]


def follows(own: Decided | None, found: Decided) -> bool:
    """An engine that was told to serve ``own`` may take ``found``, whoever names it: the same, or a newer one."""
    if own is None or own.version == found.version:
        return True
    if own.version.lineage == found.version.lineage:
        return found.version.number > own.version.number
    return found.term > own.term


def newest(offers: Iterable[Offer]) -> Decided | None:
    """Of what engines hold: of the latest term, of the lineage that most of them hold, the highest number."""
    held = [offer.decided for offer in offers]
    if not held:
        return None
    latest = max(decided.term for decided in held)
    held = [decided for decided in held if decided.term == latest]
    lineages = Counter(decided.version.lineage for decided in held)
    lineage = max(sorted(lineages), key=lambda each: lineages[each])
    return max((d for d in held if d.version.lineage == lineage), key=lambda decided: decided.version.number)


def goal(
    own: Decided | None, offers: Sequence[Offer], said: Decided | None, *, syncing: bool = False
) -> Decided | None:
    """What to aim at; None: nothing that may follow what was there. said: by the coordinator.

    What engines only read themselves counts where none that may follow is held: it may never get whole. syncing: a
    sync goes on, which may bring what was said: until an engine holds it, the version before it serves.
    """
    whole = [offer for offer in offers if not offer.behind]
    if said is not None:
        # Its word orders lineages; of one lineage an engine may know a newer one than a coordinator of a new term.
        same = [o for o in whole if o.decided.version.lineage == said.version.lineage]
        best = newest([*same, Offer("", "", said)]) or said
        found = best if best.version.number > said.version.number else said
        if syncing and not any(offer.decided.version == found.version for offer in offers):
            found = newest(o for o in same if follows(own, o.decided)) or found
        older = own is not None and own.version.lineage == found.version.lineage
        return found if not older or follows(own, found) else None
    return newest(o for o in whole if follows(own, o.decided)) or newest(o for o in offers if follows(own, o.decided))


def suffices(offers: Iterable[Offer], said: Decided | None) -> bool:
    """Nobody else need be asked: one has a free place, feeds nobody, and has what was decided last, as said."""
    return said is not None and any(
        offer.free and not offer.feeds and offer.decided.version == said.version for offer in offers
    )


def order(offers: Iterable[Offer], aim: Decided, reader: str, below: int = MOST_BEHIND) -> list[Offer]:
    """Who is asked for it, one after another: those that feed nobody in a sync, of these the nearest, of those who is
    least behind, then who has least readers, else spread. below: who is as far behind, or farther, is left out.
    """
    able = [o for o in offers if o.decided.version == aim.version and o.most > 0 and o.behind < below]
    return sorted(able, key=lambda o: _turn(o, reader))


def _turn(offer: Offer, reader: str) -> tuple[object, ...]:
    """Those that are full all are as good: a place may have come free at any of them, and not all ask the same."""
    by_chance = luck(reader, offer.uid)
    if not offer.free:
        return True, offer.feeds, offer.near, by_chance
    return False, offer.feeds, offer.near, offer.behind, offer.readers, by_chance


def ring(uids: Iterable[str]) -> Ring:
    """Engines in an order that has nothing to do with their names, for whom()."""
    return sorted((luck("", uid), uid) for uid in uids)


def whom(reader: str, among: Ring, most: int) -> list[str]:
    """So many of the ring, from a place on that is the reader's: others begin elsewhere.

    Of two rings, one of which holds the other, the same reader takes the same ones first: who asks the first so many
    of all engines need know of no others than the first so many of those that are special in some way.
    """
    start = bisect_left(among, (luck("", reader), ""))
    return [uid for _, uid in (*among[start : start + most], *among[:start])[:most]]


def share(reader: str, of: str) -> float:
    """From 0 to 1: another one for each reader, and the same one each time."""
    return int.from_bytes(luck(reader, of)) / (1 << 64)


def luck(reader: str, holder: str) -> bytes:
    """Another order for each reader, and the same one each time."""
    return hashlib.blake2b(f"{reader} {holder}".encode(), digest_size=8).digest()
