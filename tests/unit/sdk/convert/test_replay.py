"""A replay puts every byte where slicing in torch would, and says exactly which buckets are full."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build.fused import Fused, Watch, expected_payload, models, program_of, random_tensor, small_buckets
from tests.build.lanes import FakeLane
from weightsync.buckets import Bucket, cut
from weightsync.convert.lanes import OpenLane
from weightsync.convert.replay import Replayer
from weightsync.digests import digest_bytes
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE
from weightsync.testing import plain_program

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
LANES: dict[str, OpenLane | None] = {
    "at once": None, "queued, seen to run": lambda device: FakeLane(eager=True), "queued until waited for":
    lambda device: FakeLane(),
}  # fmt: skip


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


def test_a_negated_view_is_copied_with_its_sign() -> None:
    """The imaginary part of a conjugate holds the bytes of the opposite number."""
    program = plain_program({"w": ("float32", (1,))})
    arena = bytearray(program.layout.nbytes)
    Replayer(program, memoryview(arena)).feed("w", torch.tensor([1 + 2j]).conj().imag)
    assert torch.frombuffer(arena, dtype=torch.float32)[0].item() == -2.0


PROGRAM = plain_program({"model.norm.weight": ("bfloat16", (4,)), "model.ids": ("int64", (2, 2))})
NORM = torch.ones(4)
FREED = torch.ones(4)
FREED.untyped_storage().resize_(0)


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
        pytest.param("model.norm.weight", FREED, "no memory", id="a tensor whose memory was freed"),
        pytest.param("model.norm.weight", torch.ones(4).to_sparse(), "sparse", id="a sparse tensor"),
        pytest.param(
            "model.norm.weight", torch.ones(4).as_subclass(Wrapped), "ranks of its mesh", id="a sharded tensor"
        ),
        pytest.param(
            "model.norm.lora_A.default.weight", NORM, "part of an adapter", id="an adapter beside what it adapts"
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
