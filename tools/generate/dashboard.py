"""charts/weightsync/files/dashboard.json: one Grafana dashboard, made from a table of panels."""

import json
from dataclasses import dataclass
from typing import Any

PATH = "charts/weightsync/files/dashboard.json"
WIDTH, HEIGHT = 8, 7  # of a panel, on Grafana's grid of 24 columns
CHOSEN = 'namespace=~"$namespace"'


@dataclass(frozen=True)
class Panel:
    """queries: (expression, legend). kind: Grafana's type of panel."""

    title: str
    what: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def _quantiles(metric: str, unit: str, title: str, what: str) -> Panel:
    """Median and 99th percentile of a histogram."""
    rates = f"sum by (le) (rate({metric}_bucket{{{CHOSEN}}}[$__rate_interval]))"
    quantiles = tuple((f"histogram_quantile({q}, {rates})", name) for q, name in ((0.5, "p50"), (0.99, "p99")))
    return Panel(title, what, unit, quantiles)


def _by(metric: str, label: str, title: str, what: str, unit: str = "short") -> Panel:
    """A counter's increase, by a label."""
    query = f"sum by ({label}) (increase({metric}{{{CHOSEN}}}[$__rate_interval]))"
    return Panel(title, what, unit, ((query, " ".join(f"{{{{{each.strip()}}}}}" for each in label.split(","))),))


def _sum(metric: str, title: str, what: str, unit: str = "short") -> Panel:
    """A gauge, added up by pod."""
    return Panel(title, what, unit, ((f"sum by (pod) ({metric}{{{CHOSEN}}})", "{{pod}}"),))


