"""The pieces that the trainer's and the engine's form of the model have in common."""

import torch
from torch import Tensor, nn


class Weight(nn.Module):
    """One named ``weight`` without a forward of its own: initialising is the checkpoint's business."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32, trainable: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=trainable)


def rotary_table(positions: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, (positions, head_dim) each, in float32."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), frequency).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (..., positions, head_dim) by its positions' rows of the table."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x (..., hidden) to a root mean square of 1, then by the weight.

    Written out: for one position torch's own takes several times as long.
    """
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight
