"""What a user can get wrong is said, with the pods' names, and clears itself."""

from functools import partial

import pytest

from tests.build.api import Json, eventually
from tests.integration.operator.conftest import Operator, Place
from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync.report import Offender, Report

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

OTHER_LAYOUT = "b" * 32


def test_a_selector_that_matches_nothing(operator: Operator, place: Place) -> None:
    """NoSources names the selector; the right labels clear it."""
    place.weightsync(trains="trainr")
    place.trainer()
    eventually("NoSources", lambda: place.reason("Ready") == ("False", "NoSources"))
    assert "app=trainr" in place.condition("SourcesReady")["message"]
    place.api.merge(
        f"{place.syncs_path}/policy", {"spec": {"trainer": {"selector": {"matchLabels": {"app": "trainer"}}}}}
    )
    eventually("sources", lambda: place.reason("SourcesReady") == ("True", "SourcesAnnounced"))


def test_sources_without_targets(operator: Operator, place: Place) -> None:
    """NoTargets names trainer pods and selector; an engine clears it. The trainer has a coordinator all the while."""
    place.weightsync()
    uid = place.trainer()
    eventually("NoTargets", lambda: place.reason("PlanReady") == ("False", "NoTargets"))
    message = place.condition("PlanReady")["message"]
    assert "trainer-0" in message
    assert "app=rollout" in message
    assert place.head()["coordinator"] == uid
    place.pod("rollout-a", "rollout")
    eventually("TargetsNotReady", lambda: place.reason("PlanReady") == ("False", "TargetsNotReady"))
    assert "pod rollout-a: its agent has not announced itself" in place.condition("PlanReady")["message"]
    place.delete_pod("rollout-a")
    place.engine("rollout-b")
    eventually("a plan", lambda: place.reason("PlanReady") == ("True", "Planned"))
    eventually("ready", lambda: place.reason("Ready") == ("True", "NothingPublished"))


def test_layouts_that_differ(operator: Operator, place: Place) -> None:
    """Both pods are named; the others go on being served; it clears when the pod is right."""
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    wrong = place.engine("rollout-b", layout=OTHER_LAYOUT)
    eventually("LayoutsDiffer", lambda: place.reason("Degraded") == ("True", "LayoutsDiffer"))
    message = place.condition("Degraded")["message"]
    assert "pod rollout-a" in message
    assert "pod rollout-b" in message
    assert set(place.engines()) == {"rollout-a"}
    assert place.status()["worst"][0]["engine"] == "rollout-b"
    assert place.status()["counts"]["failed"] == 1
    assert place.reason("Ready")[0] == "True"
    place.announce_engine("rollout-b", wrong)
    place.served("rollout-a", "rollout-b")
    eventually("cleared", lambda: place.reason("Degraded") == ("False", "AllServed"))


def test_an_engine_that_its_agent_refuses(operator: Operator, place: Place) -> None:
    """The agent's sentence is passed on, with the pod."""
    place.weightsync()
    place.trainer()
    place.engine("rollout-a", refused="fp8 weights are repacked after loading")
    eventually("EngineRefused", lambda: place.reason("Degraded") == ("True", "EngineRefused"))
    assert place.condition("Degraded")["message"] == "pod rollout-a: fp8 weights are repacked after loading"


def matched_twice(place: Place, name: str) -> bool:
    return place.reason("Degraded", name) == ("True", "PodsMatchedTwice")


def test_a_pod_matched_twice(operator: Operator, place: Place) -> None:
    """It belongs to the older WeightSync; both say so; when the older goes, the younger has it."""
    place.weightsync("a-older")
    eventually("the older is seen", lambda: place.status("a-older"))
    place.weightsync("b-younger")
    place.trainer()
    place.engine("rollout-a")
    eventually("the older plans", lambda: set(place.engines("a-older")) == {"rollout-a"})
    for name, other in (("a-older", "b-younger"), ("b-younger", "a-older")):
        eventually(f"{name} says so", partial(matched_twice, place, name))
        assert other in place.condition("Degraded", name)["message"]
        assert "rollout-a" in place.condition("Degraded", name)["message"]
    assert place.head("b-younger") == {}
    place.api.delete(f"{place.syncs_path}/a-older")
    eventually("the younger plans", lambda: set(place.engines("b-younger")) == {"rollout-a"})
    eventually("cleared", lambda: place.reason("Degraded", "b-younger") == ("False", "AllServed"))


def test_an_ordered_start_behind_a_closed_gate(operator: Operator, place: Place) -> None:
    """A StatefulSet that waits for its first pod is named with what to change; the first version clears it."""
    selector = {"selector": {"matchLabels": {"app": "rollout"}}}
    place.weightsync(rollout=selector | {"initialGate": "Closed"})
    trainer = place.trainer()
    place.ordered("s")
    eventually("OrderedStartup", lambda: place.reason("Degraded") == ("True", "OrderedStartup"))
    assert "StatefulSet s makes 1 more of its pods only once pod s-0" in place.condition("Degraded")["message"]
    place.report("trainer-0", trainer, Report(term=place.head()["term"], version="v1", current=1))
    eventually("cleared", lambda: place.reason("Degraded") == ("False", "AllServed"))


