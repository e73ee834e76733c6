"""Records of one kind of object, kept right although events and lists cross. Pure.

kopf hands over single events and never says that an object vanished while its watch was broken; lists say what is
there but arrive late. Resource versions order both: whatever is older than what is known is ignored.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Shelf(Generic[Value]):
    """uid -> record. Every method returns what it changed as (old, new) pairs; None stands for absence."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Value]] = {}
        self._dropped: dict[str, int] = {}  # until a list is newer: an old list must not bring the dead back

    def get(self, uid: str) -> Value | None:
        """The record, if it is there."""
        entry = self._known.get(uid)
        return entry[1] if entry else None

    def at(self, uid: str, version: int) -> Value | None:
        """The record of exactly that version, if it is there: it need not be made again."""
        entry = self._known.get(uid)
        return entry[1] if entry and entry[0] == version else None

    def __iter__(self) -> Iterator[Value]:
        return (value for _, value in list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def put(self, uid: str, version: int, value: Value) -> "Change[Value] | None":
        """What was seen at ``version``; None where nothing changes."""
        old = self._known.get(uid)
        if version < max(old[0] if old else 0, self._dropped.get(uid, 0)):
            return None
        self._known[uid] = (version, value)
        before = old[1] if old else None
        return None if before == value else Change(before, value)

    def drop(self, uid: str, version: int) -> "Change[Value] | None":
        """It was deleted at ``version``."""
        self._dropped[uid] = max(version, self._dropped.get(uid, 0))
        old = self._known.pop(uid, None)
        return Change(old[1], None) if old else None

    def replace(
        self,
        listed_at: int,
        listed: Mapping[str, tuple[int, Value]],
        within: Callable[[Value], bool] = lambda _: True,
    ) -> "list[Change[Value]]":
        """A whole list as of ``listed_at``: what it lacks and is not newer is gone. within: what it is a list of."""
        changes = [self.put(uid, version, value) for uid, (version, value) in listed.items()]
        lost = [
            uid
            for uid, (version, value) in self._known.items()
            if uid not in listed and version <= listed_at and within(value)
        ]
        changes += [self.drop(uid, listed_at) for uid in lost]
        self._dropped = {uid: version for uid, version in self._dropped.items() if version > listed_at}
        return [change for change in changes if change is not None]


class Change(Generic[Value]):
    """A record before and after."""

    __slots__ = ("new", "old")

    def __init__(self, old: Value | None, new: Value | None) -> None:
        self.old = old
        self.new = new
