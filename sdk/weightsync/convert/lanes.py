"""CUDA: the arena pinned in the trainer's process, and one side stream for each device that copies into it.

The seam between replay and CUDA: replay.py queues copies on a Lane and never names a stream. Tests give lanes of
their own, whose copies run when they are waited for.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from weightsync.buckets import PAGE, Extent
from weightsync.convert.in_flight import Event

log = logging.getLogger(__name__)

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device of the process, not only the current one


class Lane(Protocol):
    """Copies of one device's tensors, one after the other, beside what the trainer computes."""

    def follow(self) -> None:
        """What is queued from here on waits for all that the trainer's current stream holds now."""

    def copy(self, target: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Queue one copy into a contiguous target; returns what it reads, to be kept until it is done."""

    def mark(self) -> Event:
        """After all that is queued by now."""

    def hold_back(self) -> None:
        """The trainer's current stream waits for all that is queued by now: it may write into the same memory."""


class CudaLane:
    """Lane over a side stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """See Lane."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, target: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """See Lane. What is strided or of another dtype is made whole on the device, where that costs least."""
        with torch.cuda.stream(self._stream):
            whole = part.to(target.dtype).contiguous()
            target.copy_(whole, non_blocking=True)
        return whole

    def mark(self) -> Event:
        """See Lane. Waiting for it sleeps (blocking): a spinning wait would take a core from the trainer."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def hold_back(self) -> None:
        """See Lane."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class Pins:
    """Pinned ranges of a payload. Each is registered once; release() before the payload is unmapped."""

    def __init__(self, payload: torch.Tensor, extents: Sequence[Extent]) -> None:
        self._payload = payload.data_ptr()
        self._end = self._payload + payload.numel()
        self._extents = extents
        self._registered: list[int] = []

    def take(self) -> str:
        """Pin all ranges; "" or what CUDA refused. Then none is pinned."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for start, stop in pages(self._extents):
            address = self._payload + start
            nbytes = min(self._payload + stop, self._end) - address
            code = int(runtime.cudaHostRegister(address, nbytes, PORTABLE))
            if code:
                _forget_cuda_error()
                self.release()
                return f"CUDA error {code} for {nbytes} bytes"
            self._registered.append(address)
        return ""

    def release(self) -> None:
        """Unpin."""
        while self._registered:
            torch.cuda.cudart().cudaHostUnregister(self._registered.pop())  # type: ignore[no-untyped-call]


class Lanes:
    """A replica's lanes, one for each device that tensors come from; the arena is pinned with the first."""

    def __init__(self, payload: torch.Tensor, extents: Sequence[Extent]) -> None:
        self._pins = Pins(payload, extents) if extents else None
        self._lanes: dict[torch.device, CudaLane] = {}
        self._pinned = False

    def __call__(self, device: torch.device) -> Lane | None:
        """The device's lane; None where copies must be waited for one by one.

        That is: tensors in host memory, a first publish (nobody knows yet which pages of the arena are this
        stage's), and an arena that CUDA refuses to pin, which is said once.
        """
        if device.type != "cuda" or self._pins is None:
            return None
        if not self._pinned:
            refused = self._pins.take()
            if refused:
                self._pins = None
                log.warning(
                    "the arena cannot be pinned (%s): tensors are copied from the GPU one by one, several times as "
                    "slow; allow this container to lock memory (ulimit -l; as root, the capability IPC_LOCK)",
                    refused,
                )
                return None
            self._pinned = True
        if device not in self._lanes:
            self._lanes[device] = CudaLane(device)
        return self._lanes[device]

    def close(self) -> None:
        """Unpin. The caller has waited for every copy before."""
        self._lanes.clear()
        if self._pins is not None:
            self._pins.release()
            self._pins = None


OpenLane = Callable[[torch.device], Lane | None]


def pages(extents: Sequence[Extent]) -> list[Extent]:
    """Whole pages around the extents, joined where they meet: no page can be registered twice."""
    joined: list[Extent] = []
    for start, stop in sorted(extents):
        first, last = start // PAGE * PAGE, -(-stop // PAGE) * PAGE
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def _forget_cuda_error() -> None:
    """A failed runtime call is remembered, and raised by the next kernel launch, which would be the trainer's."""
    try:
        torch.zeros(1, device="cuda").add_(1)
    except RuntimeError as error:  # raised here, it is forgotten
        log.debug("CUDA's error after a refused pin: %s", error)
