"""A lane without a device: its copies run when they are waited for, or one at each look at an event."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass
class FakeEvent:
    """Of so many copies of its lane. Each query() lets the lane make one more step."""

    lane: "FakeLane"
    at: int

    def query(self) -> bool:
        """Whether the lane has come so far; it goes one step on where ``lane.eager``."""
        done = self.lane.done >= self.at
        if self.lane.eager and not done:
            self.lane.advance(self.lane.done + 1)
        return done

    def synchronize(self) -> None:
        """All steps up to here."""
        self.lane.waits += 1
        self.lane.advance(self.at)


@dataclass
class FakeLane:
    """eager: looks let it run on. fails_at: the copy of that number raises as torch would."""

    eager: bool = False
    fails_at: int = -1
    steps: list[Callable[[], object]] = field(default_factory=list)
    done: int = 0
    waits: int = 0
    held_back: int = 0

    def follow(self) -> None:
        """The host has computed already."""

    def copy(self, target: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Queued: the bytes are read when the step runs."""
        if len(self.steps) == self.fails_at:
            raise RuntimeError("CUDA error: out of memory")
        whole = part.to(target.dtype).contiguous()
        self.steps.append(lambda: target.copy_(whole))
        return whole

    def mark(self) -> FakeEvent:
        """After all steps by now."""
        return FakeEvent(self, len(self.steps))

    def hold_back(self) -> None:
        """Count."""
        self.held_back += 1

    def advance(self, to: int) -> None:
        """Run the steps before that number."""
        while self.done < to:
            self.steps[self.done]()
            self.steps[self.done] = lambda: None  # a step that ran holds nothing
            self.done += 1
