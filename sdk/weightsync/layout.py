"""One engine rank's parameters as bytes of an arena, and the first difference of two such tables. Pure."""

import hashlib
from functools import cached_property
from typing import Annotated

from pydantic import Field, model_validator

from weightsync.bounds import DIMENSIONS, MANY, Offset, Size
from weightsync.records import Record

ALIGNMENT = 256  # bytes: every parameter starts on it, as CUDA allocations do

# Bytes of one element, by torch's name of the dtype without "torch.".
ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip


class Parameter(Record):
    """One named parameter: ``nbytes`` contiguous bytes at ``offset`` of the arena's payload."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    dtype: str
    shape: Annotated[tuple[Offset, ...], Field(max_length=DIMENSIONS)]
    offset: Offset
    nbytes: Offset

    def describe(self) -> str:
        """For messages: ``model.norm.weight float32 (64,)``."""
        return f"{self.name} {self.dtype} {self.shape}"


class Layout(Record):
    """All parameters of one engine rank, by rising offset, none overlapping; ``nbytes`` is the payload's size."""

    parameters: Annotated[tuple[Parameter, ...], MANY]
    nbytes: Size

    @model_validator(mode="after")
    def _consistent(self) -> "Layout":
        end, names = 0, set[str]()
        for p in self.parameters:
            if p.dtype not in ITEMSIZE:
                raise ValueError(f"parameter {p.name}: dtype {p.dtype!r} is not known")
            numel = 1
            for extent in p.shape:
                numel *= extent
            if p.nbytes != numel * ITEMSIZE[p.dtype]:
                raise ValueError(f"parameter {p.name}: {p.nbytes} bytes do not fit {p.dtype} {p.shape}")
            if p.offset < end:
                raise ValueError(f"parameter {p.name}: offset {p.offset} lies before {end}, the end of the last")
            if p.offset % ITEMSIZE[p.dtype]:
                raise ValueError(f"parameter {p.name}: offset {p.offset} is not aligned to its dtype")
            if p.name in names:
                raise ValueError(f"parameter {p.name} appears twice")
            names.add(p.name)
            end = p.offset + p.nbytes
        if end > self.nbytes:
            raise ValueError(f"parameters end at {end}, past the layout's {self.nbytes} bytes")
        return self

    @cached_property
    def digest(self) -> str:
        """16 bytes of blake2b over the canonical table, in hex: the layout's identity."""
        return hashlib.blake2b(self.canonical(), digest_size=16).hexdigest()


def lay_out(table: list[tuple[str, str, tuple[int, ...]]]) -> Layout:
    """Place (name, dtype, shape) rows one after the other, in the order given, each on ALIGNMENT."""
    parameters, offset = [], 0
    for name, dtype, shape in table:
        nbytes = ITEMSIZE[dtype]
        for extent in shape:
            nbytes *= extent
        parameters.append(Parameter(name=name, dtype=dtype, shape=shape, offset=offset, nbytes=nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return Layout(parameters=tuple(parameters), nbytes=max(offset, 1))


def first_difference(ours: Layout, theirs: Layout) -> str | None:
    """A sentence about the first row in which two layouts differ, None where they are equal."""
    for mine, other in zip(ours.parameters, theirs.parameters, strict=False):
        if mine != other:
            return f"{mine.describe()} at {mine.offset} here, {other.describe()} at {other.offset} there"
    a, b = len(ours.parameters), len(theirs.parameters)
    if a != b:
        extra = (ours if a > b else theirs).parameters[min(a, b)]
        side = "here" if a > b else "there"
        return f"{a} parameters here, {b} there; {extra.describe()} is only {side}"
    if ours.nbytes != theirs.nbytes:
        return f"{ours.nbytes} bytes here, {theirs.nbytes} there"
    return None
