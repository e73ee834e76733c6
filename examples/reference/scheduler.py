"""Which request is computed next, and what pause, abort and flush do to the others. No thread, no clock, no HTTP.

Requests wait, then run in units (units.py); each step advances one unit, in turn. A unit keeps its cache while it
runs. Pausing is SGLang's: "retract" sends running requests back to the waiting ones and drops their caches, so that
what is computed after the pause is computed with the weights of after the pause; "in_place" keeps everything.
"""

from collections import deque
from typing import Any, Literal

import torch

from reference.engine_model import EngineModel
from reference.generation import ABORTED, ABORTED_WAITING, FinishReason, Generation
from reference.prefix_cache import PrefixCache
from reference.units import Alone, Cohort, Unit

CACHE_POSITIONS = 16384  # in each of the two prefix caches


class Scheduler:
    """Used by one thread only.

    flush_ignores_waiting: whether a flush may happen while requests wait, if paused (SGLang from 0.5.21 on).
    """

    def __init__(
        self, model: EngineModel, version: str, *, flush_ignores_waiting: bool = True, max_running: int = 256
    ) -> None:
        self.model = model
        self.version = version
        self.paused = False
        self.flush_ignores_waiting = flush_ignores_waiting
        self.max_running = max_running
        self.waiting: deque[Generation] = deque()
        self.running: deque[Unit] = deque()
        # A batch rounds otherwise than a request alone, so neither may continue what the other has computed.
        self._alone = PrefixCache(CACHE_POSITIONS)
        self._batched = PrefixCache(CACHE_POSITIONS)

    @property
    def has_work(self) -> bool:
        """Whether step() would compute something."""
        return not self.paused and bool(self.waiting or self.running)

    @property
    def running_requests(self) -> int:
        """Requests in units."""
        return sum(len(unit.live) for unit in self.running)

    def add(self, generations: list[Generation]) -> None:
        """Let requests wait for their turn; those that ask for no token are done at once."""
        for generation in generations:
            if generation.sampling.max_new_tokens == 0:
                _end(generation, {"type": "length", "length": 0})
            else:
                self.waiting.append(generation)

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what may run and advance the next unit; requests that finish are told."""
        self._admit()
        if not self.running:
            return
        unit = self.running.popleft()
        done = unit.step(self.version)
        if unit.live:
            self.running.append(unit)
        for generation in done:
            generation.on_done(generation)

    def _admit(self) -> None:
        room = self.max_running - self.running_requests
        while self.waiting and room > 0:
            first = self.waiting.popleft()
            if first.sampling.greedy:
                self.running.append(Alone(self.model, first, self._alone))
                room -= 1
                continue
            length = len(first.tokens)
            fit = [g for g in self.waiting if not g.sampling.greedy and len(g.tokens) == length]
            together = [first, *fit[: room - 1]]
            chosen = set(map(id, together))
            self.waiting = deque(g for g in self.waiting if id(g) not in chosen)
            self.running.append(Cohort(self.model, together, self._batched))
            room -= len(together)

    def pause(self, mode: Literal["retract", "in_place"]) -> None:
        """Compute nothing until resume()."""
        self.paused = True
        if mode == "retract":
            for unit in self.running:
                for generation in unit.live:
                    generation.retractions += 1
                    self.waiting.append(generation)
            self.running.clear()

    def resume(self) -> None:
        """Go on."""
        self.paused = False

    def abort(self, prefix: str = "") -> None:
        """End the requests whose name begins with ``prefix``; they keep the tokens that they have."""
        for generation in [g for g in self.waiting if g.name.startswith(prefix)]:
            self.waiting.remove(generation)
            _end(generation, ABORTED_WAITING)
        for unit in list(self.running):
            for generation in [g for g in unit.live if g.name.startswith(prefix)]:
                _end(generation, ABORTED)
                unit.drop(generation)
            if not unit.live:
                self.running.remove(unit)

    def flush(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, where requests run, or wait and count."""
        ignored = self.paused and self.flush_ignores_waiting
        if self.running or (self.waiting and not ignored):
            return False
        self._alone.clear()
        self._batched.clear()
        return True

    def state(self) -> dict[str, Any]:
        """What /server_info tells of it."""
        return {
            "weight_version": self.version,
            "paused": self.paused,
            "running_requests": self.running_requests,
            "waiting_requests": len(self.waiting),
            "cached_positions": len(self._alone) + len(self._batched),
        }


def _end(generation: Generation, reason: FinishReason) -> None:
    generation.finish = dict(reason)
    generation.on_done(generation)