ROWS: dict[str, tuple[Panel, ...]] = {
    "Is all well?": (
        Panel(
            "Engines by state", "As the operator counts them", "short",
            ((f"sum by (state) (weightsync_engines{{{CHOSEN}}})", "{{state}}"),),
        ),
        Panel(
            "Conditions", "1 while a condition is True", "short",
            ((f"weightsync_condition{{{CHOSEN}}}", "{{weightsync}} {{type}}"),),
        ),
        Panel(
            "Versions", "Number of the version that engines serve, and of the newest decided one", "short",
            (
                (f'weightsync_agent_version_number{{{CHOSEN}, role="engine"}}', "{{pod}}"),
                (f'weightsync_agent_version_number{{{CHOSEN}, role="coordinator"}}', "decided"),
            ),
        ),
        _sum("weightsync_agent_lag_versions", "Lag", "Versions by which the engine furthest behind is behind"),
        _by("weightsync_agent_publishes_total", "outcome", "Publishes", "By what they ended with"),
        Panel(
            "States of engines", "As their agents see them; torn and refused want somebody to look", "short",
            ((f"sum by (state) (weightsync_agent_engine_state{{{CHOSEN}}})", "{{state}}"),),
        ),
    ),
    "Time": (
        _quantiles("weightsync_agent_sync_seconds", "s", "Sync", "From publish() to the last engine's outcome"),
        _quantiles("weightsync_agent_pause_seconds", "s", "Pause", "For which one commit paused an engine"),
        _quantiles("weightsync_agent_apply_seconds", "s", "Apply", "A replica copied into an engine's parameters"),
        _quantiles("weightsync_agent_fill_seconds", "s", "Fill", "From a rank's publish() until all was copied"),
        _quantiles("weightsync_agent_write_seconds", "s", "Write", "A route, from its start to verified"),
        _quantiles("weightsync_agent_verify_seconds", "s", "Verify", "The buckets of one receipt"),
        _quantiles("weightsync_agent_handshake_seconds", "s", "Handshake", "With one engine rank"),
        _quantiles("weightsync_agent_decide_seconds", "s", "Decide", "The decision written to disk"),
        _quantiles("weightsync_agent_commit_seconds", "s", "Commit", "From its request to its last step"),
    ),
    "Bytes": (
        Panel(
            "Throughput", "Bytes written by sources, and verified by engines", "Bps",
            (
                (f"sum(rate(weightsync_agent_written_bytes_total{{{CHOSEN}}}[$__rate_interval]))", "written"),
                (f"sum(rate(weightsync_agent_received_bytes_total{{{CHOSEN}}}[$__rate_interval]))", "verified"),
                (f"sum(rate(weightsync_agent_filled_bytes_total{{{CHOSEN}}}[$__rate_interval]))", "filled"),
            ),
        ),
        _quantiles("weightsync_agent_route_bytes_per_second", "Bps", "Rate of a route", "Bytes over its time"),
        _sum("weightsync_agent_arena_bytes", "Arenas", "Memory that replicas take, by pod", "bytes"),
    ),
    "Faults and repairs": (
        _by("weightsync_agent_syncs_total", "kind, outcome", "Syncs", "Publishes and repairs, by their end"),
        _by("weightsync_agent_routes_total", "outcome", "Routes", "By what they ended with"),
        _by("weightsync_agent_commits_total", "outcome", "Commits", "Done, and steps that failed"),
        Panel(
            "Repairs and joins", "Engines brought to a version by a sync of their own; first versions", "short",
            (
                (f"sum(increase(weightsync_agent_repairs_total{{{CHOSEN}}}[$__rate_interval]))", "repairs"),
                (f"sum(increase(weightsync_agent_joins_total{{{CHOSEN}}}[$__rate_interval]))", "joins"),
            ),
        ),
        _by("weightsync_agent_errors_total", "part, reason", "Errors", "By part of the agent and reason"),
        _by("weightsync_agent_worker_restarts_total", "reason", "Transfer workers replaced", "By reason"),
        Panel(
            "Bytes that were not equal", "Buckets that arrived wrong, and bytes written again", "short",
            (
                (f"sum(increase(weightsync_agent_unequal_buckets_total{{{CHOSEN}}}[$__rate_interval]))", "buckets"),
                (f"sum(increase(weightsync_agent_resent_bytes_total{{{CHOSEN}}}[$__rate_interval]))", "bytes again"),
            ),
        ),
        _sum("weightsync_agent_gate", "Gates", "1 while the readiness gate of a pod is True"),
        Panel(
            "Engines as the coordinator knows them", "Between two reports to the operator", "short",
            ((f"sum by (state) (weightsync_agent_engines{{{CHOSEN}}})", "{{state}}"),),
        ),
    ),
    "Control plane": (
        Panel(
            "Terms", "The head's, and those that agents follow; they rise only with another coordinator", "short",
            (
                (f"weightsync_term{{{CHOSEN}}}", "{{weightsync}}"),
                (f"max by (namespace) (weightsync_agent_term{{{CHOSEN}}})", "agents of {{namespace}}"),
            ),
        ),
        Panel(
            "Operator's passes", "By outcome", "short",
            (("sum by (outcome) (increase(weightsync_operator_passes_total[$__rate_interval]))", "{{outcome}}"),),
        ),
        Panel(
            "Time of a pass", "Observe, plan, apply", "s",
            tuple(
                (
                    f"histogram_quantile({q}, sum by (le) "
                    "(rate(weightsync_operator_pass_seconds_bucket[$__rate_interval])))",
                    name,
                )
                for q, name in ((0.5, "p50"), (0.99, "p99"))
            ),
        ),
        Panel(
            "Operator's writes", "To the API server", "short",
            (
                (
                    "sum by (kind, verb) (increase(weightsync_operator_writes_total[$__rate_interval]))",
                    "{{verb}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Operator's replicas", "1: leads", "short",
            (("max by (pod) (weightsync_operator_leading)", "{{pod}}"),),
        ),
        Panel(
            "Operator's records", "Objects in memory", "short",
            (("sum by (kind) (weightsync_operator_objects)", "{{kind}}"),),
        ),
        Panel(
            "Operator's errors", "By reason", "short",
            (("sum by (reason) (increase(weightsync_operator_errors_total[$__rate_interval]))", "{{reason}}"),),
        ),
        Panel(
            "Requests of agents", "99th percentile by path, the waits of long polls included", "s",
            (
                (
                    "histogram_quantile(0.99, sum by (path, le) "
                    f"(rate(weightsync_agent_request_seconds_bucket{{{CHOSEN}}}[$__rate_interval])))",
                    "{{path}}",
                ),
            ),
        ),
        Panel(
            "Builds", "Pods by version of agent and Mooncake", "short",
            ((f"count by (version, role) (weightsync_agent_build_info{{{CHOSEN}}})", "{{version}} {{role}}"),),
        ),
    ),
}  # fmt: skip


def file() -> dict[str, str]:
    """The dashboard, by its path."""
    return {PATH: json.dumps(dashboard(), indent=1) + "\n"}


def dashboard() -> dict[str, Any]:
    """Grafana's model of it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": _place(0, top, 24, 1)})
        top += 1
        for index, panel in enumerate(row):
            place = _place(index % 3 * WIDTH, top + index // 3 * HEIGHT, WIDTH, HEIGHT)
            panels.append(_panel(panel, len(panels) + 1, place))
        top += -(-len(row) // 3) * HEIGHT
    return {
        "uid": "weightsync", "title": "WeightSync", "tags": ["weightsync"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "templating": {"list": [_source(), _namespace()]}, "annotations": {"list": []}, "panels": panels,
    }  # fmt: skip


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.what, "gridPos": place,
        "datasource": source, "targets": targets, "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }  # fmt: skip


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _namespace() -> dict[str, Any]:
    query = "label_values(weightsync_agent_build_info, namespace)"
    return {
        "name": "namespace", "label": "Namespace", "type": "query", "query": query, "refresh": 2,
        "datasource": {"type": "prometheus", "uid": "${source}"}, "includeAll": True, "multi": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip
