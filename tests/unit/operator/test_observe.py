"""From raw JSON to records."""

import json
from typing import Any

import pytest

from tests.build import manifests
from weightsync.announcement import Announcement
from weightsync.errors import InputError
from weightsync.report import Report
from weightsync_operator import observe
from weightsync_operator.planning.facts import UNREADABLE

META: dict[str, Any] = {
    "namespace": "default",
    "name": "rollout-a",
    "uid": "u1",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "resourceVersion": "7",
    "labels": {"app": "rollout"},
}


def raw(status: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {"metadata": META | meta, "status": status or {"phase": "Running"}, "spec": {"containers": ["dropped"]}}


@pytest.mark.parametrize(
    ("seen", "gone"),
    [
        pytest.param(raw(), "", id="running"),
        pytest.param(raw({"phase": "Pending"}), "", id="pending"),
        pytest.param(raw(deletionTimestamp="2026-01-01T00:00:00Z"), "Terminating", id="terminating"),
        pytest.param(raw({"phase": "Failed"}), "Failed", id="failed"),
        pytest.param(raw({"phase": "Succeeded"}), "Succeeded", id="ended"),
    ],
)
def test_pods_that_cannot_take_part(seen: dict[str, Any], gone: str) -> None:
    """Terminating and ended pods are gone, and the record says why."""
    assert observe.pod(seen).gone == gone


def test_what_the_agent_said_is_read() -> None:
    """Announcement and report come from their annotations."""
    said = Announcement(address="10.0.0.1:8960", ready=True)
    report = Report(term=3, version="v")
    annotations = {"weightsync.io/agent": said.model_dump_json(), "weightsync.io/report": report.model_dump_json()}
    pod = observe.pod(raw(annotations=annotations))
    assert (pod.announcement, pod.report, pod.problem) == (said, report, "")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": 2, "address": "a"}'], ids=["empty", "object", "list", "2"]
)
def test_an_unreadable_annotation_is_a_problem_not_an_error(text: str) -> None:
    """One pod's nonsense stops nobody; the record carries the sentence."""
    pod = observe.pod(raw(annotations={"weightsync.io/agent": text, "weightsync.io/report": text}))
    assert pod.announcement is None
    assert pod.problem.startswith("annotation weightsync.io/agent: ")
    assert pod.report is not None
    assert pod.report.term == UNREADABLE, "no plan has that term"


def test_two_heartbeats_are_one_record() -> None:
    """What no plan needs is not in the record, so that it cannot wake anyone."""
    beats = [{"type": "Ready", "status": "True", "lastProbeTime": f"2026-01-01T00:00:0{n}Z"} for n in range(2)]
    one = observe.pod(raw({"phase": "Running", "conditions": beats[:1]}, resourceVersion="8"))
    two = observe.pod(raw({"phase": "Running", "conditions": beats[1:]}, resourceVersion="9"))
    assert one == two


def test_a_weightsync_that_cannot_be_read_says_why() -> None:
    """With a CRD of another release the object is seen, and its problem is named."""
    made = manifests.weightsync()
    made["metadata"] |= {"namespace": "default", "uid": "u", "resourceVersion": "1"}
    made["spec"]["rollout"]["initialGate"] = "Ajar"
    seen = observe.weightsync(made)
    assert seen.claim is None
    assert seen.problem.startswith("spec.rollout.initialGate: ")


def test_one_that_is_being_deleted_keeps_its_pods() -> None:
    """A finalizer of somebody else's may hold it for long: its plan is in force until it is gone."""
    made = manifests.weightsync()
    made["metadata"] |= {"namespace": "default", "uid": "u", "resourceVersion": "1", "deletionTimestamp": "now"}
    seen = observe.weightsync(made)
    assert seen.deleting
    assert seen.claim is not None


def test_versions_are_numbers() -> None:
    """A server whose versions are not would be silently misread: it is refused."""
    with pytest.raises(InputError, match="not conformant"):
        observe.version({"metadata": {"resourceVersion": "abc"}})


GATE = "weightsync.io/WeightsCurrent"


@pytest.mark.parametrize(
    ("annotations", "size", "problem"),
    [
        pytest.param({}, 0, "", id="nothing said"),
        pytest.param({"leaderworkerset.sigs.k8s.io/size": "4"}, 4, "", id="the workload's own"),
        pytest.param(
            {"leaderworkerset.sigs.k8s.io/size": "4", "weightsync.io/engine-pods": "2"}, 2, "", id="the user's first"
        ),
        pytest.param({"weightsync.io/engine-pods": "two"}, 0, "'two' is no number of pods", id="unreadable"),
        pytest.param({"weightsync.io/engine-pods": "0"}, 0, "'0' is no number of pods", id="none"),
    ],
)
def test_how_many_pods_an_engine_has(annotations: dict[str, str], size: int, problem: str) -> None:
    """Annotations say it, and one that cannot be read is a problem that conditions name."""
    found = observe.pod(raw(annotations=annotations))
    assert found.size == size
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)


@pytest.mark.parametrize(
    ("gates", "conditions", "gated"),
    [
        pytest.param([GATE], {"ContainersReady": "True"}, True, id="our gate alone is closed"),
        pytest.param([GATE], {"ContainersReady": "True", GATE: "True"}, False, id="our gate is open"),
        pytest.param([GATE], {"ContainersReady": "False"}, False, id="containers are not ready"),
        pytest.param([], {"ContainersReady": "True"}, False, id="no gate of ours"),
    ],
)
def test_who_waits_for_our_gate(gates: list[str], conditions: dict[str, str], gated: bool) -> None:
    """A pod whose containers are ready waits for nothing but its gates."""
    made = raw({"conditions": [{"type": kind, "status": status} for kind, status in conditions.items()]})
    made["spec"]["readinessGates"] = [{"conditionType": gate} for gate in gates]
    assert observe.pod(made).gated is gated


@pytest.mark.parametrize(
    "said",
    [
        {"version": "x" * 129},
        {"label": "x" * 257},
        {"current": -1},
        {"behind": 2**63},
        {"lastSync": {"version": "v", "seconds": 1e300}},
        {"lastSync": {"version": "v", "routes": {"tcp": -1}}},
    ],
    ids=["a long version", "a long label", "a negative count", "a count of 65 bits", "an age", "negative routes"],
)
def test_a_report_that_no_status_could_hold_is_unreadable(said: dict[str, Any]) -> None:
    """Whoever may write a pod's annotation must not end the operator by it."""
    pod = observe.pod(raw(annotations={"weightsync.io/report": json.dumps({"term": 1} | said)}))
    assert pod.report is not None
    assert (pod.report.term, pod.report.error_reason) == (UNREADABLE, "ReportUnreadable")


def test_a_number_of_many_digits_is_no_number_of_pods() -> None:
    """Python would refuse to read it, in the middle of a list of all pods."""
    assert "is no number of pods" in observe.pod(raw(annotations={"weightsync.io/engine-pods": "9" * 5000})).problem
