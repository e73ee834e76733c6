"""The cases that are more than one signal: network, memory volumes, late and corrupted writes, a replaced pod."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tools.chaos.cases import Case, Kind, Scenario, Victim
from tools.chaos.model import NBYTES
from tools.chaos.running import (
    Trial,
    begin,
    clean_publish,
    commit_times,
    ended,
    heal,
    letting_go,
    run_process,
    served,
)
from tools.chaos.site import DEADLINE, STALL, Site, now, sent
from tools.chaos.striking import workers
from tools.chaos.traffic import until
from tools.world.cluster import ApiServer
from tools.world.processes import Child, WorldError, stands_still

MANY, ROUNDS = 8, 5  # publishes in a row of which the time until copied is compared, and how often
AWAY = 3  # publishes without operator or API server
SMALL = 4 << 20  # bytes of a volume that holds no replica
ENOUGH = 64 << 20
JOIN_SECONDS = 40.0
FILL = 1 << 16


def cut(site: Site, case: Case) -> Trial:
    """The network between two pods drops everything for longer than a stall, then is whole again."""
    trial = Trial(case)
    if site.network is None or case.phase is None:
        raise ValueError(f"{case.id}: needs a network and a phase")
    one, other = (site.pod(place) for place in case.between)
    number, since, hold = begin(site, case, case.phase)
    with letting_go(site, hold):
        site.network.cut(one, other)
    try:
        time.sleep(STALL + 1.0)
    finally:
        site.network.heal()
    mended = now()
    ended(site, trial, number, since, hold)
    heal(site, trial, number, one, mended)
    return trial


def full_volume(site: Site, case: Case) -> Trial:
    """Somebody fills the pod's volume; after a publish it is emptied again."""
    trial = Trial(case)
    pod = site.pod(case.place)
    filler = site.world.pods[pod].volume / "filler"
    fill(filler)
    since = now()
    try:
        number = site.publish()
        ended(site, trial, number, since)
    finally:
        filler.unlink()
    heal(site, trial, number, pod, now())
    return trial


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    block = bytes(FILL)
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(block):
                pass
        except OSError:
            return


def small_volume(site: Site, case: Case) -> Trial:
    """A fifth engine whose volume holds no replica: refused, alone; made larger, it joins."""
    trial = Trial(case)
    name = "engine-4"
    pod = site.world.engine(name, site.model, volume_bytes=SMALL)
    told = until(lambda: any(line.get("level") in ("warning", "error") for line in site.log(name)), JOIN_SECONDS)
    since = now()
    number = site.publish()
    ended(site, trial, number, since)
    subprocess.run(["mount", "-o", f"remount,size={ENOUGH}", pod.volume], check=True)
    mended = now()
    site.engines[name] = pod
    try:
        trial.healed = until(lambda: site.serving(name) == number, JOIN_SECONDS)
        trial.heal_seconds = now() - mended
    finally:
        del site.engines[name]
        site.world.remove(name)
    site.world.wait_for_engines(len(site.engines))
    if not told:
        trial.problem = f"{name}'s agent did not say that its arena does not fit"
    elif not trial.healed:
        trial.problem = f"{name} did not join within {JOIN_SECONDS:.0f} s of its volume being large enough"
    return trial


def late_write(site: Site, case: Case) -> Trial:
    """A write is submitted only after its stall: the source's agent has ended its worker by then."""
    trial = Trial(case)
    _, source = site.coordinator_first()
    hold = site.arm(source.name, "worker-late-write", str(STALL + 1.0))
    since = now()
    number = site.publish()
    hold.wait(10.0)
    ended(site, trial, number, since)
    hold.release()
    heal(site, trial, number, source.name, since)
    behind = [name for name, outcome in trial.outcomes.items() if outcome != "Current"]
    if len(behind) > 1:
        trial.problem = trial.problem or f"one write was late, and {behind} were not served"
    return trial


def late_write_unseen(site: Site, case: Case) -> Trial:
    """The same with the source's agent stopped: nobody ends the worker, and its bytes arrive after the sync."""
    trial = Trial(case)
    _, source = site.coordinator_first()
    hold = site.arm(source.name, "worker-late-write", str(DEADLINE + 2.0))
    since = now()
    number = site.publish()
    hold.wait(10.0)
    source.agent.kill(signal.SIGSTOP)
    try:
        until(lambda: now() > since + DEADLINE + 4.0, DEADLINE + 6.0)
    finally:
        source.agent.kill(signal.SIGCONT)
        hold.release()
    mended = now()
    ended(site, trial, number, since)
    heal(site, trial, number, source.name, mended)
    return trial


def corrupt(site: Site, case: Case) -> Trial:
    """A byte of a bucket changes between its landing and its digest: it is written again, nobody notices."""
    trial = Trial(case)
    hold = site.arm(site.struck, "worker-corrupt")
    before, since = site.written(), now()
    number = site.publish()
    ended(site, trial, number, since)
    again = sent(before, trial.written) - NBYTES * len(site.engines)
    heal(site, trial, number, site.struck, since)
    reached = hold.reached
    hold.release()
    if not reached or trial.outcomes.get(site.struck) != "Current" or again <= 0:
        trial.problem = trial.problem or f"corrupted: {reached}, outcomes {trial.outcomes}, {again} bytes sent again"
    trial.figures["bytes sent again over a replica"] = again / NBYTES
    return trial


