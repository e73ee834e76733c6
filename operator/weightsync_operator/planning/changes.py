"""What to create, apply and delete, or nothing. Pure.

The order is the caller's to keep: slices are created before a head names them, and deleted after no head does.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync_operator.planning.slicing import Slice


@dataclass(frozen=True, slots=True)
class Changes:
    """status: None where it is as it should be."""

    create: tuple[Slice, ...] = ()
    status: WeightSyncStatus | None = None
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.status or self.delete)


def between(
    slices: Sequence[Slice], existing: Collection[str], wanted: WeightSyncStatus, observed: WeightSyncStatus
) -> Changes:
    """existing: names of the slices that this WeightSync owns. Conditions of others in ``observed`` are not ours."""
    names = {part.name for part in slices}
    types = {condition.type for condition in wanted.conditions}
    ours = tuple(condition for condition in observed.conditions if condition.type in types)
    order = {condition.type: index for index, condition in enumerate(wanted.conditions)}
    seen = observed.model_copy(update={"conditions": tuple(sorted(ours, key=lambda c: order[c.type]))})
    return Changes(
        create=tuple(part for part in slices if part.name not in existing),
        status=wanted if wanted != seen else None,
        delete=tuple(sorted(name for name in existing if name not in names)),
    )
