"""An engine in one pod: Deployments, StatefulSets, bare pods. Pure."""

from collections.abc import Sequence

from weightsync_operator.planning.grouping.group import Group
from weightsync_operator.planning.pods import Pod


def recognises(_: Pod) -> bool:
    """Takes every pod: it is the table's last row."""
    return True


def gather(pods: Sequence[Pod]) -> list[Group]:
    """One engine a pod, named like it."""
    return [Group(pod.name, (pod,)) for pod in pods]
