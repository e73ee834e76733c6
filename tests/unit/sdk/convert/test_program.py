"""A copy program is checked when it is read, so that a replay never has to."""

import json
from typing import Any

import pytest

from weightsync.convert.program import CopyProgram, Piece
from weightsync.errors import InputError
from weightsync.layout import lay_out

LAYOUT = lay_out([("qkv", "bfloat16", (4, 8))])


def piece(**changes: Any) -> dict[str, Any]:
    """The whole of a (4, 8) tensor."""
    return {"box": [[0, 4], [0, 8]], "offset": 0, "strides": [16, 2], "dtype": "bfloat16"} | changes


def program(pieces: list[dict[str, Any]], **changes: Any) -> str:
    """A program of one tensor."""
    tensor = {"name": "q", "dtype": "float32", "shape": [4, 8], "pieces": pieces}
    return json.dumps({"layout": LAYOUT.model_dump(mode="json"), "tensors": [tensor]} | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(program([piece(box=[[0, 4]])]), "2 dimensions expected", id="a box of fewer dimensions"),
        pytest.param(program([piece(strides=[16])]), "2 dimensions expected", id="strides of fewer dimensions"),
        pytest.param(program([piece(dtype="float1")]), "'float1' is not known", id="an unknown dtype of a piece"),
        pytest.param(program([piece(box=[[0, 5], [0, 8]])]), r"\[0, 5\) is no region of", id="a box past the tensor"),
        pytest.param(program([piece(box=[[2, 2], [0, 8]])]), r"\[2, 2\) is no region of", id="an empty box"),
        pytest.param(program([piece(offset=1)]), "not multiples of bfloat16's 2 bytes", id="an odd offset"),
        pytest.param(program([piece(strides=[16, 1])]), "not multiples", id="an odd stride"),
        pytest.param(program([piece(strides=[100, 2])]), "reaches byte 316 of", id="past the payload"),
        pytest.param(program([], together=[["q", "k"]]), "together names k", id="a group with an unknown name"),
        pytest.param(
            program([], tensors=[{"name": "q", "dtype": "x", "shape": [], "pieces": []}]), "'x' is not known",
            id="an unknown dtype of a tensor",
        ),
        pytest.param(
            program([], tensors=[{"name": "q", "dtype": "int8", "shape": [], "pieces": []}] * 2), "q appears twice",
            id="a tensor twice",
        ),
        pytest.param(program([], format=2), "format", id="a format of a later release"),
    ],
)  # fmt: skip
def test_programs_that_cannot_be(text: str, words: str) -> None:
    """Refused with the tensor, the piece and what is wrong."""
    with pytest.raises(InputError, match=words):
        CopyProgram.read(text, "test")


def test_the_digest_covers_the_copies() -> None:
    """Two programs of one layout are two replicas; the same program is one, however it was written down."""
    a = CopyProgram.read(program([piece()]), "a")
    b = CopyProgram.read(program([piece(box=[[0, 3], [0, 8]])]), "b")
    assert a.layout.digest == b.layout.digest
    assert a.digest != b.digest
    assert CopyProgram.read(a.canonical(), "again").digest == a.digest


@pytest.mark.parametrize(
    ("copy", "span"),
    [
        pytest.param(Piece(box=(), offset=8, strides=(), dtype="float32"), (8, 12), id="a scalar"),
        pytest.param(
            Piece(box=((1, 3), (0, 4)), offset=0, strides=(4, 100), dtype="int8"), (0, 305), id="a turned matrix"
        ),
    ],
)  # fmt: skip
def test_the_span_of_a_piece(copy: Piece, span: tuple[int, int]) -> None:
    """From the first byte to the last that it can touch."""
    assert copy.span == span
