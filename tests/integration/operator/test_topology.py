"""Engines are fed from near trainer pods, on a real API server's nodes."""

from collections.abc import Iterator

import pytest

from tests.build import manifests
from tests.build.api import Api, eventually
from tests.integration.operator.conftest import LAYOUT, Operators, Place
from weightsync.announcement import Announcement, SourceRank, TargetRank

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
def nodes(api: Api, place: Place) -> Iterator[list[str]]:
    """Three nodes, the last two of one zone."""
    names = [f"{place.namespace}-{zone}{number}" for zone, number in (("a", 1), ("b", 1), ("b", 2))]
    for name in names:
        labels = {ZONE: name[-2], "kubernetes.io/hostname": name}
        api.create(
            "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        )
    yield names
    for name in names:
        api.call("DELETE", f"/api/v1/nodes/{name}")


def on(place: Place, node: str, name: str, app: str, said: Announcement) -> str:
    """A pod on that node, whose agent says so much."""
    body = manifests.pod(name, app)
    body["spec"]["nodeName"] = node
    uid = str(place.api.create(place.pods_path, body)["metadata"]["uid"])
    place.announce(name, uid, said)
    return uid


def test_the_nearest_source_feeds(operators: Operators, place: Place, nodes: list[str]) -> None:
    """An engine goes to the trainer pod of its zone, not to the first one; the next one evens the loads out."""
    operators.start(f"--topology-labels=kubernetes.io/hostname,{ZONE}").working()
    place.weightsync()
    for number, node in enumerate(nodes[:2]):
        rank = SourceRank(rank=number, world_size=2, nonce=f"{number:016x}")
        on(place, node, f"trainer-{number}", "trainer", Announcement(address="t:1", ready=True, sources=(rank,)))
    targets = (TargetRank(rank=0, layout=LAYOUT, program=LAYOUT),)
    serves = Announcement(address="e:1", ready=True, incarnation="life-1", targets=targets)
    eventually("sources", lambda: place.reason("SourcesReady")[0] == "True")
    on(place, nodes[2], "rollout-a", "rollout", serves)
    place.served("rollout-a")
    assert place.engines()["rollout-a"]["targets"][0]["routes"][0]["rank"] == 1
    on(place, nodes[2], "rollout-b", "rollout", serves)
    place.served("rollout-a", "rollout-b")
    assert [place.engines()[name]["targets"][0]["routes"][0]["rank"] for name in ("rollout-a", "rollout-b")] == [1, 0]
