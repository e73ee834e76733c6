"""The trainer's ranks: one gloo group, over which gradients are averaged."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """This rank of ``world_size``. host, port: where rank 0 is met.

    Raises, from any method, what gloo raises where another rank is missing for ``seconds``.
    """

    def __init__(self, rank: int, world_size: int, host: str, port: int, seconds: float) -> None:
        self.rank, self.world_size = rank, world_size
        if world_size == 1:
            return
        # Rank 0 listens itself: to reach itself through the Service it would need hairpin traffic.
        meet = f"tcp://{'127.0.0.1' if rank == 0 else host}:{port}"
        dist.init_process_group(
            "gloo", init_method=meet, rank=rank, world_size=world_size, timeout=timedelta(seconds=seconds)
        )

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Make each tensor the mean over ranks, in place: one message for all."""
        if self.world_size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.world_size
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def mean(self, value: float) -> float:
        """The mean over ranks."""
        held = torch.tensor([value], dtype=torch.float64)
        self.average([held])
        return float(held)

    def close(self) -> None:
        """Leave the group."""
        if self.world_size > 1:
            dist.destroy_process_group()
