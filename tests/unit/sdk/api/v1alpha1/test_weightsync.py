"""The spec as the code reads it."""

import typing

import pytest

from tests.build import manifests
from weightsync import plan
from weightsync.api.v1alpha1 import weightsync
from weightsync.api.v1alpha1.weightsync import LARGEST_BUCKET, SMALLEST_BUCKET, WeightSyncSpec
from weightsync.buckets import PAGE
from weightsync.units import parse_bytes


def test_the_shortest_spec_reads_with_the_defaults_of_plans() -> None:
    """What the server fills in and what plans assume without a server are the same."""
    spec = WeightSyncSpec.model_validate(manifests.weightsync()["spec"])
    assert spec.plan_transfer == plan.Transfer()
    assert spec.plan_strategy == plan.Strategy()
    assert (spec.rollout.initial_gate, spec.suspend) == ("Open", False)


def test_a_fanout_reaches_the_plan() -> None:
    """As it was written."""
    body = manifests.weightsync()["spec"] | {"transfer": {"relay": {"fanout": 3}}}
    assert WeightSyncSpec.model_validate(body).plan_transfer == plan.Transfer(relay=plan.Relay(fanout=3))


@pytest.mark.parametrize(
    ("ours", "theirs", "field"),
    [
        (weightsync.Transfer, plan.Transfer, "protocol"),
        (weightsync.Strategy, plan.Strategy, "type"),
        (weightsync.Strategy, plan.Strategy, "pause_mode"),
        (weightsync.Rollout, plan.Plan, "initial_gate"),
    ],
)
def test_the_resource_offers_what_plans_obey(ours: type, theirs: type, field: str) -> None:
    """The words that a user may write are those that agents know, all of them."""
    words = typing.get_type_hints(ours)[field], typing.get_type_hints(theirs)[field]
    assert typing.get_args(words[0]) == typing.get_args(words[1])


def test_the_bounds_of_a_bucket_fit_the_code() -> None:
    """The smallest that admission lets in is the smallest that buckets are cut in."""
    assert parse_bytes(SMALLEST_BUCKET) == PAGE
    assert parse_bytes(LARGEST_BUCKET) == 16 * 2**30


def test_a_field_of_a_later_release_is_ignored() -> None:
    """An older operator reads a newer object: what it does not know it cannot obey."""
    made = manifests.weightsync()["spec"] | {"someday": "Peer"}
    assert WeightSyncSpec.model_validate(made).suspend is False
