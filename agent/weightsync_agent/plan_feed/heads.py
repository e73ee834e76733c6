"""From WeightSyncs and slices as the API has them to a plan, and whose they are. Pure.

The operator writes slices first, then a head that names them: a head is one consistent plan. A pod that two
WeightSyncs select belongs to the older.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from weightsync.api.v1alpha1.slice import SliceSpec, read_spec
from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync.api.v1alpha1.weightsync import Requirement, Selector, WeightSyncSpec
from weightsync.errors import InputError
from weightsync.plan import Plan
from weightsync.records import first_problem

Json = dict[str, Any]


class WeightSync(NamedTuple):
    """One WeightSync: who it is, what its user wrote, what its operator decided. created: RFC 3339."""

    namespace: str
    name: str
    created: str
    spec: WeightSyncSpec
    status: WeightSyncStatus

    @property
    def full_name(self) -> str:
        """As plans name it."""
        return f"{self.namespace}/{self.name}"

    @property
    def coordinator(self) -> str:
        """Uid of the pod that coordinates; empty while none does."""
        return self.status.head.coordinator if self.status.head else ""


def read_weightsync(raw: Json) -> WeightSync:
    """Raises InputError that names it and its first wrong field: a newer operator may write what we do not know."""
    metadata = raw["metadata"]
    try:
        spec = WeightSyncSpec.model_validate(raw.get("spec"))
        status = WeightSyncStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        raise InputError(f"WeightSync {metadata['namespace']}/{metadata['name']}: {first_problem(error)}") from error
    return WeightSync(metadata["namespace"], metadata["name"], metadata["creationTimestamp"], spec, status)


def read_slice(raw: Json) -> SliceSpec:
    """Raises InputError that names the slice and its first wrong field."""
    try:
        return read_spec(raw.get("spec"))
    except ValidationError as error:
        raise InputError(f"WeightSyncSlice {raw['metadata']['name']}: {first_problem(error)}") from error


def plan_of(owner: WeightSync, slices: Sequence[SliceSpec]) -> Plan:
    """The plan that the head of ``owner`` means. Raises InputError where its slices contradict one another."""
    head = owner.status.head
    if head is None:
        raise InputError(f"WeightSync {owner.full_name} has no head yet")
    try:
        return Plan(
            name=owner.full_name,
            term=head.term,
            generation=head.generation,
            coordinator=head.coordinator,
            initial_gate=owner.spec.rollout.initial_gate,
            suspend=owner.spec.suspend,
            join_policy=owner.spec.join_policy,
            transfer=owner.spec.plan_transfer,
            strategy=owner.spec.plan_strategy,
            sources=tuple(source for part in slices for source in part.sources),
            engines=tuple(engine for part in slices for engine in part.engines),
        )
    except ValidationError as error:
        raise InputError(f"WeightSync {owner.full_name}: {first_problem(error)}") from error


def retired(plan: Plan) -> Plan:
    """What is left of a plan that no longer names this agent: nobody to coordinate, nobody to feed."""
    return Plan(name=plan.name, term=plan.term, generation=plan.generation)


def by_age(found: Iterable[WeightSync]) -> list[WeightSync]:
    """The oldest first; of equal age by name."""
    return sorted(found, key=lambda one: (one.created, one.name))


def owner_of(found: Iterable[WeightSync], labels: Mapping[str, str]) -> WeightSync | None:
    """The WeightSync whose trainer or rollout pod one with these labels is."""
    return next(
        (
            one
            for one in by_age(found)
            if selects(one.spec.trainer.selector, labels) or selects(one.spec.rollout.selector, labels)
        ),
        None,
    )


def gate_allowed(found: Iterable[WeightSync], labels: Mapping[str, str]) -> bool:
    """Whether an engine pod with these labels may be ready with its base checkpoint, without anybody's welcome.

    True where its WeightSync says initialGate Open, nothing was ever published, and no coordinator could say so.
    """
    engines = (one for one in by_age(found) if selects(one.spec.rollout.selector, labels))
    owner = next(engines, None)
    if owner is None:
        return False
    return owner.spec.rollout.initial_gate == "Open" and not owner.status.version and not owner.coordinator


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """As the API server selects; an empty selector, which the CRD refuses, selects nothing here."""
    if not selector.match_labels and not selector.match_expressions:
        return False
    equal = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return equal and all(_holds(requirement, labels) for requirement in selector.match_expressions)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
