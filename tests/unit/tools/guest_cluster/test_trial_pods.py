"""The pods of the trial in guests (tests/rdma_e2e), and what is read off them; nothing is started."""

from pathlib import Path
from typing import Any

import pytest

from tests.rdma_e2e import pods, site
from tools.guest_cluster.places import RESOURCE

PLACES = {"/opt/trial": Path("/x/programs")}


def admitted() -> dict[str, Any]:
    """An engine's pod as the API server has it: with an agent that asks for a device."""
    template = pods.rollout(PLACES)["spec"]["template"]
    agent = {
        "name": pods.AGENT,
        "env": [{"name": "WEIGHTSYNC_TRANSPORT", "value": "rdma"}, {"name": "WEIGHTSYNC_ROLE", "value": "engine"}],
        "resources": {"requests": {"cpu": "50m", RESOURCE: "1"}, "limits": {"memory": "1Gi", RESOURCE: "1"}},
    }
    labels = {**template["metadata"]["labels"], "pod-template-hash": "abc"}
    spec = {**template["spec"], "nodeName": pods.ENGINE_NODE, "initContainers": [agent]}
    return {"metadata": {"name": "rollout-abc-1", "labels": labels}, "spec": spec}


def test_an_engine_without_a_device_differs_by_that_alone() -> None:
    """Its agent asks for nothing, nor insists on RDMA, or it would not start; it is nobody's replica, takes no part
    yet, and stays an engine with an agent.
    """
    found = admitted()
    made = pods.without_device(found, "bare")
    (agent,) = made["spec"]["initContainers"]
    assert agent["resources"] == {"requests": {"cpu": "50m"}, "limits": {"memory": "1Gi"}}
    assert [each["value"] for each in agent["env"]] == ["auto", "engine"]
    assert made["metadata"]["labels"] == {"app": pods.WAITING, "weightsync.io/inject": "engine"}
    assert made["spec"]["nodeSelector"] == {"kubernetes.io/hostname": pods.TRAINER_NODE}
    assert made["spec"]["containers"] == found["spec"]["containers"]
    assert found["spec"]["initContainers"][0]["resources"]["limits"][RESOURCE] == "1", (
        "the pod that runs stays as it is"
    )


def status(**container: Any) -> dict[str, Any]:
    """A pod with one container in that state."""
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": [{"name": "engine", **container}]}}


@pytest.mark.parametrize(
    ("pod", "runs"),
    [
        pytest.param({"status": {}}, False, id="it was not looked at yet"),
        pytest.param(status(ready=False, restartCount=0, state={"waiting": {}}), False, id="it waits for its agent"),
        pytest.param(status(ready=False, restartCount=0, state={"running": {}}), False, id="it does not answer yet"),
        pytest.param(status(ready=True, restartCount=0, state={"running": {}}), True, id="it answers"),
    ],
)
def test_when_a_container_runs(pod: dict[str, Any], runs: bool) -> None:
    """Started, and heard by its probe."""
    assert site.runs(pod, "engine") is runs


def test_a_container_that_was_started_again_is_named() -> None:
    """With how often."""
    assert site.restarts(status(ready=True, restartCount=2, state={})) == {"engine": 2}
    assert site.restarts(status(ready=True, restartCount=0, state={})) == {}
