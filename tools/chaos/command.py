"""``python tools/chaos``: runs the cases, prints what they show, writes build/chaos/report.json and cases.json."""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence

import structlog
import torch
from rich.console import Console
from rich.table import Table

from tools.chaos import cases, judging
from tools.chaos.cases import Case, Setting
from tools.chaos.concluding import conclude
from tools.chaos.node import cases as node_cases
from tools.chaos.node import run as node_run
from tools.chaos.running import Trial, clean_publish
from tools.chaos.scenarios import SCENARIOS
from tools.chaos.site import STALL, Site
from tools.chaos.traffic import until
from tools.report.writing import BUILD, write
from tools.world.processes import WorldError

WARM_UP = 6  # undisturbed publishes of a new world
FIRST_SECONDS = 60.0  # until the world is there, however busy the machine
AGAIN_SECONDS = 10.0  # until a world that has not become current is published to once more


def baseline(site: Site) -> list[float]:
    """Commit times of undisturbed publishes. Raises WorldError where even those do not work."""
    trial = Trial(Case("undisturbed"))
    found: list[float] = []
    _first(site)
    for number in range(1, WARM_UP):
        clean_publish(site, trial)
        if trial.problem:
            raise WorldError(f"undisturbed publish {number + 1}: {trial.problem}")
        found += trial.clean
    site.traffic.take()
    return found


def _first(site: Site) -> None:
    """The first publish learns the names and starts every worker: an engine may get it late, as one that joins, and
    on a busy machine a rank may come too late for it; the trainer publishes on.
    """
    last = time.monotonic() + FIRST_SECONDS
    while True:
        number = site.publish()
        site.outcome(number)
        if until(lambda n=number: site.all_current(n), AGAIN_SECONDS):  # type: ignore[misc]
            return
        if time.monotonic() > last:
            keep(site, "the first publish")
            raise WorldError(f"no publish became current within {FIRST_SECONDS} s: {site.why(number)}")


def run(site: Site, case: Case) -> Trial:
    """One case, then a clean publish, then the answers' judgement."""
    began = time.monotonic()
    try:
        site.aim(case.part)
        trial = SCENARIOS[case.scenario](site, case)
        trial.struck = site.struck
        if not trial.problem:
            clean_publish(site, trial)
    except WorldError as error:
        trial = Trial(case, problem=str(error).splitlines()[0])
    trial.judged = site.traffic.take()
    site.ledger.forget_answers()
    trial.seconds = time.monotonic() - began
    return trial


def run_all(chosen: Sequence[Case]) -> tuple[list[Trial], dict[Setting, list[float]]]:
    """Every case; a world that a case left broken is replaced. Commit times of undisturbed publishes by setting."""
    trials: list[Trial] = []
    undisturbed: dict[Setting, list[float]] = {}
    for setting in Setting:
        left = [case for case in chosen if case.setting is setting]
        while left:
            print(f"a world for {len(left)} cases: {setting.value}", flush=True)
            with Site(setting) as site:
                undisturbed.setdefault(setting, []).extend(baseline(site))
                while left:
                    trials.append(run(site, left.pop(0)))
                    tell(trials[-1], len(trials), len(chosen))
                    if trials[-1].problem:
                        keep(site, trials[-1].case.id)
                        break
    return trials, undisturbed


def keep(site: Site, what: str) -> None:
    """The logs of a case that failed, for whoever looks into it: build/chaos/logs/<case>/."""
    folder = BUILD / "chaos" / "logs" / what.replace(" ", "-").replace("'", "").replace(":", "")
    folder.mkdir(parents=True, exist_ok=True)
    for log in site.world.folder.glob("*.log"):
        shutil.copy(log, folder)
    print(f"its logs are under {folder.relative_to(BUILD.parent)}", flush=True)


def tell(trial: Trial, number: int, count: int) -> None:
    """A line while it runs."""
    verdict = judging.wrong(trial) or "ok"
    print(
        f"[{number}/{count}] {trial.case.id}: {verdict}; healed in {trial.heal_seconds:.1f} s, "
        f"{trial.heal_bytes} B sent, {trial.judged.answers} answers, {trial.seconds:.0f} s",
        flush=True,
    )


def table(trials: Sequence[Trial]) -> Table:
    """One row for each case."""
    made = Table("case", "", "torn", "stale", "heal s", "heal B", "others s", "answers", highlight=False)
    for trial in trials:
        worst = f"{max(trial.others):.2f}" if trial.others else ""
        verdict = judging.wrong(trial)
        made.add_row(
            trial.case.id,
            "[bold red]FAILED[/]" if verdict else "ok",
            str(trial.judged.torn),
            str(trial.judged.stale),
            f"{trial.heal_seconds:.1f}",
            str(trial.heal_bytes),
            worst,
            str(trial.judged.answers),
        )
    return made


def on_node(only: str, *, listed: bool) -> int:
    """The trials of tools/chaos/node. Exit status as main's."""
    if listed:
        print("\n".join(case.id for case in node_cases.table() if only in case.id))
        return 0
    if os.geteuid() != 0:
        sys.stderr.write("the local node needs root\n")
        return 2
    return node_run.run(only, BUILD.parent)


def main(arguments: list[str]) -> int:
    """Exit status: 0 where every bound holds, 1 where one is broken, 2 where no case was chosen."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases whose id holds it")
    parser.add_argument("--list", action="store_true", help="print the ids and end")
    parser.add_argument("--seed", type=int, default=None, help="run the cases in a random order")
    parser.add_argument("--node", action="store_true", help="the cases on the local node instead (root)")
    options = parser.parse_args(arguments)
    if options.node:
        return on_node(options.only, listed=options.list)
    chosen = [case for case in cases.table() if options.only in case.id]
    if os.geteuid() != 0:
        left_out = [case for case in chosen if case.setting is Setting.PODS]
        chosen = [case for case in chosen if case not in left_out]
        sys.stderr.write(f"not root: {len(left_out)} cases with networks of their own are left out\n")
    if options.list:
        print("\n".join(case.id for case in chosen))
        return 0
    if not chosen:
        sys.stderr.write(f"no case's id holds {options.only!r}; --list prints them\n")
        return 2
    if options.seed is not None:
        random.Random(options.seed).shuffle(chosen)  # noqa: S311
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the world is ended too
    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    trials, undisturbed = run_all(chosen)
    Console(width=180).print(table(trials))
    found = judging.measures(trials, undisturbed, STALL)
    path = write("chaos", "report", found, conditions={"stallSeconds": STALL})
    (BUILD / "chaos" / "cases.json").write_text(json.dumps(judging.details(trials), indent=1) + "\n")
    return conclude(found, path)
