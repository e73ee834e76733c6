"""The own pod on a real API server: what is written, under which manager, and what is left alone.

Every agent here holds the one right of a real one: to patch pods/status.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from weightsync import names
from weightsync.announcement import Announcement
from weightsync.errors import PeerError
from weightsync.report import Report
from weightsync_agent.own_pod.api import Api, Json
from weightsync_agent.own_pod.base import Identity
from weightsync_agent.own_pod.cluster import KubernetesOwnPod

pytestmark = pytest.mark.apiserver

HELLO = Announcement(address="10.0.0.7:8960")
READY = HELLO.model_copy(update={"ready": True, "incarnation": "life-1"})
NOON, LATER = datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 1, 13, tzinfo=UTC)


@asynccontextmanager
async def agent(
    space: Any, pod: Identity, url: str = "", now: datetime = NOON, report_seconds: float = 0.0, **options: float
) -> AsyncIterator[KubernetesOwnPod]:
    """An agent's own pod, started and stopped."""
    async with space.api(pod, url) as api:
        own = KubernetesOwnPod(api, pod, clock=lambda: now, report_seconds=report_seconds, **options)
        await own.start()
        try:
            yield own
        finally:
            await own.stop()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The field manager of each write that was sent; trials are none."""
    found: list[str] = []
    real = Api.apply

    async def counted(api: Api, path: str, body: Json, manager: str, *, dry_run: bool = False) -> Json:
        if not dry_run:
            found.append(manager)
        return await real(api, path, body, manager, dry_run=dry_run)

    monkeypatch.setattr(Api, "apply", counted)
    return found


def gate(pod: dict[str, Any]) -> dict[str, Any] | None:
    """The condition of our type, without what the server adds."""
    conditions = pod["status"].get("conditions", [])
    return next((c for c in conditions if c["type"] == names.GATE), None)


def managers(pod: dict[str, Any]) -> dict[str, set[str]]:
    """Field manager -> annotations and conditions that it owns."""
    found: dict[str, set[str]] = {}
    for entry in pod["metadata"]["managedFields"]:
        fields = entry["fieldsV1"]
        annotations = fields.get("f:metadata", {}).get("f:annotations", {})
        conditions = fields.get("f:status", {}).get("f:conditions", {})
        found[entry["manager"]] = {key for key in (*annotations, *conditions) if key != "."}
    return {name: owned for name, owned in found.items() if name.startswith("weightsync")}


async def test_annotation_gate_and_report_stand_side_by_side(space: Any) -> None:
    """One apply says annotation and condition, another the report; neither drops the other's, nor the kubelet's."""
    pod = space.pod("rollout-1", {"app": "rollout"})
    ready = {"type": "Ready", "status": "True"}
    space.call("PUT", f"{space.core}/pods/rollout-1/status", space.read(pod) | {"status": {"conditions": [ready]}})
    async with agent(space, pod) as own:
        own.announce(HELLO)
        own.set_gate(True, "Current", "serves a published version")
        own.report(Report(term=3))
        await own.settled()
        assert own.problem == ""
        assert await own.labels() == {"app": "rollout"}
        own.announce(READY)
        await own.settled()
    found = space.read(pod)
    assert Announcement.read(found["metadata"]["annotations"][names.ANNOUNCEMENT], "pod") == READY
    assert Report.read(found["metadata"]["annotations"][names.REPORT], "pod") == Report(term=3)
    assert gate(found) == {
        "type": "weightsync.io/WeightsCurrent",
        "status": "True",
        "reason": "Current",
        "message": "serves a published version",
        "lastTransitionTime": "2026-05-01T12:00:00Z",
        "lastProbeTime": None,
    }
    assert [c["type"] for c in found["status"]["conditions"]] == ["Ready", names.GATE]
    assert found["metadata"]["labels"] == {"app": "rollout"}
    assert managers(found) == {
        names.MANAGER_AGENT: {"f:weightsync.io/agent", 'k:{"type":"weightsync.io/WeightsCurrent"}'},
        names.MANAGER_REPORT: {"f:weightsync.io/report"},
    }


async def test_labels_that_the_pod_is_given_later_are_seen(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is by them that a WeightSync selects the pod; whoever asks again at once asks no API server."""
    pod = space.pod("rollout-9", {"app": "waiting"})
    async with agent(space, pod, labels_seconds=0.0) as own:
        assert await own.labels() == {"app": "waiting"}
        body = space.read(pod)
        body["metadata"]["labels"] = {"app": "rollout"}
        space.call("PUT", f"{space.core}/pods/rollout-9", body)
        assert await own.labels() == {"app": "rollout"}
    async with agent(space, pod) as own:
        assert await own.labels() == {"app": "rollout"}
        monkeypatch.delattr(Api, "apply")
        assert await own.labels() == {"app": "rollout"}
        monkeypatch.undo()


