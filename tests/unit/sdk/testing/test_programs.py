"""The plain program sends every tensor to itself."""

import pytest

from weightsync.testing import plain_program
from weightsync.testing.programs import dense_strides


@pytest.mark.parametrize(
    ("shape", "strides"), [((), ()), ((5,), (4,)), ((2, 3), (12, 4)), ((2, 3, 4), (48, 16, 4))]
)  # fmt: skip
def test_dense_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Last dimension nearest."""
    assert dense_strides(shape, 4) == strides


def test_every_tensor_has_its_own_place() -> None:
    """One piece, the whole tensor, at the parameter of the same name; an empty tensor has none."""
    program = plain_program({"a": ("float32", (2, 3)), "empty": ("int8", (0,)), "s": ("int64", ())}, rank=2)
    assert program.rank == 2
    for tensor, place in zip(program.tensors, program.layout.parameters, strict=True):
        assert tensor.name == place.name
        assert [piece.span for piece in tensor.pieces] == (
            [(place.offset, place.offset + place.nbytes)] if place.nbytes else []
        )
