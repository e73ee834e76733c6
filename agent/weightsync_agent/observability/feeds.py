"""What messages and figures of the work say to the metrics, where that is more than one line."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from time import monotonic

from aiohttp import web

from weightsync.digests import BucketDigest
from weightsync.report import Report
from weightsync.wire.v1 import PublishOutcome, ReceiptsAnswer, RouteEnd
from weightsync_agent.observability import metrics


def route_ended(end: RouteEnd) -> None:
    """One route, as its source tells the coordinator."""
    metrics.ROUTES.labels(outcome="Verified" if end.verified else end.reason or "TransferFailed").inc()
    metrics.BYTES_WRITTEN.labels(transport=end.transport).inc(end.nbytes)
    metrics.BYTES_RESENT.inc(end.resent)
    metrics.WRITE_SECONDS.observe(end.seconds)
    if end.verified and end.seconds > 0:
        metrics.ROUTE_RATE.observe(end.nbytes / end.seconds)


def receipt_checked(buckets: Iterable[BucketDigest], answer: ReceiptsAnswer, seconds: float) -> None:
    """One receipt's buckets were compared."""
    verified = set(answer.verified)
    metrics.BYTES_RECEIVED.inc(sum(bucket.nbytes for bucket in buckets if bucket.offset in verified))
    metrics.BUCKETS_UNEQUAL.inc(len(answer.unequal))
    metrics.VERIFY_SECONDS.observe(seconds)


def sync_ended(*, repair: bool, reason: str, decided: bool, current: int) -> None:
    """A coordinator's sync has ended. current: engines that it brought to its version."""
    outcome = "Decided" if decided else reason or "Undecided"
    metrics.SYNCS.labels(kind="repair" if repair else "publish", outcome=outcome).inc()
    if repair:
        metrics.REPAIRS.inc(current)


def publish_ended(outcome: PublishOutcome) -> None:
    """A publish, of all ranks together. With neither version nor reason no engine had it in time."""
    found = "Decided" if outcome.version is not None else "Undecided"
    metrics.PUBLISHES.labels(outcome=outcome.reason or found).inc()
    metrics.SYNC_SECONDS.observe(outcome.seconds)


def coordinating(report: Report, served: Iterable[str]) -> None:
    """What the coordinator knows. served: version names of its engines, "" for those that never had one."""
    metrics.ENGINES.labels(state="current").set(report.current)
    metrics.ENGINES.labels(state="behind").set(report.behind)
    metrics.ENGINES.labels(state="joining").set(report.joining)
    metrics.ENGINES.labels(state="failed").set(report.failed)
    if report.version:
        metrics.VERSION_NUMBER.labels(role="coordinator").set(_number(report.version))
        metrics.LAG.set(max((_lag(report.version, name) for name in served if name), default=0))


def not_coordinating() -> None:
    """Another coordinates: what this agent knew grows old, and may be counted nowhere."""
    metrics.ENGINES.clear()
    metrics.VERSION_NUMBER.clear()
    metrics.LAG.set(0)


def _number(name: str) -> int:
    """0 for what is no version's name: engines' agents say it, and nothing may break because of them."""
    number = name.rpartition(".")[2]
    return int(number) if number.isdecimal() and number.isascii() else 0


def _lag(decided: str, served: str) -> int:
    """Versions between two names; of another lineage all of this one count."""
    same = decided.rpartition(".")[0] == served.rpartition(".")[0]
    return max(0, _number(decided) - (_number(served) if same else 0))


def arena_bytes(folder: Path) -> int:
    """Bytes that the files of the arenas' folder take: pages that were never touched take none."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # removed between the two calls
            continue
    return total


@web.middleware
async def measured(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Time of each request, by the path's pattern: what callers put into it must not become labels."""
    began = monotonic()
    try:
        return await handler(request)
    finally:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "unknown"
        metrics.REQUEST_SECONDS.labels(path=path).observe(monotonic() - began)
