"""A checkpoint's tensors are known by the headers of its files; what is none is refused with the file's name."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from weightsync.convert.header import Header
from weightsync.errors import InputError
from weightsync.replicas.checkpoint import DTYPES, INDEX, read_headers


def test_names_dtypes_and_shapes_are_read(tmp_path: Path) -> None:
    """In natural order: layer 2 before layer 10; scalars and empty tensors too."""
    tensors = {
        "layers.10.w": torch.zeros(2, 3, dtype=torch.bfloat16),
        "layers.2.w": torch.zeros(4, dtype=torch.float8_e4m3fn),
        "scale": torch.zeros(()),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert read_headers(tmp_path) == [
        Header("layers.2.w", "float8_e4m3fn", (4,)),
        Header("layers.10.w", "bfloat16", (2, 3)),
        Header("scale", "float32", ()),
    ]


def test_every_dtype_is_torchs(tmp_path: Path) -> None:
    """The names that the format has are those of torch's dtypes of the same size."""
    for name in DTYPES.values():
        assert isinstance(getattr(torch, name), torch.dtype)


def test_the_index_says_which_tensors_count(tmp_path: Path) -> None:
    """Files may hold more than the checkpoint: copies of another format beside it, a tensor that moved."""
    save_file({"a": torch.zeros(1), "old": torch.zeros(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(2)}, tmp_path / "two.safetensors")
    save_file({"c": torch.zeros(3)}, tmp_path / "consolidated.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert [header.name for header in read_headers(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("file", "data", "said"),
    [
        ("model.safetensors", b"", "cannot be read as safetensors"),
        ("model.safetensors", struct.pack("<Q", 2**40), "a header of 1099511627776 bytes"),
        ("model.safetensors", struct.pack("<Q", 3) + b"{x}", "cannot be read as safetensors"),
        ("model.safetensors", struct.pack("<Q", 35) + b'{"a":{"dtype":"F3","shape":[1,2,3]}}'[:35], "cannot be read"),
        ("model.safetensors", struct.pack("<Q", 36) + b'{"a":{"dtype":"F3","shape":[1,2,3]}}', "'F3' is no dtype"),
        (INDEX, b"[]", "is no index"),
        (INDEX, b'{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors: .*not there: complete"),
        (INDEX, b'{"weight_map": {"a": "../../etc/passwd"}}', "passwd: cannot be read"),
        ("readme.txt", b"hello", "holds no safetensors file"),
    ],
)  # fmt: skip
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, file: str, data: bytes, said: str) -> None:
    """With the file and what is wrong with it; a name in the index never leads out of the folder."""
    (tmp_path / file).write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        read_headers(tmp_path)
    assert str(tmp_path) in str(caught.value)
