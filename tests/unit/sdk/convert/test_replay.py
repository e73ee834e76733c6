"""A replay puts every byte where slicing in torch would, and says exactly which buckets are full."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build.lanes import FakeLane
from weightsync.buckets import Bucket, cut, merge
from weightsync.convert.lanes import OpenLane
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.convert.replay import Replayer
from weightsync.digests import digest_bytes
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE, lay_out
from weightsync.testing import plain_program

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
LANES: dict[str, OpenLane | None] = {
    "at once": None, "queued, seen to run": lambda device: FakeLane(eager=True), "queued until waited for":
    lambda device: FakeLane(),
}  # fmt: skip
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lane", LANES)
@given(
    model=models(), cuts=st.tuples(st.sampled_from([8, 24, 64, 256, 4096]), st.booleans()), order=st.randoms()
)  # fmt: skip
@settings(max_examples=60)
def test_a_replay_equals_slicing(
    device: str, lane: str, model: list[Fused], cuts: tuple[int, bool], order: object
) -> None:
    """Any slices, turns, fusions, casts and orders: torch's bytes; each bucket once, after its last byte.

    At once as well as queued on a lane, whose copies end at any later time.
    """
    size, scrambled = cuts
    program = program_of(model)
    parts = [part for parameter in model for part in parameter.parts]
    owned = [part.name for part in parts]
    buckets = small_buckets(program, frozenset(owned), size)
    arena = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(arena), owned, buckets, LANES[lane])
    for _ in range(2):
        arena[:] = bytes(len(arena))
        replayer.begin()
        order.shuffle(parts)  # type: ignore[attr-defined]
        tensors = {part.name: random_tensor(part, device, scrambled=scrambled) for part in parts}
        watch = Watch(arena, expected_payload(model, program, tensors), buckets)
        for name, tensor in tensors.items():
            replayer.feed(name, tensor, watch)
        replayer.finish()
        assert arena == watch.expected
        assert sorted(watch.reported) == [bucket.offset for bucket in buckets]
        assert replayer.copied == replayer.nbytes


@given(model=models(), size=st.sampled_from([24, 256]), data=st.data())
@settings(max_examples=60)
def test_a_stage_fills_only_what_it_owns(model: list[Fused], size: int, data: st.DataObject) -> None:
    """Tensors of other stages are taken but not copied, and the stage's buckets are full without them."""
    program = program_of(model)
    parts = [part for parameter in model for part in parameter.parts]
    owned = frozenset(data.draw(st.sets(st.sampled_from([part.name for part in parts]), min_size=1)))
    buckets = small_buckets(program, owned, size)
    tensors = {part.name: random_tensor(part, "cpu", scrambled=False) for part in parts}
    expected = expected_payload(model, program, tensors)
    arena = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(arena), owned, buckets)
    filled: list[tuple[int, str]] = []
    for name, tensor in tensors.items():
        replayer.feed(name, tensor, filled.extend)
    replayer.finish()
    assert sorted(offset for offset, _ in filled) == [bucket.offset for bucket in buckets]
    written = bytearray(len(arena))
    for name in owned:
        for start, stop in replayer.extents(name):
            written[start:stop] = b"\1" * (stop - start)
    untouched = [i for i, mark in enumerate(written) if not mark]
    assert all(arena[i] == 0 for i in untouched)
    alone = Replayer(program, memoryview(whole := bytearray(len(arena))))
    for name, tensor in tensors.items():
        alone.feed(name, tensor)
    assert whole == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", sorted(ITEMSIZE))
def test_every_dtype_is_copied_bit_by_bit(dtype: str, device: str) -> None:
    """NaN payloads, negative zeros and 8-bit floats included; contiguous or not."""
    size = ITEMSIZE[dtype]
    bits = torch.randint(0, 2 if dtype == "bool" else 256, (6, 4 * size), dtype=torch.uint8).to(device)
    tensor = bits.view(getattr(torch, dtype))
    program = plain_program({"w": (dtype, (6, 4)), "t": (dtype, (4, 6))})
    arena = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(arena))
    replayer.feed("w", tensor)
    replayer.feed("t", tensor.t())
    w, t = program.layout.parameters
    assert arena[w.offset : w.offset + w.nbytes] == bits.cpu().numpy().tobytes()
    assert arena[t.offset : t.offset + t.nbytes] == (
        tensor.t().contiguous().view(torch.uint8).cpu().numpy().tobytes()
    )


