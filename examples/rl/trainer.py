"""The loop of one trainer rank: ``python -m rl.trainer``. Sample, score, step, publish; rank 0 also checks.

Two ranks split the prompts and average their gradients, so both hold the same weights; for publishing, each owns the
layers of one stage. Nothing is waited for without a deadline: what is missing then is named, and the rank ends.
"""

import signal
import sys
import time
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from reference.config import stage_names
from rl.checker import Answer
from rl.engines import Engines, EnginesUnavailable, RequestRefused
from rl.events import say
from rl.learner import Learner, make_batch
from rl.policy import CONFIG, first_state, trainable
from rl.ranks import Ranks
from rl.sampling import scored, training_questions
from rl.settings import Settings, parse
from rl.task import MAX_REWARD, Task
from rl.watch import Watch
from weightsync import Publisher
from weightsync.errors import WeightSyncError
from weightsync.publisher.outcome import Outcome

MEET_SECONDS = 300.0  # for the other rank's pod to start
AGENT_SECONDS = 120.0  # for the agent beside this rank to listen
OUTCOME_SECONDS = 180.0  # for every engine's outcome
ANSWER_SECONDS = 240.0  # more than all tries of a request take (engines.py)


class Trainer:
    """One rank, wired."""

    def __init__(self, settings: Settings, ranks: Ranks, publisher: Publisher) -> None:
        self.settings, self.ranks, self.publisher = settings, ranks, publisher
        self.task = Task(vocab=CONFIG.vocab, seed=settings.seed)
        state = first_state()
        self.model = trainable(state)
        self.learner = Learner(self.model, settings.learning_rate)
        self.names = stage_names(CONFIG, settings.rank, settings.world_size)
        self.watch: Watch | None = None
        if settings.rank == 0:
            self.watch = Watch(
                CONFIG, state, self.task,
                probes=settings.probes, tokens=settings.probe_tokens, tolerance=settings.tolerance,
            )  # fmt: skip
        self.engines = Engines(
            settings.rollout_host, settings.rollout_port, self.watch.floors if self.watch else dict
        )
        self.rewards: list[float] = []
        self.published = 0

    def run(self) -> None:
        """All steps, then the summary."""
        for step in range(1, self.settings.steps + 1):
            began = time.monotonic()
            reward = self._learn(step)
            learnt = time.monotonic() - began
            outcome, seconds = self._publish(step)
            if self.ranks.rank == 0:
                self._report(step, reward, outcome, seconds, learnt)
        if self.watch is not None:
            self.watch.check(self.settings.steps, wait=ANSWER_SECONDS)
            self._summary(self.watch)

    def _learn(self, step: int) -> float:
        """One policy-gradient step on answers of the engines; the mean reward over all ranks."""
        share = self.settings.prompts // self.ranks.world_size
        mine = range(self.ranks.rank * share, (self.ranks.rank + 1) * share)
        questions = training_questions(self.task, step, mine, self.settings.samples)
        asked: list[Future[list[Answer]]] = [self.engines.ask(question) for question in questions]
        if self.watch is not None:
            self.watch.check(step)  # while the engines sample
        answers = [answer for future in asked for answer in future.result(ANSWER_SECONDS)]
        if self.watch is not None:
            self.watch.see(step, answers)
        batch = make_batch(scored(self.task, answers))
        self.learner.gradients(batch)
        self.ranks.average(self.learner.flat_gradients())
        self.learner.step()
        reward = self.ranks.mean(batch.reward)
        self.rewards.append(reward)
        return reward

    def _publish(self, step: int) -> tuple[Outcome, float]:
        """Give the new weights to the engines, with questions under way meanwhile; outcome and seconds."""
        state = self.model.checkpoint_state()
        prompts, number = self._choose(step, state)
        half = len(prompts) // 2
        if self.ranks.rank == 0:
            say("publishing", step=step)
        began = time.monotonic()
        handle = self.publisher.publish({name: state[name] for name in self.names}, label=f"step {step}")
        handle.copied(OUTCOME_SECONDS)
        if self.watch is not None:
            self.watch.ask(self.engines, prompts[:half])  # these meet the switch
        outcome = handle.outcome(OUTCOME_SECONDS)
        seconds = time.monotonic() - began
        if self.watch is not None:
            if handle.version is not None:
                self.published += 1
                self.watch.versions.name(number, handle.version)
            current = [engine.engine for engine in outcome.engines if engine.outcome == "Current"]
            self.watch.current(number, current)
            self.watch.ask(self.engines, prompts[half:])  # these may not see anything older
        return outcome, seconds

    def _choose(self, step: int, state: dict[str, Tensor]) -> tuple[Any, int]:
        if self.watch is None:
            return (), 0
        number = self.watch.versions.add(state)
        return self.watch.choose(step), number

    def _report(self, step: int, reward: float, outcome: Outcome, seconds: float, learnt: float) -> None:
        say(
            "step",
            step=step,
            reward=round(reward, 4),
            version=outcome.version.name if outcome.version else "",
            status=outcome.status,
            reason=outcome.describe() if outcome.status != "Current" else "",
            engines=[
                {
                    "engine": engine.engine,
                    "outcome": engine.outcome,
                    "reason": engine.reason,
                    "pause_seconds": engine.pause_seconds,
                    "apply_seconds": engine.apply_seconds,
                }
                for engine in outcome.engines
            ],
            sync_seconds=round(seconds, 4),
            learn_seconds=round(learnt, 4),
            nbytes=outcome.nbytes,
            **(self.watch.tally.document() if self.watch else {}),
        )

    def _summary(self, watch: Watch) -> None:
        width = min(10, len(self.rewards))
        say(
            "summary",
            steps=len(self.rewards),
            reward_first=sum(self.rewards[:width]) / width,
            reward_last=sum(self.rewards[-width:]) / width,
            reward_max_possible=MAX_REWARD,
            versions_published=self.published,
            repeated_requests=self.engines.repeated,
            **watch.tally.document(),
        )


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    settings = parse(arguments)
    torch.set_num_threads(1)
    # The first process of a container gets no default for SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say("started", rank=settings.rank, world_size=settings.world_size)
    try:
        with Publisher(
            settings.rank,
            settings.world_size,
            stage=settings.rank,
            stages=settings.world_size,
            connect_timeout=AGENT_SECONDS,
        ) as publisher:
            ranks = Ranks(settings.rank, settings.world_size, settings.meet_host, settings.meet_port, MEET_SECONDS)
            say("ready", rank=settings.rank)
            trainer = Trainer(settings, ranks, publisher)
            with trainer.engines:
                trainer.run()
            if settings.stay:
                say("staying", rank=settings.rank)
                while True:
                    signal.pause()
            ranks.close()
    except (WeightSyncError, EnginesUnavailable, RequestRefused, TimeoutError, RuntimeError) as error:
        say("failed", rank=settings.rank, error=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
