"""What the operator counts, for Prometheus. Names and help texts stand here only; docs/metrics.md is made from it."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync_operator.observe import Seen

STATES: Final = ("matched", "current", "behind", "joining", "failed")
LABELS: Final = {
    "kind": "of writes and records the object's kind; of syncs `publish`, or `repair`: of an engine that joined or "
    "fell behind",
    "outcome": "what it ended with: `Current`, `Verified`, `Decided`, or the reason of the failure; of passes `done` "
    "or `failed`",
    "verb": "`create`, `apply` or `delete`",
    "weightsync": "name of the WeightSync",
    "namespace": "namespace of the WeightSync; a scrape may rename it to `exported_namespace`",
    "type": "type of a condition of the WeightSync's status",
}


class Metrics:
    """One registry a process; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge(
            "weightsync_operator_leading",
            "1 in the replica that holds the Lease and works, 0 in one that stands by.",
            registry=self.registry,
        )
        self.passes = Counter(
            "weightsync_operator_passes",
            "Passes over a WeightSync: observe, plan, apply.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("done", "failed"):
            self.passes.labels(outcome)  # there from the start: what was never counted is 0, not absent
        self.seconds = Histogram(
            "weightsync_operator_pass_seconds",
            "Duration of a pass.",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
            registry=self.registry,
        )
        self.writes = Counter(
            "weightsync_operator_writes", "Accepted writes to the API.", ["kind", "verb"], registry=self.registry
        )
        self.errors = Counter(
            "weightsync_operator_errors", "Passes and calls that failed.", ["reason"], registry=self.registry
        )
        self.seen = Gauge(
            "weightsync_operator_objects",
            "Objects that the operator keeps a record of.",
            ["kind"],
            registry=self.registry,
        )
        self.closed = Gauge(
            "weightsync_operator_closed_namespaces",
            "Watched namespaces that may not be listed: nothing is planned there. The whole cluster counts as one.",
            registry=self.registry,
        )
        self.engines = Gauge(
            "weightsync_engines", "Engines by state.", ["namespace", "weightsync", "state"], registry=self.registry
        )
        self.conditions = Gauge(
            "weightsync_condition",
            "1 while the condition is True, 0 while it is False or Unknown.",
            ["namespace", "weightsync", "type"],
            registry=self.registry,
        )
        self.suspended = Gauge(
            "weightsync_suspended",
            "1 while spec.suspend holds all versions back.",
            ["namespace", "weightsync"],
            registry=self.registry,
        )
        self.terms = Gauge("weightsync_term", "The head's term.", ["namespace", "weightsync"], registry=self.registry)
        self._conditions: dict[tuple[str, str], set[str]] = {}

    def count(self, seen: Seen, status: WeightSyncStatus, term: int) -> None:
        """What a WeightSync's status says, and whether its spec suspends it."""
        namespace, name, counts = seen.namespace, seen.name, status.counts
        for state in STATES:
            self.engines.labels(namespace, name, state).set(getattr(counts, state) if counts else 0)
        self.terms.labels(namespace, name).set(term)
        self.suspended.labels(namespace, name).set(seen.spec is not None and seen.spec.suspend)
        known = self._conditions.setdefault((namespace, name), set())
        for condition in status.conditions:
            known.add(condition.type)
            self.conditions.labels(namespace, name, condition.type).set(condition.status == "True")

    def forget(self, namespace: str, name: str) -> None:
        """The WeightSync is gone: its series end."""
        for state in STATES:
            self.engines.remove(namespace, name, state)
        for kind in self._conditions.pop((namespace, name), ()):
            self.conditions.remove(namespace, name, kind)
        self.terms.remove(namespace, name)
        self.suspended.remove(namespace, name)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
