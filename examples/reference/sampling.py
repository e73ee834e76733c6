"""Drawing tokens: reproducible from (seed, position), whatever else is in the batch."""

import torch
from torch import Tensor

# The finaliser of splitmix64 and its increment, as signed 64-bit numbers.
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def gumbel_noise(seeds: Tensor, position: int, vocab: int) -> Tensor:
    """Noise (batch, vocab) in float64 for int64 seeds (batch): a hash of seed, position and token."""
    key = _mix(seeds + torch.tensor(position) * _STEP)  # as tensors, since these numbers wrap
    bits = _shift(_mix(key[:, None] + torch.arange(1, vocab + 1) * _STEP), 12)
    uniform = (bits.double() + 0.5) / float(1 << 52)
    return -torch.log(-torch.log(uniform))


def draw(logits: Tensor, temperatures: Tensor, seeds: Tensor, position: int) -> tuple[Tensor, Tensor]:
    """Tokens (batch) drawn from softmax(logits / temperatures), and their log probabilities under it."""
    scaled = logits.double() / temperatures[:, None]
    tokens = (scaled + gumbel_noise(seeds, position, logits.shape[1])).argmax(dim=1)
    chosen = scaled.log_softmax(dim=1).gather(1, tokens[:, None])[:, 0]
    return tokens, chosen


def greedy(logits: Tensor) -> tuple[int, float]:
    """The most likely token of logits (vocab), and its log probability at temperature 1."""
    token = int(logits.argmax())
    return token, float(logits.log_softmax(dim=0)[token])
