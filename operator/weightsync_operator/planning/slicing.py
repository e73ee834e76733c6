"""From a plan to slices that move little. Pure.

An engine stays in its slice while both live; a new one goes to the first slice with room. Sources have slices of
their own, so that an engine that joins rewrites none of them. A slice is named by its content: equal content is
never written twice, and a changed slice is a new object.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from weightsync.api.v1alpha1.slice import MAX_ENGINES, MAX_SOURCES, SliceSpec
from weightsync.plan import Plan
from weightsync.records import Record

MAX_BYTES = 512 * 1024  # of an object's 1.5 MiB: engines of many ranks and stages fill a slice before MAX_ENGINES do
DIGEST_BYTES = 8
NAME_PART = 44  # of the WeightSync's name; with "-" and the digest 61 characters

Item = TypeVar("Item", bound=Record)


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice as it should be."""

    name: str
    spec: SliceSpec


def cut(plan: Plan, owner: tuple[str, str], previous: Sequence[Slice]) -> tuple[Slice, ...]:
    """Slices of ``plan``. owner: name and uid of the WeightSync; previous: the slices in force."""
    sources = _pack(plan.sources, [s.spec.sources for s in previous], MAX_SOURCES, lambda source: source.uid)
    engines = _pack(plan.engines, [s.spec.engines for s in previous], MAX_ENGINES, lambda engine: engine.leader)
    specs = [SliceSpec(sources=part) for part in sources] + [SliceSpec(engines=part) for part in engines]
    return tuple(Slice(name(owner, spec), spec) for spec in specs)


def name(owner: tuple[str, str], spec: SliceSpec) -> str:
    """The slice's name. The owner's uid counts: a WeightSync that is deleted and made anew shares no object with
    its forerunner, whose slices are still to be collected."""
    digest = hashlib.blake2b(owner[1].encode() + b"\0" + spec.canonical(), digest_size=DIGEST_BYTES).hexdigest()
    return f"{owner[0][:NAME_PART].rstrip('.-')}-{digest}"


def size(spec: Record) -> int:
    """Bytes of an item or a slice as JSON."""
    return len(spec.canonical())


def _pack(
    items: Sequence[Item], previous: Sequence[Sequence[Item]], limit: int, key: Callable[[Item], str]
) -> list[tuple[Item, ...]]:
    left = {key(item): (item, size(item)) for item in items}
    packs: list[_Pack[Item]] = []
    for old in previous:
        pack = _Pack[Item](limit)
        for item in old:
            # What has grown beyond its slice moves on with the new ones.
            if key(item) in left and pack.fits(left[key(item)][1]):
                pack.add(*left.pop(key(item)))
        if pack.items:
            packs.append(pack)
    packs = _merge(packs)
    for item, nbytes in left.values():
        free = next((p for p in packs if p.fits(nbytes)), None)
        if free is None:
            free = _Pack[Item](limit)
            packs.append(free)
        free.add(item, nbytes)
    return [tuple(pack.items) for pack in packs]


class _Pack(Generic[Item]):
    """A slice being filled."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: list[Item] = []
        self.nbytes = 0

    def fits(self, nbytes: int) -> bool:
        return not self.items or (len(self.items) < self.limit and self.nbytes + nbytes <= MAX_BYTES)

    def add(self, item: Item, nbytes: int) -> None:
        self.items.append(item)
        self.nbytes += nbytes


def _merge(packs: list[_Pack[Item]]) -> list[_Pack[Item]]:
    """Join the two emptiest as long as together they are half a slice at most: scale-downs leave no crumbs, and
    the next scale-up does not split them again."""
    packs = list(packs)
    while len(packs) > 1:
        pair = sorted(packs, key=lambda p: len(p.items))[:2]
        first, second = sorted(pair, key=packs.index)
        few = len(first.items) + len(second.items) <= first.limit // 2
        if not few or first.nbytes + second.nbytes > MAX_BYTES // 2:
            break
        first.items.extend(second.items)
        first.nbytes += second.nbytes
        packs.remove(second)
    return packs
