"""The cluster that the fleet lives in: our kinds, a WeightSync, the operator's process, and what the plan says."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from tools.bench.scale.bare import peak
from tools.bench.scale.fleet import APPLY, NAMESPACE, Fleet
from tools.cluster.light import LightCluster
from tools.world.processes import ROOT, Child, python
from weightsync import names
from weightsync.report import Report

Json = dict[str, Any]
OURS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}"
POLICY = f"{OURS}/{names.PLURAL}/policy"
SLICES = f"{OURS}/{names.SLICE_PLURAL}"
POLL_SECONDS = 0.1
QUIET_SECONDS = 2.0  # without a write: far more than a pass waits for more, or takes between two of its writes
PLAN_SECONDS = 300.0
NEVER_SECONDS = 86_400  # between two lists of everything: none here


class Premises:
    """Everything but the pods."""

    def __init__(self, cluster: LightCluster, fleet: Fleet, folder: Path) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self.folder = folder
        self._marks = 0
        self.operator = self._operator(cluster.kubeconfig)

    def _operator(self, kubeconfig: Path, *flags: str) -> Child:
        flags = ("--health-host=127.0.0.1", "--health-port=0", f"--namespaces={NAMESPACE}", *flags)
        return Child(
            "operator",
            python("weightsync_operator", *flags),
            {"KUBECONFIG": str(kubeconfig)},
            self.folder / "operator.log",
        )

    def on(self, kubeconfig: Path) -> None:
        """End the operator; the next one knows the API server by that file, and has nothing but its watches."""
        self.operator.stop()
        self.operator = self._operator(kubeconfig, f"--resync-seconds={NEVER_SECONDS}")

    async def install(self) -> None:
        """Our kinds and the namespace."""
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            crd = yaml.safe_load(path.read_text(encoding="utf-8"))
            where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
            await self._fleet.call("PATCH", f"{where}?fieldManager=bench&force=true", crd, APPLY)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await self._fleet.call("POST", "/api/v1/namespaces", space)
        end = time.monotonic() + PLAN_SECONDS
        while not self._cluster.client.has(SLICES) or not self._cluster.client.has(f"{OURS}/{names.PLURAL}"):
            _in_time(end, "the kinds are served")
            await asyncio.sleep(POLL_SECONDS)

    async def policy(self) -> None:
        """A WeightSync that nothing is known of."""
        await self._fleet.call("DELETE", POLICY)
        for part in (await self._fleet.call("GET", SLICES))["items"]:
            await self._fleet.call("DELETE", f"{SLICES}/{part['metadata']['name']}")
        body = {
            "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "policy"},
            "spec": {
                "trainer": {"selector": {"matchLabels": {"app": "trainer"}}},
                "rollout": {"selector": {"matchLabels": {"app": "rollout"}}},
            },
        }  # fmt: skip
        await self._fleet.call("POST", f"{OURS}/{names.PLURAL}", body)

    async def bare(self, count: int) -> tuple[float, int]:
        """Seconds until a bare handler has seen so many pods, and its peak memory."""
        out, admin = self.folder / "bare", self._cluster.admin
        out.unlink(missing_ok=True)
        place = (self._cluster.url, self._cluster.authority, admin.certificate, admin.key, NAMESPACE, count, out)
        child = Child("bare", python("tools.bench.scale.bare", *map(str, place)), {}, self.folder / "bare.log")
        started = time.monotonic()
        child.start()
        try:
            while not (out.exists() and out.read_text()):
                _in_time(started + PLAN_SECONDS, f"a bare handler sees {count} pods:\n{child.tail()}")
                await asyncio.sleep(POLL_SECONDS)
            return time.monotonic() - started, int(out.read_text())
        finally:
            child.stop()

    async def start(self) -> tuple[float, int]:
        """Start the operator: seconds until the plan is whole, and its peak memory when kopf has told it all."""
        started = time.monotonic()
        self.operator.start()
        await self.planned()
        seconds = time.monotonic() - started
        self._marks += 1
        label = f"mark {self._marks}"
        await self._fleet.report(Report(term=(await self.status())["head"]["term"], version="0.1", label=label))
        await self.until("what came after all pods is seen", lambda status: status.get("label") == label)
        return seconds, peak(self.operator.pid)

    async def status(self) -> Json:
        """The WeightSync's."""
        found: Json = (await self._fleet.call("GET", POLICY)).get("status", {})
        return found

    async def planned(self) -> None:
        """Wait until the plan in force is what the fleet is."""
        if left := await self.settled(PLAN_SECONDS):
            _too_late(f"the plan follows the pods; wrong: {left}\n{self.operator.tail()}")

    async def settled(self, seconds: float) -> int:
        """How many engines the plan in force still has wrong, once it has none or that time is over."""
        end = time.monotonic() + seconds
        while (left := await self.wrong()) and time.monotonic() < end:
            if not self.operator.alive:
                raise RuntimeError(f"the operator ended:\n{self.operator.tail()}")
            await asyncio.sleep(POLL_SECONDS)
        return left

    async def wrong(self) -> int:
        """How many engines the plan in force has wrong: missing, of another life, of other pods, or not there."""
        wanted = self._fleet.wanted()
        status = await self.status()
        head = status.get("head", {}).get("slices", [])
        matched = int(status.get("counts", {}).get("matched", 0))
        if matched != len(self._fleet.lives):
            return abs(len(self._fleet.lives) - matched)
        found: dict[str, tuple[str, ...]] = {}
        for part in (await self._fleet.call("GET", SLICES))["items"]:
            if part["metadata"]["name"] in head:
                for engine in part["spec"].get("engines", []):
                    found[engine["name"]] = (engine["incarnation"], *(t["uid"] for t in engine["targets"]))
        return len({key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)})

    async def until(self, what: str, holds: Callable[[Json], bool]) -> None:
        """Wait for what the status says."""
        end = time.monotonic() + PLAN_SECONDS
        while not holds(await self.status()):
            _in_time(end, f"{what}: {self.operator.tail()}")
            await asyncio.sleep(POLL_SECONDS)

    async def quiet(self) -> int:
        """Wait until nothing is written any more; the writes until then, since the API server started."""
        before, since = self.writes(), time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            now = self.writes()
            if now != before:
                before, since = now, time.monotonic()
        return before

    def writes(self) -> int:
        """Writes of what only the operator writes here, by the API server's own count."""
        text = self._cluster.client.call("GET", "/metrics")[1]
        pattern = re.compile(
            r'^apiserver_request_total{(?=[^}]*resource="(?:weightsyncs|weightsyncslices|events)")'
            r'(?=[^}]*verb="(?:POST|PUT|PATCH|APPLY|DELETE|DELETECOLLECTION)")[^}]*} (\S+)$',
            re.MULTILINE,
        )
        return int(sum(map(float, pattern.findall(text))))


def _in_time(end: float, what: str) -> None:
    if time.monotonic() > end:
        _too_late(what)


def _too_late(what: str) -> NoReturn:
    sys.stderr.write(f"not in time: {what}\n")
    raise TimeoutError(what)
