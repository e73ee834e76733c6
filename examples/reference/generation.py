"""One request's state: what was asked, which tokens came, under which version of the weights, why it ended. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

FinishReason = dict[str, Any]

ABORTED: FinishReason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_WAITING: FinishReason = {"type": "abort", "message": "Abort in waiting queue"}


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. temperature 0: the most likely one; else drawn by (seed, position) alone."""

    temperature: float
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0.0


@dataclass(eq=False)
class Generation:
    """Changed by the model's thread only, until ``finish`` is set; then ``on_done`` is called there, once.

    spans: [version, tokens] pairs, each token counted under the version that was set when it was computed.
    """

    name: str
    prompt: Sequence[int]
    sampling: Sampling
    on_done: Callable[["Generation"], None]
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[str, int]] = field(default_factory=list)
    finish: FinishReason | None = None
    retractions: int = 0
    cached_tokens: int = 0

    @property
    def tokens(self) -> list[int]:
        """Prompt and output: what a cache of the request must hold before the next token."""
        return [*self.prompt, *self.output]

    def accept(self, token: int, logprob: float, version: str) -> None:
        """Take one token. A stop token is part of the output; it wins over the limit."""
        self.output.append(token)
        self.logprobs.append(logprob)
        count = 1
        if self.spans and self.spans[-1][0] == version:
            count += self.spans.pop()[1]
        self.spans.append((version, count))
        if token in self.sampling.stop_token_ids:
            self.finish = {"type": "stop", "matched": token}
        elif len(self.output) >= self.sampling.max_new_tokens:
            self.finish = {"type": "length", "length": self.sampling.max_new_tokens}
