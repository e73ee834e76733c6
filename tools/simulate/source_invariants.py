"""The invariants of what a source does with its arenas, orders and workers; as invariants.py, by the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tools.simulate.invariants import Violation

if TYPE_CHECKING:
    from tools.simulate.memory import ArenaFile, Content

# --- arenas ---


def unchanged_on_the_wire(arena: ArenaFile, bucket: int) -> None:
    """6."""
    if arena.outstanding[bucket]:
        raise Violation(
            6, f"{arena.name}: bucket {bucket} is filled anew while {arena.outstanding[bucket]} submits read"
        )


def as_digested(where: str, differing: Sequence[int]) -> None:
    """6. differing: offsets of buckets that a route is told to write, and that are not what their digests say."""
    if differing:
        raise Violation(
            6, f"{where}: what stands at {list(differing)} is to be written, and is not what was digested"
        )


def sealed_as_it_is(where: str, name: str, content: Sequence[Content], step: int | None) -> None:
    """7. content: of the buckets that the source owns; step: the version's."""
    if any(piece != step for found in content for piece in found):
        raise Violation(7, f"{where}: {list(content)} is sealed as {name}, which is step {step}")


def keeps_the_last(where: str, name: str, idle: Sequence[str]) -> None:
    """15. name: of the newest sealed version, whose arena is filled anew; idle: others that could have been."""
    if idle:
        raise Violation(15, f"{where}: {name}, which repairs read, is overwritten while {', '.join(idle)} is idle")


# --- orders ---


def ended_before(where: str, sync: str, *, known: bool) -> None:
    """5. known: the end of that sync was here, or the order was refused before."""
    if not known:
        raise Violation(5, f"{where}: the order of {sync} is refused as over, and its end was never told")


def not_after_its_end(where: str, sync: str, *, known: bool) -> None:
    """5. A grant that its end has closed may not be written under."""
    if known:
        raise Violation(5, f"{where}: a route of {sync} is started after the end of that sync")


def never_started(where: str, sync: str, *, started: bool) -> None:
    """5. An order that is refused as over: no byte of it was written, and the target may be told so."""
    if started:
        raise Violation(5, f"{where}: the order of {sync} is refused, and its routes were started")


def carried_out(where: str, sync: str, *, started: bool) -> None:
    """13. An order that is taken and not carried out holds its engines to the deadline."""
    if not started:
        raise Violation(13, f"{where}: the order of {sync} is taken and no route of it was started")


def answered(where: str, unanswered: Sequence[str]) -> None:
    """13. unanswered: syncs whose orders have neither been answered nor wait: their engines are held, too."""
    if unanswered:
        raise Violation(13, f"{where}: the order of {unanswered[0]} does not wait, and was never answered")


# --- workers ---


def spares_the_others(where: str, lane: int, others: Sequence[str], seconds: float, limit: float) -> None:
    """13. others: routes whose writes go on through a worker that is ended so soon after it was given up."""
    if others and seconds < limit:
        raise Violation(
            13, f"{where}: worker {lane} is ended after {seconds:.2f} s, while {others[0]} writes through it"
        )
