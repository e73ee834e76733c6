"""What cannot be avoided: one block between the device and pinned memory of the kind that arenas are made of."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from weightsync.arena import Arena


class PureCopy:
    """An arena file of ``nbytes`` in ``folder``, pinned, and a block as large on the device."""

    def __init__(self, folder: Path, nbytes: int, device: str) -> None:
        self.arena = Arena.create(folder / "pure", layout="0" * 32, program="0" * 32, nbytes=nbytes)
        self.arena.prefault([(0, nbytes)])
        self.host = torch.frombuffer(self.arena.view, dtype=torch.uint8)
        self._cuda = device == "cuda"
        if self._cuda:
            code = int(torch.cuda.cudart().cudaHostRegister(self.host.data_ptr(), nbytes, 0))  # type: ignore[no-untyped-call]
            if code:
                raise RuntimeError(f"cudaHostRegister: {code}")
        self.block = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def to_host(self) -> float:
        """Seconds from the device to pinned memory: the bound of filling."""
        return self._timed(self.host, self.block)

    def to_device(self) -> float:
        """Seconds from pinned memory to the device: the bound of applying."""
        return self._timed(self.block, self.host)

    def _timed(self, target: torch.Tensor, source: torch.Tensor) -> float:
        self._wait()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def close(self) -> None:
        """Unpin and unmap."""
        if self._cuda:
            torch.cuda.cudart().cudaHostUnregister(self.host.data_ptr())  # type: ignore[no-untyped-call]
        del self.host, self.block
        self.arena.close()
