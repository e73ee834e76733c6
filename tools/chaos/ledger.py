"""What each published version computes, from the harness's own copies of the weights.

A version's name is ``<lineage>.<n>``: the n-th publish of one life of the trainer. Which publish that was is known
here without asking anybody: lives follow one another, and each of them counts from 1.
"""

import threading
from collections.abc import Sequence

from rl.checker import Continuation
from rl.versions import Versions
from tools.chaos.model import CONFIG, weights

KEEP = 400  # versions whose weights are held


class Ledger(Versions):
    """Implements rl.checker.Replay. Publishes are numbered from 1 over all lives; 0 is the base checkpoint."""

    def __init__(self) -> None:
        super().__init__(CONFIG, weights(0), keep=KEEP)
        self._lives: list[list[int]] = []  # of the trainer: the publishes of each, in order
        self._lineages: dict[str, int] = {}  # lineage: index of the life
        self._known: dict[tuple[int, tuple[int, ...], int], Continuation | None] = {}
        self._lock = threading.Lock()

    def new_life(self) -> None:
        """The trainer began anew."""
        with self._lock:
            self._lives.append([])

    def lives(self, number: int) -> bool:
        """The life of the trainer that published it goes on: else nobody is left to say what became of it."""
        with self._lock:
            return number in self._lives[-1]

    def publish(self) -> int:
        """The number of the next publish, whose weights are held from now on."""
        with self._lock:
            number = self.add(weights(self.newest + 1))
            self._lives[-1].append(number)
            return number

    def number(self, version: str) -> int | None:
        """See Replay: a lineage that was never met belongs to the newest life."""
        known = super().number(version)
        lineage, _, count = version.rpartition(".")
        if known is not None or not count.isdigit() or len(lineage) != 16:
            return known
        with self._lock:
            life = self._lives[self._lineages.setdefault(lineage, len(self._lives) - 1)]
            return life[int(count) - 1] if 1 <= int(count) <= len(life) else None

    def answer(self, number: int, prefix: Sequence[int], tokens: int) -> Continuation | None:
        """See Replay; the same question is computed once."""
        key = (number, tuple(prefix), tokens)
        if key not in self._known:
            self._known[key] = super().answer(number, prefix, tokens)
        return self._known[key]

    def differs(self, number: int, prefix: Sequence[int], tokens: Sequence[int]) -> bool:
        """See Replay."""
        found = self.answer(number, prefix, len(tokens))
        return found is not None and list(found.tokens) != list(tokens)

    def forget_answers(self) -> None:
        """Between cases: no later answer comes from so old a version."""
        self._known.clear()
