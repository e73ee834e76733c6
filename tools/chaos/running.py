"""Runs one case in a world that is whole, and finds out whether it is whole again."""

import signal
import time
from dataclasses import dataclass, field
from functools import partial

from tools.chaos.cases import Case, Kind, Phase, Victim
from tools.chaos.records import committed_after, first_after
from tools.chaos.site import STALL, STRUCK, Site, now, sent
from tools.chaos.striking import Struck, end, find, strike
from tools.chaos.traffic import Judged, until

REACH_SECONDS = 20.0
HEAL_SECONDS = 60.0  # until a case counts as never healed; the bound is judging.HEAL
AGAIN_SECONDS = 1.0  # between two publishes of a trainer whose sources had the fault


@dataclass
class Trial:
    """What one case showed. Times in seconds.

    others: commit times of the engines that were not struck, in the struck publish; clean: of all engines in the
    publish after the heal. heal_bytes: written by sources between the mending and the heal.
    """

    case: Case
    problem: str = ""
    healed: bool = False
    heal_seconds: float = 0.0
    heal_bytes: int = 0
    seconds: float = 0.0
    outcomes: dict[str, str] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    clean: list[float] = field(default_factory=list)
    copied: list[float] = field(default_factory=list)
    judged: Judged = field(default_factory=Judged)
    figures: dict[str, float] = field(default_factory=dict)


def commit_times(site: Site, since: float, held: float, but: str = "") -> list[float]:
    """From the order to publish to each engine's commit, without the time for which the harness held the sync."""
    found = [committed_after(site.log(name), since) for name in site.engines if name != but]
    return [at - since - held for at in found if at is not None]


def clean_publish(site: Site, trial: Trial) -> None:
    """A publish that nothing disturbs: whether the world is whole, and what a commit takes in it."""
    since = now()
    number = site.publish()
    outcomes = site.outcome(number)
    wrong = {name: outcomes.get(name, "no outcome") for name in site.engines if outcomes.get(name) != "Current"}
    if wrong or not until(lambda: site.all_current(number), 10.0):
        trial.problem = trial.problem or f"the world is not whole afterwards: {wrong or 'a gate is closed'}"
        return
    trial.clean = commit_times(site, since, 0.0)
    trial.copied = [line["seconds"] for line in site.said("copied", number)]


def run_process(site: Site, case: Case) -> Trial:
    """A process is killed or stopped at a phase."""
    trial = Trial(case)
    if case.victim is None:
        raise ValueError(f"{case.id}: no victim")
    hold = site.hold(case.place, case.phase.name.lower())
    since = now()
    number = site.publish(gated=case.phase is Phase.WRITING)
    try:
        hold.wait(REACH_SECONDS)
        struck = find(site, case.victim)
        strike(site, case, struck)
    finally:
        hold.release()
        site.open_gate()
    held = hold.released_at - hold.reached_at
    mended = hold.released_at
    if case.kind is Kind.STOP:
        time.sleep(STALL + 1.0)
        struck.send(signal.SIGCONT)
        mended = now()
    trial.outcomes = site.outcome(number)
    before = site.written()
    if case.victim.of_engine:
        trial.others = commit_times(site, since, held, but=STRUCK)
    if case.kind is not Kind.STOP:
        mended = mend(site, case, struck, mended)
    heal(site, trial, number, struck, mended)
    trial.heal_bytes = sent(before, site.written())
    return trial


def mend(site: Site, case: Case, struck: Struck, mended: float) -> float:
    """Start again what died; when that was."""
    if case.kind is Kind.STOP_KILL:
        end(site, case, struck)
        mended = now()
    if struck.restart is not None:
        mended = now()
        struck.restart()
    if case.victim is Victim.ENGINE:
        until(lambda: (status := site.status(site.engines[STRUCK])) is not None and not status.gate, 10.0, 0.05)
    return mended


def heal(site: Site, trial: Trial, number: int, struck: Struck, mended: float) -> None:
    """Wait until every engine is current. Where the sources had the fault, the trainer publishes on, as it would."""
    deadline = time.monotonic() + HEAL_SECONDS
    publishing = trial.case.victim is not None and not trial.case.victim.of_engine
    while not trial.healed and time.monotonic() < deadline:
        if publishing:
            number = site.publish()
            site.outcome(number)
        trial.healed = until(partial(site.all_current, number), AGAIN_SECONDS if publishing else HEAL_SECONDS)
    healed = now()
    if not trial.healed:
        trial.problem = f"not healed after {HEAL_SECONDS:.0f} s: { ({e: site.serving(e) for e in site.engines}) }"
        return
    first = first_after(site.log(struck.pod), mended)
    trial.heal_seconds = max(0.0, healed - (first if first is not None else mended))