async def test_nothing_is_written_when_nothing_changed(space: Any, writes: list[str]) -> None:
    """The same words again, from the same agent or from one that was restarted: no request, no new version."""
    pod = space.pod("rollout-1")
    async with agent(space, pod) as own:
        for _ in range(2):
            own.announce(READY)
            own.set_gate(True, "Current")
            own.report(Report(term=1))
            await own.settled()
    before = space.read(pod)["metadata"]["resourceVersion"]
    assert sorted(writes) == [names.MANAGER_AGENT, names.MANAGER_REPORT]
    async with agent(space, pod, now=LATER) as own:
        own.announce(READY)
        own.set_gate(True, "Current")
        await own.settled()
    assert sorted(writes) == [names.MANAGER_AGENT, names.MANAGER_REPORT]
    assert space.read(pod)["metadata"]["resourceVersion"] == before


async def test_a_restarted_agent_keeps_the_gate_until_it_says_otherwise(space: Any) -> None:
    """It announces itself before it knows its engine: the gate of its last life, and since when, stand meanwhile."""
    pod = space.pod("rollout-1")
    async with agent(space, pod) as own:
        own.announce(READY)
        own.set_gate(True, "Current")
    async with agent(space, pod, now=LATER) as own:
        own.announce(HELLO)
        await own.settled()
        found = gate(space.read(pod))
        assert found is not None
        assert (found["status"], found["lastTransitionTime"]) == ("True", "2026-05-01T12:00:00Z")
        assert own.gate is not None
        assert own.gate.status
        own.set_gate(True, "Certified")
        await own.settled()
        found = gate(space.read(pod))
        assert found is not None
        assert (found["reason"], found["lastTransitionTime"]) == ("Certified", "2026-05-01T12:00:00Z")
        own.set_gate(False, "Torn", "the engine was restarted")
        await own.settled()
    found = gate(space.read(pod))
    assert found is not None
    assert (found["status"], found["lastTransitionTime"]) == ("False", "2026-05-01T13:00:00Z")


async def test_a_pod_that_took_over_the_name_is_left_alone(space: Any) -> None:
    """An agent that outlives its pod cannot speak for the next pod of that name; its problem says why."""
    old = space.pod("trainer-0")
    space.call("DELETE", f"{space.core}/pods/trainer-0?gracePeriodSeconds=0")
    new = space.pod("trainer-0")
    before = space.read(new)["metadata"]["resourceVersion"]
    # The administrator's connection: the old pod's token would be refused before the uid is looked at.
    async with space.api(None) as api:
        own = KubernetesOwnPod(api, old)
        await own.start()
        own.announce(HELLO)
        own.set_gate(True, "Current")
        own.report(Report(term=1))
        await own.settled()
        assert "pod has been replaced" in own.problem
        await own.stop()
    assert space.read(new)["metadata"]["resourceVersion"] == before


async def test_an_outage_ends_with_the_newest_words_and_an_untouched_gate(
    space: Any, relay: Any, until: Callable[..., Any]
) -> None:
    """While the API is away calls return at once, the gate stays True, and afterwards the last word is written."""
    pod = space.pod("rollout-1")
    async with agent(space, pod, relay.url) as own:
        own.announce(HELLO)
        own.set_gate(True, "Current")
        await own.settled()
        await relay.down()
        for number in range(5):
            own.announce(HELLO.model_copy(update={"incarnation": f"life-{number}"}))
            own.report(Report(term=number))
        await until(lambda: "cannot be reached" in own.problem, "the outage is noticed")
        found = gate(space.read(pod))
        assert found is not None
        assert found["status"] == "True"
        await relay.up()
        await own.settled()
        assert own.problem == ""
    annotations = space.read(pod)["metadata"]["annotations"]
    assert '"incarnation":"life-4"' in annotations[names.ANNOUNCEMENT]
    assert Report.read(annotations[names.REPORT], "pod").term == 4


async def test_an_agent_that_starts_in_an_outage_says_nothing_before_it_has_looked(
    space: Any, relay: Any, until: Callable[..., Any]
) -> None:
    """The gate of its last life is kept even if the API was away when the agent came back."""
    pod = space.pod("rollout-1")
    async with agent(space, pod) as own:
        own.announce(READY)
        own.set_gate(True, "Current")
    await relay.down()
    async with agent(space, pod, relay.url, LATER) as own:
        own.announce(HELLO)
        await until(lambda: "cannot be reached" in own.problem, "the outage is noticed")
        assert own.gate is None
        await relay.up()
        await own.settled()
    found = space.read(pod)
    assert Announcement.read(found["metadata"]["annotations"][names.ANNOUNCEMENT], "pod") == HELLO
    assert (gate(found) or {})["status"] == "True"


async def test_reports_are_few(space: Any, writes: list[str]) -> None:
    """A hundred reports in one go are one write: the last, after the interval."""
    pod = space.pod("trainer-0")
    async with agent(space, pod, report_seconds=0.3) as own:
        own.report(Report(term=0))
        await own.settled()
        for number in range(1, 101):
            own.report(Report(term=number))
            await asyncio.sleep(0)
        await own.settled()
        assert own.last_report == Report(term=100)
    assert Report.read(space.read(pod)["metadata"]["annotations"][names.REPORT], "pod").term == 100
    assert writes.count(names.MANAGER_REPORT) == 2


async def test_the_agent_needs_no_right_to_read_pods(space: Any) -> None:
    """All of the above was done by agents that may not even get their own pod."""
    pod = space.pod("rollout-1")
    async with space.api(pod) as api:
        with pytest.raises(PeerError, match="403 Forbidden"):
            await api.get(f"{space.core}/pods/{pod.name}")
