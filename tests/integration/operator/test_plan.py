"""From pods to a plan and back, on a real API server."""

import pytest

from tests.build import manifests
from tests.build.api import eventually
from tests.integration.operator.conftest import LAYOUT, Operator, Place
from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync.api.v1alpha1.status import Head
from weightsync.plan import Engine, Source
from weightsync.report import LastSync, Report

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

OTHER_NONCE = "2" * 16


def test_a_plan_appears_and_follows_the_pods(operator: Operator, place: Place) -> None:
    """Announced pods are planned; scale up and down change the slices; the slices of old heads are gone."""
    place.weightsync()
    uid = place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    first = Head.model_validate(place.head())
    assert first.coordinator == uid
    route = place.engines()["rollout-a"]["targets"][0]["routes"][0]
    assert route == {"stage": 0, "source": uid, "rank": 0}

    place.engine("rollout-b")
    place.served("rollout-a", "rollout-b")
    second = Head.model_validate(place.head())
    assert (second.term, second.coordinator) == (first.term, first.coordinator)
    assert second.generation > first.generation
    assert place.engines()["rollout-a"]["targets"][0]["routes"] == [route]

    place.delete_pod("rollout-a")
    place.served("rollout-b")
    eventually(
        "only the head's slices are left",
        lambda: {s["metadata"]["name"] for s in place.slices()} == set(place.head()["slices"]),
    )


