"""From a plan to slices that move little. Pure.

An engine stays in its slice while both live; a new one goes to the first slice with room. Sources have slices of
their own, so that an engine that joins rewrites none of them. A slice is named by its content: equal content is
never written twice, and a changed slice is a new object.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """One slice as it should be. sizes: bytes of its sources and engines, in their order; empty: not known yet."""

    name: str
    spec: SliceSpec
    sizes: tuple[int, ...] = field(default=(), compare=False, repr=False)


def cut(plan: Plan, owner: tuple[str, str], previous: Sequence[Slice]) -> tuple[Slice, ...]:
    """Slices of ``plan``. owner: name and uid of the WeightSync; previous: the slices in force."""
    known = _sizes(previous)
    sources = _pack(plan.sources, [s.spec.sources for s in previous], MAX_SOURCES, lambda source: source.uid, known)
    engines = _pack(
        plan.engines, [s.spec.engines for s in previous], MAX_ENGINES, lambda engine: engine.leader, known
    )
    parts = [(SliceSpec.model_construct(sources=tuple(pack.items), engines=()), pack.sizes) for pack in sources]
    parts += [(SliceSpec.model_construct(sources=(), engines=tuple(pack.items)), pack.sizes) for pack in engines]
    # Most slices stay: they are told by their very objects, and neither written as JSON nor digested again.
    same = {_identity(part.spec): part for part in previous}
    return tuple(same.get(_identity(spec)) or Slice(name(owner, spec), spec, tuple(sizes)) for spec, sizes in parts)


def _identity(spec: SliceSpec) -> tuple[int, ...]:
    return tuple(map(id, (*spec.sources, *spec.engines)))


def _sizes(previous: Sequence[Slice]) -> dict[int, int]:
    """Bytes of what the slices hold, by the objects' identity: it holds while ``previous`` does."""
    found: dict[int, int] = {}
    for part in previous:
        items = (*part.spec.sources, *part.spec.engines)
        sizes = part.sizes or tuple(map(size, items))
        found.update(zip(map(id, items), sizes, strict=True))
    return found


def name(owner: tuple[str, str], spec: SliceSpec) -> str:
    """The slice's name. The owner's uid counts: a WeightSync that is deleted and made anew shares no object with
    its forerunner, whose slices are still to be collected."""
    digest = hashlib.blake2b(owner[1].encode() + b"\0" + spec.canonical(), digest_size=DIGEST_BYTES).hexdigest()
    return f"{owner[0][:NAME_PART].rstrip('.-')}-{digest}"


def size(spec: Record) -> int:
    """Bytes of an item or a slice as JSON."""
    return len(spec.canonical())


def _pack(
    items: Sequence[Item],
    previous: Sequence[Sequence[Item]],
    limit: int,
    key: Callable[[Item], str],
    known: Mapping[int, int],
) -> "list[_Pack[Item]]":
    left = {key(item): (item, known.get(id(item)) or size(item)) for item in items}
    packs: list[_Pack[Item]] = []
    for old in previous:
        pack = _Pack[Item](limit)
        for item in old:
            # What has grown beyond its slice moves on with the new ones.
            name = key(item)
            if name in left and pack.fits(left[name][1]):
                pack.add(*left.pop(name))
        if pack.items:
            packs.append(pack)
    packs = _merge(packs)
    room = [pack for pack in packs if len(pack.items) < limit]  # full ones are not asked again for each item
    for item, nbytes in left.values():
        free = next((pack for pack in room if pack.fits(nbytes)), None)
        if free is None:
            free = _Pack[Item](limit)
            packs.append(free)
            room.append(free)
        free.add(item, nbytes)
        if len(free.items) == limit:
            room.remove(free)
    return packs


class _Pack(Generic[Item]):
    """A slice being filled."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: list[Item] = []
        self.sizes: list[int] = []
        self.nbytes = 0

    def fits(self, nbytes: int) -> bool:
        return not self.items or (len(self.items) < self.limit and self.nbytes + nbytes <= MAX_BYTES)

    def add(self, item: Item, nbytes: int) -> None:
        self.items.append(item)
        self.sizes.append(nbytes)
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
        first.sizes.extend(second.sizes)
        first.nbytes += second.nbytes
        packs.remove(second)
    return packs
