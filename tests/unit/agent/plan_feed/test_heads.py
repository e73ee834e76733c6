"""Heads, slices and selectors as plain data: what plan they mean, and whose they are."""

from typing import Any

import pytest

from weightsync.announcement import SourceRank, TargetRank
from weightsync.api.v1alpha1.slice import SliceSpec
from weightsync.api.v1alpha1.weightsync import Selector
from weightsync.errors import InputError
from weightsync.plan import Engine, Route, Source, Strategy, Target, Transfer
from weightsync_agent.plan_feed.heads import (
    WeightSync,
    gate_allowed,
    owner_of,
    plan_of,
    read_slice,
    read_weightsync,
    retired,
    selects,
)

Json = dict[str, Any]
SOURCE = Source(uid="u-t", pod="trainer-0", address="a:1", ranks=(SourceRank(rank=0, world_size=1, nonce="1" * 16),))


def engine(uid: str, source: str = "u-t") -> Engine:
    """An engine of one rank, fed by ``source``."""
    rank = TargetRank(rank=0, layout="a" * 32, program="b" * 32)
    target = Target(uid=uid, pod=uid, address="b:1", rank=rank, routes=(Route(stage=0, source=source, rank=0),))
    return Engine(name=uid, leader=uid, address="b:1", incarnation="i", targets=(target,))


def raw(name: str = "policy", **changes: Any) -> Json:
    """A WeightSync as the API has it. changes: status, gate, created, rollout, suspend."""
    return {
        "metadata": {
            "name": name, "namespace": "rl", "uid": f"u-{name}",
            "creationTimestamp": changes.get("created", "2026-05-01T12:00:00Z"),
        },
        "spec": {
            "trainer": {"selector": {"matchLabels": {"app": "trainer"}}},
            "rollout": {
                "selector": {"matchLabels": changes.get("rollout", {"app": "rollout"})},
                "initialGate": changes.get("gate", "Open"),
            },
            "transfer": {"protocol": "TCP", "bucketSize": "64Mi"},
            "strategy": {"type": "Barrier", "deadlineSeconds": 30, "pauseMode": "Abort"},
            "suspend": changes.get("suspend", False),
        },
        "status": changes.get("status", {}),
    }  # fmt: skip


def head(coordinator: str = "u-t", slices: tuple[str, ...] = ("s1",)) -> Json:
    """A status with a head."""
    return {"head": {"term": 4, "generation": 9, "coordinator": coordinator, "slices": list(slices)}}


def read(name: str = "policy", **changes: Any) -> WeightSync:
    """A WeightSync, read."""
    return read_weightsync(raw(name, **changes))


def test_head_slices_and_spec_become_one_plan() -> None:
    """Fence and coordinator from the head, sources and engines from all slices in order, the rest from the spec."""
    slices = [SliceSpec(sources=(SOURCE,)), SliceSpec(engines=(engine("e1"), engine("e2"))), SliceSpec()]
    plan = plan_of(read(status=head(), gate="Closed", suspend=True), slices)
    assert (plan.name, plan.term, plan.generation, plan.coordinator) == ("rl/policy", 4, 9, "u-t")
    assert (plan.initial_gate, plan.suspend) == ("Closed", True)
    assert plan.transfer == Transfer(protocol="TCP", bucket_size="64Mi")
    assert plan.strategy == Strategy(deadline_seconds=30, pause_mode="Abort")
    assert plan.sources == (SOURCE,)
    assert [one.leader for one in plan.engines] == ["e1", "e2"]


def test_a_spec_that_says_nothing_has_the_defaults() -> None:
    """What the user leaves out is what the models say."""
    bare = raw(status=head())
    bare["spec"] = {key: bare["spec"][key] for key in ("trainer", "rollout")}
    plan = plan_of(read_weightsync(bare), [])
    assert (plan.transfer, plan.strategy, plan.suspend) == (Transfer(), Strategy(), False)


def test_what_a_newer_operator_adds_to_a_slice_is_left_out() -> None:
    """Its agents are older until their pods are replaced, and plans must reach them. What is wrong is refused."""
    spec = SliceSpec(sources=(SOURCE,), engines=(engine("u-e"), engine("u-f")))
    newer = spec.model_dump(mode="json")
    newer["sources"][0] |= {"speed": 1}
    for each in newer["engines"]:
        each["targets"][0] |= {"way": {"a": [1]}}
        each["targets"][0]["routes"][0]["share"] = 2
    written = {"metadata": {"name": "s1"}, "spec": newer}
    assert read_slice(written) == spec
    assert newer["sources"][0]["speed"] == 1  # what was read is not changed
    newer["engines"][1]["targets"] = []
    with pytest.raises(InputError, match=r"s1: engines\.1\.targets"):
        read_slice(written)


