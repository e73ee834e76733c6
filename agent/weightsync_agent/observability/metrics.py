"""All metrics of the agent, as named objects in one registry. No label grows with the cluster or with versions.

Seconds and bytes are the units, as Prometheus asks. ``exposition()`` is the body of GET /metrics.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

# From the fixed cost of a write (0.1 ms) to the longest deadline that a strategy may give (an hour).
SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 900, 3600)

REGISTRY: Final = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    return Counter(name, text, labels, namespace="weightsync_agent", registry=REGISTRY)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(name, text, labels, namespace="weightsync_agent", registry=REGISTRY)


def _histogram(name: str, text: str, labels: tuple[str, ...] = ()) -> Histogram:
    return Histogram(name, text, labels, namespace="weightsync_agent", registry=REGISTRY, buckets=SECONDS)


BUILD: Final = Info(
    "build", "Version of the agent and of what it moves bytes with", namespace="weightsync_agent", registry=REGISTRY
)

# A source's side.
PUBLISHES: Final = _counter("publishes", "Calls of publish() that a trainer rank made", ("outcome",))
BYTES_FILLED: Final = _counter("filled_bytes", "Bytes that the trainer put into arenas")
BYTES_WRITTEN: Final = _counter("written_bytes", "Bytes written to targets and acknowledged", ("transport",))
BYTES_RESENT: Final = _counter("resent_bytes", "Bytes written once more because their digest was not equal")
ROUTES: Final = _counter("routes", "Routes that ended", ("outcome",))

# A coordinator's side.
TERM: Final = _gauge("term", "The term that this agent follows")
SYNCS: Final = _counter("syncs", "Syncs that this agent coordinated and that ended", ("outcome",))
VERSION_NUMBER: Final = _gauge("version_number", "Number of the newest version here, within its lineage", ("role",))
REPAIRS: Final = _counter("repairs", "Engines that were behind and were brought to a version by a sync of their own")

# A target's side.
BYTES_RECEIVED: Final = _counter("received_bytes", "Bytes of buckets whose digest was found equal")
BUCKETS_UNEQUAL: Final = _counter("unequal_buckets", "Buckets whose digest was not what their writer had named")
JOINS: Final = _counter("joins", "Engine lives that got their first version")
COMMITS: Final = _counter("commits", "Commits that an engine leader ran", ("outcome",))
GATE: Final = _gauge("gate", "1 while the readiness gate of this pod is True")

# Seconds.
PHASE_SECONDS: Final = _histogram(
    "phase_seconds", "Time in one phase of a sync, for one route or one engine",
    ("phase",),  # fill, digest, handshake, write, check, decide, commit
)  # fmt: skip
PAUSE_SECONDS: Final = _histogram("pause_seconds", "Time for which the engine was paused by one commit")
APPLY_SECONDS: Final = _histogram("apply_seconds", "Time in which one rank copied a replica into its parameters")
REQUEST_SECONDS: Final = _histogram("request_seconds", "Time to answer a request of the agent's own API", ("path",))

# Faults.
ERRORS: Final = _counter("errors", "Errors by the part that met them and their reason", ("part", "reason"))
WORKER_RESTARTS: Final = _counter("worker_restarts", "Transfer workers that were started again", ("reason",))
ARENA_BYTES: Final = _gauge("arena_bytes", "Bytes of arenas that this agent owns")


def exposition() -> tuple[bytes, str]:
    """Body and content type of GET /metrics."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
