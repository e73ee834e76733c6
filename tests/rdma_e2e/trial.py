"""What is done and what must hold, in order; figures are gathered on the way."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.rdma_e2e import outside, pods, site
from tests.rdma_e2e.mounted import Mounted
from tests.rdma_e2e.site import Json, Published, Site
from tools.guest_cluster.places import RESOURCE
from tools.setup import progress
from weightsync.measures import Measure

FIRST, SECOND, THIRD = "11", "12", "13"  # checkpoints, by their seeds
BARE = "bare"
OPERATOR = f"{site.RELEASE}-operator"  # the chart's name of its account, role and Lease
START_SECONDS = 600.0  # from a pod's creation until its programs answer: they are emulated, and start one by one
SYNC_SECONDS = 300.0
EXAMPLE = site.ROOT / "examples" / "kubernetes" / "rdma"
# What takes seconds on a machine takes minutes here; one processor for all, and room for several pods.
SETTINGS = {
    "WEIGHTSYNC_TRANSPORT": "rdma",  # workers over RDMA from the start: another one would start for a minute
    "WEIGHTSYNC_STALL_SECONDS": "120",
    "WEIGHTSYNC_WORKER_START_SECONDS": "240",
    "WEIGHTSYNC_CONTACT_SECONDS": "60",
    "WEIGHTSYNC_COMMIT_SECONDS": "240",
    "WEIGHTSYNC_PROBE_SECONDS": "5",
}
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "768Mi", RESOURCE: 1}}


class TrialError(Exception):
    """Something does not hold; what, and what was found instead."""


def require(holds: bool, what: str, found: object) -> None:
    """Raises TrialError."""
    if not holds:
        raise TrialError(f"{what}; found: {found}")


@dataclass
class Trial:
    """The steps; measures: what they found."""

    at: Site
    mounted: Mounted
    folder: Path
    measures: list[Measure] = field(default_factory=list)

    def run(self) -> None:
        """All of them. Raises TrialError, ClusterError, GuestError, DemoError."""
        with self._timed("nodes ready, devices offered"):
            self.at.cluster.wait_until_ready()
        with self._timed("chart installed"):
            self._install()
        with outside.operator(self.at.kubectl, OPERATOR, self.folder):
            with self._timed("pods running"):
                self._start()
            with self._timed("devices"):
                self._devices_are_the_plugins()
            with self._timed("first publish"):
                self._goes_over_rdma(FIRST, 1)
            with self._timed("second publish"):
                self._goes_over_rdma(SECOND, 1)
            with self._timed("an engine joins"):
                self._joins()
            with self._timed("an engine without a device"):
                self._is_refused()
            self._nobody_was_restarted()

    # --- steps ---

    def _install(self) -> None:
        injection = {
            "startSeconds": int(START_SECONDS),
            "env": SETTINGS,
            "trainerResources": SMALL,
            "engineResources": SMALL,
        }
        values = {
            "image": {"repository": "localhost/weightsync", "tag": "dev", "pullPolicy": "Never"},
            "operator": {"replicas": 0, "watchNamespaces": [site.NAMESPACE]},
            "agent": {"namespaces": [site.NAMESPACE], "injection": injection},
        }
        path = self.folder / "values.json"
        path.write_text(json.dumps(values))
        self.at.install(EXAMPLE / "values.yaml", path)

    def _start(self) -> None:
        self.at.make(pods.rollout(self.mounted.places), pods.trainer(self.mounted.places), _weightsync())
        self._until("the trainer answers", lambda: self._all_run("app=trainer", "trainer"))
        self._until("the engine answers", lambda: self._all_run("app=rollout", "engine"))
        self._until("the coordinator knows the engine", lambda: self.at.known() == 1)
        self._is_ready()

    def _devices_are_the_plugins(self) -> None:
        """The container that asked has the device's files, the other one of the same pod has not."""
        for pod in (*self.at.pods("app=trainer"), *self.at.engines()):
            given = self.at.devices_in(site.name(pod), pods.AGENT)
            require("uverbs0" in given, f"{site.name(pod)}: the agent asked for {RESOURCE} and has uverbs0", given)
        withheld = self.at.devices_in("trainer-0", "trainer")
        require(not withheld, "trainer-0: the trainer did not ask and has no device", withheld)

    def _goes_over_rdma(self, name: str, engines: int) -> None:
        published = self.at.publish(name)
        outcome = published.outcome
        ended = [each.outcome for each in outcome.engines]
        require(ended == ["Current"] * engines, f"publish {name} is current in {engines} engines", outcome.describe())
        require(outcome.transports == {"rdma": engines}, "all routes went over RDMA", outcome.transports)
        self._carried(name, published, engines)
        self._serves(self.at.engines(), name)
        self._until(
            "status.lastSync tells of the routes",
            lambda: self.at.weightsync().get("lastSync", {}).get("label") == name,
        )
        last = self.at.weightsync()["lastSync"]
        routes = (last.get("rdmaRoutes", 0), last.get("tcpRoutes", 0))
        require(routes == (engines, 0), "lastSync counts them over RDMA", last)
        self._is_ready()

    def _joins(self) -> None:
        """Scaled up by one, and nobody acts. What the next step needs starts meanwhile on the other node."""
        self.at.make(pods.without_device(self.at.engines()[0], BARE))
        before = self.at.cluster.counted(self.at.trainer_node)
        self.at.kubectl("scale", "deployment/rollout", "--replicas=2")
        self._until("two engines are open", lambda: [site.is_open(pod) for pod in self.at.engines()] == [True, True])
        sent = self.at.cluster.counted(self.at.trainer_node).sent - before.sent
        self.measures.append(
            Measure(name="packets sent for a join", value=sent, unit="packets", better="higher",
                    how="by the trainer's device; none where the newcomer reads from an engine")
        )  # fmt: skip
        self._serves(self.at.engines(), SECOND)
        self._is_ready()

    def _is_refused(self) -> None:
        """It is named by the condition and by the outcome, gets no byte, and the others are written to."""
        before = {site.name(pod) for pod in self.at.engines()}
        self._until("the engine without a device answers", lambda: self._all_run(f"app={pods.WAITING}", "engine"))
        self.at.kubectl("label", "pod", BARE, "app=rollout", "--overwrite")
        self._until("RDMAReady is False", lambda: self.at.condition("RDMAReady").get("status") == "False")
        # By then each knows the other: the version that the engines have was offered to it.
        self._until("the status names it", lambda: (BARE, "NoDevice") in self.at.offenders())
        said = self.at.condition("RDMAReady")
        require(said["reason"] == "NoDevice" and BARE in said["message"], f"it names {BARE}", said)
        published = self.at.publish(THIRD)
        by_name = {each.engine: each for each in published.outcome.engines}
        told = published.outcome.describe()
        require(set(by_name) == {*before, BARE}, "the publish is for all three engines", told)
        refused = by_name.pop(BARE)
        # Behind: the version before could not be given to it either, so that nobody waits for it.
        require((refused.outcome, refused.reason) == ("Behind", "NoDevice"), f"{BARE} is refused by name", told)
        require(all(each.outcome == "Current" for each in by_name.values()), "the others are current", told)
        require(published.outcome.transports == {"rdma": 2}, "their routes went over RDMA", told)
        self._carried(THIRD, published, 2)
        bare = [pod for pod in self.at.engines() if site.name(pod) == BARE]
        self._serves([pod for pod in self.at.engines() if site.name(pod) != BARE], THIRD)
        self._serves(bare, site.BASE)
        require(not site.is_open(bare[0]), f"{BARE}'s gate is closed", bare[0]["status"].get("conditions"))
        written = self.at.written_over_tcp()
        require(written == 0, "nothing was written over TCP", written)

    def _nobody_was_restarted(self) -> None:
        found = {site.name(pod): again for pod in self.at.pods("") if (again := site.restarts(pod))}
        require(not found, "no container was started twice", found)

    # --- looking ---

    def _carried(self, name: str, published: Published, engines: int) -> None:
        """Both devices' counters cover the payload of all engines."""
        measure = Measure(
            name=f"payloads in packets, publish {name}", value=published.carried, unit="payloads",
            bound=float(engines), better="higher",
            how=f"4096 bytes a packet, fewest of those sent on guest-1 and taken on guest-2; to {engines} engines",
        )  # fmt: skip
        self.measures.append(measure)
        require(measure.holds, measure.name, (published.sent, published.received, published.payload))

    def _serves(self, engines: list[Json], name: str) -> None:
        for pod in engines:
            found = self.at.tokens(pod)
            require(
                found == self.at.right_tokens(name), f"{site.name(pod)} serves what torch computed of {name}", found
            )

    def _is_ready(self) -> None:
        said = self.at.condition("RDMAReady")
        require(said.get("status") == "True", "RDMAReady is True", said)

    def _all_run(self, selector: str, container: str) -> bool:
        found = self.at.pods(selector)
        return bool(found) and all(site.runs(pod, container) for pod in found)

    def _until(self, what: str, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        self.at.cluster.until(what, condition, seconds)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        with progress.step(name):
            yield
        self.measures.append(
            Measure(name=name, value=time.monotonic() - began, unit="s", better="lower", how="emulated guests")
        )


def _weightsync() -> Json:
    """The example's, with a deadline for emulated machines."""
    document: Json = yaml.safe_load((EXAMPLE / "weightsync.yaml").read_text())
    document["spec"]["strategy"] = {"deadlineSeconds": int(SYNC_SECONDS)}
    return document
