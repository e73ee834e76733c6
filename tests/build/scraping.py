"""What a Prometheus operator makes of a PodMonitor, and what Prometheus finds of pods: both as plain data. Pure.

Debian's Prometheus is built without discovery of Kubernetes. So its part is done here: the labels that Prometheus
gives to each port of each container, init containers included, handed over as a file. All that selects, drops and
names is left to Prometheus itself, by the rules that a Prometheus operator writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
META = "__meta_kubernetes"


def config(monitors: list[Json], targets: str, default_interval: str = "1m") -> Json:
    """Prometheus' configuration. targets: the file of discovered()."""
    jobs = [job for monitor in monitors for job in _jobs(monitor, targets)]
    return {"global": {"scrape_interval": default_interval}, "scrape_configs": jobs}


def _jobs(monitor: Json, targets: str) -> Iterator[Json]:
    """One for each endpoint. A field that is not known here fails: the chart would rely on what is not tested."""
    known, spec = monitor["metadata"], dict(monitor["spec"])
    selector, endpoints = spec.pop("selector"), spec.pop("podMetricsEndpoints")
    namespaces = spec.pop("namespaceSelector", {"matchNames": [known["namespace"]]})["matchNames"]
    assert not spec, f"PodMonitor {known['name']}: {sorted(spec)} not known"
    for number, endpoint in enumerate(endpoints):
        rest = dict(endpoint)
        port, interval, honors = rest.pop("port"), rest.pop("interval"), rest.pop("honorLabels", False)
        assert not rest, f"PodMonitor {known['name']}: {sorted(rest)} not known"
        yield {
            "job_name": f"podMonitor/{known['namespace']}/{known['name']}/{number}",
            "honor_labels": honors,
            "scrape_interval": interval,
            "file_sd_configs": [{"files": [targets], "refresh_interval": "1s"}],
            "relabel_configs": [
                _keep("namespace", "|".join(map(re.escape, namespaces))),
                *_selected(selector),
                {"action": "drop", "source_labels": [f"{META}_pod_phase"], "regex": "(Failed|Succeeded)"},
                _keep("pod_container_port_name", re.escape(port)),
                _named("namespace", "namespace"),
                _named("container", "pod_container_name"),
                _named("pod", "pod_name"),
                {"target_label": "job", "replacement": f"{known['namespace']}/{known['name']}"},
                {"target_label": "endpoint", "replacement": port},
            ],
        }


def _selected(selector: Json) -> Iterator[Json]:
    """matchLabels, all of them; an empty selector takes every pod."""
    assert set(selector) <= {"matchLabels"}, selector
    for key, value in selector.get("matchLabels", {}).items():
        yield _keep(f"pod_label_{_name(key)}", re.escape(value))


def _keep(source: str, pattern: str) -> Json:
    return {"action": "keep", "source_labels": [f"{META}_{source}"], "regex": f"({pattern})"}


def _named(label: str, source: str) -> Json:
    return {"target_label": label, "source_labels": [f"{META}_{source}"]}


def _name(key: str) -> str:
    """A label's key where Prometheus allows no more than words."""
    return re.sub(r"[^A-Za-z0-9_]", "_", key)


def discovered(pods: list[Json]) -> list[Json]:
    """One group for each port of each container of each pod that has an address."""
    return [group for pod in pods if pod["status"].get("podIP") for group in _ports(pod)]


def _ports(pod: Json) -> Iterator[Json]:
    known, address = pod["metadata"], pod["status"]["podIP"]
    about = {f"{META}_namespace": known["namespace"], f"{META}_pod_name": known["name"], f"{META}_pod_ip": address}
    about[f"{META}_pod_phase"] = pod["status"]["phase"]
    about |= {f"{META}_pod_label_{_name(key)}": value for key, value in known.get("labels", {}).items()}
    spec = pod["spec"]
    kinds = (("false", spec["containers"]), ("true", spec.get("initContainers", [])))
    for init, container in [(init, one) for init, containers in kinds for one in containers]:
        for port in container.get("ports", []):
            labels = {
                f"{META}_pod_container_init": init,
                f"{META}_pod_container_name": container["name"],
                f"{META}_pod_container_port_name": port.get("name", ""),
                f"{META}_pod_container_port_number": str(port["containerPort"]),
            }
            yield {"targets": [f"{address}:{port['containerPort']}"], "labels": about | labels}