def replaced(site: Site, case: Case) -> Trial:
    """The pod is deleted; another with a new uid and an empty volume listens at the same address and port."""
    trial = Trial(case)
    since, number, hold = now(), site.ledger.newest, None
    if case.phase is not None:
        number, since, hold = begin(site, case, case.phase)
    site.traffic.close(site.struck)
    old = site.engines[site.struck]
    for child in old.children:
        child.kill()
    if hold is not None:
        hold.release()
        site.open_gate()
    mended = now()
    site.engines[site.struck] = site.world.replace(site.struck, f"{site.struck}-{int(mended)}", site.model)
    if hold is not None:
        ended(site, trial, number, since, hold)
    trial.written = site.written()
    heal(site, trial, number, site.struck, mended)
    return trial


def copied(site: Site, case: Case) -> Trial:
    """All of one engine's pod is stopped: once it is marked behind, publish() takes no longer than ever.

    Undisturbed publishes and those beside a stopped engine take turns, since speeds drift on a shared machine: the
    figure is the median of each turn's own ratio.
    """
    trial, ratios = Trial(case), list[float]()
    for _ in range(ROUNDS):
        before, times = Trial(case), list[float]()
        for _ in range(MANY):
            clean_publish(site, before)
        number = beside_stopped(site, trial, times)
        trial.healed = False
        heal(site, trial, number, site.struck, now())
        if before.problem or not times or not before.copied:
            raise WorldError(f"nothing to compare: {before.problem}")
        ratios.append(median(times) / median(before.copied))
    trial.figures["copied, over undisturbed"] = median(ratios)
    return trial


def beside_stopped(site: Site, trial: Trial, times: list[float]) -> int:
    """Publishes while a whole pod is stopped, and the seconds until each rank had copied; the last of them."""
    pod = site.engines[site.struck]
    pids = list(workers(pod.agent.pid))
    send(pod.children, pids, signal.SIGSTOP)
    try:
        number = site.publish()
        site.outcome(number)  # the one that marks it
        for _ in range(MANY):
            since = now()
            number = site.publish()
            ended(site, trial, number, since)
            times += [line["seconds"] for line in site.said("copied", number)]
    finally:
        send(pod.children, pids, signal.SIGCONT)
    return number


def control_plane(site: Site, case: Case) -> Trial:
    """Operator or API server is away for three publishes: every engine is served by each of them."""
    trial = Trial(case)
    if site.cluster is None or case.phase is None:
        raise ValueError(f"{case.id}: needs a cluster and a phase")
    api_server = ApiServer(site.cluster.cluster)
    victim = site.cluster.operator if case.victim is Victim.OPERATOR else api_server
    number, since, hold = begin(site, case, case.phase)
    with letting_go(site, hold):
        victim.kill(signal.SIGKILL if case.kind is Kind.KILL else signal.SIGSTOP)
    try:
        ended(site, trial, number, since, hold)
        for _ in range(AWAY - 1):
            since = now()
            number = site.publish()
            outcomes = site.outcome(number)
            trial.outcomes |= {name: what for name, what in outcomes.items() if what != "Current"}
            trial.others += commit_times(site, since, 0.0, served(site, outcomes))
    finally:
        if case.kind is Kind.KILL:
            victim.start()
        else:
            api_server.kill(signal.SIGCONT)
    trial.written = site.written()
    heal(site, trial, number, site.struck, now())
    hurt = {name: what for name, what in trial.outcomes.items() if what != "Current"}
    if hurt:
        trial.problem = trial.problem or f"not every engine was served: {hurt}"
    return trial


def restart_alone(site: Site, case: Case) -> Trial:
    """An agent that restarts while the API server is away brings its engine back from journal and arena."""
    if site.cluster is None:
        raise ValueError(f"{case.id}: needs a cluster")
    api_server = ApiServer(site.cluster.cluster)
    api_server.kill()
    try:
        return run_process(site, case)
    finally:
        api_server.start()


def send(children: list[Child], pids: list[int], number: int) -> None:
    """A signal to all processes of a pod."""
    for child in children:
        child.kill(number)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # its agent, which goes on, has ended it meanwhile
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            stands_still(pid)


SCENARIOS: dict[Scenario, Callable[[Site, Case], Trial]] = {
    Scenario.PROCESS: run_process,
    Scenario.CUT: cut,
    Scenario.FULL_VOLUME: full_volume,
    Scenario.SMALL_VOLUME: small_volume,
    Scenario.LATE_WRITE: late_write,
    Scenario.LATE_WRITE_UNSEEN: late_write_unseen,
    Scenario.CORRUPT: corrupt,
    Scenario.REPLACED: replaced,
    Scenario.COPIED: copied,
    Scenario.CONTROL_PLANE: control_plane,
    Scenario.RESTART_ALONE: restart_alone,
}
