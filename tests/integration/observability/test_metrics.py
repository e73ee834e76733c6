"""What is declared is fed, and what dashboard and alerts ask has an answer: a real Prometheus scrapes a world."""

import json
from pathlib import Path

import pytest
import yaml

from tests.build import questions
from tests.build.questions import Question
from tests.integration.observability.conftest import SCRAPE_SECONDS, Scraped
from tools.generate import dashboard
from tools.generate.metrics import Described, groups
from tools.world.processes import WorldError, wait

pytestmark = [pytest.mark.apiserver, pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(480)]

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "charts/weightsync/files/alerts.yaml"
# What has a value in this world and is 0 nonetheless: the engines lag in no scrape but by chance.
# A join between two scrapes is seen by its counters alone.
# Nobody suspends it, and no role is taken away: the alerts' own tests do.
MAY_BE_ZERO = {
    "weightsync_agent_lag_versions",
    "weightsync_agent_readers",
    "weightsync_operator_closed_namespaces",
    "weightsync_suspended",
}
# Each window of time in which something must be counted, as long as the world is young.
WINDOW = "10m"


def test_every_metric_of_the_reference_is_fed(scraped: Scraped) -> None:
    """Counters counted up, histograms observed, gauges set: after syncs, a failure, a join, a lost worker."""

    def unfed() -> list[str]:
        return [one.name for rows in groups().values() for one in rows if not _fed(scraped, one)]

    try:
        wait("every metric being fed", lambda: not unfed(), 60 * SCRAPE_SECONDS)
    except WorldError:
        pytest.fail(f"never fed: {', '.join(unfed())}")


def _fed(scraped: Scraped, metric: Described) -> bool:
    name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
    values = [float(found["value"][1]) for found in scraped.query(name)]
    return bool(values) and (max(values) > 0 or metric.name in MAY_BE_ZERO)


def test_nothing_is_scraped_that_the_reference_does_not_name(scraped: Scraped) -> None:
    """Every series of ours begins with a name of docs/metrics.md."""
    page = (ROOT / "docs/metrics.md").read_text()
    ours = {name for name in scraped.names() if name.startswith("weightsync_")}
    stems = {name.removesuffix(end) for name in ours for end in ("_bucket", "_sum", "_count") if name.endswith(end)}
    plain = {name for name in ours if not name.endswith(("_bucket", "_sum", "_count", "_created"))}
    assert not [name for name in plain | stems if f"`{name}`" not in page]


DASHBOARD = dashboard.dashboard()
PANELS = questions.of_dashboard(DASHBOARD, ".*", WINDOW)


@pytest.mark.parametrize("question", PANELS, ids=[one.title for one in PANELS])
def test_every_query_of_the_dashboard_returns_data(scraped: Scraped, question: Question) -> None:
    """With every namespace chosen."""
    answered(scraped, question)


def test_the_dashboards_choice_of_namespaces_is_filled(scraped: Scraped) -> None:
    """By the namespaces of the agents."""
    metric, label = questions.of_choice(DASHBOARD)
    assert {found["metric"][label] for found in scraped.query(metric)} == {"world"}


RULES = questions.of_alerts(yaml.safe_load(ALERTS.read_text()))


@pytest.mark.parametrize("question", RULES, ids=[one.title for one in RULES])
def test_every_query_of_the_alerts_returns_data(scraped: Scraped, question: Question) -> None:
    """Without the last comparison there is a value, also while all is well; with it the query is one."""
    answered(scraped, question)
    scraped.query(f"{question.expression} {question.bound}")


def answered(scraped: Scraped, question: Question) -> None:
    """Sooner or later."""
    what = f"{question.title}: {question.expression} having data"
    wait(what, lambda: scraped.answers(question.expression), 60 * SCRAPE_SECONDS)


def test_one_sync_is_found_in_the_logs_of_all_agents_by_its_id(scraped: Scraped) -> None:
    """Coordinator, source and engines name the same sync in what they log of it."""
    world = scraped.world
    named = {}
    for name in ("trainer-0", "engine-0", "engine-1"):
        lines = (world.folder / f"{name}-agent.log").read_text().splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        named[name] = {record["sync"] for record in records if "sync" in record}
    assert named["trainer-0"] & named["engine-0"] & named["engine-1"]
