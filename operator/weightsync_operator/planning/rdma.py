"""The condition RDMAReady: whether every pod that takes part has an RDMA device, who lacks one, and why. Pure."""

from typing import Literal

from weightsync.plan import Rdma
from weightsync_operator.planning import reasons
from weightsync_operator.planning.facts import Facts
from weightsync_operator.planning.pods import Pod, count, listing
from weightsync_operator.planning.sources import Finding

Status = Literal["True", "False", "Unknown"]


def ready(facts: Facts) -> tuple[Status, Finding]:
    """Unknown where nobody asks for RDMA, or where it cannot be told."""
    if facts.plan is None:
        return "Unknown", Finding(reasons.NO_PLAN, "there is no plan yet")
    transfer = facts.plan.transfer
    if transfer.protocol == "TCP":
        return "Unknown", Finding(reasons.RDMA_NOT_WANTED, "spec.transfer.protocol is TCP: no byte takes a device")
    pods = _parties(facts)
    lacking = [(pod.name, why) for pod in pods if (why := _lacks(pod, transfer.rdma))]
    silent = [pod.name for pod in pods if pod.announcement is None or _says_nothing(pod)]
    if lacking:
        what = "are refused" if transfer.protocol == "RDMA" else "go over TCP"
        named = listing((f"{name} ({why})" for name, why in lacking), 3)
        message = f"{len(lacking)} of {count(len(pods), 'pod')} without an RDMA device, whose routes {what}: {named}"
        return "False", Finding(reasons.NO_DEVICE, message + _last(facts))
    if silent or not pods:
        message = f"pods {listing(silent)} do not say: their agents are older" if silent else "no pod takes part yet"
        return "Unknown", Finding(reasons.DEVICES_UNKNOWN, message)
    last = facts.report.last_sync if facts.report is not None else None
    if last is not None and last.routes.get("tcp", 0):
        message = "every pod has an RDMA device, and bytes went over TCP all the same"
        return "False", Finding(reasons.OVER_TCP, message + _last(facts))
    return "True", Finding(reasons.DEVICES_READY, f"{count(len(pods), 'pod')} with an RDMA device" + _last(facts))


def _parties(facts: Facts) -> list[Pod]:
    """Pods that write and pods that are written to; each once, sources first."""
    planned = {source.uid for source in facts.sources.pods}
    trainers = [pod for pod in facts.owned.trainers if pod.uid in planned]
    engines = {rank.pod.uid: rank.pod for member in facts.membership.members for rank in member.ranks}
    return [*trainers, *engines.values()]


def _says_nothing(pod: Pod) -> bool:
    said = pod.announcement
    return said is not None and not said.devices and not said.no_device


def _lacks(pod: Pod, rdma: Rdma) -> str:
    """Why the pod has no device that may be used; empty where it has one, or does not say."""
    said = pod.announcement
    if said is None or not said.devices:
        return said.no_device if said is not None else ""
    if rdma.devices and not set(rdma.devices) & set(said.devices):
        return f"it has {listing(said.devices)}, and spec.transfer.rdma.devices are {listing(rdma.devices)}"
    return ""


def _last(facts: Facts) -> str:
    """What the last sync's routes went over."""
    last = facts.report.last_sync if facts.report is not None else None
    if last is None or not last.routes:
        return ""
    routes = (f"{number} over {transport}" for transport, number in sorted(last.routes.items()))
    return f"; the last sync's routes: {', '.join(routes)}"
