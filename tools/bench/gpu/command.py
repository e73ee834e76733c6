"""The command line: parts in their order, each with its own result, and the report written anew after each.

python tools/bench gpu [--size 4b] [--out build]          one NVIDIA GPU and an importable SGLang
python tools/bench gpu --mode Direct                      writes into the engine's own parameters: its own report
python tools/bench gpu --engine reference --size 64Mi     the same path on a CPU: it says that all of it works
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tools.bench.gpu import oracle, others, syncs
from tools.bench.gpu.site import SGLangWorld, Site, build, connect
from tools.report.writing import BUILD, write
from tools.world.world import World
from weightsync.measures import Measure
from weightsync.units import parse_bytes
from weightsync_agent.engines.seed import SEED_FLAG


def say(text: str) -> None:
    """Progress, with the time of day."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


class Report:
    """The measures so far. A part that failed is a measure too: a bound that is broken, with the reason."""

    def __init__(self, out: Path, name: str, conditions: dict[str, str | int | float]) -> None:
        self._out, self._name, self._conditions = out, name, conditions
        self.measures: list[Measure] = []

    def part(self, name: str, run: Callable[[], list[Measure]]) -> bool:
        """Whether it ran."""
        say(f"--- {name}")
        began = time.perf_counter()
        try:
            found, problem = run(), ""
        except Exception as error:  # noqa: BLE001 - the other parts can still be measured; the report tells of it
            found, problem = [], f"{type(error).__name__}: {error}"[:600]
            say(f"{name} FAILED: {traceback.format_exc(limit=-4)}")
        seconds = time.perf_counter() - began
        ran = Measure(
            name=f"part: {name}", value=float(not problem), unit="1", bound=1, better="higher",
            how=problem or f"it ran, {seconds:.0f} s",
        )  # fmt: skip
        for measure in (*found, ran):
            verdict = "" if measure.holds else "BROKEN "
            say(f"{verdict}{measure.name}: {measure.value:.4g} {measure.unit}; {measure.how}")
        self.measures += [*found, ran]
        write("bench", self._name, self.measures, conditions=self._conditions, build=self._out)
        return not problem


def run(site: Site, report: Report, repeats: int) -> None:
    """All parts but the start."""
    report.part("layout", lambda: _layout(site))
    if not report.part("connect", lambda: _connected(site)):
        return
    started: list[oracle.Look] = []

    def see() -> list[Measure]:
        started.append(oracle.look(site))
        return []

    report.part("look", see)
    publishes = syncs.into_the_engine if site.mode == "Direct" else syncs.measured
    if not report.part("publishes", lambda: publishes(site, repeats)):
        return
    if site.mode == "Staged":
        for mode in ("Abort", "InPlace"):
            report.part(f"requests in flight, {mode}", partial(syncs.in_flight, site, mode))
    loaded: list[oracle.Look] = []

    def compare() -> list[Measure]:
        found, look = oracle.compare(site, started[0])
        loaded.append(look)
        return found

    if report.part("from disk", compare) and site.real and site.mode == "Staged":
        report.part("Mooncake into the parameters", lambda: others.direct(site, loaded[0]))
        report.part("from tensor", lambda: others.from_tensor(site, loaded[0]))


def _layout(site: Site) -> list[Measure]:
    if not site.real:
        return []
    return [
        Measure(name="program by weightsync layout", value=float(not site.program_problem), unit="1", bound=1,
                better="higher", how=site.program_problem or "traced in this environment while the engine started"),
    ]  # fmt: skip


def _connected(site: Site) -> list[Measure]:
    connect(site)
    return [
        Measure(name=name, value=seconds, unit="s", better="lower", how="one run")
        for name, seconds in site.seconds.items()
    ]


def conditions(device: str, size: str) -> dict[str, str | int | float]:
    """What the figures belong to, beside the machine."""
    found: dict[str, str | int | float] = {"size": size}
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["sglang"] = importlib.metadata.version("sglang")
    return found


def main(arguments: list[str]) -> int:
    """Write build/bench/gpu.json (gpu-reference.json on a CPU; -direct); exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(prog="bench gpu", description=__doc__)
    parser.add_argument("--engine", choices=["sglang", "reference"], default="sglang")
    parser.add_argument("--mode", choices=["Staged", "Direct"], default="Staged")
    parser.add_argument("--size", default="", help="4b (8.8 GB) or small; bytes for the reference engine")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=BUILD, help="folder of the reports (build)")
    parser.add_argument("--logs", type=Path, help="where to keep the logs of all processes")
    options = parser.parse_args(arguments)
    real = options.engine == "sglang"
    device, size = ("cuda", options.size or "4b") if real else ("cpu", str(parse_bytes(options.size or "64Mi")))
    name = ("gpu" if real else "gpu-reference") + ("-direct" if options.mode == "Direct" else "")
    report = Report(options.out, name, conditions(device, size))
    flags = () if real else ("--act-as", "0.5.17", *([SEED_FLAG] if options.mode == "Direct" else []))
    with (SGLangWorld if real else World)({"strategy": syncs.strategy("Abort")}) as world:
        sites: list[Site] = []

        def start() -> list[Measure]:
            sites.append(build(world, size, device, flags, mode=options.mode))
            return []

        try:
            if report.part("start", start):
                run(sites[0], report, options.repeats)
        finally:
            for site in sites:
                site.close()
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                for log in world.folder.glob("*.log"):
                    shutil.copy(log, options.logs)
    return 0 if all(measure.holds for measure in report.measures) else 1
