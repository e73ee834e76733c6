"""A WeightSyncSlice: an immutable part of a plan, named by its content. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from weightsync.api.v1alpha1.weightsync import rules
from weightsync.plan import Engine, Source
from weightsync.records import WireRecord

MAX_SOURCES = 100
MAX_ENGINES = 100  # as EndpointSlice does: one joining engine rewrites one small object


class SliceSpec(WireRecord):
    """Part of a plan: trainer pods, or engines with their routes. Never changed, only replaced."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self == oldSelf",
                "a slice is named by its content and never changes: delete it, the operator writes it anew",
            )
        )
    )

    sources: Annotated[
        tuple[Source, ...], Field(max_length=MAX_SOURCES, description="Trainer pods and their ranks.")
    ] = ()
    engines: Annotated[
        tuple[Engine, ...], Field(max_length=MAX_ENGINES, description="Engines, each rank with its routes.")
    ] = ()


def read_spec(raw: Any) -> SliceSpec:
    """A slice as the API has it. Raises ValidationError.

    What a newer operator says beyond what we know is left out: it plans for pods whose agents it does not replace. In
    a plan file, which people write, the same keys are refused.
    """
    try:
        return SliceSpec.model_validate(raw)
    except ValidationError as error:
        unknown = [each["loc"] for each in error.errors(include_url=False) if each["type"] == "extra_forbidden"]
        if not unknown:
            raise
        for where in unknown:
            raw = _without(raw, where)
        return SliceSpec.model_validate(raw)


def _without(part: Any, where: Sequence[Any]) -> Any:
    """A copy that lacks what lies there; what is elsewhere is shared, however deep it is."""
    step, *rest = where
    if not rest:
        return {key: value for key, value in part.items() if key != step}
    items = dict(part) if isinstance(part, dict) else list(part)
    items[step] = _without(part[step], rest)
    return items
