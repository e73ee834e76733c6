"""One schedule from its seed: run, judge, shrink, tell."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from tools.simulate.faults import Fault
from tools.simulate.invariants import SENTENCES, Violation
from tools.simulate.world import World

SHOWN = 40  # lines of a trace
NOISE = frozenset({"Answers", "StepDone", "Tick", "fills", "/v1/status", "StatusSeen"})


@dataclass(slots=True)
class Failure:
    """What went wrong. number: the invariant's; 0 for a machine that raised."""

    seed: int
    number: int
    detail: str
    events: int
    faults: tuple[Fault, ...]
    trace: tuple[str, ...]


@dataclass(slots=True)
class Ran:
    """One schedule's figures; failure is None where every invariant held."""

    seed: int
    events: int
    virtual: float
    syncs: int
    faults: int
    failure: Failure | None


def run(seed: int, faults: tuple[Fault, ...] | None = None, again: int = 0) -> Ran:
    """Run it to its end. again: in another course; 0 is its own."""
    world = World(seed, faults, again=again)
    failure = None
    try:
        world.run()
    except Violation as violation:
        failure = Failure(
            seed, violation.number, violation.detail, world.loop.events, tuple(world.faults), told(world)
        )
    except Exception as error:  # noqa: BLE001 - whatever a machine raises is a violation, and is told with its place
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno} of {where.filename})"
        failure = Failure(seed, 0, detail, world.loop.events, tuple(world.faults), told(world))
    return Ran(seed, world.loop.events, world.loop.now, world.ledger.decided_syncs, len(world.struck), failure)


def shrink(failure: Failure) -> Failure:
    """Leave out one fault after the other as long as the same invariant still fails."""
    best = failure
    for fault in failure.faults:
        fewer = tuple(each for each in best.faults if each is not fault)
        again = run(best.seed, fewer).failure
        if again is not None and again.number == best.number:
            best = again
    return best


def told(world: World) -> tuple[str, ...]:
    """The last events in words."""
    names: dict[str, str] = {}
    lines = []
    for now, events, who, what, detail in world.loop.trace:
        if what in NOISE:
            continue
        lines.append(f"{now:8.3f}  #{events:<5} {who:26} {what:20} {_short(str(detail), names)}")
    return tuple(lines[-SHOWN:])


def _short(text: str, names: dict[str, str]) -> str:
    """Long hexadecimal names become short ones, in the order of their first appearance."""
    words, word = [], ""
    for letter in text + " ":
        if letter in "0123456789abcdef":
            word += letter
            continue
        if len(word) >= 16:
            word = names.setdefault(word, f"~{len(names) + 1}")
        words.append(word + letter)
        word = ""
    line = "".join(words).strip()
    return line if len(line) <= 170 else f"{line[:167]}..."


def describe(failure: Failure) -> str:
    """What a person is shown of it."""
    sentence = SENTENCES[failure.number]
    faults = "\n".join(f"    {fault}" for fault in failure.faults) or "    none"
    trace = "\n".join(f"  {line}" for line in failure.trace)
    return (
        f"seed {failure.seed} violates invariant {failure.number} after {failure.events} events: {sentence}\n"
        f"  {failure.detail}\n  faults:\n{faults}\n{trace}\n"
        f"  again: python -m tools.simulate --replay {failure.seed}\n"
    )