def test_an_unfinished_or_contradictory_weightsync_is_an_error_in_words() -> None:
    """No head, a route to a source that no slice has, a field of the wrong kind: named with the object."""
    with pytest.raises(InputError, match="rl/policy has no head yet"):
        plan_of(read(), [])
    with pytest.raises(InputError, match=r"rl/policy: .*names source u-x rank 0, which the plan does not have"):
        plan_of(read(status=head()), [SliceSpec(sources=(SOURCE,), engines=(engine("e1", "u-x"),))])
    with pytest.raises(InputError, match=r"WeightSync rl/policy: head\.term: "):
        read(status={"head": {"term": "x", "generation": 1, "coordinator": ""}})
    with pytest.raises(InputError, match="WeightSyncSlice s1: sources"):
        read_slice({"metadata": {"name": "s1"}, "spec": {"sources": 3}})


def test_fields_of_a_newer_operator_are_passed_over() -> None:
    """A status that says more than this agent knows is still a status."""
    assert read(status=head() | {"novelty": {"x": 1}}).coordinator == "u-t"


def test_a_retired_plan_feeds_nobody() -> None:
    """It keeps name and fence, and names no coordinator, source or engine."""
    plan = retired(plan_of(read(status=head()), [SliceSpec(sources=(SOURCE,), engines=(engine("e1"),))]))
    assert (plan.name, plan.term, plan.coordinator, plan.sources, plan.engines) == ("rl/policy", 4, "", (), ())


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        pytest.param({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True, id="a label that fits"),
        pytest.param({"matchLabels": {"a": "1"}}, {"a": "2"}, False, id="a label of another value"),
        pytest.param({"matchLabels": {"a": "1", "b": "2"}}, {"a": "1"}, False, id="one of two labels"),
        pytest.param({}, {"a": "1"}, False, id="an empty selector"),
        pytest.param({"matchExpressions": [("a", "In", ["1", "2"])]}, {"a": "2"}, True, id="In: one of them"),
        pytest.param({"matchExpressions": [("a", "In", ["1"])]}, {}, False, id="In: no such label"),
        pytest.param({"matchExpressions": [("a", "NotIn", ["1"])]}, {"a": "2"}, True, id="NotIn: another value"),
        pytest.param({"matchExpressions": [("a", "NotIn", ["1"])]}, {}, True, id="NotIn: no such label"),
        pytest.param({"matchExpressions": [("a", "NotIn", ["1"])]}, {"a": "1"}, False, id="NotIn: that value"),
        pytest.param({"matchExpressions": [("a", "Exists", [])]}, {"a": ""}, True, id="Exists: though empty"),
        pytest.param({"matchExpressions": [("a", "Exists", [])]}, {"b": ""}, False, id="Exists: another"),
        pytest.param({"matchExpressions": [("a", "DoesNotExist", [])]}, {"b": ""}, True, id="DoesNotExist"),
        pytest.param({"matchExpressions": [("a", "DoesNotExist", [])]}, {"a": ""}, False, id="DoesNotExist: it does"),
        pytest.param(
            {"matchLabels": {"a": "1"}, "matchExpressions": [("b", "Exists", [])]},
            {"a": "1"},
            False,
            id="one of both",
        ),
    ],
)
def test_selects_as_the_api_server_does(selector: Json, labels: dict[str, str], expected: bool) -> None:
    """Labels and expressions must all hold."""
    if "matchExpressions" in selector:
        keys = ("key", "operator", "values")
        selector = selector | {
            "matchExpressions": [dict(zip(keys, e, strict=True)) for e in selector["matchExpressions"]]
        }
    assert selects(Selector.model_validate(selector), labels) is expected


OLDER, NEWER = "2026-04-01T00:00:00Z", "2026-06-01T00:00:00Z"


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        pytest.param({"app": "trainer"}, "older", id="a trainer pod of both belongs to the older"),
        pytest.param({"app": "rollout"}, "newer", id="an engine of one belongs to it"),
        pytest.param({"app": "special"}, "older", id="an engine of the other belongs to that"),
        pytest.param({"app": "else"}, None, id="nobody's pod"),
    ],
)
def test_whose_pod_it_is(labels: dict[str, str], name: str | None) -> None:
    """By trainer or rollout selector; of two that select it, the older has it."""
    known = [read("newer", created=NEWER), read("older", created=OLDER, rollout={"app": "special"})]
    owner = owner_of(known, labels)
    assert (owner and owner.name) == name


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param([read()], True, id="open, nothing published, nobody coordinates"),
        pytest.param([read(status=head(coordinator=""))], True, id="a head without a coordinator"),
        pytest.param([read(gate="Closed")], False, id="closed by its user"),
        pytest.param([read(status={"version": "aa.1"})], False, id="something was published"),
        pytest.param([read(status=head())], False, id="a coordinator will say"),
        pytest.param([read(rollout={"app": "other"})], False, id="no WeightSync selects it"),
        pytest.param([], False, id="there is no WeightSync"),
        pytest.param(
            [read("a", created=NEWER), read("b", created=OLDER, gate="Closed")], False, id="the older counts"
        ),
    ],
)
def test_the_initial_gate(known: list[WeightSync], expected: bool) -> None:
    """Only an engine that nobody can have anything newer for is ready with its base checkpoint unasked."""
    assert gate_allowed(known, {"app": "rollout"}) is expected
