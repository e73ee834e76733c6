"""The task's rule and draws."""

import pytest

from rl.task import Task

TASK = Task(vocab=8, prompt=3, answer=4, seed=1)


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        pytest.param([0, 5, 2], [3, 4, 5, 6], [1, 1, 1, 1], id="counting on earns everything"),
        pytest.param([0, 5, 6], [7, 0, 1, 2], [1, 1, 1, 1], id="after the largest token comes 0"),
        pytest.param([0, 5, 2], [3, 3, 4, 4], [1, 0, 1, 0], id="each token is judged by the one before it"),
        pytest.param([2, 5, 0], [3, 0, 0, 0], [0, 0, 0, 0], id="only the prompt's last token counts for the first"),
    ],
)
def test_score(prompt: list[int], answer: list[int], expected: list[float]) -> None:
    """A token earns 1 exactly if it is the successor of the token before it."""
    assert TASK.score(prompt, answer) == expected


def test_draws_are_repeatable_and_differ() -> None:
    """The same step gives the same prompts; steps, purposes and seeds give others."""
    assert TASK.prompts(1, 5) == Task(vocab=8, prompt=3, answer=4, seed=1).prompts(1, 5)
    assert TASK.prompts(1, 3) == TASK.prompts(1, 5)[:3]
    others = [
        TASK.prompts(2, 5),
        TASK.prompts(1, 5, "probe"),
        Task(vocab=8, prompt=3, answer=4, seed=2).prompts(1, 5),
    ]
    assert all(other != TASK.prompts(1, 5) for other in others)
    assert len({TASK.answer_seed(step, p, s) for step in range(3) for p in range(3) for s in range(3)}) == 27
