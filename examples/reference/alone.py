"""One request computed by itself: the path that engine and checker share, so that their answers agree bit by bit.

Every position is computed in a forward pass of its own, batch of one, the prompt's too. So the numbers at a
position depend on the tokens before it and on the weights, and on nothing else: not on how far a cached prefix
reached, nor on whether the request was once retracted and its cache computed anew. Needs one torch thread: more
of them may split a sum differently.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.config import ModelConfig
from reference.engine_model import EngineModel, KVCache, build_engine_model
from weightsync.errors import InputError


def require_one_thread() -> None:
    """Raises InputError where torch would use more than one thread."""
    if torch.get_num_threads() != 1:
        raise InputError(
            f"torch uses {torch.get_num_threads()} threads, but reproducible answers need one: "
            "call torch.set_num_threads(1) at the start of the process"
        )


@torch.inference_mode()
def feed(model: EngineModel, cache: KVCache, tokens: Sequence[int]) -> Tensor:
    """Compute ``tokens`` one by one after what the cache holds; the logits (vocab) after the last."""
    if not tokens:
        raise InputError("no token to compute: a prompt needs at least one")
    logits = torch.empty(0)
    for token in tokens:
        logits = model(torch.tensor([[token]]), cache)[0]
    return logits


def answer_alone(
    model: EngineModel, prompt: Sequence[int], max_new_tokens: int, stop_token_ids: Sequence[int] = ()
) -> list[int]:
    """Greedy tokens after ``prompt``, at most ``max_new_tokens``; a stop token ends them and is among them."""
    require_one_thread()
    cache, answer = model.new_cache(), list[int]()
    pending = list(prompt)
    while len(answer) < max_new_tokens:
        token = int(feed(model, cache, pending).argmax())
        answer.append(token)
        if token in stop_token_ids:
            break
        pending = [token]
    return answer


def greedy_tokens(
    checkpoint_state: dict[str, Tensor], config: ModelConfig, prefix: Sequence[int], n: int
) -> list[int]:
    """The n greedy tokens that an engine holding ``checkpoint_state`` gives after ``prefix``.

    For many prefixes of one version build the model once (build_engine_model) and call answer_alone.
    """
    return answer_alone(build_engine_model(config, checkpoint_state), prefix, n)
