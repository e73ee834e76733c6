"""The metrics' registry: what a scrape sees."""

import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from weightsync_agent.observability import metrics


def test_a_scrape_can_be_parsed_and_holds_every_named_object() -> None:
    """Each metric has a help text and the common prefix, and the default registry is not used."""
    body, content_type = metrics.exposition()
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert content_type.startswith("text/plain")
    ours = {name for name in families if name.startswith("weightsync_agent_")}
    named = [value for name, value in vars(metrics).items() if name.isupper() and hasattr(value, "describe")]
    wanted = {family.name for value in named for family in value.describe()} - {"weightsync_agent_build"}
    assert "weightsync_agent_build_info" in ours
    assert wanted <= ours
    assert all(families[name].documentation for name in ours)


@pytest.mark.parametrize("seconds", [0.0001, 0.2, 3600.0])
def test_every_duration_of_a_sync_falls_into_a_bucket(seconds: float) -> None:
    """From a write's fixed cost to the longest deadline nothing lies past the last bound."""
    assert seconds <= metrics.SECONDS[-1]
    assert list(metrics.SECONDS) == sorted(metrics.SECONDS)


def test_what_may_be_asked_before_it_happened_is_there_at_zero() -> None:
    """In a process that has counted nothing: alerts and dashboard have an answer, increase() sees the first."""
    program = "from weightsync_agent.observability import metrics; print(metrics.exposition()[0].decode())"
    text = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    for counter, labels in metrics.AT_ZERO:
        (family,) = counter.describe()
        assert found[f"{family.name}_total", frozenset(labels.items())] == 0
