"""What the operator does not do: write when nothing changed, disturb a plan by restarting, hold an object back."""

import signal

import pytest

from tests.build.api import eventually
from tests.integration.operator.conftest import Operators, Place

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]


def settled(place: Place) -> None:
    place.weightsync()
    place.trainer()
    for name in ("rollout-a", "rollout-b"):
        place.engine(name)
    place.served("rollout-a", "rollout-b")
    eventually("ready", lambda: place.reason("Ready")[0] == "True")
    eventually("old slices are gone", lambda: len(place.slices()) == len(place.head()["slices"]))


def heartbeat(place: Place, name: str, number: int) -> None:
    """A write to a pod that concerns no plan."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"annotations": {"example.com/beat": str(number)}},
    }
    place.api.apply(f"{place.pods_path}/{name}/status", body, "kubelet-like")


def marker(place: Place, name: str) -> None:
    """A WeightSync whose status proves that what came before it was seen."""
    place.weightsync(name, trains=f"{name}-t", serves=f"{name}-r")
    eventually(f"{name} is seen", lambda: place.status(name).get("conditions"))


def test_nothing_changed_nothing_written(operators: Operators, place: Place) -> None:
    """Irrelevant changes of pods cause no pass and no write, by the API server's own count."""
    operator = operators.start().working()
    settled(place)
    marker(place, "before")
    eventually("its event is written", lambda: told(place, "before"))
    before, passes = place.api.writes(), operator.metric("weightsync_operator_passes_total")
    for number in range(10):
        heartbeat(place, "rollout-a", number)
    ours = 10 + 1  # the heartbeats, the marker
    marker(place, "after")
    eventually("its event is written", lambda: told(place, "after"))  # a moment after the status
    operators_part = place.api.writes() - before - ours
    assert operators_part == 1 + told(place, "after"), "one status for the marker, and its events"
    assert operator.metric("weightsync_operator_passes_total") - passes <= 4, "the marker concerns its siblings once"


def told(place: Place, name: str) -> int:
    """How many events speak of that marker."""
    return sum(name in event["regarding"]["name"] for event in events(place))


def events(place: Place) -> list[dict[str, dict[str, str]]]:
    found: list[dict[str, dict[str, str]]] = place.api.get(
        f"/apis/events.k8s.io/v1/namespaces/{place.namespace}/events"
    )["items"]
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_a_restart_disturbs_nothing(operators: Operators, place: Place, number: int) -> None:
    """The next operator finds the same plan: same head, same objects, not one write."""
    first = operators.start().working()
    settled(place)
    eventually("all is written", lambda: first.metric("weightsync_operator_passes_total"))
    first.stop(number)
    head, versions, writes = place.head(), snapshot(place), place.api.writes()
    second = operators.start().working()
    eventually("a pass", lambda: second.metric("weightsync_operator_passes_total") >= 1)
    assert (place.head(), snapshot(place), place.api.writes()) == (head, versions, writes)
    assert second.metric("weightsync_operator_writes_total") == 0


def snapshot(place: Place) -> dict[str, str]:
    """Every object of ours and every pod, with its resource version."""
    found = {}
    for path in (place.syncs_path, place.slices_path, place.pods_path):
        for item in place.api.get(path)["items"]:
            found[f"{path}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return found


def test_what_changed_meanwhile_is_found(operators: Operators, place: Place) -> None:
    """Pods that came and went while no operator ran are in the next one's plan."""
    first = operators.start().working()
    settled(place)
    term = place.head()["term"]
    first.stop()
    place.delete_pod("rollout-a")
    place.engine("rollout-c")
    operators.start()
    place.served("rollout-b", "rollout-c")
    assert place.head()["term"] == term


@pytest.mark.parametrize("alive", [True, False], ids=["with the operator", "without it"])
def test_deleting_is_immediate(operators: Operators, place: Place, alive: bool) -> None:
    """A WeightSync is gone with the request, whether or not the operator runs."""
    one = operators.start().working()
    settled(place)
    if not alive:
        one.stop()
    place.api.delete(f"{place.syncs_path}/policy")
    assert place.api.find(f"{place.syncs_path}/policy") is None
    if alive:
        eventually("it is forgotten", lambda: one.metric("weightsync_engines") == 0)
