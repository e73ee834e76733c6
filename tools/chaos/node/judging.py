"""What must hold on the node, and the report's measures. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tools.chaos.node.course import NodeTrial
from tools.demo.figures import Readback
from weightsync.measures import Measure

HEAL = 30.0  # seconds from the part's return until a step reached every engine

Json = dict[str, Any]


def wrong(trial: NodeTrial) -> str:
    """Why the case failed; "" where it did not."""
    if trial.problem:
        return trial.problem
    if trial.findings:
        return trial.findings[0]
    if trial.heal_seconds > HEAL:
        return f"healed after {trial.heal_seconds:.1f} s, {HEAL:.0f} allowed"
    if trial.others_hurt:
        return f"engines beside it were not served: {', '.join(trial.others_hurt)}"
    return ""


def measures(
    trials: Sequence[NodeTrial], clean: Sequence[float], lives: Sequence[Json], read: Sequence[Readback]
) -> list[Measure]:
    """All figures. clean: seconds of undisturbed syncs; lives: the trainer's tallies; read: engines, read back."""
    found = [
        _told("cases", len(trials), "1", "one fault each, in the middle of a sync"),
        _none("cases failed", sum(bool(wrong(trial)) for trial in trials), "by any bound of their own"),
        _none(
            "torn answers", sum(life.get("torn", 0) for life in lives), "spans that their version does not compute"
        ),
        _none("stale answers", sum(life.get("stale", 0) for life in lives), "older than was reported current"),
        _told("answers checked", sum(life.get("checked", 0) for life in lives), "1", "each repeated by the trainer"),
        _none("engines not read back right", sum(not one.digest_ok for one in read), f"of {len(read)}, at the end"),
    ]
    healed = [trial.heal_seconds for trial in trials if trial.healed_ms]
    if healed:
        how = "from the part's return (its continuing, its container's start) to a step that reached every engine"
        found.append(Measure(name="heal, maximum", value=max(healed), unit="s", bound=HEAL, better="lower", how=how))
    if clean:
        found.append(_told("undisturbed sync, median", median(clean), "s", f"{len(clean)} syncs of four engines"))
    return found


def _told(name: str, value: float, unit: str, how: str) -> Measure:
    return Measure(name=name, value=value, unit=unit, better="lower" if unit == "s" else "higher", how=how)


def _none(name: str, value: float, how: str) -> Measure:
    return Measure(name=name, value=value, unit="1", bound=0, better="lower", how=how)


def details(trials: Sequence[NodeTrial]) -> list[Mapping[str, object]]:
    """Everything that each case showed, for build/chaos/node-cases.json."""
    return [
        {
            "case": trial.case.id,
            "wrong": wrong(trial),
            "victim": trial.victim,
            "healSeconds": round(trial.heal_seconds, 3),
            "syncSeconds": trial.sync_seconds,
            "outcomes": trial.outcomes,
            "findings": trial.findings[:5],
        }
        for trial in trials
    ]
