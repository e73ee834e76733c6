"""Learning from scored answers: REINFORCE with the group as baseline, credit token by token, Adam. No I/O.

Answers may come from weights one version old: at these step sizes the gradient's bias is lost in its noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference.model import CheckpointModel


@dataclass(frozen=True)
class Sample:
    """One answer to one prompt. group: which prompt; rewards: one for each token of the answer."""

    group: int
    prompt: Sequence[int]
    answer: Sequence[int]
    rewards: Sequence[float]


@dataclass(frozen=True)
class Batch:
    """tokens: (samples, positions) of prompt and answer; answers, advantages: (samples, answer positions)."""

    tokens: Tensor
    answers: Tensor
    advantages: Tensor
    reward: float


def make_batch(samples: Sequence[Sample]) -> Batch:
    """Put samples of equal lengths together.

    A token's advantage is its reward less the mean of its group at that place of the answer, in units of the
    batch's spread: as a token's reward depends on that token and the one before it, later ones earn it nothing.
    """
    rewards = torch.tensor([sample.rewards for sample in samples])
    places = {group: at for at, group in enumerate(dict.fromkeys(sample.group for sample in samples))}
    index = torch.tensor([places[sample.group] for sample in samples])
    sums = torch.zeros(len(places), rewards.shape[1]).index_add_(0, index, rewards)
    advantages = rewards - (sums / index.bincount()[:, None])[index]
    return Batch(
        tokens=torch.tensor([[*sample.prompt, *sample.answer] for sample in samples]),
        answers=torch.tensor([list(sample.answer) for sample in samples]),
        advantages=advantages / (advantages.std() + 1e-4),
        reward=float(rewards.mean()),
    )


class Learner:
    """The policy being trained and its optimiser. One torch thread is enough for it."""

    def __init__(self, model: CheckpointModel, learning_rate: float) -> None:
        self.model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def gradients(self, batch: Batch) -> None:
        """Leave the batch's policy gradient in the parameters' ``grad``."""
        self._optimizer.zero_grad(set_to_none=False)
        length = batch.answers.shape[1]
        logits = self.model(batch.tokens[:, :-1])[:, -length:]
        taken = logits.log_softmax(dim=-1).gather(2, batch.answers[:, :, None])[:, :, 0]
        loss = -(batch.advantages * taken).mean()
        torch.autograd.backward(loss)

    def flat_gradients(self) -> list[Tensor]:
        """The gradients, to be averaged over ranks in place."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def step(self) -> None:
        """Move the parameters along the gradients, whose norm is cut at 1."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
