"""The trainer's copies of what it published: the weights behind each name that an engine may give."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

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
        self._former: set[str] = set()
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

    def seen(self, version: str) -> None:
        """An engine named it. What is served before this life has published anything, a former life published."""
        if not self.newest and version not in self._numbers and not version.startswith("torn"):
            self._former.add(version)

    def former(self, version: str) -> bool:
        """See checker.Replay."""
        return version in self._former

    def model(self, number: int) -> EngineModel | None:
        """The weights as an engine holds them, None where they are not kept any more."""
        return self._models.get(number)

    def answer(self, number: int, prefix: Sequence[int], tokens: int) -> Continuation | None:
        """See checker.Replay. Computed as the engine computes a request alone, so equal bit by bit."""
        model = self._models.get(number)
        if model is None:
            return None
        pairs = list(islice(_alone(model, prefix), tokens))
        return Continuation([token for token, _ in pairs], [logprob for _, logprob in pairs])

    def differs(self, number: int, prefix: Sequence[int], tokens: Sequence[int]) -> bool:
        """See checker.Replay. Ends at the first token that differs."""
        model = self._models.get(number)
        return model is not None and any(
            token != wanted for wanted, (token, _) in zip(tokens, _alone(model, prefix), strict=False)
        )


def _alone(model: EngineModel, prefix: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Greedy tokens without end, each with its log probability."""
    require_one_thread()
    cache, pending = model.new_cache(), list(prefix)
    while True:
        token, logprob = greedy(feed(model, cache, pending))
        yield token, logprob
        pending = [token]
