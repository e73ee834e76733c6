"""How kinds of workloads label the pods of one engine: a table, and nothing else. Pure.

A kind that is missing here needs a row, or none: spec.rollout.group.by: Label takes any label.
"""

from typing import Final, NamedTuple


class Workload(NamedTuple):
    """One kind. keys: labels whose values together name the engine, where all of them are there; place: the label
    with the pod's place in it.

    counted: the places count on over all engines of the workload, which nothing but our annotation parts:
    StatefulSets and PodCliques mostly are engines of one pod each.
    """

    kind: str
    keys: tuple[str, ...]
    place: str
    counted: bool = False


LWS: Final = "leaderworkerset.sigs.k8s.io"
_JOBSET: Final = "jobset.sigs.k8s.io"
_RBG: Final = "rbg.workloads.x-k8s.io"

LEADER_WORKER_SET: Final = Workload("LeaderWorkerSet", (f"{LWS}/name", f"{LWS}/group-index"), f"{LWS}/worker-index")

# Before StatefulSet what is built of StatefulSets, and carries their labels too.
WORKLOADS: Final = (
    LEADER_WORKER_SET,
    Workload(
        "JobSet",
        (f"{_JOBSET}/jobset-name", f"{_JOBSET}/replicatedjob-name", f"{_JOBSET}/job-index"),
        "batch.kubernetes.io/job-completion-index",
    ),
    Workload(
        "RayCluster",
        ("ray.io/cluster", "ray.io/group", "ray.io/worker-group-replica-index"),
        "ray.io/replica-host-index",
    ),
    Workload(
        "RoleBasedGroup",
        (f"{_RBG}/group-name", f"{_RBG}/role-name", f"{_RBG}/role-instance-index"),
        f"{_RBG}/component-index",
    ),
    Workload("PodClique", ("grove.io/podclique",), "grove.io/podclique-pod-index", counted=True),
    Workload("StatefulSet", (), "apps.kubernetes.io/pod-index", counted=True),
)
