"""The task: count on. Prompts, seeds of answers, and the rule that scores an answer. Pure.

A prompt is a row of random tokens. Every token of the answer must be the successor of the token before it, the
first one of the prompt's last; after the largest token comes 0. Each token that obeys earns an equal share of the
reward, so an answer is worth between 0 and 1, and a policy that guesses gets 1 / vocab.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

MAX_REWARD = 1.0


@dataclass(frozen=True)
class Task:
    """vocab: how many tokens there are; prompt, answer: their lengths in tokens; seed: all draws follow from it."""

    vocab: int = 32
    prompt: int = 8
    answer: int = 8
    seed: int = 0

    def prompts(self, step: int, count: int, purpose: str = "train") -> list[list[int]]:
        """``count`` prompts of a step; those of another purpose are drawn apart from these."""
        return [self._prompt(f"{purpose}/{step}/{at}") for at in range(count)]

    def _prompt(self, key: str) -> list[int]:
        drawn = hashlib.blake2b(f"{self.seed}/{key}".encode(), digest_size=2 * self.prompt).digest()
        pairs = zip(drawn[::2], drawn[1::2], strict=True)
        return [(high * 256 + low) % self.vocab for high, low in pairs]

    def answer_seed(self, step: int, prompt: int, sample: int) -> int:
        """The seed to send with the request for one sample of one prompt: a step asked again is drawn alike."""
        drawn = hashlib.blake2b(f"{self.seed}/answer/{step}/{prompt}/{sample}".encode(), digest_size=7).digest()
        return int.from_bytes(drawn, "big")

    def score(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """One reward for each token of the answer; their mean is the answer's."""
        before = [prompt[-1], *answer[:-1]]
        return [float(token == (last + 1) % self.vocab) for last, token in zip(before, answer, strict=True)]