def test_a_large_tensor_fills_its_buckets_while_it_is_copied() -> None:
    """Buckets inside one tensor are reported one by one, in order, before feed() returns."""
    program = plain_program({"w": ("float32", (64, 16))})
    buckets = cut([(0, program.layout.nbytes)], 512)
    batches: list[list[tuple[int, str]]] = []
    replayer = Replayer(program, memoryview(bytearray(program.layout.nbytes)), ["w"], buckets)
    replayer.feed("w", torch.ones(64, 16), batches.append)
    assert [[offset for offset, _ in batch] for batch in batches] == [[b.offset] for b in buckets]


def test_buckets_that_fill_in_order_are_digested_on_the_way() -> None:
    """Contiguous tensors in the arena's order, padding between them: no bucket has to be read again."""
    program = plain_program({"a": ("float32", (50,)), "b": ("float32", (100, 3)), "c": ("uint8", (7,))})
    buckets = cut([(0, program.layout.nbytes)], 512)
    arena = bytearray(program.layout.nbytes)
    found: list[tuple[int, str]] = []
    replayer = Replayer(program, memoryview(arena), ["a", "b", "c"], buckets)
    for name, tensor in (
        ("a", torch.rand(50)), ("b", torch.rand(100, 3)), ("c", torch.arange(7, dtype=torch.uint8)),
    ):  # fmt: skip
        replayer.feed(name, tensor, found.extend)
    assert found == [(b.offset, digest_bytes(bytes(arena[b.offset : b.offset + b.nbytes]))) for b in buckets]


def test_a_bucket_whose_bytes_come_out_of_order_is_left_to_the_agent() -> None:
    """A digest of a prefix that was still to change would be wrong for ever: there is none."""
    program = plain_program({"a": ("float32", (8,)), "b": ("float32", (8,))})
    found: list[tuple[int, str]] = []
    replayer = Replayer(
        program, memoryview(bytearray(program.layout.nbytes)), ["a", "b"], cut([(0, program.layout.nbytes)], 4096)
    )
    replayer.feed("b", torch.ones(8), found.extend)
    replayer.feed("a", torch.ones(8), found.extend)
    assert found == [(0, "")]


def test_parameters_that_want_gradients_are_copied_outside_autograd() -> None:
    """A state dict of parameters is as good as one of tensors, casts included."""
    program = plain_program({"w": ("bfloat16", (3,))})
    arena = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(arena))
    replayer.feed("w", torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])))
    assert torch.frombuffer(arena, dtype=torch.bfloat16)[:3].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("first", [True, False], ids=["made inside", "made outside"])
def test_inference_mode_is_no_matter(first: bool) -> None:
    """A replayer made in inference mode is fed outside it, and the other way round, in either kind of tensor."""
    program = plain_program({"w": ("bfloat16", (3,)), "v": ("float32", (3,))})
    arena = bytearray(program.layout.nbytes)
    with torch.inference_mode(first):
        replayer = Replayer(program, memoryview(arena))
        tensor = torch.tensor([1.0, 2.0, 3.0])
    with torch.inference_mode(not first):
        replayer.feed("w", tensor)
        replayer.feed("v", torch.tensor([1.0, 2.0, 3.0]))
    assert torch.frombuffer(arena, dtype=torch.bfloat16)[:3].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("threads", [1, 8])
