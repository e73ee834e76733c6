"""What the operator counts, for Prometheus. Names and help texts stand here only."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from weightsync.api.v1alpha1.status import Counts

STATES: Final = ("matched", "current", "behind", "joining", "failed")


class Metrics:
    """One registry a process; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passes = Counter(
            "weightsync_operator_passes", "Passes over a WeightSync: observe, plan, apply.", registry=self.registry
        )
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
        self.engines = Gauge(
            "weightsync_engines", "Engines by state.", ["namespace", "weightsync", "state"], registry=self.registry
        )
        self.terms = Gauge("weightsync_term", "The head's term.", ["namespace", "weightsync"], registry=self.registry)

    def count(self, namespace: str, name: str, counts: Counts | None, term: int) -> None:
        """What a WeightSync's status says."""
        for state in STATES:
            self.engines.labels(namespace, name, state).set(getattr(counts, state) if counts else 0)
        self.terms.labels(namespace, name).set(term)

    def forget(self, namespace: str, name: str) -> None:
        """The WeightSync is gone: its series end."""
        for state in STATES:
            self.engines.remove(namespace, name, state)
        self.terms.remove(namespace, name)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
