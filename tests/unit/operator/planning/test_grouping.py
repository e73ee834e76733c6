"""From pods to engines: which labels put pods together, and when an engine is whole."""

from dataclasses import replace

import pytest

from tests.build.pods import engine, shard
from weightsync_operator.planning import membership, reasons
from weightsync_operator.planning.grouping import Grouping, group
from weightsync_operator.planning.pods import Pod

LWS = "leaderworkerset.sigs.k8s.io"
AUTO = Grouping()


def lws(name: str, engine_index: int, worker: int, **more: object) -> Pod:
    labels = {f"{LWS}/name": "rollout", f"{LWS}/group-index": str(engine_index), f"{LWS}/worker-index": str(worker)}
    # The StatefulSets behind it label its pods too.
    labels["apps.kubernetes.io/pod-index"] = str(engine_index)
    return replace(shard(name, (worker,), labels=labels, size=2), **more)  # type: ignore[arg-type]


def labelled(name: str, size: int = 0, **labels: str) -> Pod:
    return replace(engine(name), labels=labels, size=size)


def names(pods: list[Pod], grouping: Grouping = AUTO) -> dict[str, list[str]]:
    return {made.name: [pod.name for pod in made.pods] for made in group(pods, grouping)}


JOBSET = {
    "jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": "engine",
    "jobset.sigs.k8s.io/job-index": "3",
}  # fmt: skip
RAY = {"ray.io/cluster": "rc", "ray.io/group": "gpu", "ray.io/worker-group-replica-index": "0"}
RBG = {
    "rbg.workloads.x-k8s.io/group-name": "g", "rbg.workloads.x-k8s.io/role-name": "decode",
    "rbg.workloads.x-k8s.io/role-instance-index": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("common", "place", "expected"),
    [
        pytest.param(JOBSET, "batch.kubernetes.io/job-completion-index", "js-engine-3", id="a job of a JobSet"),
        pytest.param(RAY, "ray.io/replica-host-index", "rc-gpu-0", id="a multi-host replica of a RayCluster"),
        pytest.param(RBG, "rbg.workloads.x-k8s.io/component-index", "g-decode-1", id="an instance of a role"),
        pytest.param(
            {f"{LWS}/name": "rollout", f"{LWS}/group-index": "0"},
            f"{LWS}/worker-index",
            "rollout-0",
            id="an LWS",
        ),
    ],
)
def test_labels_of_workloads(common: dict[str, str], place: str, expected: str) -> None:
    """Pods of equal labels are one engine, by their place in it; a pod of another engine is not among them."""
    one, two = (labelled(name, **common, **{place: number}) for name, number in (("b", "1"), ("a", "0")))
    last = next(iter(reversed(common)))
    other = labelled("c", **(common | {last: "7"}), **{place: "0"})
    found = names([one, two, other])
    assert found.pop(expected) == ["a", "b"]
    assert list(found.values()) == [["c"]]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(0, {"s-0": ["s-0"], "s-1": ["s-1"], "s-2": ["s-2"]}, id="each pod alone, unless annotated"),
        pytest.param(2, {"s-0": ["s-0", "s-1"], "s-1": ["s-2"]}, id="annotated, in twos"),
    ],
)
def test_statefulsets_are_parted_by_their_annotation(size: int, expected: dict[str, list[str]]) -> None:
    """A StatefulSet's numbers count on over its engines."""
    pods = [labelled(f"s-{n}", size, **{"apps.kubernetes.io/pod-index": str(n)}) for n in range(3)]
    assert names(pods) == expected


def test_two_statefulsets_are_not_mixed() -> None:
    """Their names come from their pods' names."""
    pods = [labelled(f"{s}-{n}", 2, **{"apps.kubernetes.io/pod-index": str(n)}) for s in ("s", "t") for n in range(2)]
    assert names(pods) == {"s-0": ["s-0", "s-1"], "t-0": ["t-0", "t-1"]}


def test_a_podclique_is_parted_likewise() -> None:
    """Its pods are engines of their own unless the annotation says otherwise."""
    pods = [
        labelled(f"p-{n}", 2, **{"grove.io/podclique": "pc", "grove.io/podclique-pod-index": str(n)})
        for n in range(4)
    ]
    assert names(pods) == {"pc-0": ["p-0", "p-1"], "pc-1": ["p-2", "p-3"]}


def ray(name: str, cluster: str, kind: str) -> Pod:
    values = (cluster, kind, "0")
    return labelled(name, **dict(zip(RAY, values, strict=True)))


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [ray("x", "a", "c"), ray("y", "b", "c")], {"a-c-0": ["x"], "b-c-0": ["y"]}, id="where they differ, short"
        ),
        pytest.param(
            [ray("x", "my-rl", "gpu-workers")], {"my-rl-gpu-workers-0": ["x"]}, id="with dashes, short all the same"
        ),
        pytest.param(
            [ray("x", "a-b", "c"), ray("y", "a", "b-c"), ray("z", "a", "b-c")],
            {"a-b-c-0": ["x"], "RayCluster/a/b-c/0": ["y", "z"]},
            id="of one kind, the younger in full",
        ),
        pytest.param(
            [engine("rollout-0"), lws("rollout-0-0", 0, 0), lws("rollout-0-1", 0, 1)],
            {"rollout-0": ["rollout-0"], "LeaderWorkerSet/rollout/0": ["rollout-0-0", "rollout-0-1"]},
            id="of two kinds",
        ),
        pytest.param(
            [lws("rollout-0-0", 0, 0), lws("rollout-0-1", 0, 1), engine("rollout-0")],
            {"rollout-0": ["rollout-0-0", "rollout-0-1"], "Pod/rollout-0": ["rollout-0"]},
            id="a pod alone is the younger",
        ),
    ],
)
def test_no_two_engines_have_one_name(pods: list[Pod], expected: dict[str, list[str]]) -> None:
    """The usual one is the oldest's."""
    assert names(pods) == expected
    assert len(group(pods)) == len(expected)


