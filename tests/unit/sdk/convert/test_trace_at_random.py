"""Random chains of views and copies: the program does what the loader did, or says that it is no copy."""

import random
from collections.abc import Iterable

import pytest
import torch

from weightsync.convert.header import Header
from weightsync.convert.merge import Row, merge
from weightsync.convert.program import CopyProgram
from weightsync.convert.trace import trace
from weightsync.convert.verify import apply, random_tensor

TENSORS = [Header("a", "float32", (6, 8)), Header("b", "float32", (4, 12)), Header("c", "float32", (2, 3, 8))]
SIZE = 48


def scrambled(chance: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same elements, or of some of them, by ways that weight loaders take."""
    for _ in range(chance.randrange(5)):
        dimension = chance.randrange(tensor.dim())
        extent = tensor.shape[dimension]
        match chance.randrange(7):
            case 0:
                tensor = tensor.transpose(dimension, chance.randrange(tensor.dim()))
            case 1:
                tensor = tensor.contiguous()
            case 2 if extent > 1:
                cut = chance.randrange(1, extent)
                tensor = torch.cat(
                    [tensor.narrow(dimension, cut, extent - cut), tensor.narrow(dimension, 0, cut)], dimension
                )
            case 3 if extent % 2 == 0:
                tensor = torch.stack(tensor.chunk(2, dimension), chance.randrange(tensor.dim() + 1))
            case 4:
                tensor = tensor.reshape(-1, tensor.shape[-1])
            case 5 if extent % 3 == 0:
                shape = (*tensor.shape[:dimension], 3, extent // 3, *tensor.shape[dimension + 1 :])
                tensor = tensor.reshape(shape)
            case 6 if extent > 2:
                tensor = tensor[(slice(None),) * dimension + (slice(chance.randrange(2), None, 2),)]
    return tensor


class Loader:
    """A load_weights that is the same for the same seed, whatever the device."""

    def __init__(self, seed: int, device: str) -> None:
        self.seed = seed
        self.parameter = torch.zeros(SIZE, device=device)

    def __call__(self, given: Iterable[tuple[str, torch.Tensor]]) -> None:
        chance = random.Random(self.seed)  # noqa: S311
        self.parameter.zero_()
        for _, tensor in given:
            flat = scrambled(chance, tensor).reshape(-1)
            count = chance.randrange(1, min(len(flat), SIZE) + 1)
            start, first = chance.randrange(len(flat) - count + 1), chance.randrange(SIZE - count + 1)
            self.parameter[first : first + count].copy_(flat[start : start + count])


@pytest.mark.parametrize("seed", range(40))
def test_the_program_does_what_the_loader_did(seed: int) -> None:
    """Every element, though later copies overwrite parts of earlier ones."""
    watched = Loader(seed, "meta")
    traced = trace(watched, {"p": watched.parameter}, {}, TENSORS)
    merged = merge([Row("p", "float32", (SIZE,))], traced.blocks, TENSORS, traced.joint)
    assert merged.by_loading == ()
    program = CopyProgram(layout=merged.layout, tensors=merged.tensors)
    values = {tensor.name: random_tensor(tensor) for tensor in program.tensors}
    real = Loader(seed, "cpu")
    real((header.name, values[header.name].clone()) for header in TENSORS)
    payload = torch.zeros(program.layout.nbytes, dtype=torch.uint8)
    for tensor in program.tensors:
        for piece in tensor.pieces:
            apply(piece, values[tensor.name], payload, piece.offset)
    assert torch.equal(payload[: SIZE * 4].view(torch.float32), real.parameter)
