"""Start to plan, memory, writes, and right plans after all that happens; writes build/bench/scale.json."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from tools.bench.scale import planning
from tools.bench.scale.fleet import PODS_OF_ENGINE, TRAINERS, Fleet
from tools.bench.scale.premises import PLAN_SECONDS, Premises
from tools.bench.scale.rolling import WAVES, WHAT, Rolling
from tools.bench.scale.wire import Wire
from tools.cluster.light import LightCluster, running
from tools.report.writing import write
from weightsync.measures import Measure
from weightsync.report import LastSync, Report

IDLE_SECONDS = 60.0
REPORT_SECONDS = 2.0  # agents report at most so often
MEBI = 2**20


def tell(text: str) -> None:
    """To whoever waits."""
    sys.stderr.write(text + "\n")


class Trial:
    """All of it, in order."""

    def __init__(self, cluster: LightCluster, fleet: Fleet, here: Premises, engines: int, pods: int) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._here = here
        self._engines = engines
        self._pods = pods
        self._others = pods - TRAINERS - engines * PODS_OF_ENGINE
        self.found: list[Measure] = []
        self._how = f"{engines} engines of {PODS_OF_ENGINE} pods, {pods} pods in all, real API server"

    async def run(self, rounds: int, idle_seconds: float) -> None:
        """Raises TimeoutError where a plan does not become right."""
        await self._populate()
        await self._start(rounds)
        await self._changes()
        await self._sync()
        await self._idle(idle_seconds)
        await self._roll()
        self._grow()

    def _note(self, name: str, value: float, how: str, *, unit: str = "1", bound: float | None = None) -> None:
        self.found.append(
            Measure(name=name, value=value, unit=unit, bound=bound, better="lower", how=f"{how}; {self._how}")
        )
        tell(f"{name}: {value:.4g} {unit}" + (f" (bound {bound:g})" if bound is not None else ""))

    async def _populate(self) -> None:
        started = time.monotonic()
        await self._here.install()
        await self._fleet.each(self._fleet.trainer, range(TRAINERS))
        await self._fleet.each(self._fleet.engine, range(self._engines))
        await self._fleet.each(self._fleet.bystander, range(self._others))
        tell(f"{self._pods} pods made and {self._engines} engines announced in {time.monotonic() - started:.0f} s")

    async def _start(self, rounds: int) -> None:
        """The bare handler and the operator, in turns. The last operator goes on."""
        pairs = []
        for number in range(rounds):
            await self._here.policy()
            bare = await self._here.bare(self._pods)
            ours = await self._here.start()
            tell(f"round {number}: bare {bare[0]:.1f} s, {bare[1] / MEBI:.0f} MiB; "
                 f"ours {ours[0]:.1f} s, {ours[1] / MEBI:.0f} MiB")  # fmt: skip
            pairs.append((bare, ours))
            if number < rounds - 1:
                self._here.operator.stop()
        times = statistics.median(ours[0] / bare[0] for bare, ours in pairs)
        memory = max(ours[1] / bare[1] for bare, ours in pairs)
        how = f"operator's process start to a head with every engine, over a bare on.event handler; {rounds} pairs"
        self._note("start to full plan over bare kopf", times, how, bound=1.5)
        self._note("peak memory over bare kopf", memory, "VmHWM of both processes after the start", bound=2)
        for index, side in enumerate(("bare kopf", "operator")):
            self._note(f"start of {side}", statistics.median(pair[index][0] for pair in pairs), "median", unit="s")
            self._note(f"peak memory of {side}", max(p[index][1] for p in pairs) / MEBI, "VmHWM", unit="MiB")

    async def _counted(self, change: Awaitable[None], seen: Awaitable[None]) -> int:
        """Writes that one change brings. seen: what waits until the operator has obeyed it."""
        before = await self._here.quiet()
        await change
        await seen
        return await self._here.quiet() - before

    async def _changes(self) -> None:
        number, fleet, here = self._engines // 2, self._fleet, self._here
        fleet.away = {number}
        ends = await self._counted(fleet.announce(number, 0, runs=False), here.planned())
        fleet.away = set()
        starts = await self._counted(self._restarted(number), here.planned())
        fleet.away = {number}
        goes = await self._counted(fleet.remove(number, 1), here.planned())
        comes = await self._counted(
            fleet.make(number, 1), here.until("the pod is seen", lambda status: not status.get("worst"))
        )
        fleet.away = set()
        says = await self._counted(fleet.announce(number, 1), here.planned())
        how = f"the process ends {ends}, starts {starts}; a pod goes {goes}, comes {comes}, announces itself {says}"
        self._note("writes for one pod change", max(ends, starts, goes, comes, says), how, bound=3)

    async def _restarted(self, number: int) -> None:
        self._fleet.lives[number] += 1
        await self._fleet.announce(number, 0)

    async def _sync(self) -> None:
        """A sync of some seconds, as the coordinator reports it; one before it, so that conditions have turned."""
        term = (await self._here.status())["head"]["term"]
        writes = 0
        for label in ("first", "second"):
            before = await self._here.quiet()
            for done in (0, self._engines // 2, self._engines):
                figures = LastSync(version=label, engines=done, seconds=4.0) if done == self._engines else None
                await self._fleet.report(
                    Report(
                        term=term, version="0.1", label=label, current=done, joining=self._engines - done,
                        syncing=figures is None, last_sync=figures,
                    )
                )  # fmt: skip
                await asyncio.sleep(REPORT_SECONDS)
            await self._here.until("the sync is told", lambda s: s.get("lastSync", {}).get("version") == label)  # noqa: B023
            writes = await self._here.quiet() - before
        self._note("writes for a sync", writes, "reports at its begin, in its middle and at its end", bound=3)

    async def _idle(self, seconds: float) -> None:
        before = await self._here.quiet()
        await asyncio.sleep(seconds)
        self._note("writes while idle", self._here.writes() - before, f"{seconds:.0f} s without a change", bound=0)

    async def _roll(self) -> None:
        """All engines are replaced while what the operator looks through breaks in every way."""
        async with Wire(self._cluster) as wire:
            self._here.on(wire.kubeconfig(self._here.folder / "wire"))
            await self._unwatched()
            rolled = await Rolling(self._cluster, self._fleet, wire).run(range(self._engines))
            started = time.monotonic()
            left = await self._here.settled(PLAN_SECONDS)
            late = time.monotonic() - started
            how = f"all replaced in {WAVES} waves, every second one under new names, in {rolled:.0f} s: {WHAT}"
            self._note("engines wrong after a rolling update", left, how, bound=0)
            self._note("plan right after the last change", late, how, unit="s")
            await self._unheard(wire)

    async def _unwatched(self) -> None:
        """What happened while no operator ran is found when one looks again."""
        await self._fleet.each(self._fleet.replace, range(0, self._engines, 10))
        await self._here.start()
        self._note(
            "engines wrong after changes that nobody watched", await self._here.wrong(),
            "every tenth engine replaced while no operator ran", bound=0,
        )  # fmt: skip

    async def _unheard(self, wire: Wire) -> None:
        """Watches that say nothing any more, and do not end, are given up."""
        lines = wire.hush()
        await self._fleet.each(self._fleet.replace, sorted(self._fleet.lives)[::10])
        started = time.monotonic()
        left = await self._here.settled(PLAN_SECONDS)
        how = f"every tenth engine replaced after the operator's {lines} connections fell silent without an end"
        self._note("engines wrong after changes on silent watches", left, how, bound=0)
        self._note("plan right after changes on silent watches", time.monotonic() - started, how, unit="s")

    def _grow(self) -> None:
        small, large = planning.growth()
        how = f"from pods to slices, processor time; engines of {planning.RANKS} ranks, {planning.STAGES} stages"
        self._note("planning 10,000 engines over 1,000", large / small, how, bound=12)
        self._note("planning 1,000 engines", small, how, unit="s")


async def run(engines: int, pods: int, rounds: int, idle_seconds: float) -> list[Measure]:
    """The whole trial."""
    with (
        tempfile.TemporaryDirectory(prefix="weightsync-scale-") as folder,
        running(Path(folder, "cluster")) as cluster,
    ):
        async with Fleet(cluster) as fleet:
            here = Premises(cluster, fleet, Path(folder))
            trial = Trial(cluster, fleet, here, engines, pods)
            try:
                await trial.run(rounds, idle_seconds)
            finally:
                here.operator.stop()
            return trial.found


def main(arguments: list[str]) -> int:
    """Write build/bench/scale.json; exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--engines", type=int, default=1000, help=f"engines of {PODS_OF_ENGINE} pods (1000)")
    parser.add_argument("--pods", type=int, default=10_000, help="pods in all; the rest concerns nobody (10000)")
    parser.add_argument("--rounds", type=int, default=2, help="starts of both, in turns (2)")
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, help="seconds to watch it do nothing (60)")
    options = parser.parse_args(arguments)
    if options.engines < 2 or options.pods < TRAINERS + options.engines * PODS_OF_ENGINE:
        parser.error(f"--pods: {options.engines} engines and their trainer are more pods")
    found = asyncio.run(run(options.engines, options.pods, options.rounds, options.idle))
    path = write("bench", "scale", found, conditions={"engines": options.engines, "pods": options.pods})
    tell(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name}")
    return 0 if all(measure.holds for measure in found) else 1
