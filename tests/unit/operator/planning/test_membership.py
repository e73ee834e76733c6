"""Who takes part, who waits, who is refused."""

from dataclasses import replace
from typing import Any

import pytest

from tests.build.pods import OTHER_LAYOUT, engine, judged, shard
from weightsync_operator.planning import reasons
from weightsync_operator.planning.pods import Pod


@pytest.mark.parametrize(
    ("pod", "expected", "said"),
    [
        pytest.param(engine(), "member", "", id="an engine that serves takes part"),
        pytest.param(
            engine(announced=False), reasons.TARGETS_NOT_READY, "agent has not announced", id="no agent yet"
        ),
        pytest.param(engine(described=False), reasons.TARGETS_NOT_READY, "not described", id="no layout yet"),
        pytest.param(engine(incarnation=""), reasons.TARGETS_NOT_READY, "does not run", id="its process is down"),
        pytest.param(engine(ready=False), reasons.TARGETS_NOT_READY, "does not run", id="its agent is not ready"),
        pytest.param(engine(refused="AWQ is repacked"), reasons.ENGINE_REFUSED, "AWQ is repacked", id="refused"),
        pytest.param(engine(problem="not JSON"), reasons.ANNOUNCEMENT_UNREADABLE, "not JSON", id="unreadable"),
    ],
)
def test_one_engine(pod: Pod, expected: str, said: str) -> None:
    """Every engine is a member, or an outsider with a reason and its pod's name."""
    found = judged([pod])
    assert found.matched == 1
    if expected == "member":
        assert [member.name for member in found.members] == ["rollout-a"]
        return
    (outsider,) = found.waiting + found.refused
    assert (outsider.engine, outsider.reason) == ("rollout-a", expected)
    assert "pod rollout-a" in outsider.message
    assert said in outsider.message
    assert bool(found.waiting) is (expected == reasons.TARGETS_NOT_READY)


def reading(checkpoint: str, name: str, **parts: Any) -> Pod:
    """An engine whose agent says what it reads."""
    pod = engine(name, **parts)
    assert pod.announcement is not None
    return replace(pod, announcement=pod.announcement.model_copy(update={"checkpoint": checkpoint}))


ONE, TWO = "1" * 32, "2" * 32


@pytest.mark.parametrize(
    ("pods", "served"),
    [
        pytest.param([reading(ONE, "a"), reading(ONE, "b", ranks=2)], ["a", "b"], id="two layouts of one checkpoint"),
        pytest.param(
            [reading(TWO, "a", layout=OTHER_LAYOUT), reading(ONE, "b"), reading(ONE, "c", ranks=2)], ["b", "c"],
            id="the checkpoint that most engines read",
        ),
        pytest.param([engine("a"), reading(ONE, "b"), reading(ONE, "c", ranks=2)], ["a", "b", "c"],
                     id="an older agent's engine counts by its layout"),
        pytest.param([engine("a", ranks=2), reading(ONE, "b")], ["a"], id="what is not said is not guessed"),
    ],
)  # fmt: skip
def test_layouts_of_one_checkpoint(pods: list[Pod], served: list[str]) -> None:
    """Engines that read one checkpoint are served together, whatever their parallelism."""
    found = judged(pods)
    assert [member.name for member in found.members] == served
    assert {outsider.reason for outsider in found.refused} <= {reasons.LAYOUTS_DIFFER}


@pytest.mark.parametrize(
    ("pods", "served"),
    [
        pytest.param([engine("a"), engine("b", layout=OTHER_LAYOUT)], ["a"], id="one against one: the older"),
        pytest.param(
            [engine("a"), engine("b", layout=OTHER_LAYOUT), engine("c", layout=OTHER_LAYOUT)],
            ["b", "c"],
            id="two against one: the majority",
        ),
        pytest.param([engine("a", ranks=2), engine("b")], ["a"], id="another number of ranks is another layout"),
        pytest.param([engine("a"), engine("b")], ["a", "b"], id="equal layouts are all served"),
    ],
)
def test_layouts_differ(pods: list[Pod], served: list[str]) -> None:
    """Engines of one layout are served; a message about the others names both pods and the rank."""
    found = judged(pods)
    assert [member.name for member in found.members] == served
    refused = [pod.name for pod in pods if pod.name not in served]
    assert [outsider.engine for outsider in found.refused] == refused
    for outsider in found.refused:
        assert outsider.reason == reasons.LAYOUTS_DIFFER
        assert f"pod {outsider.engine}" in outsider.message
        assert f"pod {served[0]}" in outsider.message


def test_an_engine_of_more_ranks_than_a_plan_holds() -> None:
    """It is refused by itself: the others are served."""
    key = {"leaderworkerset.sigs.k8s.io/name": "x", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    big = [shard(f"p{n}", tuple(range(64 * n, 64 * n + 64)), total=320, labels=key) for n in range(5)]
    found = judged([*big, engine("a")])
    assert [member.name for member in found.members] == ["a"]
    assert found.refused[0].reason == reasons.ENGINE_INCONSISTENT
    assert "engine x-0: its 5 pods hold 320 ranks, and one engine has at most 256" in found.refused[0].message
