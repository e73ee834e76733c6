"""What the scheduler advances by one step: a request by itself, or a batch of sampled requests of one length."""

from collections.abc import Sequence
from typing import Protocol

import torch

from reference.alone import feed
from reference.engine_model import EngineModel, KVCache
from reference.generation import Generation
from reference.prefix_cache import PrefixCache
from reference.sampling import draw, greedy

CHUNK = 16  # prompt positions computed in one step, so that a pause never waits for a whole prompt


class Unit(Protocol):
    """Something that runs."""

    @property
    def live(self) -> list[Generation]:
        """Its requests that have not finished."""

    def step(self, version: str) -> list[Generation]:
        """Compute a little; the requests that finished by it."""

    def drop(self, generation: Generation) -> None:
        """Compute no more for this request: it was aborted."""


class Alone:
    """One request, greedy, batch of one, position by position: the path of alone.py, so answers can be checked."""

    def __init__(self, model: EngineModel, generation: Generation, prefixes: PrefixCache) -> None:
        self._model, self._generation, self._prefixes = model, generation, prefixes
        tokens = generation.tokens
        known, cache = prefixes.find(tokens[:-1])  # the last token is always computed: its logits are wanted
        self._cache = cache.prefix(0, known) if cache else model.new_cache()
        generation.cached_tokens = known
        self._pending: Sequence[int] = tokens[known:]
        self._prompt: Sequence[int] | None = tokens  # until it is computed

    @property
    def live(self) -> list[Generation]:
        """The request, until it finished."""
        return [] if self._generation.finish else [self._generation]

    def step(self, version: str) -> list[Generation]:
        """A part of the prompt, or one token."""
        part, self._pending = self._pending[:CHUNK], self._pending[CHUNK:]
        logits = feed(self._model, self._cache, part)
        if self._pending:
            return []
        if self._prompt is not None:
            self._prefixes.insert(self._prompt, self._cache)
            self._prompt = None
        token, logprob = greedy(logits)
        self._generation.accept(token, logprob, version)
        self._pending = [token]
        return [self._generation] if self._generation.finish else []

    def drop(self, generation: Generation) -> None:
        """Nothing to free before the unit itself goes."""


class Cohort:
    """Sampled requests whose tokens so far have one length: one forward pass a token for all of them."""

    def __init__(self, model: EngineModel, generations: list[Generation], prefixes: PrefixCache) -> None:
        self._model, self._prefixes = model, prefixes
        self._rows: list[Generation | None] = list(generations)
        self._cache: KVCache | None = None

    @property
    def live(self) -> list[Generation]:
        """Requests that have not finished."""
        return [g for g in self._rows if g is not None and not g.finish]

    def step(self, version: str) -> list[Generation]:
        """The prompts, or one token of each request."""
        if self._cache is None:
            logits, self._cache = self._prefill()
        else:
            last = [[g.output[-1] if g else 0] for g in self._rows]
            logits = self._model(torch.tensor(last), self._cache)
        sampling = [g.sampling if g else None for g in self._rows]
        temperatures = torch.tensor([s.temperature if s else 1.0 for s in sampling], dtype=torch.float64)
        seeds = torch.tensor([s.seed if s else 0 for s in sampling], dtype=torch.int64)
        tokens, logprobs = draw(logits, temperatures, seeds, self._cache.length)
        drawn = zip(self._rows, tokens.tolist(), logprobs.tolist(), strict=True)
        done = []
        for generation, token, logprob in drawn:
            if generation is not None:
                generation.accept(token, logprob, version)
                if generation.finish:
                    done.append(generation)
        for generation in done:
            self.drop(generation)
        return done

    def drop(self, generation: Generation) -> None:
        """Leave its row out; rows are only moved together when a quarter of them is empty, which copies the cache."""
        self._rows = [None if g is generation else g for g in self._rows]
        kept = [at for at, g in enumerate(self._rows) if g is not None]
        if self._cache is not None and kept and len(kept) <= 0.75 * len(self._rows):
            self._cache = self._cache.select(torch.tensor(kept))
            self._rows = [self._rows[at] for at in kept]

    def _prefill(self) -> tuple[torch.Tensor, KVCache]:
        """Equal prompts are computed once; positions that all of them find in the prefix cache are not computed."""
        rows = [tuple(g.tokens) if g else () for g in self._rows]
        unique = list(dict.fromkeys(tokens for tokens in rows if tokens))
        found = [self._prefixes.find(tokens[:-1]) for tokens in unique]
        known = min(depth for depth, _ in found)
        parts = [cache.prefix(0, known) for _, cache in found if cache is not None and known]
        cache = KVCache.join(parts, known) if parts else self._model.new_cache(len(unique))
        logits = self._model(torch.tensor([tokens[known:] for tokens in unique]), cache)
        for at, tokens in enumerate(unique):
            self._prefixes.insert(tokens, cache, at)
        for generation in self._rows:
            if generation:
                generation.cached_tokens = known
        place = {tokens: at for at, tokens in enumerate(unique)} | {(): 0}
        chosen = torch.tensor([place[tokens] for tokens in rows])
        return logits[chosen], cache.select(chosen)
