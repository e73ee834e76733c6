"""Models of fused, sliced, turned and cast parameters at random, their programs, and the bytes that torch makes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from hypothesis import strategies as st

from weightsync.buckets import Bucket, cut, merge
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.digests import digest_bytes
from weightsync.layout import ITEMSIZE, lay_out

WIDE = ["float64", "float32", "float16", "bfloat16"]


@dataclass
class Part:
    """A checkpoint tensor, the region of it that a parameter takes, and how it is turned and cut into pieces."""

    name: str
    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]
    turned: tuple[int, ...]  # dimension of the tensor for each dimension of the parameter
    cuts: int  # pieces along the tensor's first dimension
    checkpoint: str
    given: str


@dataclass
class Fused:
    """A parameter made of parts that are laid one after the other along ``axis``."""

    name: str
    dtype: str
    axis: int
    parts: list[Part]

    @property
    def shape(self) -> tuple[int, ...]:
        extents = [[p.box[d][1] - p.box[d][0] for d in p.turned] for p in self.parts]
        along = sum(e[self.axis] for e in extents)
        return tuple(along if d == self.axis else extents[0][d] for d in range(len(extents[0])))


@st.composite
def fused(draw: st.DrawFn, name: str) -> Fused:
    """A parameter of one to three dimensions out of one to three tensors."""
    rank = draw(st.integers(1, 3))
    axis = draw(st.integers(0, rank - 1))
    dtype = draw(st.sampled_from([*WIDE, "int64", "uint8", "float8_e4m3fn"]))
    common = [draw(st.integers(1, 5)) for _ in range(rank)]
    parts = []
    for i in range(draw(st.integers(1, 3))):
        turned = tuple(draw(st.permutations(range(rank))))
        extent = {turned[d]: draw(st.integers(1, 5)) if d == axis else common[d] for d in range(rank)}
        before = [draw(st.integers(0, 2)) for _ in range(rank)]
        after = [draw(st.integers(0, 2)) for _ in range(rank)]
        box = tuple((before[d], before[d] + extent[d]) for d in range(rank))
        shape = tuple(stop + after[d] for d, (_, stop) in enumerate(box))
        checkpoint, given_as = (
            (draw(st.sampled_from(WIDE)), draw(st.sampled_from(WIDE))) if dtype in WIDE else (dtype, dtype)
        )
        parts.append(Part(f"{name}.{i}", shape, box, turned, draw(st.integers(1, 3)), checkpoint, given_as))
    return Fused(name, dtype, axis, parts)


@st.composite
def models(draw: st.DrawFn) -> list[Fused]:
    """One to four parameters."""
    return [draw(fused(f"p{i}")) for i in range(draw(st.integers(1, 4)))]


def program_of(model: list[Fused]) -> CopyProgram:
    """The model's copy program, by the arithmetic of strides."""
    layout = lay_out([(p.name, p.dtype, p.shape) for p in model])
    tensors = []
    for place, parameter in zip(layout.parameters, model, strict=True):
        size = ITEMSIZE[parameter.dtype]
        steps = [size * math.prod(place.shape[d + 1 :]) for d in range(len(place.shape))]
        offset = place.offset
        for part in parameter.parts:
            strides = tuple(steps[part.turned.index(d)] for d in range(len(part.shape)))
            start, stop = part.box[0]
            edges = sorted({start + (stop - start) * i // part.cuts for i in range(part.cuts + 1)})
            pieces = tuple(
                Piece(
                    box=((a, b), *part.box[1:]),
                    offset=offset + (a - start) * strides[0],
                    strides=strides,
                    dtype=parameter.dtype,
                )
                for a, b in pairwise(edges)
            )
            tensors.append(TensorCopies(name=part.name, dtype=part.checkpoint, shape=part.shape, pieces=pieces))
            along = part.turned[parameter.axis]
            offset += (part.box[along][1] - part.box[along][0]) * steps[parameter.axis]
    return CopyProgram(layout=layout, tensors=tuple(tensors))


def small_buckets(program: CopyProgram, owned: frozenset[str], size: int) -> list[Bucket]:
    """Buckets far smaller than real ones, with none in the padding between parameters."""
    pieces = [piece for tensor in program.tensors if tensor.name in owned for piece in tensor.pieces]
    return cut(merge((piece.span for piece in pieces), gap=1), size)


def random_tensor(part: Part, device: str, *, scrambled: bool) -> torch.Tensor:
    """No element is zero, so that a byte that was not copied shows; scrambled: not contiguous."""
    shape = part.shape[::-1] if scrambled else part.shape
    tensor = torch.randint(1, 100, shape).to(torch.float32).to(getattr(torch, part.given)).to(device)
    return tensor.permute(*reversed(range(tensor.dim()))) if scrambled else tensor


def expected_payload(model: list[Fused], program: CopyProgram, tensors: dict[str, torch.Tensor]) -> bytes:
    """What an engine would load, by torch's own slicing, concatenating and casting."""
    payload = bytearray(program.layout.nbytes)
    for place, parameter in zip(program.layout.parameters, model, strict=True):
        dtype = getattr(torch, parameter.dtype)
        parts = []
        for part in parameter.parts:
            region = tensors[part.name].cpu()[tuple(slice(*span) for span in part.box)]
            parts.append(region.to(dtype).permute(*part.turned))
        whole = torch.cat(parts, dim=parameter.axis).reshape(-1).clone().view(torch.uint8)
        payload[place.offset : place.offset + place.nbytes] = whole.numpy().tobytes()
    return bytes(payload)


class Watch:
    """Checks at each report that those buckets already hold their last byte, and that a digest is of those bytes."""

    def __init__(self, arena: bytearray, expected: bytes, buckets: Sequence[Bucket]) -> None:
        self.arena, self.expected = arena, expected
        self.buckets = {bucket.offset: bucket for bucket in buckets}
        self.reported: list[int] = []
        self.digested = 0

    def __call__(self, full: list[tuple[int, str]]) -> None:
        for offset, digest in full:
            end = offset + self.buckets[offset].nbytes
            assert self.arena[offset:end] == self.expected[offset:end], f"bucket {offset} was reported too early"
            assert digest in ("", digest_bytes(self.expected[offset:end])), f"bucket {offset} has a wrong digest"
            self.digested += bool(digest)
        self.reported += [offset for offset, _ in full]
