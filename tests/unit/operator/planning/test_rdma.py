"""RDMAReady: who lacks a device and why, and what it says where nobody asked."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.build.facts import NOW, facts
from tests.build.pods import engine, told, trainer
from weightsync import names
from weightsync.plan import Rdma, Transfer
from weightsync.report import LastSync, Report
from weightsync_operator.planning import reasons
from weightsync_operator.planning.conditions import conditions
from weightsync_operator.planning.facts import Facts
from weightsync_operator.planning.pods import Pod

T = told(trainer(), devices=("mlx5_0",))
A = told(engine("rollout-a"), devices=("mlx5_0", "mlx5_1"))
B = told(engine("rollout-b"), no_device="no usable RDMA device: mlx5_0: port 1 is DOWN")
OLD = engine("rollout-old")
RDMA, TCP = Transfer(protocol="RDMA"), Transfer(protocol="TCP")


def wished(pods: Sequence[Pod], transfer: Transfer | None = None, routes: dict[str, int] | None = None) -> Facts:
    report = Report(term=1, last_sync=LastSync(version="v", routes=routes)) if routes is not None else None
    found = facts(pods[:1], pods[1:], report=report)
    if found.plan is None or transfer is None:
        return found
    return replace(found, plan=found.plan.model_copy(update={"transfer": transfer}))


@pytest.mark.parametrize(
    ("given", "status", "reason", "said"),
    [
        pytest.param(facts([], []), "Unknown", reasons.NO_PLAN, "no plan", id="no plan"),
        pytest.param(wished([T, B], TCP), "Unknown", reasons.RDMA_NOT_WANTED, "protocol is TCP", id="not wanted"),
        pytest.param(wished([T, A]), "True", reasons.DEVICES_READY, "2 pods", id="all have one"),
        pytest.param(wished([T, A, B]), "False", reasons.NO_DEVICE, "go over TCP: rollout-b (no usable", id="Auto"),
        pytest.param(wished([T, A, B], RDMA), "False", reasons.NO_DEVICE, "are refused: rollout-b", id="RDMA"),
        pytest.param(
            wished([told(trainer(), no_device="TCP is set"), A]), "False", reasons.NO_DEVICE, "-0 (TCP is set)",
            id="the trainer lacks one",
        ),
        pytest.param(wished([T, A, OLD]), "Unknown", reasons.DEVICES_UNKNOWN, "rollout-old", id="an older agent"),
        pytest.param(wished([T, B, OLD]), "False", reasons.NO_DEVICE, "rollout-b", id="older, and one that lacks"),
        pytest.param(wished([T]), "True", reasons.DEVICES_READY, "1 pod with", id="no engine yet"),
        pytest.param(
            wished([T, A], Transfer(rdma=Rdma(devices=("mlx5_1",)))), "False", reasons.NO_DEVICE,
            "trainer-0 (it has mlx5_0, and spec.transfer.rdma.devices are mlx5_1)", id="filtered away",
        ),
        pytest.param(wished([T, A], routes={"rdma": 2}), "True", reasons.DEVICES_READY, "2 over rdma", id="used"),
        pytest.param(
            wished([T, A], routes={"rdma": 1, "tcp": 1}), "False", reasons.OVER_TCP, "1 over rdma, 1 over tcp",
            id="not used everywhere",
        ),
    ],
)  # fmt: skip
def test_rdma_ready(given: Facts, status: str, reason: str, said: str) -> None:
    """Status, reason and message of the condition."""
    (found,) = (each for each in conditions(given, (), NOW) if each.type == names.RDMA_READY)
    assert (found.status, found.reason) == (status, reason)
    assert said in found.message
