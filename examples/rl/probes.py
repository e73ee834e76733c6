"""Questions for the check: prompts that one version answers otherwise than the one before it.

A prompt that both answer alike tells nothing about which of them was asked. Choosing is approximate and cheap (all
candidates in one batch, whose sums are rounded otherwise than a single request's); the check itself is exact.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from reference.engine_model import EngineModel


@torch.inference_mode()
def batched_greedy(model: EngineModel, prompts: Sequence[Sequence[int]], tokens: int) -> Tensor:
    """Greedy answers (prompts, tokens) to prompts of one length."""
    cache = model.new_cache(len(prompts))
    pending, answers = torch.tensor([list(prompt) for prompt in prompts]), list[Tensor]()
    for _ in range(tokens):
        pending = model(pending, cache).argmax(dim=1, keepdim=True)
        answers.append(pending)
    return torch.cat(answers, dim=1)


def telling(
    models: Sequence[EngineModel], candidates: Sequence[Sequence[int]], tokens: int, count: int
) -> list[Sequence[int]]:
    """``count`` of the candidates, the most telling first.

    models: versions in a row, the newest first. Best is what all of them answer differently from their predecessor,
    since a question asked during a switch may still meet the version before; the newest pair weighs most.
    """
    answers = [batched_greedy(model, candidates, tokens) for model in models]
    told = torch.zeros(len(candidates), dtype=torch.int64)
    for newer, older in pairwise(answers):
        told = 2 * told + (newer != older).any(dim=1)
    order = sorted(range(len(candidates)), key=lambda at: (-int(told[at]), at))
    return [candidates[at] for at in order[:count]]
