"""Keys and values of earlier prompts, found again by their tokens. Nothing in it knows of versions: as in SGLang,
only a flush keeps what old weights computed out of new answers.
"""

from collections.abc import Sequence

from reference.engine_model import KVCache


class _Node:
    """One token on the way through all known sequences; ``cache`` holds at least the way to here."""

    __slots__ = ("cache", "next")

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.next: dict[int, _Node] = {}


class PrefixCache:
    """Room for ``capacity`` positions in all; when full, the older half of the sequences is forgotten."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._known: dict[tuple[int, ...], KVCache] = {}
        self._root: dict[int, _Node] = {}

    def __len__(self) -> int:
        """Positions known."""
        return sum(map(len, self._known))

    @property
    def room(self) -> int:
        """Positions that memory is held for; caches come in blocks."""
        return sum(cache.capacity for cache in self._known.values())

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._root.clear()

    def insert(self, tokens: Sequence[int], cache: KVCache, row: int = 0) -> None:
        """Keep a copy of what ``cache`` holds of sequence ``row``, whose positions are ``tokens``."""
        key = tuple(tokens)
        if not key or key in self._known:
            return
        self._known[key] = cache.prefix(row, len(key))
        if self.room > self.capacity:
            kept = list(self._known.items())[len(self._known) // 2 :]
            self.clear()
            for tokens_kept, cache_kept in kept:
                self._known[tokens_kept] = cache_kept
                self._link(tokens_kept, cache_kept)
        else:
            self._link(key, self._known[key])

    def _link(self, tokens: tuple[int, ...], cache: KVCache) -> None:
        level = self._root
        for token in tokens:
            level = level.setdefault(token, _Node(cache)).next

    def find(self, tokens: Sequence[int]) -> tuple[int, KVCache | None]:
        """How many of ``tokens``, from the first on, are known, and a cache that holds them (not to be written)."""
        level, found, depth = self._root, None, 0
        for token in tokens:
            node = level.get(token)
            if node is None:
                break
            level, found, depth = node.next, node.cache, depth + 1
        return depth, found
