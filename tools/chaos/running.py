"""Runs one case in a world that is whole, and finds out whether it is whole again."""

import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rl.checker import check
from tools.chaos.cases import Case, Kind, Phase, Victim
from tools.chaos.holds import Hold
from tools.chaos.records import committed_after, first_after
from tools.chaos.site import DEADLINE, OUTCOME_SECONDS, STALL, STRUCK, Site, now, sent
from tools.chaos.striking import Struck, end, find, strike
from tools.chaos.traffic import PROMPTS, TOKENS, Judged, ask, until
from tools.world.processes import WorldError

REACH_SECONDS = 20.0
HEAL_SECONDS = 60.0  # until a case counts as never healed; the bound is judging.HEAL
RESTART_SECONDS = 3.0  # until what was killed is started again, at the latest
ANSWER_SECONDS = 10.0
REPAIRED = 15.0  # more than the longest pause of a coordinator before it repairs an engine that was away
GRACE = 5.0  # after the deadline: until an outcome is told
AGAIN_SECONDS = 1.0  # between two publishes of a trainer whose sources had the fault


@dataclass
class Trial:
    """What one case showed. Times in seconds.

    others: commit times of the engines that were not struck, in the struck publish; clean: of all engines in the
    publish after the heal. heal_bytes: written by sources between the struck publish's end and the heal. figures:
    ratios that the case is about. written: Site.written() at the end of the struck publish. struck: the engine that
    has the fault.
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
    written: dict[int, float] = field(default_factory=dict)
    struck: str = STRUCK


def commit_times(site: Site, since: float, held: float, engines: Iterable[str]) -> list[float]:
    """From the order to publish to each engine's commit, without the time for which the harness held the sync."""
    found = [committed_after(site.log(name), since) for name in engines]
    return [at - since - held for at in found if at is not None]


def clean_publish(site: Site, trial: Trial) -> None:
    """A publish that nothing disturbs: whether the world is whole, and what a commit takes in it."""
    site.world.wait_for_engines(len(site.engines))  # an agent that restarts leaves the plan for a moment
    last = now() + REPAIRED
    while True:
        since = now()
        number = site.publish()
        outcomes = site.outcome(number)
        # One that was away is asked again only after a pause that grew with its absence, and left out until then.
        if "Behind" not in outcomes.values() or now() > last:
            break
        until(lambda n=number: site.all_current(n), 1.0)  # type: ignore[misc]
    wrong = {name: outcomes.get(name, "no outcome") for name in site.engines if outcomes.get(name) != "Current"}
    if wrong or not until(lambda: site.all_current(number), 10.0):
        trial.problem = (
            trial.problem or f"the world is not whole afterwards: {wrong or 'a gate is closed'}: {site.why(number)}"
        )
        return
    silent = [name for name in site.engines if not answers(site, name, number)]
    if silent:
        trial.problem = trial.problem or f"{silent} are current, and do not answer from it within {ANSWER_SECONDS} s"
    if not site.world.call(site.engines[site.struck], "/v1/readback", {})["digestOk"]:
        trial.problem = trial.problem or f"{site.struck}'s parameters are not, byte for byte, what it was sent"
    trial.clean = commit_times(site, since, 0.0, site.engines)
    trial.copied += [line["seconds"] for line in site.said("copied", number)]


def answers(site: Site, engine: str, number: int) -> bool:
    """The engine answers, and from that publish: one that was left paused says the right version too."""
    found = ask(site.engines[engine].engine_address, engine, PROMPTS[0], TOKENS[0], number, seconds=ANSWER_SECONDS)
    return found is not None and not (verdict := check(found, site.ledger)).torn and not verdict.stale


def run_process(site: Site, case: Case) -> Trial:
    """A process is killed or stopped at a phase."""
    trial = Trial(case)
    if case.victim is None or case.phase is None:
        raise ValueError(f"{case.id}: no victim, or no phase")
    number, since, hold = begin(site, case, case.phase)
    with letting_go(site, hold):
        struck = find(site, case.victim)
        strike(site, case, struck)
    mended = hold.released_at
    if case.kind is Kind.STOP:
        time.sleep(STALL + 1.0)
        struck.send(signal.SIGCONT)
        mended = now()
    elif case.kind is Kind.KILL:
        # A start takes a core, which the others' commits shall have for themselves.
        until(partial(site.all_current, number, site.struck), RESTART_SECONDS, 0.05)
        mended = mend(site, case, struck, mended)
    ended(site, trial, number, since, hold)
    if case.kind is Kind.STOP_KILL:
        mended = mend(site, case, struck, mended)
    heal(site, trial, number, struck.pod, mended)
    return trial


def begin(site: Site, case: Case, phase: Phase) -> tuple[int, float, Hold]:
    """Publish, and hold the sync at the phase: the publish, when it was ordered, and the hold.

    Raises WorldError where the phase does not come.
    """
    hold = site.hold(case.place, phase.name.lower())
    since = now()
    number = site.publish(gated=phase in (Phase.WRITING, Phase.RELAYING))
    try:
        hold.wait(REACH_SECONDS)
    except WorldError:
        hold.release()
        site.open_gate()
        raise
    return number, since, hold


@contextmanager
def letting_go(site: Site, hold: Hold) -> Iterator[None]:
    """Whatever happens in the block, the sync goes on after it."""
    try:
        yield
    finally:
        hold.release()
        site.open_gate()


def ended(site: Site, trial: Trial, number: int, since: float, hold: Hold | None = None) -> None:
    """Note what became of the struck publish, and of the engines beside the struck one."""
    # A trainer whose own agent is struck may be told nothing before it is mended.
    trial.outcomes = site.outcome(number, OUTCOME_SECONDS if trial.case.of_engine else DEADLINE + GRACE)
    trial.written = site.written()
    if trial.case.of_engine:
        held = hold.released_at - hold.reached_at if hold is not None else 0.0
        trial.others += commit_times(site, since, held, served(site, trial.outcomes))


def served(site: Site, outcomes: Mapping[str, str]) -> list[str]:
    """The engines beside the struck one that the publish reached; one that it did not reach is judging's business."""
    return [name for name in site.engines if name != site.struck and outcomes.get(name) == "Current"]


def mend(site: Site, case: Case, struck: Struck, mended: float) -> float:
    """Start again what died; when that was."""
    if case.kind is Kind.STOP_KILL:
        end(site, case, struck)
        mended = now()
    if struck.restart is not None:
        mended = now()
        struck.restart()
    if case.victim is Victim.ENGINE:
        until(lambda: (status := site.status(site.engines[site.struck])) is not None and not status.gate, 10.0, 0.05)
    return mended


def heal(site: Site, trial: Trial, number: int, pod: str, mended: float) -> None:
    """Wait until every engine is current. Where the sources had the fault, the trainer publishes on, as it would.

    pod: whose agent's first line from ``mended`` on the time counts from; number: the publish to come.
    """
    deadline = time.monotonic() + HEAL_SECONDS
    publishing = not trial.case.of_engine
    while not trial.healed and time.monotonic() < deadline:
        if publishing:
            number = site.publish()
            site.outcome(number)
        trial.healed = until(partial(site.all_current, number), AGAIN_SECONDS if publishing else HEAL_SECONDS)
    healed = now()
    if not trial.healed:
        serving = {name: site.serving(name) for name in site.engines}
        trial.problem = f"not healed after {HEAL_SECONDS:.0f} s: publish {number}, served are {serving}"
        return
    first = first_after(site.log(pod), mended)
    trial.heal_seconds = max(0.0, healed - (first if first is not None else mended))
    trial.heal_bytes = sent(trial.written, site.written())
