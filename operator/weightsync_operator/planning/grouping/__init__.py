"""From pods to engines: by the labels of a workload (workloads.py), by the user's own, or each pod alone. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from weightsync_operator.planning.grouping.group import Group
from weightsync_operator.planning.grouping.workloads import LEADER_WORKER_SET, WORKLOADS, Workload
from weightsync_operator.planning.pods import Pod


@dataclass(frozen=True, slots=True)
class Grouping:
    """How the user wants pods grouped. key: by Label, the label."""

    by: Literal["Auto", "Pod", "LeaderWorkerSet", "Label"] = "Auto"
    key: str = ""

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The rows that count, the first that fits first."""
        match self.by:
            case "Auto":
                return WORKLOADS
            case "LeaderWorkerSet":
                return (LEADER_WORKER_SET,)
            case "Label":
                return (Workload("Label", (self.key,), ""),)
            case "Pod":
                return ()


class _Place(NamedTuple):
    """Where a pod belongs. number: its place in the engine, -1 where nothing says it."""

    key: tuple[str, ...]
    name: str
    number: int


def group(pods: Sequence[Pod], grouping: Grouping = Grouping()) -> list[Group]:
    """Every pod (oldest first) in exactly one engine; engines, of different names, by their oldest pods' age."""
    rows = grouping.workloads
    found: dict[tuple[str, ...], list[tuple[_Place, Pod]]] = {}
    for pod in pods:
        place = next((place for row in rows if (place := _place(row, pod)) is not None), None)
        if place is None:
            place = _Place(("", pod.uid), pod.name, -1)
        found.setdefault(place.key, []).append((place, pod))
    # Each way but these takes a pod without labels for an engine of its own; here somebody asked for the labels.
    asked = grouping.workloads if grouping.by in ("LeaderWorkerSet", "Label") else ()
    groups, names = [], set[str]()
    for members in found.values():
        made = _group(members, asked)
        if made.name in names:
            made = replace(made, name=_in_full(*members[0]))
        names.add(made.name)
        groups.append(made)
    return groups


def _in_full(place: _Place, pod: Pod) -> str:
    """A name that no other engine has, for one whose usual name is an older engine's: a-b and c read as a and b-c do.

    Neither labels nor names of pods hold a slash.
    """
    return "/".join(place.key if place.key[0] else ("Pod", pod.name))


def _place(row: Workload, pod: Pod) -> _Place | None:
    """The pod's place in an engine of that kind; None where it is not of the kind."""
    if row.keys and row.keys[0] not in pod.labels:
        return None
    values = tuple(pod.labels.get(key, "") for key in row.keys)
    if not all(values):
        return None
    text = pod.labels.get(row.place, "")
    number = int(text) if text.isdecimal() else -1
    if not row.counted:
        return _Place((row.kind, *values), "-".join(values), number)
    if pod.size < 2 or number < 0:
        return None
    # A StatefulSet has no label with its name; its pods are named NAME-NUMBER.
    owner = "-".join(values) or pod.name.removesuffix(f"-{number}")
    engine, number = divmod(number, pod.size)
    return _Place((row.kind, owner, str(engine)), f"{owner}-{engine}", number)


def _group(members: Sequence[tuple[_Place, Pod]], asked: Sequence[Workload]) -> Group:
    place, pod = members[0]
    alone = not place.key[0]
    if alone:
        return Group(pod.name, (pod,), problem=_unlabelled(pod, asked))
    # Stable: pods without a place stay by age, behind those that have one.
    by_place = sorted(members, key=lambda member: (member[0].number < 0, member[0].number))
    size = max(pod.size for _, pod in members)  # 0: the engine says by its ranks when it is whole
    there = {place.number for place, _ in members}
    missing = tuple(number for number in range(size) if number not in there) if -1 not in there else ()
    return Group(place.name, tuple(pod for _, pod in by_place), size, missing)


def _unlabelled(pod: Pod, asked: Sequence[Workload]) -> str:
    lacking = [key for row in asked for key in row.keys if not pod.labels.get(key)]
    if not lacking:
        return ""
    return f"pod {pod.name} has no label {lacking[0]}, by which spec.rollout.group puts engines together: add it"


__all__ = ["Group", "Grouping", "group"]
