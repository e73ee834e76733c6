"""What messages say to the metrics."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from weightsync.digests import BucketDigest
from weightsync.report import Report
from weightsync.version import Version
from weightsync.wire.v1 import PublishOutcome, ReceiptsAnswer, RouteEnd, WriterId
from weightsync_agent.observability import feeds, metrics

LINEAGE, OTHER = "1" * 16, "2" * 16


def value(name: str, **labels: str) -> float:
    """Of one series; 0 where it is not there."""
    return metrics.REGISTRY.get_sample_value(f"weightsync_agent_{name}", labels) or 0.0


def end(**parts: object) -> RouteEnd:
    said = {
        "term": 1, "sync": "s", "writer": WriterId(uid="u", rank=0), "target": "t", "rank": 0, "grant": "0" * 32,
        "verified": True, "nbytes": 100, "seconds": 2.0, "transport": "tcp",
    }  # fmt: skip
    return RouteEnd.model_validate(said | parts)


def test_a_verified_route_counts_its_bytes_and_its_rate() -> None:
    """100 bytes in 2 s are 50 bytes a second."""
    before = value("written_bytes_total", transport="tcp"), value("route_bytes_per_second_sum")
    feeds.route_ended(end(resent=7))
    assert value("written_bytes_total", transport="tcp") - before[0] == 100
    assert value("route_bytes_per_second_sum") - before[1] == 50
    assert value("resent_bytes_total") >= 7


def test_a_failed_route_is_counted_by_its_reason_and_has_no_rate() -> None:
    """What was written counts all the same."""
    before = value("route_bytes_per_second_count"), value("routes_total", outcome="Stalled")
    feeds.route_ended(end(verified=False, reason="Stalled"))
    assert value("route_bytes_per_second_count") == before[0]
    assert value("routes_total", outcome="Stalled") == before[1] + 1


def test_only_equal_buckets_count_as_received() -> None:
    """One of two is unequal."""
    before = value("received_bytes_total"), value("unequal_buckets_total")
    buckets = [BucketDigest(offset=offset, nbytes=10, digest="0" * 32) for offset in (0, 10)]
    feeds.receipt_checked(buckets, ReceiptsAnswer(verified=(0,), unequal=(10,)), 0.1)
    assert (value("received_bytes_total") - before[0], value("unequal_buckets_total") - before[1]) == (10, 1)


@pytest.mark.parametrize(
    ("served", "lag"),
    [
        pytest.param([f"{LINEAGE}.7"], 0, id="all current"),
        pytest.param([f"{LINEAGE}.7", f"{LINEAGE}.5"], 2, id="the one furthest behind counts"),
        pytest.param([""], 0, id="a joiner is not behind"),
        pytest.param([f"{OTHER}.9"], 7, id="of another lineage all of this one are missing"),
        pytest.param(["what is this"], 7, id="what is no version's name breaks nothing"),
        pytest.param([], 0, id="no engine"),
    ],
)
def test_lag_is_of_the_engine_furthest_behind(served: list[str], lag: int) -> None:
    """In versions."""
    feeds.coordinating(Report(term=1, version=f"{LINEAGE}.7", current=1, behind=2), served)
    assert value("lag_versions") == lag
    assert value("version_number", role="coordinator") == 7
    assert value("engines", state="behind") == 2


def test_who_no_longer_coordinates_says_nothing_of_engines() -> None:
    """What it knew grows old."""
    feeds.coordinating(Report(term=1, version=f"{LINEAGE}.7", behind=2), [f"{LINEAGE}.1"])
    feeds.not_coordinating()
    assert metrics.REGISTRY.get_sample_value("weightsync_agent_engines", {"state": "behind"}) is None
    assert value("lag_versions") == 0


def test_an_undecided_sync_is_counted_by_why() -> None:
    """Without a reason it is Undecided."""
    before = value("syncs_total", kind="repair", outcome="Undecided"), value("repairs_total")
    feeds.sync_ended(repair=True, reason="", decided=False, current=2)
    assert value("syncs_total", kind="repair", outcome="Undecided") == before[0] + 1
    assert value("repairs_total") == before[1] + 2


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        pytest.param({"version": Version(lineage=LINEAGE, number=7, root="0" * 64)}, "Decided", id="a version"),
        pytest.param({}, "Undecided", id="no engine had it in time"),
        pytest.param({"reason": "RanksDiffer"}, "RanksDiffer", id="a reason of its own"),
    ],
)
def test_a_publish_is_counted_by_what_became_of_it(said: dict[str, Any], outcome: str) -> None:
    """Nothing is called decided that has no version."""
    before = value("publishes_total", outcome=outcome)
    feeds.publish_ended(PublishOutcome(ended=True, seconds=1.5, **said))
    assert value("publishes_total", outcome=outcome) == before + 1


def test_arenas_count_by_the_pages_that_they_take(tmp_path: Path) -> None:
    """A file of which no page was touched takes none."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    (tmp_path / "full").write_bytes(b"x" * (1 << 16))
    assert 1 << 16 <= feeds.arena_bytes(tmp_path) < 1 << 20


async def test_requests_are_measured_by_the_paths_pattern() -> None:
    """What a caller puts into the path makes no series; unknown paths make one."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    def counted(path: str) -> float:
        return value("request_seconds_count", path=path)

    before = {path: counted(path) for path in ("/v1/things/{name}", "unknown")}  # others may have asked
    app = web.Application(middlewares=[feeds.measured])
    app.router.add_get("/v1/things/{name}", answer)
    async with TestClient(TestServer(app)) as client:
        for path in ("/v1/things/a", "/v1/things/b", "/nowhere/1"):
            await client.get(path)
    assert counted("/v1/things/{name}") == before["/v1/things/{name}"] + 2
    assert counted("unknown") == before["unknown"] + 1
