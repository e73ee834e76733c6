"""Publishes through the agents, beside the pure copies; and what requests in flight see of them."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tools.bench.agents import NotServed
from tools.bench.gpu.site import Site
from tools.world.processes import WorldError
from weightsync.measures import Measure

WARM = 3  # the first publish learns the names, the next two pin an arena each
PAUSE_BOUND, FILL_BOUND = 1.2, 1.3
FLIGHTS = 4
OUTCOME = 180.0  # seconds
SETTLE = 1.5  # seconds for a changed plan file to be read by all agents: they look every 0.3 s


def strategy(mode: str) -> dict[str, str | int]:
    """Of the plan."""
    return {"type": "Rolling", "deadlineSeconds": 120, "pauseMode": mode}


class Sync(NamedTuple):
    """One publish, in seconds. fill: copying into the arena; call: publish() in all; staged: begun to verified."""

    fill: float
    call: float
    staged: float
    apply: float
    pause: float
    whole: float


def publish(site: Site, which: str) -> Sync:
    """Publish a state until the engine serves it. Raises NotServed."""
    if site.publisher is None:
        raise WorldError("no Publisher")
    began = time.perf_counter()
    handle = site.publisher.publish(site.states[which], label=which)
    called = time.perf_counter() - began
    outcome = handle.outcome(OUTCOME)
    if outcome.status != "Current":
        raise NotServed(outcome.describe())
    (engine,) = outcome.engines
    fill = site.publisher.progress.seconds
    return Sync(fill, called, engine.staged_seconds, engine.apply_seconds, engine.pause_seconds, outcome.seconds)


def measured(site: Site, repeats: int) -> list[Measure]:
    """Publishes and pure copies in turns; each ratio is of neighbours in time. The last state is ``after``."""
    if site.pure is None:
        raise WorldError("no memory for the pure copies")
    rows: list[tuple[Sync, float, float]] = []
    for number in reversed(range(WARM + repeats)):
        to_host, to_device = site.pure.to_host(), site.pure.to_device()
        rows.append((publish(site, "before" if number % 2 else "after"), to_host, to_device))
    first, rows = rows[0][0], rows[WARM:]
    how = f"median of {repeats} interleaved pairs, {site.nbytes} bytes"

    def ratio(pairs: list[tuple[float, float]]) -> float:
        return statistics.median(ours / pure for ours, pure in pairs)

    def told(name: str, seconds: list[float], what: str) -> Measure:
        return Measure(name=name, value=statistics.median(seconds), unit="s", better="lower", how=f"{what}; {how}")

    return [
        Measure(name="pause to continue over the pure copy", value=ratio([(s.pause, d) for s, _, d in rows]),
                unit="1", bound=PAUSE_BOUND if site.real else None, better="lower",
                how=f"an agent's commit, pauseMode Abort, engine idle, over one block from pinned memory; {how}"),
        Measure(name="filling over the pure copy", value=ratio([(s.fill, h) for s, h, _ in rows]), unit="1",
                bound=FILL_BOUND if site.real else None, better="lower",
                how=f"{site.device} tensors into the arena over one block to pinned memory; {how}"),
        told("pause to continue", [s.pause for s, _, _ in rows], "an agent's commit"),
        told("apply", [s.apply for s, _, _ in rows], "the hook's call, of the pause"),
        told("fill", [s.fill for s, _, _ in rows], "the Publisher's copies"),
        told("publish()", [s.call for s, _, _ in rows], "until the tensors may change again"),
        told("publish to verified", [s.staged for s, _, _ in rows], "Mooncake over TCP, one engine"),
        told("publish to current", [s.whole for s, _, _ in rows], "the sync in all"),
        told("pure copy to the device", [d for _, _, d in rows], "one block from pinned memory"),
        told("pure copy to the host", [h for _, h, _ in rows], "one block to pinned memory"),
        Measure(name="first publish to verified", value=first.staged, unit="s", better="lower",
                how=f"one run: nothing is pinned, the names are learnt, {site.nbytes} bytes"),
    ]  # fmt: skip


def into_the_engine(site: Site, repeats: int) -> list[Measure]:
    """Publish into the engine's own parameters, ``after`` last. Raises WorldError where they are not."""
    syncs = [publish(site, "before" if number % 2 else "after") for number in reversed(range(WARM + repeats))][WARM:]
    mode = site.world.status(site.engine).mode
    if mode != "Direct":
        raise WorldError(f"the engine's agent chose mode {mode}")
    how = f"Direct, median of {repeats}, {site.nbytes} bytes"
    return [
        Measure(name=name, value=statistics.median(seconds), unit="s", better="lower", how=f"{what}; {how}")
        for name, seconds, what in (
            ("pause to continue", [s.pause for s in syncs], "from the first grant to the answer: the wire is in it"),
            ("publish to verified", [s.staged for s in syncs], "written, read back out of the engine, digested"),
            ("publish to current", [s.whole for s in syncs], "the sync in all"),
        )
    ]


@dataclass
class Flights:
    """Long requests that were running when a publish began."""

    site: Site
    answers: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """All of them, and a moment for the first tokens."""
        for number in range(FLIGHTS):
            thread = threading.Thread(target=self._fly, args=(number,), daemon=True)
            thread.start()
            self.threads.append(thread)
        time.sleep(0.5)
        if not all(thread.is_alive() for thread in self.threads):
            raise WorldError(f"requests ended before the publish began: {self.problems or self.answers}")

    def _fly(self, number: int) -> None:
        sampling = {"temperature": 0, "max_new_tokens": self.site.long, "ignore_eos": True}
        try:
            self.answers.append(
                self.site.ask("/generate", {"input_ids": [7 + number, 8, 9], "sampling_params": sampling})
            )
        except (WorldError, OSError) as error:
            self.problems.append(str(error))

    def land(self) -> list[tuple[str, int]]:
        """How each ended: its finish reason, and how many tokens it had. Raises WorldError where one did not."""
        for thread in self.threads:
            thread.join(240)
        if self.problems or len(self.answers) != FLIGHTS:
            raise WorldError(f"{len(self.answers)} of {FLIGHTS} requests were answered; {self.problems}")
        return [(answer["meta_info"]["finish_reason"]["type"], len(answer["output_ids"])) for answer in self.answers]


def in_flight(site: Site, mode: str) -> list[Measure]:
    """Publish under requests. Abort: all end early, as aborted; InPlace: all go on, and have all their tokens."""
    site.world.set_plan(strategy=strategy(mode))
    site.world.wait_for_plan(lambda plan: plan.strategy.pause_mode == mode, f"a plan with pauseMode {mode}")
    time.sleep(SETTLE)
    flights = Flights(site)
    flights.start()
    sync = publish(site, "before")
    ended = flights.land()
    publish(site, "after")
    wanted = ("abort", False) if mode == "Abort" else ("length", True)
    right = sum((reason, tokens == site.long) == wanted for reason, tokens in ended)
    seen = sorted(set(ended))
    how = f"{FLIGHTS} requests of {site.long} tokens, running when the publish began; they ended as {seen}"
    return [
        Measure(name=f"requests that end as {mode} says", value=right, unit="1", bound=FLIGHTS, better="higher",
                how=how),
        Measure(name=f"pause to continue, {mode}, requests in flight", value=sync.pause, unit="s", better="lower",
                how=f"one commit; {how}"),
    ]  # fmt: skip
