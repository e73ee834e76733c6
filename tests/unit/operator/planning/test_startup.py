"""Which StatefulSets wait for a pod that waits for its gate."""

from dataclasses import replace
from typing import Any

import pytest

from tests.build.pods import engine
from weightsync_operator.planning.pods import Pod
from weightsync_operator.planning.startup import INDEX, stuck, suspects


def numbered(name: str, index: int, *, gated: bool = True) -> Pod:
    return replace(engine(f"{name}-{index}"), labels={INDEX: str(index)}, gated=gated)


def test_the_last_pod_that_waits_stands_for_its_statefulset() -> None:
    """Pods whose gate is open, and pods of other workloads, are no suspects."""
    pods = [numbered("a", 10), numbered("a", 9), numbered("b", 0, gated=False), replace(engine("c-0"), gated=True)]
    assert {name: pod.name for name, pod in suspects(pods).items()} == {"a": "a-10"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"replicas": 3}, "2 more of its pods only once pod a-0", id="OrderedReady is the default"),
        pytest.param(
            {"replicas": 3, "podManagementPolicy": "OrderedReady"}, "podManagementPolicy: Parallel", id="said"
        ),
        pytest.param({"replicas": 3, "podManagementPolicy": "Parallel"}, "", id="all at once"),
        pytest.param({"replicas": 1}, "", id="all its pods are there"),
        pytest.param({}, "", id="one pod is the default"),
    ],
)
def test_what_is_stuck(spec: dict[str, Any], said: str) -> None:
    """Only where pods are still to be made, one after another."""
    found = stuck({"metadata": {"name": "a"}, "spec": spec}, numbered("a", 0))
    assert said in found
    assert bool(found) is bool(said)
