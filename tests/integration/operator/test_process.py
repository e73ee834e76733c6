"""The process: health, readiness, the Lease, a start without CRDs' API."""

import signal

import pytest

from tests.build.api import eventually
from tests.integration.operator.conftest import Operators, Place

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]


def test_health_and_metrics(operators: Operators, place: Place) -> None:
    """Probes answer ok; passes, writes and engines are counted."""
    operator = operators.start().working()
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    assert operator.ask("/healthz") == (200, "ok")
    assert operator.ask("/readyz") == (200, "ok")
    eventually("counted", lambda: operator.metric("weightsync_operator_passes_total") >= 1)
    _, text = operator.ask("/metrics")
    assert f'weightsync_engines{{namespace="{place.namespace}",state="matched",weightsync="policy"}} 1.0' in text
    assert 'weightsync_operator_writes_total{kind="WeightSyncSlice",verb="create"}' in text


def test_it_ends_when_asked(operators: Operators) -> None:
    """SIGTERM: exit code 0, no traceback."""
    operator = operators.start().working()
    assert operator.stop(signal.SIGTERM) == 0
    assert "Traceback" not in operator.text()


def test_one_operator_works_at_a_time(operators: Operators, place: Place) -> None:
    """The second stands by, ready; it takes over at once from one that ends, and disturbs nothing."""
    flags = ("--leader-election", f"--lease-namespace={place.namespace}", "--lease-name=operator")
    first = operators.start(*flags, "--identity=first").working()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{place.namespace}/leases/operator"
    eventually(
        "the first leads", lambda: (place.api.find(lease) or {}).get("spec", {}).get("holderIdentity") == "first"
    )
    second = operators.start(*flags, "--identity=second").working()
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    head = place.head()
    assert second.metric("weightsync_operator_passes_total") == 0
    first.stop()
    eventually("the second works", lambda: second.metric("weightsync_operator_passes_total") >= 1)
    assert place.head() == head
    place.engine("rollout-b")
    place.served("rollout-a", "rollout-b")
