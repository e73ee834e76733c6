"""The questions of one step for one rank, and the samples made of their answers. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from rl.checker import Answer
from rl.engines import Question
from rl.learner import Sample
from rl.task import Task

PROMPTS_AT_ONCE = 2  # in one request: few enough that every engine gets some, many enough to be one batch


def training_questions(task: Task, step: int, prompts: range, samples: int) -> Iterator[Question]:
    """Requests for ``samples`` answers to each of the step's prompts with these indices."""
    drawn = task.prompts(step, prompts.stop)
    for first in range(prompts.start, prompts.stop, PROMPTS_AT_ONCE):
        pairs = [(at, s) for at in range(first, min(first + PROMPTS_AT_ONCE, prompts.stop)) for s in range(samples)]
        params = [
            {"temperature": 1.0, "max_new_tokens": task.answer, "sampling_seed": task.answer_seed(step, at, s)}
            for at, s in pairs
        ]
        yield Question([drawn[at] for at, _ in pairs], params)


def probe_question(prompt: Sequence[int], tokens: int) -> Question:
    """One greedy request, whose answer can be repeated bit by bit."""
    return Question([prompt], [{"temperature": 0.0, "max_new_tokens": tokens}], logprobs=True)


def scored(task: Task, answers: Iterable[Answer]) -> list[Sample]:
    """Samples; answers to one prompt are one group."""
    groups: dict[tuple[int, ...], int] = {}
    return [
        Sample(
            group=groups.setdefault(tuple(answer.prompt), len(groups)),
            prompt=answer.prompt,
            answer=answer.tokens,
            rewards=task.score(answer.prompt, answer.tokens),
        )
        for answer in answers
    ]
