"""Whom a change concerns."""

from typing import Any

from tests.build import manifests
from tests.build.pods import engine
from weightsync_operator import observe
from weightsync_operator.observe import Seen, SliceSeen
from weightsync_operator.planning.pods import Pod
from weightsync_operator.shelf import Change
from weightsync_operator.store import Store


def seen(name: str, version: int = 1, namespace: str = "default", **parts: Any) -> Seen:
    made = manifests.weightsync(name, **parts)
    made["metadata"] |= {"namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return observe.weightsync(made)


def store(*syncs: Seen) -> Store:
    made = Store()
    for one in syncs:
        made.syncs.put(one.uid, 1, one)
    return made


A, B = seen("a"), seen("b", serves="other")
ELSEWHERE = seen("c", namespace="elsewhere")


def pod_change(old: Pod | None, new: Pod | None) -> list[Change[Pod]]:
    return [Change(old, new)]


def test_a_pod_concerns_those_that_match_it() -> None:
    """By its labels before and after, in its own namespace."""
    here = store(A, B, ELSEWHERE)
    assert here.concerned_by_pods(pod_change(None, engine())) == {"uid-a"}
    relabelled = engine(labels={"app": "other"})
    assert here.concerned_by_pods(pod_change(engine(), relabelled)) == {"uid-a", "uid-b"}
    assert here.concerned_by_pods(pod_change(engine(labels={}), None)) == set()


def test_a_new_claim_concerns_the_namespace() -> None:
    """Ownership may move; a change of the status concerns the object itself only."""
    here = store(A, B, ELSEWHERE)
    assert here.concerned_by_syncs([Change(None, A)]) == {"uid-a", "uid-b"}
    assert here.concerned_by_syncs([Change(A, None)]) == {"uid-a", "uid-b"}
    assert here.concerned_by_syncs([Change(A, seen("a", 2))]) == {"uid-a"}
    assert here.concerned_by_syncs([Change(A, seen("a", 2, serves="new"))]) == {"uid-a", "uid-b"}


def test_a_slice_concerns_its_owner() -> None:
    """Also one that is deleted by hand."""
    assert store(A).concerned_by_slices([Change(SliceSeen("default", "a-1", "uid-a"), None)]) == {"uid-a"}
