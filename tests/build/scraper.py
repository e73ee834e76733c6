"""A real Prometheus in a pod of a namespace of its own, as monitoring runs: NetworkPolicies hold for it too."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.build import scraping
from tests.build.questions import Prometheus, Question
from tests.build.release import SECONDS, Release, eventually
from tools.demo.kubectl import Kubectl

Json = dict[str, Any]
Target = tuple[str, str, str]  # namespace, pod, container

CRD = "customresourcedefinition.apiextensions.k8s.io"
GROUP, PORT = "monitoring.coreos.com", 9090
KINDS = {"podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"}
CONFIG, TARGETS, INSIDE = "prometheus.yml", "targets.json", "/etc/prometheus"


class Scraper:
    """Scrapes what the chart's PodMonitors select, from start() on.

    program: of this machine, mounted into the pod; folder: mounted too. make_kinds() comes before the chart is
    installed, and clear() when it is gone: helm needs the kinds to take away what is of them.
    """

    def __init__(self, release: Release, program: Path, folder: Path) -> None:
        self.namespace = f"{release.namespace}-monitoring"
        self.values = [
            "monitoring.podMonitor.enabled=true", "monitoring.podMonitor.interval=1s",
            "monitoring.alerts.enabled=true", "monitoring.dashboard.enabled=true",
            "networkPolicy.scrapers[0].namespaceSelector.matchLabels."
            rf"kubernetes\.io/metadata\.name={self.namespace}",
        ]  # fmt: skip
        self._release = release
        self._kubectl = Kubectl(release.site.kubectl, release.site.kubeconfig, self.namespace)
        self._program, self._folder = program.resolve(), folder
        there = release.names("crd")
        self._kinds = {one: kind for one, kind in KINDS.items() if f"{CRD}/{one}.{GROUP}" not in there}
        self._prometheus: Prometheus | None = None

    def make_kinds(self) -> None:
        """What a Prometheus operator brings along and the chart looks for: the kinds, of any content."""
        for plural, kind in self._kinds.items():
            self._apply([_crd(plural, kind)])
            self._kubectl("wait", "--for=condition=Established", "--timeout=30s", f"{CRD}/{plural}.{GROUP}")

    def clear(self) -> None:
        """The pod and the kinds go."""
        self._kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")
        for plural in self._kinds:
            self._kubectl("delete", "--ignore-not-found", "crd", f"{plural}.{GROUP}")

    def start(self) -> None:
        """The release is installed. The pod is on its way when this returns; sees() waits for it."""
        monitors = self._release.kubectl.get(f"podmonitors.{GROUP}")["items"]
        self._folder.mkdir(mode=0o755)
        (self._folder / CONFIG).write_text(yaml.safe_dump(scraping.config(monitors, f"{INSIDE}/{TARGETS}")))
        self._look()
        self._apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}])
        self._apply([_pod(self._release.site.image, self._program, self._folder)])

    def sees(self, wanted: set[Target]) -> None:
        """Wait until the last scrape of each of these was answered, and nothing else is scraped."""
        prometheus = self._ready()

        def exactly() -> bool:
            self._look()
            return prometheus.up() == dict.fromkeys(wanted, True)

        try:
            eventually("a scrape of each", exactly)
        except AssertionError as error:
            raise AssertionError(f"{error}; wanted {sorted(wanted)}, found {prometheus.up()}") from error

    def dashboard(self) -> Json:
        """As Grafana finds it in the cluster."""
        (found,) = self._release.kubectl.get("configmaps", "-l", "grafana_dashboard=1")["items"]
        document: Json = json.loads(found["data"]["weightsync.json"])
        return document

    def alerts(self) -> Json:
        """As a Prometheus operator finds them in the cluster."""
        (found,) = self._release.kubectl.get(f"prometheusrules.{GROUP}")["items"]
        document: Json = found["spec"]
        return document

    def query(self, expression: str) -> list[Json]:
        """What Prometheus says now."""
        return self._ready().query(expression)

    def unanswered(self, questions: Sequence[Question], seconds: float = SECONDS) -> list[Question]:
        """Those that still have no number after that time; each is asked as it stands, too."""
        prometheus, end, left = self._ready(), time.monotonic() + seconds, list(questions)
        for question in questions:
            prometheus.query(f"{question.expression} {question.bound}")
        while (left := [one for one in left if not prometheus.answers(one.expression)]) and time.monotonic() < end:
            time.sleep(0.5)
        return left

    def _ready(self) -> Prometheus:
        """It, once it answers."""
        if self._prometheus is None:
            self._kubectl("wait", "--for=condition=Ready", "pod/prometheus", "--timeout=60s", seconds=90)
            address = self._kubectl.get("pod", "prometheus")["status"]["podIP"]
            self._prometheus = Prometheus(f"{address}:{PORT}")
            eventually("Prometheus answers", self._prometheus.ready)
        return self._prometheus

    def _look(self) -> None:
        """Tell it of the pods that there are: every port of every container, whatever it will make of them."""
        found = scraping.discovered(self._release.kubectl.get("pods")["items"])
        fresh = self._folder / f"fresh-{TARGETS}"
        fresh.write_text(json.dumps(found))
        fresh.replace(self._folder / TARGETS)

    def _apply(self, items: list[Json]) -> None:
        self._kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def _crd(plural: str, kind: str) -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def _pod(image: str, program: Path, folder: Path) -> Json:
    """No user of the cluster: it is told what to scrape."""
    binary = "/usr/local/bin/prometheus"
    arguments = [f"--config.file={INSIDE}/{CONFIG}", "--storage.tsdb.path=/data", f"--web.listen-address=:{PORT}"]
    mounts = {"program": binary, "config": INSIDE, "data": "/data"}
    spec = {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "dnsPolicy": "Default",
        "containers": [
            {
                "name": "prometheus", "image": image, "imagePullPolicy": "Never", "command": [binary, *arguments],
                "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
            }
        ],
        "volumes": [
            {"name": "program", "hostPath": {"path": str(program), "type": "File"}},
            {"name": "config", "hostPath": {"path": str(folder), "type": "Directory"}},
            {"name": "data", "emptyDir": {}},
        ],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "prometheus"}, "spec": spec}