def test_a_refusal_takes_out_one_engine() -> None:
    """And not its namesake: engines are told apart by their names."""
    found = judge(ray("x", "a-b", "c"), ray("y", "a", "b-c"))
    (first, second) = found.members
    left = found.without([membership.Outsider(second.name, reasons.SOURCES_FULL, "no room")])
    assert left.members == (first,)
    assert left.matched == 2


def test_the_users_way_comes_first() -> None:
    """by: Pod takes labelled pods apart; by: Label puts others together, and names a pod without the label."""
    pods = [lws("a", 0, 0), lws("b", 0, 1)]
    assert names(pods, Grouping("Pod")) == {"a": ["a"], "b": ["b"]}
    by_team = Grouping("Label", "team")
    pods = [labelled("a", team="x"), labelled("b", team="x"), labelled("c")]
    assert names(pods, by_team) == {"x": ["a", "b"], "c": ["c"]}
    (lone,) = membership.judge(group(pods[2:], by_team)).refused
    assert lone.reason == reasons.ENGINE_INCONSISTENT
    assert "pod c has no label team" in lone.message


def judge(*pods: Pod) -> membership.Membership:
    return membership.judge(group(pods))


def test_a_whole_engine_of_two_pods() -> None:
    """All ranks in order, led by the pod that holds rank 0, wherever its place is."""
    found = judge(
        lws("b", 0, 0, announcement=shard("b", (1,)).announcement),
        lws("a", 0, 1, announcement=shard("a", (0,)).announcement),
    )
    (member,) = found.members
    assert (member.name, member.leader.name, member.address) == ("rollout-0", "a", "a:8960")
    assert [(rank.target.rank, rank.pod.name) for rank in member.ranks] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("pods", "reason", "said"),
    [
        pytest.param([lws("a", 0, 0)], reasons.ENGINE_INCOMPLETE, "1 of its 2 pods (a): missing 1", id="a pod"),
        pytest.param(
            [lws("a", 0, 0), lws("b", 0, 1, announcement=None)], reasons.TARGETS_NOT_READY, "pod b: its agent",
            id="an announcement",
        ),
        pytest.param(
            [lws("a", 0, 0), lws("b", 0, 1, announcement=engine("b", incarnation="").announcement)],
            reasons.TARGETS_NOT_READY, "pod b: its engine does not run", id="a process",
        ),
        pytest.param(
            [lws("a", 0, 0), lws("b", 0, 1, announcement=shard("b", (2,), total=3).announcement)],
            reasons.ENGINE_INCOMPLETE, "of its 3 ranks missing: 1", id="a rank",
        ),
        pytest.param(
            [lws("a", 0, 0), lws("b", 0, 1, announcement=shard("b", (0,)).announcement)],
            reasons.ENGINE_INCONSISTENT, "rank 0 is announced by pods a, b", id="nothing: a rank is there twice",
        ),
        pytest.param(
            [lws("a", 0, 0, announcement=shard("a", (0,), total=2).announcement),
             lws("b", 0, 1, announcement=shard("b", (1,), total=4).announcement)],
            reasons.ENGINE_INCONSISTENT, "a says 2, b says 4", id="agreement",
        ),
        pytest.param(
            [lws("a", 0, 0), lws("b", 0, 1), lws("c", 0, 1)], reasons.ENGINE_INCONSISTENT, "3 of its 2 pods",
            id="nothing: a pod is too many",
        ),
        pytest.param(
            [lws("a", 0, 0, gated=True)], reasons.ORDERED_STARTUP, "pod a waits at its readiness gate", id="order",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(pods: list[Pod], reason: str, said: str) -> None:
    """An engine that is not whole takes no part, and what it lacks is said with its pods' names."""
    found = judge(*pods)
    (outsider,) = found.waiting + found.refused
    assert (outsider.engine, outsider.reason) == ("rollout-0", reason)
    assert said in outsider.message
    assert bool(found.waiting) is (reason in (reasons.ENGINE_INCOMPLETE, reasons.TARGETS_NOT_READY))


def test_a_pod_without_rank_0_is_no_engine() -> None:
    """Though nothing says that there are others."""
    (waiting,) = judge(shard("b", (1,))).waiting
    assert waiting.reason == reasons.ENGINE_INCOMPLETE


def test_without_a_number_of_pods_ranks_tell() -> None:
    """Where nobody says how many pods or ranks there are, the engine waits, and the annotation is asked for."""
    grouping = Grouping("Label", "team")
    pods = [replace(shard(name, (rank,)), labels={"team": "x"}) for rank, name in enumerate("ab")]
    (waiting,) = membership.judge(group(pods, grouping)).waiting
    assert "weightsync.io/engine-pods" in waiting.message
    pods = [replace(shard(name, (rank,), total=2), labels={"team": "x"}) for rank, name in enumerate("ab")]
    assert len(membership.judge(group(pods, grouping)).members) == 1
