"""The trainer's copies of what it published: the weights behind each name that an engine may give."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from reference.alone import feed, require_one_thread
from reference.config import ModelConfig
from reference.engine_model import EngineModel, build_engine_model
from reference.sampling import greedy
from rl.checker import Continuation


class Versions:
    """Implements checker.Replay. keep: how many versions' weights are held; names are held for ever."""

    def __init__(self, config: ModelConfig, base: dict[str, Tensor], base_name: str = "default", keep: int = 16):
        self._config = config
        self._keep = keep
        self._numbers = {base_name: 0}
        self._models: OrderedDict[int, EngineModel] = OrderedDict()
        self.newest = 0
        self._hold(0, base)

    def add(self, state: dict[str, Tensor]) -> int:
        """A copy of the newest version's weights, before they are published; its number."""
        self.newest += 1
        self._hold(self.newest, state)
        return self.newest

    def name(self, number: int, version: str) -> None:
        """What engines call it."""
        self._numbers[version] = number

    def _hold(self, number: int, state: dict[str, Tensor]) -> None:
        self._models[number] = build_engine_model(self._config, state)
        while len(self._models) > self._keep:
            self._models.popitem(last=False)

    def number(self, version: str) -> int | None:
        """See checker.Replay."""
        return self._numbers.get(version)

    def model(self, number: int) -> EngineModel | None:
        """The weights as an engine holds them, None where they are not kept any more."""
        return self._models.get(number)

    @torch.inference_mode()
    def answer(self, number: int, prefix: Sequence[int], tokens: int) -> Continuation | None:
        """See checker.Replay. Computed as the engine computes a request alone, so equal bit by bit."""
        model = self._models.get(number)
        if model is None:
            return None
        require_one_thread()
        cache, pending = model.new_cache(), list(prefix)
        found, logprobs = list[int](), list[float]()
        while len(found) < tokens:
            token, logprob = greedy(feed(model, cache, pending))
            found.append(token)
            logprobs.append(logprob)
            pending = [token]
        return Continuation(found, logprobs)
