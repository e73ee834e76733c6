"""Copies of one device's tensors: queued on its lane, told when their events are done (in_flight.py, lanes.py)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch

from weightsync.convert.digesting import BucketDigester
from weightsync.convert.in_flight import InFlight, Queued
from weightsync.convert.lanes import Lane
from weightsync.convert.portion import Copy
from weightsync.errors import InputError

Done = Callable[[int, tuple[int, ...]], None]  # bytes that are in the arena, buckets that their tensor has left


class DeviceCopies:
    """limit: bytes of device tensors that are held until their copies are done."""

    def __init__(self, lane: Lane, limit: int, digests: BucketDigester) -> None:
        self._lane = lane
        self._flight = InFlight(limit)
        self._digests = digests

    def feed(self, name: str, copies: Sequence[Copy], source: torch.Tensor, done: Done) -> None:
        """Queue all copies out of one tensor. Waits only while more would be held than may be."""
        try:
            self._flight.settle()
            self._flight.hold(source.nbytes)
            self._lane.follow()
            for queued in self._queued(name, copies, source, done):
                self._flight.add(queued)
            self._lane.hold_back()
        except (RuntimeError, InputError) as error:  # torch's only class: out of device memory, a lost device
            with suppress(RuntimeError):  # nothing runs on a lost device
                self._lane.mark().synchronize()  # no entry keeps alive what its last copies read
            raise InputError(f"tensor {name} cannot be copied: {error}") from error

    def _queued(self, name: str, copies: Sequence[Copy], source: torch.Tensor, done: Done) -> Iterator[Queued]:
        """An entry after each copy that leaves a bucket, and after the last, which gives back the source."""
        held, staged, nbytes = [source], 0, 0
        for left, copy in zip(reversed(range(len(copies))), copies, strict=True):
            part = copy.part(source)
            if not copy.dense:  # rows with gaps between them: torch stages them in host memory, and waits
                copy.run(name, source, self._digests)
            elif part.dtype == copy.target.dtype and part.is_contiguous():
                self._lane.copy(copy.target, part)
            else:
                self._flight.hold(copy.nbytes)
                staged += copy.nbytes
                held.append(self._lane.copy(copy.target, part))
            nbytes += copy.nbytes
            if copy.leaves or not left:
                # Also what was copied at once is counted here: a portion before it may still be in flight.
                release = staged if left else staged + source.nbytes
                yield Queued(self._lane.mark(), tuple(held), release, partial(done, nbytes, copy.leaves))
                held, staged, nbytes = [source], 0, 0

    def drain(self) -> None:
        """Wait for everything; each is told as it is done."""
        try:
            self._flight.drain()
        except RuntimeError as error:
            raise InputError(f"copies from the GPU failed: {error}") from error

    def abandon(self) -> None:
        """Wait for everything, tell nothing: when this returns nothing is written to the arena any more."""
        try:
            self._flight.abandon()
        except RuntimeError as error:
            raise InputError(f"copies from the GPU failed: {error}") from error
