"""What must hold, and the report's measures. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from tools.chaos.cases import Setting
from tools.chaos.running import Trial
from weightsync.measures import Measure

HEAL = 30.0  # seconds from the agent's first log line after the fault
MEDIAN = 1.3  # of the undisturbed median
MINUTES = 45.0
COPIED = 1.1  # times the undisturbed median


def wrong(trial: Trial) -> str:
    """Why the case failed; "" where it did not. What is bounded over all cases is left to the measures."""
    case, judged = trial.case, trial.judged
    if trial.problem:
        return trial.problem
    if judged.torn or judged.stale:
        return judged.sentences[0]
    if trial.heal_seconds > HEAL:
        return f"healed after {trial.heal_seconds:.1f} s, {HEAL:.0f} allowed"
    hurt = [name for name, what in trial.outcomes.items() if what != "Current" and not name.startswith(trial.struck)]
    if case.others_unhurt and hurt:
        return f"other engines were not served: {trial.outcomes}"
    if case.wire_free and trial.heal_bytes:
        return f"the heal sent {trial.heal_bytes} bytes, none allowed"
    return ""


def measures(trials: Sequence[Trial], baselines: Mapping[Setting, Sequence[float]], stall: float) -> list[Measure]:
    """All figures. baselines: commit times of undisturbed publishes before the first fault, in each setting."""
    judged = [trial.judged for trial in trials]
    found = [
        _count("cases", len(trials), "trials of one fault each"),
        _measure("all cases", sum(trial.seconds for trial in trials) / 60, "min", MINUTES, "without starting worlds"),
        _bound("cases failed", sum(bool(wrong(trial)) for trial in trials), "by any bound of their own"),
        _bound("torn answers", sum(one.torn for one in judged), "spans that their version does not compute"),
        _bound("stale answers", sum(one.stale for one in judged), "of a version older than was reported current"),
        _count("answers checked", sum(one.answers for one in judged), "greedy answers, each repeated here"),
        _count("answers over a switch", sum(one.switched for one in judged), "that two versions computed"),
        _count("distinguishable", sum(one.distinguishable for one in judged), "the version before answers otherwise"),
    ]
    healed = [trial.heal_seconds for trial in trials if trial.healed]
    if healed:
        how = "from the agent's first log line after the fault to every live engine current"
        found.append(_measure("heal, maximum", max(healed), "s", HEAL, how))
        found.append(_measure("heal, median", median(healed), "s", None, how))
    found += _commits(trials, baselines, stall)
    free = [trial.heal_bytes for trial in trials if trial.case.wire_free and trial.healed]
    if free:
        found.append(_bound("bytes to heal after an apply was cut off", sum(free), "agents struck while applying"))
    for trial in trials:
        for name, value in trial.figures.items():
            bound = COPIED if name.startswith("copied") else None
            found.append(_measure(f"{name}: {trial.case.id}", value, "1", bound, "ratio"))
    return found


def _commits(trials: Sequence[Trial], baselines: Mapping[Setting, Sequence[float]], stall: float) -> list[Measure]:
    """Engines beside a struck one against publishes that nothing disturbed, each in its own setting."""
    ratios: list[float] = []
    excess: list[float] = []
    told: list[Measure] = []
    for setting, baseline in baselines.items():
        here = [trial for trial in trials if trial.case.setting is setting]
        clean = [*baseline, *(at for trial in here for at in trial.clean)]
        others = [at for trial in here for at in trial.others]
        if others and clean:
            ratios += [at / median(clean) for at in others]
            excess.append(max(others) - max(clean))
        if clean:
            how = f"{setting.value}; {len(clean)} commits, publish to commit"
            name = setting.name.lower()
            told.append(_measure(f"undisturbed commit, median ({name})", median(clean), "s", None, how))
            told.append(_measure(f"undisturbed commit, maximum ({name})", max(clean), "s", None, how))
    if not ratios:
        return told
    how = f"{len(ratios)} commits of engines beside a struck one, against undisturbed ones of the same setting"
    return [
        _measure("others' commit over undisturbed, median", median(ratios), "1", MEDIAN, how),
        _measure(
            "others' maximum less undisturbed maximum", max(excess), "s", stall, f"largest of all settings; {how}"
        ),
        *told,
    ]


def _measure(name: str, value: float, unit: str, bound: float | None, how: str) -> Measure:
    return Measure(name=name, value=value, unit=unit, bound=bound, better="lower", how=how)


def _bound(name: str, value: float, how: str) -> Measure:
    """None is allowed."""
    return _measure(name, value, "B" if name.startswith("bytes") else "1", 0, how)


def _count(name: str, value: float, how: str) -> Measure:
    return Measure(name=name, value=value, unit="1", better="higher", how=how)


def details(trials: Iterable[Trial]) -> list[dict[str, object]]:
    """Everything that each case showed, for build/chaos/cases.json."""
    return [
        {
            "case": trial.case.id,
            "wrong": wrong(trial),
            "expected": expected(trial),
            "torn": trial.judged.torn,
            "stale": trial.judged.stale,
            "sentences": trial.judged.sentences[:5],
            "answers": trial.judged.answers,
            "switched": trial.judged.switched,
            "unanswered": trial.judged.unanswered,
            "healSeconds": round(trial.heal_seconds, 3),
            "healBytes": trial.heal_bytes,
            "outcomes": trial.outcomes,
            "othersCommitSeconds": [round(at, 3) for at in trial.others],
            "cleanCommitSeconds": [round(at, 3) for at in trial.clean],
            "seconds": round(trial.seconds, 1),
            **trial.figures,
        }
        for trial in trials
    ]


def expected(trial: Trial) -> str:
    """What the case asks for, in words."""
    asked = [f"no torn and no stale answer, every engine current within {HEAL:.0f} s"]
    if trial.case.others_unhurt:
        asked.append("the other engines current with the struck publish")
    if trial.case.wire_free:
        asked.append("no byte sent for the heal")
    return "; ".join(asked)