def test_a_plan_that_a_quota_refuses(operator: Operator, place: Place) -> None:
    """The object says so in the API server's words, keeps what it had, and is planned once there is room."""
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    eventually("old slices are gone", lambda: len(place.slices()) == len(place.head()["slices"]))
    head, resource = place.head(), "count/weightsyncslices.weightsync.io"
    path = f"/api/v1/namespaces/{place.namespace}/resourcequotas"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {resource: "2"}},
    }
    place.api.create(path, quota)
    status = {"status": {"hard": {resource: "2"}, "used": {resource: "2"}}}  # as its controller would
    place.api.merge(f"{path}/few/status", status)
    place.engine("rollout-b")
    eventually("PlanRefused", lambda: place.reason("Ready") == ("False", "PlanRefused"))
    assert "exceeded quota: few" in place.condition("PlanReady")["message"]
    assert place.head() == head
    place.api.delete(f"{path}/few")
    place.served("rollout-a", "rollout-b")
    eventually("well again", lambda: place.reason("Ready")[0] == "True")


def test_an_unreadable_announcement(operator: Operator, place: Place) -> None:
    """Whatever stands in the annotation, the operator goes on, and says which pod it is."""
    place.weightsync()
    place.trainer()
    place.pod("rollout-a", "rollout")
    place.api.merge(f"{place.pods_path}/rollout-a", {"metadata": {"annotations": {"weightsync.io/agent": "{}"}}})
    eventually("said", lambda: place.reason("Degraded") == ("True", "AnnouncementUnreadable"))
    assert "pod rollout-a" in place.condition("Degraded")["message"]


def test_events_tell_what_the_status_says(operator: Operator, place: Place) -> None:
    """An event for each condition that turned, about the WeightSync, after the status had it."""
    made = place.weightsync()
    path = f"/apis/events.k8s.io/v1/namespaces/{place.namespace}/events"
    found = eventually("an event", lambda: place.api.get(path)["items"])
    assert found[0]["regarding"]["uid"] == made["metadata"]["uid"]
    assert (found[0]["type"], found[0]["reason"]) == ("Warning", "NoSources")
    assert found[0]["note"] == place.condition("SourcesReady")["message"]


def test_who_has_no_rdma_device(operator: Operator, place: Place) -> None:
    """RDMAReady names pod and reason, follows the announcements, and knows when nobody asks."""
    place.weightsync()
    source = SourceRank(rank=0, world_size=1, nonce="1" * 16)
    said = Announcement(address="t:8960", ready=True, sources=(source,), devices=("mlx5_0",))
    place.announce("trainer-0", place.pod("trainer-0", "trainer"), said)
    uid = place.engine("rollout-a")
    eventually("unknown", lambda: place.reason("RDMAReady") == ("Unknown", "DevicesUnknown"))
    rank = TargetRank(rank=0, layout=OTHER_LAYOUT, program=OTHER_LAYOUT)
    said = Announcement(address="e:8960", ready=True, incarnation="1", targets=(rank,), no_device="port 1 is DOWN")
    place.announce("rollout-a", uid, said)
    eventually("NoDevice", lambda: place.reason("RDMAReady") == ("False", "NoDevice"))
    assert "go over TCP: rollout-a (port 1 is DOWN)" in place.condition("RDMAReady")["message"]
    place.announce("rollout-a", uid, said.model_copy(update={"devices": ("mlx5_3",), "no_device": ""}))
    eventually("ready", lambda: place.reason("RDMAReady") == ("True", "DevicesReady"))
    wish = {"protocol": "RDMA", "rdma": {"devices": ["mlx5_0"], "gidIndex": 3, "mtu": 4096}}
    place.api.merge(f"{place.syncs_path}/policy", {"spec": {"transfer": wish}})
    eventually("filtered", lambda: place.reason("RDMAReady") == ("False", "NoDevice"))
    assert "are refused: rollout-a (it has mlx5_3" in place.condition("RDMAReady")["message"]
    place.api.merge(f"{place.syncs_path}/policy", {"spec": {"transfer": {"protocol": "TCP"}}})
    eventually("not wanted", lambda: place.reason("RDMAReady") == ("Unknown", "NotWanted"))


def test_many_engines_behind_are_one_event_that_counts(operator: Operator, place: Place) -> None:
    """Not one for each engine, and none for each time that the condition turns: the first one's count rises."""
    place.weightsync()
    trainer = place.trainer()
    for number in range(4):
        place.engine(f"rollout-{number}")
    eventually("a plan", lambda: len(place.engines()) == 4)
    late = tuple(Offender(engine=f"rollout-{number}", reason="Stalled", message="no bytes") for number in range(4))
    for turn in range(3):
        for behind, reason in ((4, "EnginesBehind"), (0, "AllServed")):
            report = Report(
                term=place.head()["term"], version=f"v{turn}", current=4 - behind, behind=behind, worst=late[:behind]
            )
            place.report("trainer-0", trainer, report)
            eventually(reason, partial(turned, place, reason))
    told = eventually("a count", lambda: [one for one in events(place, "EnginesBehind") if one.get("series")])
    assert len(events(place, "EnginesBehind")) == 1
    assert len(events(place, "AllServed")) == 1
    assert told[0]["series"]["count"] >= 2
    assert told[0]["note"].startswith("4 of 4 engines are behind: rollout-0 (Stalled: no bytes)")


def turned(place: Place, reason: str) -> bool:
    """Whether Degraded has that reason."""
    return place.reason("Degraded")[1] == reason


def events(place: Place, reason: str) -> list[Json]:
    """Events of that reason in the namespace."""
    found = place.api.get(f"/apis/events.k8s.io/v1/namespaces/{place.namespace}/events")["items"]
    return [one for one in found if one["reason"] == reason]
