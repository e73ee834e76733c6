"""Every value of the chart with one that differs from its default, and with one that is wrong."""

from __future__ import annotations

from typing import Any

from tests.build.charts import Json

ABLE = [
    f"--api-versions={kind}"
    for kind in (
        "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
        "monitoring.coreos.com/v1/PodMonitor",
        "monitoring.coreos.com/v1/PrometheusRule",
    )
]
DIGEST = f"sha256:{'a' * 64}"
# Leaf -> (a value, what it brings into the manifests, a wrong value). None: any value is right, or what is rendered
# is looked at elsewhere.
CASES: dict[str, tuple[Any, str | None, Any]] = {
    "image.repository": ("reg.test/ws", "reg.test/ws", ""),
    "image.tag": ("v7", None, "a tag"),  # the digest decides
    "image.digest": (DIGEST, f"reg.test/ws@{DIGEST}", "sha256:12"),
    "image.pullPolicy": ("Always", "imagePullPolicy: Always", "Sometimes"),
    "imagePullSecrets": ([{"name": "pull-me"}], "name: pull-me", ["pull-me"]),
    "crds.install": (False, None, "no"),
    "rbac.aggregate": (False, None, "no"),
    "priorityClass.create": (True, "kind: PriorityClass", "yes"),
    "priorityClass.value": (4711, "value: 4711", 2000000000),
    "operator.replicas": (3, "replicas: 3", 99),
    "operator.watchNamespaces": (["seen"], 'value: "seen"', ["No_Name"]),
    "operator.podSelector": ("team=a", 'value: "team=a"', 7),
    "operator.topologyLabels": (["kubernetes.io/hostname"], "resources: [nodes]", ["a b"]),
    "operator.logLevel": ("debug", "LOG_LEVEL, value: debug", "loud"),
    "operator.logFormat": ("console", "value: console", "xml"),
    "operator.debounceSeconds": (0.5, 'value: "0.5"', 11),
    "operator.resyncSeconds": (77, 'value: "77"', 1),
    "operator.startSeconds": (444, "failureThreshold: 222", 3),
    "operator.resources": ({"limits": {"memory": "513Mi"}}, "memory: 513Mi", {"limit": {}}),
    "operator.priorityClassName": ("high", "priorityClassName: high", 7),
    "operator.podAnnotations": ({"note": "here"}, "note: here", {"a": 1}),
    "operator.podLabels": ({"team": "weights"}, "team: weights", {"a": 1}),
    "operator.nodeSelector": ({"disk": "fast"}, "disk: fast", {"a": 1}),
    "operator.tolerations": ([{"key": "dedicated"}], "key: dedicated", ["dedicated"]),
    "operator.affinity": ({"nodeAffinity": {}}, "nodeAffinity: {}", "near"),
    "agent.namespaces": (["rl", "eval"], "namespace: eval", ["A"]),
    "agent.serviceAccount.create": (False, None, "no"),
    "agent.serviceAccount.name": ("carrier", "system:serviceaccount:rl:carrier", "No Name"),
    "agent.injection.mode": ("Enabled", "kind: MutatingAdmissionPolicy", "Always"),
    "agent.injection.logLevel": ("warning", 'value: "warning"', "loud"),
    "agent.injection.enginePort": (31234, '"31234"', 70000),
    "agent.injection.startSeconds": (333, "failureThreshold: 333", 0),
    "agent.injection.volumeSizeLimit": ("9Gi", 'sizeLimit: "9Gi"', "much"),
    "agent.injection.ipcLock": (True, '"IPC_LOCK"', "yes"),
    "agent.injection.resourceClaims": (
        [{"name": "nic", "resourceClaimName": "c"}], 'resourceClaimName: "c"', ["nic"],
    ),
    "agent.injection.env": ({"WEIGHTSYNC_TRANSPORT": "rdma"}, '"WEIGHTSYNC_TRANSPORT", value: "rdma"', {"a-b": "x"}),
    "agent.injection.trainerResources": ({"limits": {"memory": "33Gi"}}, ': "33Gi"', {"limit": {}}),
    "agent.injection.engineResources": ({"limits": {"memory": "17Gi"}}, ': "17Gi"', {"limit": {}}),
    "networkPolicy.enabled": (True, "endPort: 17000", "yes"),
    "networkPolicy.scrapers": ([{"podSelector": {"matchLabels": {"app": "prom"}}}], "app: prom", [{"pods": {}}]),
    "monitoring.podMonitor.enabled": (True, "kind: PodMonitor", "yes"),
    "monitoring.podMonitor.labels": ({"release": "prom-a"}, "release: prom-a", {"a": 1}),
    "monitoring.podMonitor.interval": ("13s", "interval: 13s", "often"),
    "monitoring.alerts.enabled": (True, "kind: PrometheusRule", "yes"),
    "monitoring.alerts.labels": ({"release": "prom-b"}, "release: prom-b", {"a": 1}),
    "monitoring.dashboard.enabled": (True, "weightsync.json:", "yes"),
    "monitoring.dashboard.labels": ({"grafana": "c"}, "grafana: c", {"a": 1}),
}  # fmt: skip


def nested(column: int) -> Json:
    """All cases' values of a column as one document of values."""
    document: Json = {}
    for path, case in CASES.items():
        place = document
        *folders, leaf = path.split(".")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = case[column]
    return document
