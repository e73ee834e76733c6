"""Questions for the check: prompts that the newest version answers otherwise than the one before it.

A prompt that both answer alike tells nothing about which of them was asked. Choosing is approximate and cheap (all
candidates in one batch, whose sums are rounded otherwise than a single request's); the check itself is exact.
"""

from collections.abc import Sequence

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
    newer: EngineModel, older: EngineModel, candidates: Sequence[Sequence[int]], tokens: int, count: int
) -> list[Sequence[int]]:
    """``count`` of the candidates, those first that the two models answer differently."""
    differ = (batched_greedy(newer, candidates, tokens) != batched_greedy(older, candidates, tokens)).any(dim=1)
    order = sorted(range(len(candidates)), key=lambda at: (not bool(differ[at]), at))
    return [candidates[at] for at in order[:count]]
