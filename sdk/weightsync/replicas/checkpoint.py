"""Names, dtypes and shapes of a checkpoint's tensors, read from the headers of its files. No tensor is read."""

import json
import re
import struct
from pathlib import Path

from weightsync.convert.header import Header
from weightsync.errors import InputError

INDEX = "model.safetensors.index.json"
LARGEST_HEADER = 100_000_000  # what the format allows
LARGEST_INDEX = 256 * 2**20

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "U16": "uint16", "U32": "uint32", "U64": "uint64",
}  # fmt: skip


def read_headers(folder: Path) -> list[Header]:
    """All tensors of a checkpoint, numbers in names sorted as numbers. Raises InputError that names the file."""
    headers: dict[str, Header] = {}
    for path, wanted in _files(folder).items():
        for header in _read(path):
            if wanted is None or header.name in wanted:
                headers[header.name] = header
    if not headers:
        raise InputError(f"{folder}: holds no safetensors file with a tensor in it")
    return sorted(headers.values(), key=lambda header: natural(header.name))


def natural(name: str) -> list[tuple[int, str]]:
    """For sorting: layers.2 before layers.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """Files, and which of their tensors are the checkpoint's: all, where there is no index."""
    index = folder / INDEX
    if not index.exists():
        return dict.fromkeys(sorted(folder.glob("*.safetensors")))
    try:
        if index.stat().st_size > LARGEST_INDEX:
            raise InputError(f"{index}: more than {LARGEST_INDEX} bytes")
        table = json.loads(index.read_bytes())["weight_map"]
        files: dict[Path, set[str] | None] = {}
        for name, file in table.items():
            names = files.setdefault(folder / Path(file).name, set())
            if names is not None:
                names.add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index}: is no index of a checkpoint: {type(error).__name__}: {error}") from error
    return files


def _read(path: Path) -> list[Header]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > LARGEST_HEADER:
                raise ValueError(f"a header of {size} bytes")
            table = json.loads(file.read(size))
        table.pop("__metadata__", None)
        return [
            Header(name, DTYPES[row["dtype"]], tuple(int(extent) for extent in row["shape"]))
            for name, row in table.items()
        ]
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: cannot be read: {INDEX} names it, and it is not there: complete the checkpoint's download"
        ) from error
    except KeyError as error:
        raise InputError(f"{path}: {error} is no dtype or field that is known") from error
    except (OSError, ValueError, struct.error, TypeError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
