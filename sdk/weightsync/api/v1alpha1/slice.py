"""A WeightSyncSlice: an immutable part of a plan, named by its content. Pure."""

from typing import Annotated

from pydantic import ConfigDict, Field

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
