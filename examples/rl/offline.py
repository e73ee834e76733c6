"""The loop in one process: the policy answers itself. For trying the task, and to see what publishing is worth.

``python -m rl.offline --steps 40`` learns; with ``--frozen`` answers always come from the first weights, as from
engines that nobody publishes to.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from reference.engine_model import EngineModel, build_engine_model
from reference.generation import Generation, Sampling
from reference.scheduler import Scheduler
from rl.checker import Answer
from rl.engines import Question
from rl.learner import Learner, make_batch
from rl.policy import CONFIG, SEED, first_state, trainable
from rl.sampling import scored, training_questions
from rl.task import MAX_REWARD, Task


@dataclass(frozen=True)
class Loop:
    """prompts: of a step; samples: for each of them; frozen: answers always come from the first weights."""

    steps: int = 40
    prompts: int = 16
    samples: int = 8
    learning_rate: float = 1.2e-3
    seed: int = 0
    frozen: bool = False


def answers_of(model: EngineModel, questions: Iterable[Question]) -> list[Answer]:
    """What an engine with these weights would answer to these requests, as one batch."""
    asked = [one for question in questions for one in zip(question.prompts, question.params, strict=True)]
    done: dict[int, list[int]] = {}

    def finished(generation: Generation) -> None:
        done[int(generation.name)] = generation.output

    scheduler = Scheduler(model, "offline")
    scheduler.add(
        [
            Generation(
                str(at),
                prompt,
                Sampling(one["temperature"], one["max_new_tokens"], seed=one["sampling_seed"]),
                finished,
            )
            for at, (prompt, one) in enumerate(asked)
        ]
    )
    while scheduler.has_work:
        scheduler.step()
    return [Answer("offline", prompt, done[at], ()) for at, (prompt, _) in enumerate(asked)]


def rewards(loop: Loop) -> Iterator[float]:
    """The mean reward of each step."""
    state = first_state(SEED + loop.seed)
    model, task = trainable(state), Task(vocab=CONFIG.vocab, seed=loop.seed)
    learner, engine = Learner(model, loop.learning_rate), build_engine_model(CONFIG, state)
    for step in range(1, loop.steps + 1):
        questions = training_questions(task, step, range(loop.prompts), loop.samples)
        batch = make_batch(scored(task, answers_of(engine, questions)))
        learner.gradients(batch)
        learner.step()
        if not loop.frozen:
            engine = build_engine_model(CONFIG, model.checkpoint_state())
        yield batch.reward


def main(arguments: list[str]) -> int:
    """Print each step's reward. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m rl.offline")
    parser.add_argument("--steps", type=int, default=Loop.steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frozen", action="store_true")
    flags = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seen = []
    for step, reward in enumerate(rewards(Loop(steps=flags.steps, seed=flags.seed, frozen=flags.frozen)), 1):
        seen.append(reward)
        print(f"step {step:3}  reward {reward:.3f}", flush=True)
    width = min(10, len(seen))
    print(f"first {sum(seen[:width]) / width:.3f}, last {sum(seen[-width:]) / width:.3f}, possible {MAX_REWARD}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