def test_large_tensors_are_copied_alike_in_one_thread_and_in_many(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the two ways is faster depends on the threads; the bytes do not."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    program = plain_program({"w": ("float32", (600, 1000))})
    arena = bytearray(program.layout.nbytes)
    tensor = torch.rand(600, 1000)
    Replayer(program, memoryview(arena)).feed("w", tensor)
    assert arena[: tensor.nbytes] == tensor.numpy().tobytes()


def test_a_negated_view_is_copied_with_its_sign() -> None:
    """The imaginary part of a conjugate holds the bytes of the opposite number."""
    program = plain_program({"w": ("float32", (1,))})
    arena = bytearray(program.layout.nbytes)
    Replayer(program, memoryview(arena)).feed("w", torch.tensor([1 + 2j]).conj().imag)
    assert torch.frombuffer(arena, dtype=torch.float32)[0].item() == -2.0


PROGRAM = plain_program({"model.norm.weight": ("bfloat16", (4,)), "model.ids": ("int64", (2, 2))})
NORM = torch.ones(4)


class Wrapped(torch.Tensor):
    """A subclass, as a DTensor is one."""

    def full_tensor(self) -> torch.Tensor:
        """What a DTensor offers."""
        return self


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        pytest.param("model.norm.wieght", NORM, "did you mean model.norm.weight", id="a misspelt name"),
        pytest.param("zzz", NORM, "checkpoint's names", id="a name like no other"),
        pytest.param("model.norm.weight", torch.ones(5), r"\(5,\).*\(4,\)", id="another shape names both shapes"),
        pytest.param("model.norm.weight", [1, 2, 3, 4], "is a list", id="no tensor"),
        pytest.param("model.norm.weight", torch.ones(4, dtype=torch.int32), "int32", id="integers for floats"),
        pytest.param("model.ids", torch.ones(2, 2), "float32", id="floats for integers"),
        pytest.param(
            "model.norm.weight", torch.ones(4).to(torch.float8_e4m3fn), "float8", id="8-bit floats without scales"
        ),
        pytest.param("model.norm.weight", torch.ones(4, device="meta"), "meta", id="a tensor without data"),
        pytest.param("model.norm.weight", torch.ones(4).to_sparse(), "sparse", id="a sparse tensor"),
        pytest.param(
            "model.norm.weight", torch.ones(4).as_subclass(Wrapped), "full_tensor", id="a sharded tensor"
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_a_byte_is_copied(name: str, tensor: object, words: str) -> None:
    """InputError names the tensor and what to do; the arena is as it was, and the right tensor may still come."""
    arena = bytearray(PROGRAM.layout.nbytes)
    replayer = Replayer(PROGRAM, memoryview(arena))
    with pytest.raises(InputError, match=words) as caught:
        replayer.feed(name, tensor)  # type: ignore[arg-type]
    assert name in str(caught.value)
    assert not any(arena)
    replayer.feed("model.norm.weight", NORM)


def test_a_tensor_given_twice_is_refused() -> None:
    """Otherwise a bucket would change after it was reported."""
    replayer = Replayer(PROGRAM, memoryview(bytearray(PROGRAM.layout.nbytes)))
    replayer.feed("model.norm.weight", NORM)
    with pytest.raises(InputError, match=r"model\.norm\.weight was given twice"):
        replayer.feed("model.norm.weight", NORM)


def test_missing_tensors_are_named() -> None:
    """The first three, and how many more; only those that are owned."""
    program = plain_program({f"layer.{i}": ("float32", (2,)) for i in range(6)})
    replayer = Replayer(program, memoryview(bytearray(program.layout.nbytes)))
    replayer.feed("layer.0", torch.ones(2))
    with pytest.raises(InputError, match=r"5 of 6 .*layer\.1, layer\.2, layer\.3 and 2 more"):
        replayer.finish()
    replayer.finish(owned=["layer.0"])


@pytest.mark.parametrize(
    ("owned", "buckets", "nbytes", "words"),
    [
        pytest.param(None, (), 100, "100 bytes", id="an arena of another size"),
        pytest.param(["other"], (), 512, "other is not in", id="an owned name that the program does not know"),
        pytest.param(None, [Bucket(offset=8, nbytes=8)], 512, "no owned tensor fills", id="a bucket of padding only"),
        pytest.param(
            None, [Bucket(offset=0, nbytes=9), Bucket(offset=8, nbytes=8)], 512, "overlap", id="overlapping buckets"
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_accounted_for_is_refused_at_once(
    owned: list[str] | None, buckets: list[Bucket], nbytes: int, words: str
) -> None:
    """A bucket that would never be full must not be found by a timeout."""
    with pytest.raises(InputError, match=words):
        Replayer(PROGRAM, memoryview(bytearray(nbytes)), owned, buckets)


def test_a_closed_replayer_holds_no_view() -> None:
    """close() lets go of the payload, so that the arena may be unmapped."""
    arena = bytearray(PROGRAM.layout.nbytes)
    replayer = Replayer(PROGRAM, memoryview(arena))
    replayer.close()
    with pytest.raises(InputError, match="not in the copy program"):
        replayer.feed("model.norm.weight", NORM)
