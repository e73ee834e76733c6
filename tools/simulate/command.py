"""The command: run schedules, replay one, or look for what was broken on purpose."""

from __future__ import annotations

import argparse
import time

from tools.simulate import bugs, hunt, report
from tools.simulate.runner import Batch, many
from tools.simulate.schedule import describe, run, shrink

TOLD = 3  # failures that are told at length


class Progress:
    """A line every few seconds."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.next = 5.0

    def __call__(self, batch: Batch, seconds: float) -> None:
        """Tell where it stands."""
        if seconds >= self.next:
            self.next = seconds + 10.0
            rate = batch.events / seconds
            print(
                f"{batch.schedules:>8} of {self.total} schedules  {batch.events:>10} events  {rate:>7.0f}/s  "
                f"{batch.violations} violations",
                flush=True,
            )


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    made.add_argument("--schedules", type=int, default=2000, help="how many")
    made.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    made.add_argument("--jobs", type=int, default=2, help="processes")
    made.add_argument("--replay", type=int, metavar="SEED", help="run one schedule and tell what happened")
    made.add_argument("--bug", metavar="NAME", help="break the protocol so, and run")
    made.add_argument("--bugs", action="store_true", help="break it in every known way, one after another")
    made.add_argument("--mutants", action="store_true", help="remove each row and each guard, one after another")
    made.add_argument("--budget", type=int, default=1000, help="schedules to find one bug in")
    return made


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 where an invariant or a bound of the report is broken, or a bug was not found."""
    options = parser().parse_args(arguments)
    if options.bugs or options.mutants:
        return hunt.main(seeded_=options.bugs, mechanical_=options.mutants, budget=options.budget, jobs=options.jobs,
                         seed=options.seed)  # fmt: skip
    if options.bug:
        bugs.BUGS[options.bug].aim()
        bugs.BUGS[options.bug].install()
    if options.replay is not None:
        return replay(options.replay)
    began = time.monotonic()
    batch = many(options.seed, options.schedules, options.jobs, Progress(options.schedules))
    seconds = time.monotonic() - began
    print(report.table(batch))
    print(
        f"{batch.schedules} schedules, {batch.events} events in {seconds:.1f} s "
        f"({batch.events / seconds:.0f}/s, {batch.events / batch.schedules:.0f} each), {batch.violations} violations"
    )
    measured = report.measures(batch, seconds, options.jobs, options.seed)
    broken = [measure for measure in measured if not measure.holds]
    if not options.bug:
        print(f"report: {report.save(measured)}")
    for measure in broken:
        print(
            f"not as it must be: {measure.name} is {measure.value:g} {measure.unit}, {measure.bound:g} is asked for"
        )
    for failure in batch.failures[:TOLD]:
        print()
        print(describe(shrink(failure)))
    if len(batch.failures) > TOLD:
        print("seeds that fail as well:", *(failure.seed for failure in batch.failures[TOLD:]))
    return 1 if broken else 0


def replay(seed: int) -> int:
    """One schedule, as small as it still fails."""
    ran = run(seed)
    if ran.failure is None:
        print(f"seed {seed}: {ran.events} events, {ran.faults} faults, {ran.syncs} syncs: every invariant held")
        return 0
    print(describe(shrink(ran.failure)))
    return 1