def test_slices_read_as_plans(operator: Operator, place: Place) -> None:
    """What agents read are the types of every plan; the slices are owned by the WeightSync and labelled."""
    made = place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    for part in place.slices():
        assert part["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
        assert part["metadata"]["labels"] == {"weightsync.io/weightsync": "policy"}
        for source in part["spec"].get("sources", []):
            Source.model_validate(source)
        for engine in part["spec"].get("engines", []):
            Engine.model_validate(engine)


def test_two_stages_in_two_pods(operator: Operator, place: Place) -> None:
    """No plan before each stage has a rank, and the condition names what is missing; then one route a stage."""
    place.weightsync()
    ranks = [SourceRank(rank=r, world_size=2, stage=r, stages=2, nonce="1" * 16) for r in (0, 1)]
    place.trainer("trainer-0", ranks[0])
    place.engine("rollout-a")
    eventually("RanksMissing", lambda: place.reason("SourcesReady") == ("False", "RanksMissing"))
    assert "stages without a rank: 1" in place.condition("SourcesReady")["message"]
    assert place.reason("PlanReady") == ("False", "SourcesMissing")
    assert place.head() == {}
    second = place.trainer("trainer-1", ranks[1])
    place.served("rollout-a")
    routes = place.engines()["rollout-a"]["targets"][0]["routes"]
    assert [(route["stage"], route["rank"]) for route in routes] == [(0, 0), (1, 1)]
    assert routes[1]["source"] == second


LWS = "leaderworkerset.sigs.k8s.io"


def test_an_engine_of_two_pods(operator: Operator, place: Place) -> None:
    """Half of it is named with what it lacks; whole it is one engine, led by the pod of rank 0."""
    place.weightsync()
    place.trainer()
    uids = {}
    for worker in (1, 0):
        labels = {f"{LWS}/name": "rollout", f"{LWS}/group-index": "0", f"{LWS}/worker-index": str(worker)}
        body = manifests.pod(f"r-{worker}", "rollout", **labels)
        body["metadata"]["annotations"] = {f"{LWS}/size": "2"}
        uids[worker] = place.api.create(place.pods_path, body)["metadata"]["uid"]
        said = Announcement(
            address=f"r-{worker}:8960",
            ready=True,
            incarnation="life-1",
            targets=(TargetRank(rank=worker, layout=LAYOUT, program=LAYOUT),),
            engine_ranks=2,
        )
        place.announce(f"r-{worker}", uids[worker], said)
        if worker:
            eventually("it is named", lambda: place.status().get("worst"))
            assert "has 1 of its 2 pods (r-1): missing 0" in place.status()["worst"][0]["message"]
    place.served("rollout-0")
    found = place.engines()["rollout-0"]
    assert (found["leader"], found["address"]) == (uids[0], "r-0:8960")
    assert [(target["rank"]["rank"], target["uid"]) for target in found["targets"]] == [(0, uids[0]), (1, uids[1])]
    place.delete_pod("r-1")
    eventually("it is named again", lambda: place.status().get("worst"))
    assert place.status()["worst"][0]["reason"] == "EngineIncomplete"
    assert "has 1 of its 2 pods (r-0): missing 1" in place.status()["worst"][0]["message"]
    assert place.engines() == {}


def test_engines_by_a_label_of_the_users(operator: Operator, place: Place) -> None:
    """A changed spec groups the same pods anew."""
    place.weightsync()
    place.trainer()
    place.engine("a")
    place.served("a")
    group = {"by": "Label", "key": "example.com/engine"}
    place.api.merge(f"{place.syncs_path}/policy", {"spec": {"rollout": {"group": group}}})
    eventually("no label", lambda: place.reason("Degraded") == ("True", "EngineInconsistent"))
    assert "pod a has no label example.com/engine" in place.condition("Degraded")["message"]
    place.api.merge(f"{place.pods_path}/a", {"metadata": {"labels": {"example.com/engine": "one"}}})
    eventually("it waits", lambda: set(place.engines()) == {"one"})


def test_a_restarted_trainer_brings_a_new_term(operator: Operator, place: Place) -> None:
    """The same pod with another Publisher is another coordinator; while it is away the last plan stays."""
    place.weightsync()
    uid = place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    before = place.head()
    place.announce_trainer("trainer-0", uid, ready=False)
    eventually("SourcesNotReady", lambda: place.reason("SourcesReady") == ("False", "SourcesNotReady"))
    assert place.head() == before
    assert "the last plan, of 1 engine, stays in force" in place.condition("PlanReady")["message"]
    place.announce_trainer("trainer-0", uid, SourceRank(rank=0, world_size=1, nonce=OTHER_NONCE))
    eventually("a new term", lambda: place.head()["term"] > before["term"])
    assert place.head()["coordinator"] == uid
    eventually("SourcesReady", lambda: place.reason("SourcesReady")[0] == "True")


def test_a_restarted_engine_joins_anew(operator: Operator, place: Place) -> None:
    """Another incarnation changes the plan, and not the term."""
    place.weightsync()
    place.trainer()
    uid = place.engine("rollout-a")
    place.served("rollout-a")
    term = place.head()["term"]
    place.announce_engine("rollout-a", uid, incarnation="life-2")
    eventually("the new life", lambda: place.engines()["rollout-a"]["incarnation"] == "life-2")
    assert place.head()["term"] == term


def test_the_report_of_this_term_is_copied(operator: Operator, place: Place) -> None:
    """Version, counts and figures come from the coordinator's report; one of another term is ignored."""
    place.weightsync()
    uid = place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    sync = LastSync(version="v1", engines=1, nbytes=10**9, seconds=2.0, pause_seconds_p50=0.25, pause_seconds_max=0.5)
    place.report("trainer-0", uid, Report(term=99, version="wrong", current=7))
    term = place.head()["term"]
    place.report("trainer-0", uid, Report(term=term, version="v1", label="step 1", current=1, last_sync=sync))
    eventually("the version", lambda: place.status().get("version") == "v1")
    status = place.status()
    assert status["label"] == "step 1"
    assert status["counts"] == {"matched": 1, "current": 1, "behind": 0, "joining": 0, "failed": 0}
    assert status["lastSync"]["bytesPerSecond"] == 500_000_000
    assert status["lastSync"]["pauseMaxMilliseconds"] == 500
    assert place.reason("Ready") == ("True", "InSync")
    place.report(
        "trainer-0",
        uid,
        Report(term=term, version="v1", error="no stage has lm_head", error_reason="CoverageIncomplete"),
    )
    eventually("the error", lambda: place.reason("Ready") == ("False", "CoverageIncomplete"))
    assert "lm_head" in place.condition("Ready")["message"]


def test_a_changed_spec_raises_the_generation_only(operator: Operator, place: Place) -> None:
    """observedGeneration follows the spec; the head's generation rises, its term does not."""
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    before = place.head()
    place.api.merge(f"{place.syncs_path}/policy", {"spec": {"suspend": True}})
    eventually("Suspended", lambda: place.reason("Ready") == ("False", "Suspended"))
    assert place.status()["observedGeneration"] == 2
    assert place.head() == before | {"generation": before["generation"] + 1}


def test_no_finalizer_anywhere(operator: Operator, place: Place) -> None:
    """Neither on pods nor on ours; and nothing of kopf's own on them."""
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    eventually("old slices are gone", lambda: len(place.slices()) == len(place.head()["slices"]))
    for path in (place.syncs_path, place.slices_path, place.pods_path):
        for item in place.api.get(path)["items"]:
            assert "finalizers" not in item["metadata"]
            assert not [key for key in item["metadata"].get("annotations", {}) if "kopf" in key]


def test_a_slice_deleted_by_hand_comes_back(operator: Operator, place: Place) -> None:
    """The head never names what is not there for long."""
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    eventually("old slices are gone", lambda: len(place.slices()) == len(place.head()["slices"]))
    head = place.head()
    place.api.delete(f"{place.slices_path}/{head['slices'][-1]}")
    eventually("it is back", lambda: place.api.find(f"{place.slices_path}/{head['slices'][-1]}"))
    assert place.head() == head


def test_a_head_never_names_what_is_not_there(operator: Operator, place: Place) -> None:
    """In the API server's own order: slices are made before a head names them, and go after no head does."""
    since = place.api.get(place.syncs_path)["metadata"]["resourceVersion"]
    place.weightsync()
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    place.engine("rollout-b")
    place.served("rollout-a", "rollout-b")
    place.delete_pod("rollout-a")
    place.served("rollout-b")
    eventually("old slices are gone", lambda: len(place.slices()) == len(place.head()["slices"]))

    made: dict[str, int] = {}
    gone: dict[str, int] = {}
    for event in place.api.history(place.slices_path, since):
        meta = event["object"]["metadata"]
        (gone if event["type"] == "DELETED" else made)[meta["name"]] = int(meta["resourceVersion"])
    assert gone, "scaling up and down leaves slices behind"
    named: dict[str, list[int]] = {}
    for event in place.api.history(place.syncs_path, since):
        version = int(event["object"]["metadata"]["resourceVersion"])
        for name in event["object"].get("status", {}).get("head", {}).get("slices", []):
            named.setdefault(name, []).append(version)
    for name, versions in named.items():
        assert made[name] < min(versions)
        assert gone.get(name, max(versions) + 1) > max(versions)


def test_a_weightsync_made_anew_begins_above_its_former_self(operator: Operator, place: Place) -> None:
    """Its engines and sources live on, and remember: under a lower term nothing would be synced until they go."""
    place.weightsync()
    uid = place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    former = place.head()
    place.announce_trainer("trainer-0", uid, SourceRank(rank=0, world_size=1, nonce=OTHER_NONCE))
    eventually("a higher term", lambda: place.head()["term"] > former["term"])
    highest = place.head()["term"]
    place.api.delete(f"{place.syncs_path}/policy")
    place.weightsync()
    eventually("a head again", place.head)
    assert place.head()["term"] > highest
    assert place.head()["coordinator"] == uid
