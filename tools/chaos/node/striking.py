"""From a part to its processes on this machine, and what is done to them."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tools.chaos.node.cases import STOP_SECONDS, How, NodeCase, Part
from tools.chaos.striking import workers
from tools.cluster import node
from tools.demo.errors import DemoError
from tools.demo.kubectl import Kubectl
from tools.world.processes import stands_still

AGENT, ENGINE, TRAINER, OPERATOR = "weightsync-agent", "engine", "trainer", "operator"

Json = dict[str, Any]


@dataclass(frozen=True)
class Aim:
    """What a case will strike. pod: its name, "" for the node's own programs; container: "" where that is not one."""

    case: NodeCase
    pod: str
    container: str
    strike: Callable[[], object]


def aim(case: NodeCase, kubectl: Kubectl, freed: Callable[[], None]) -> Aim:
    """Find the processes. freed: called when a stopped part goes on. Raises DemoError, ClusterError."""
    programs = {Part.API_SERVER: "kube-apiserver", Part.KUBELET: "kubelet"}
    if case.part in programs:
        return Aim(case, "", "", _stroke(node.process(programs[case.part]), case.how, freed))
    pod, container = _pod_of(case.part, kubectl)
    name = pod["metadata"]["name"]
    if case.how is How.DELETE:
        words = ("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
        return Aim(case, name, "", lambda: kubectl(*words))
    pid = _process(pod, container, node.runtime_client().processes())
    if case.part in (Part.ENGINE_WORKER, Part.SOURCE_WORKER):
        found = next(workers(pid), None)
        if found is None:
            raise DemoError(f"the agent of pod {name} has no transfer worker")
        return Aim(case, name, "", _stroke(found, case.how, freed))
    return Aim(case, name, container, _stroke(pid, case.how, freed))


def _stroke(pid: int, how: How, freed: Callable[[], None]) -> Callable[[], None]:
    """The signal, by a handle that means this process or none."""
    handle = os.pidfd_open(pid)

    def go_on() -> None:
        signal.pidfd_send_signal(handle, signal.SIGCONT)
        os.close(handle)
        freed()

    def strike() -> None:
        signal.pidfd_send_signal(handle, signal.SIGKILL if how is How.KILL else signal.SIGSTOP)
        if how is How.STOP:
            stands_still(pid)
            threading.Timer(STOP_SECONDS, go_on).start()
        else:
            os.close(handle)

    return strike


def _pod_of(part: Part, kubectl: Kubectl) -> tuple[Json, str]:
    """The pod, and the container in it."""
    pods = sorted(kubectl.get("pods")["items"], key=lambda pod: str(pod["metadata"]["name"]))
    if part is Part.OPERATOR:
        return _first(pods, "app.kubernetes.io/component", "operator"), OPERATOR
    if part.of_engine:
        return _first(pods, "app", "rollout"), ENGINE if part is Part.ENGINE else AGENT
    trainers = [pod for pod in pods if pod["metadata"]["labels"].get("app") == "trainer"]
    leader = coordinator(kubectl.get("weightsyncs")["items"][0])
    wanted = part is Part.COORDINATOR
    for pod in trainers:
        if (pod["metadata"]["uid"] == leader) is wanted:
            return pod, TRAINER if part is Part.TRAINER else AGENT
    raise DemoError(f"{part.value}: none of {len(trainers)} trainer pods, the coordinator being {leader!r}")


def coordinator(resource: Json) -> str:
    """The coordinator's pod uid by the head; "" where there is none yet. Pure."""
    return str(resource.get("status", {}).get("head", {}).get("coordinator", ""))


def _first(pods: list[Json], label: str, value: str) -> Json:
    for pod in pods:
        if pod["metadata"].get("labels", {}).get(label) == value and "deletionTimestamp" not in pod["metadata"]:
            return pod
    raise DemoError(f"there is no pod with label {label}={value}")


def container_status(pod: Json, name: str) -> Json:
    """The status of one container, sidecars included; empty where it has none yet. Pure."""
    status = pod.get("status", {})
    for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if one["name"] == name:
            found: Json = one
            return found
    return {}


def _process(pod: Json, container: str, running: Mapping[str, int]) -> int:
    name = container_status(pod, container).get("containerID", "").removeprefix("containerd://")
    if name not in running:
        raise DemoError(f"container {container} of pod {pod['metadata']['name']} does not run on this node")
    return running[name]


def started_ms(pod: Json, container: str) -> int:
    """When the container's present life began, milliseconds since 1970 (whole seconds); 0: it does not run. Pure."""
    stamp = container_status(pod, container).get("state", {}).get("running", {}).get("startedAt")
    return int(datetime.fromisoformat(stamp).timestamp() * 1000) if stamp else 0
