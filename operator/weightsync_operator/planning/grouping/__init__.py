"""From pods to engines: one file a kind of workload, one table here. Pure.

An engine is one pod today. A kind that spans several pods adds a function and a row; the first row that recognises a
pod takes it, and the last row takes every pod.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from weightsync_operator.planning.grouping import single
from weightsync_operator.planning.grouping.group import Group
from weightsync_operator.planning.pods import Pod


class Kind(NamedTuple):
    """recognises: is a pod of that kind; gather: its pods, oldest first, to engines in the same order."""

    name: str
    recognises: Callable[[Pod], bool]
    gather: Callable[[Sequence[Pod]], list[Group]]


KINDS: tuple[Kind, ...] = (Kind("Pod", single.recognises, single.gather),)


def group(pods: Sequence[Pod]) -> list[Group]:
    """Every pod in exactly one engine; engines in the order of their leaders' age."""
    buckets: dict[str, list[Pod]] = {kind.name: [] for kind in KINDS}
    for pod in pods:
        buckets[next(kind.name for kind in KINDS if kind.recognises(pod))].append(pod)
    groups = [found for kind in KINDS for found in kind.gather(buckets[kind.name])]
    age = {pod.uid: index for index, pod in enumerate(pods)}
    return sorted(groups, key=lambda g: age[g.leader.uid])


__all__ = ["KINDS", "Group", "Kind", "group"]
