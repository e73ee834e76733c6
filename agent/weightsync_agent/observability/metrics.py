"""All metrics of the agent, as named objects in one registry. No label grows with the cluster or with versions.

Seconds and bytes are the units, as Prometheus asks. ``exposition()`` is the body of GET /metrics. docs/metrics.md is
made from this module: the comments that head its groups are the page's headings, and LABELS explains each label.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

# From the fixed cost of a write (0.1 ms) to the longest deadline that a strategy may give (an hour).
SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 900, 3600)
# Bytes a second, from a path that is as good as dead to the fastest network card of today.
RATES: Final = tuple(float(each * 10**power) for power in range(5, 11) for each in (1, 3))

REGISTRY: Final = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    return Counter(name, text, labels, namespace="weightsync_agent", registry=REGISTRY)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(name, text, labels, namespace="weightsync_agent", registry=REGISTRY)


def _histogram(name: str, text: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = SECONDS) -> Histogram:
    return Histogram(name, text, labels, namespace="weightsync_agent", registry=REGISTRY, buckets=buckets)


# Every agent
BUILD: Final = Info(
    "build", "Version of the agent and of what it moves bytes with", namespace="weightsync_agent", registry=REGISTRY
)
TERM: Final = _gauge("term", "The newest term that this agent follows")
VERSION_NUMBER: Final = _gauge(
    "version_number",
    "Number of a version within its lineage: what the engine serves, or what the coordinator decided last",
    ("role",),
)
ARENA_BYTES: Final = _gauge("arena_bytes", "Bytes of memory that the arenas in this pod's volume take")
REQUEST_SECONDS: Final = _histogram(
    "request_seconds", "Time to answer a request of the agent's own API, the waits of long polls included", ("path",)
)
ERRORS: Final = _counter("errors", "Errors by the part that met them and their reason", ("part", "reason"))
WORKER_RESTARTS: Final = _counter("worker_restarts", "Transfer workers that were ended or replaced", ("reason",))

# A trainer's agent
FILL_SECONDS: Final = _histogram("fill_seconds", "Time from a rank's publish() until all its tensors were copied")
BYTES_FILLED: Final = _counter("filled_bytes", "Bytes that the trainer put into arenas, digested")
BYTES_WRITTEN: Final = _counter("written_bytes", "Bytes written to targets, told when a route ends", ("transport",))
BYTES_RESENT: Final = _counter("resent_bytes", "Bytes written once more because their digest was not equal")
ROUTES: Final = _counter("routes", "Routes that ended", ("outcome",))
WRITE_SECONDS: Final = _histogram("write_seconds", "Time from a route's start until it was verified or had failed")
ROUTE_RATE: Final = _histogram(
    "route_bytes_per_second", "Bytes of a verified route over its time, the wait for the trainer included",
    buckets=RATES,
)  # fmt: skip

# The coordinator's agent
PUBLISHES: Final = _counter("publishes", "Publishes that ended, of all ranks together", ("outcome",))
SYNCS: Final = _counter("syncs", "Syncs that ended", ("kind", "outcome"))
SYNC_SECONDS: Final = _histogram("sync_seconds", "Time from the first rank's publish() to the last engine's outcome")
HANDSHAKE_SECONDS: Final = _histogram("handshake_seconds", "Time of the handshake with one engine rank")
DECIDE_SECONDS: Final = _histogram("decide_seconds", "Time to write a decision to disk")
REPAIRS: Final = _counter("repairs", "Engines that a sync of their own brought to a version")
ENGINES: Final = _gauge("engines", "Engines of the plan as the coordinator knows them", ("state",))
LAG: Final = _gauge("lag_versions", "Versions by which the engine that is furthest behind is behind; joiners apart")

# An engine's agent
BYTES_RECEIVED: Final = _counter("received_bytes", "Bytes of buckets whose digest was found equal")
BUCKETS_UNEQUAL: Final = _counter("unequal_buckets", "Buckets whose digest was not what their writer had named")
VERIFY_SECONDS: Final = _histogram("verify_seconds", "Time to digest and compare the buckets of one receipt")
COMMITS: Final = _counter("commits", "Commits that were done, and steps of commits that failed", ("outcome",))
COMMIT_SECONDS: Final = _histogram("commit_seconds", "Time from a commit's request to its last step")
PAUSE_SECONDS: Final = _histogram("pause_seconds", "Time for which one commit paused the engine")
APPLY_SECONDS: Final = _histogram("apply_seconds", "Time in which all ranks copied a replica into their parameters")
JOINS: Final = _counter("joins", "Lives of the engine that got their first version")
PULLS: Final = _counter("pulls", "Reads of a version from another engine that ended", ("outcome",))
BYTES_PULLED: Final = _counter("pulled_bytes", "Bytes read from other engines whose digest was found equal")
RELAYS: Final = _counter(
    "relays", "Reads of a version from another engine that is still getting it that ended", ("outcome",)
)
BYTES_RELAYED: Final = _counter("relayed_bytes", "Bytes read so whose digest was found equal")
PULL_SECONDS: Final = _histogram("pull_seconds", "Time to read a version, or what was left of it, from one engine")
PULLED_VERSIONS: Final = _counter("pulled_versions", "Versions that the engine took over from another engine")
READERS: Final = _gauge("readers", "Joining engines that may read this pod's arenas now")
GATE: Final = _gauge("gate", "1 while the readiness gate of this pod is True")
ENGINE_STATE: Final = _gauge("engine_state", "1 for the state that the engine is in, 0 for all others", ("state",))

# There from the start at 0: a series that begins with its first event hides that event from increase(), and a query
# for it has no answer while all is well. The reasons that happen most; others begin when they happen.
AT_ZERO: Final[tuple[tuple[Counter, dict[str, str]], ...]] = (
    *((ERRORS, {"part": part, "reason": "ApiUnreachable"}) for part in ("own_pod", "plan_feed", "heads", "keys")),
    *((WORKER_RESTARTS, {"reason": reason}) for reason in ("died", "fence", "killed")),
    *((PUBLISHES, {"outcome": outcome}) for outcome in ("Decided", "Undecided")),
    *((SYNCS, {"kind": kind, "outcome": end}) for kind in ("publish", "repair") for end in ("Decided", "Undecided")),
    *((ROUTES, {"outcome": outcome}) for outcome in ("Verified", "TransferFailed")),
    *((COMMITS, {"outcome": outcome}) for outcome in ("Current", "EngineFailed")),
    (PULLS, {"outcome": "Pulled"}),
    (RELAYS, {"outcome": "Verified"}),
)
for _counted, _labels in AT_ZERO:
    _counted.labels(**_labels)

LABELS: Final = {
    "role": "`engine` or `coordinator`",
    "path": "the API's path, with the names of its variable parts",
    "part": "the part of the agent, such as `own_pod`, `plan_feed`, `coordinator`, `engine`",
    "reason": "the error's reason, as in the errors' reference; of workers `fence`, `died`, `killed`",
    "transport": "`tcp` or `rdma`; empty where nothing was written",
    "state": "of engines as counts `current`, `behind`, `joining`, `failed`; of one engine its state's name",
}


def exposition() -> tuple[bytes, str]:
    """Body and content type of GET /metrics."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
