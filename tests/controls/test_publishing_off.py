"""The demo's reward rises only because engines get the weights."""

from collections.abc import Iterator

import pytest
import torch

from rl.offline import Loop, rewards
from rl.task import MAX_REWARD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MAX_GAIN_WITHOUT = 0.05
GAIN_WITH = 0.3  # of what was possible


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ends(loop: Loop) -> tuple[float, float]:
    """Mean reward of the first ten and of the last ten steps."""
    seen = list(rewards(loop))
    return sum(seen[:10]) / 10, sum(seen[-10:]) / 10


def test_without_publishing_nothing_is_gained() -> None:
    """The trainer learns as ever, but answers go on coming from the first weights."""
    first, last = ends(Loop(frozen=True))
    assert abs(last - first) < MAX_GAIN_WITHOUT


def test_with_publishing_the_policy_learns() -> None:
    """The same loop, when answers come from the new weights, gains what the demo asks for."""
    first, last = ends(Loop())
    assert last >= first + GAIN_WITH * (MAX_REWARD - first)
