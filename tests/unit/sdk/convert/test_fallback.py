"""What is no copy is loaded, a whole group in one call, into the arena's own bytes; or refused before a byte."""

import logging
from collections.abc import Iterable

import pytest
import torch

from weightsync.buckets import Bucket
from weightsync.convert import fallback as module
from weightsync.convert.fallback import Fallback
from weightsync.convert.program import ByLoading, CopyProgram, Piece, TensorCopies
from weightsync.convert.replay import Replayer
from weightsync.errors import InputError
from weightsync.layout import Layout, lay_out
from weightsync.replicas.engine import EngineSpec, Rebuild
from weightsync.replicas.rebuild import rebuilt

LAYOUT = lay_out(
    [("norm", "float32", (4,)), ("w", "float32", (2, 4)), ("scale", "float32", ()), ("v", "float32", (3,))]
)
NORM = TensorCopies("norm", "float32", (4,), (Piece(((0, 4),), 0, (4,), "float32"),))
GROUPS = (
    ByLoading(tensors=("w.q", "w.scale"), parameters=("w", "scale"), reason="aten.mul"),
    ByLoading(tensors=("v.raw",), parameters=("v",), reason="aten.exp"),
)
PROGRAM = CopyProgram(
    rank=3,
    layout=LAYOUT,
    tensors=[
        NORM, TensorCopies("w.scale", "float32", (), ()), TensorCopies("w.q", "bfloat16", (2, 4), ()),
        TensorCopies("v.raw", "float32", (3,), ()),
    ],
    by_loading=GROUPS,
    engine="{}",
)  # fmt: skip
ALL = frozenset({"norm", "w.q", "w.scale", "v.raw"})
Q = torch.arange(8, dtype=torch.bfloat16).reshape(2, 4)


class Model:
    """A model whose load_weights computes: w = w.q * w.scale, v = exp(v.raw). Calls are remembered."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.bound: dict[str, torch.Tensor] = {}

    def bind(self, layout: Layout, view: memoryview, only: frozenset[str] | None = None) -> None:
        whole = torch.frombuffer(view, dtype=torch.uint8)
        self.bound = {
            p.name: whole[p.offset : p.offset + p.nbytes].view(torch.float32).reshape(p.shape)
            for p in layout.parameters
            if only is None or p.name in only
        }

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        given = dict(tensors)
        self.calls.append(list(given))
        if "w.q" in given:
            self.bound["w"].copy_(given["w.q"] * given["w.scale"])
            self.bound["scale"].copy_(given["w.scale"])
        if "v.raw" in given:
            self.bound["v"].copy_(given["v.raw"].exp())

    def release(self) -> None:
        self.bound.clear()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def arena() -> bytearray:
    return bytearray(LAYOUT.nbytes)


def opened(model: Model, arena: bytearray, owned: frozenset[str] = ALL) -> Fallback:
    return Fallback(PROGRAM, memoryview(arena), owned, lambda _: model)


def floats(arena: bytearray, name: str) -> list[float]:
    place = next(p for p in LAYOUT.parameters if p.name == name)
    return torch.frombuffer(arena[place.offset : place.offset + place.nbytes], dtype=torch.float32).tolist()


def test_a_group_is_loaded_when_its_last_tensor_came(model: Model, arena: bytearray) -> None:
    """In one call, in the program's order, without any other tensor; again and again."""
    loader = opened(model, arena)
    for scale in (2.0, 3.0):
        loader.begin()
        assert loader.feed("w.q", Q) is None
        assert loader.feed("v.raw", torch.zeros(3)) == GROUPS[1]
        assert loader.feed("w.scale", torch.tensor(scale)) == GROUPS[0]
        assert floats(arena, "w") == (Q.float() * scale).flatten().tolist()
        assert (floats(arena, "scale"), floats(arena, "v")) == ([scale], [1.0] * 3)
    assert model.calls == [["v.raw"], ["w.scale", "w.q"]] * 2
    loader.close()
    assert not model.bound


def test_a_kept_tensor_may_change_after_it_was_given(model: Model, arena: bytearray) -> None:
    """The trainer goes on as soon as feed() returns."""
    loader, given = opened(model, arena), Q.clone()
    loader.feed("w.q", given)
    given.zero_()
    loader.feed("w.scale", torch.tensor(1.0))
    assert floats(arena, "w") == Q.flatten().tolist()


def test_what_another_publish_left_is_forgotten(model: Model, arena: bytearray) -> None:
    """A publish that failed half way through a group does not lend its tensors to the next."""
    loader = opened(model, arena)
    loader.feed("w.q", Q)
    loader.begin()
    assert loader.feed("w.scale", torch.tensor(1.0)) is None
    assert model.calls == []


def test_it_is_said_once_and_by_name(
    model: Model, arena: bytearray, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a replayer is made for each arena."""
    monkeypatch.setattr(module, "_told", set[str]())
    with caplog.at_level(logging.WARNING):
        notes = {opened(model, arena).note for _ in range(2)}
    said = (
        "3 parameters of rank 3 are no copy of the checkpoint and are filled by SGLang's load_weights, which is "
        "slower: w, scale, v (aten.exp, aten.mul)"
    )
    assert notes == {said}
    assert [record.getMessage() for record in caplog.records] == [said]


def test_another_stages_groups_need_no_replica(arena: bytearray) -> None:
    """Neither is it built where nothing is to be loaded, nor is anything said."""

    def never(program: CopyProgram) -> Model:
        raise AssertionError("a replica was built")

    loader = Fallback(PROGRAM, memoryview(arena), frozenset({"norm"}), never)
    assert (loader.groups, loader.note, "w.q" in loader) == ((), "", False)
    loader.close()


def test_a_trainer_without_sglang_refuses_by_name(arena: bytearray) -> None:
    """Before anything is copied: which parameters, why, and what to do."""

    def cannot(program: CopyProgram) -> Model:
        raise InputError("SGLang cannot be imported here: No module named 'sglang'")

    with pytest.raises(InputError) as caught:
        Fallback(PROGRAM, memoryview(arena), ALL, cannot)
    assert str(caught.value) == (
        "3 parameters of rank 3 are no copy of the checkpoint (aten.exp, aten.mul): w, scale, v. They need SGLang's "
        "load_weights, and SGLang cannot be used in the trainer: SGLang cannot be imported here: No module named "
        "'sglang'. Install the engine's SGLang release in the trainer's image, or serve a checkpoint without such "
        "parameters"
    )


def test_a_group_of_two_stages_is_refused(model: Model, arena: bytearray) -> None:
    """Half of it could never be loaded."""
    with pytest.raises(InputError, match=r"w\.q, w\.scale must be published by the same stage"):
        opened(model, arena, frozenset({"w.q"}))


def test_another_dtype_is_cast_or_refused(model: Model, arena: bytearray) -> None:
    """load_weights gets what the checkpoint holds."""
    loader = opened(model, arena)
    loader.feed("w.q", Q.double())
    with pytest.raises(InputError, match=r"w\.scale is int32, the checkpoint float32: yield it as the checkpoint"):
        loader.feed("w.scale", torch.tensor(1, dtype=torch.int32))


def test_no_more_is_kept_than_a_few_groups(model: Model, arena: bytearray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that come far from those that they load with are refused, with the names to bring together."""
    monkeypatch.setattr(module, "LEAST_HELD", 20)
    monkeypatch.setattr(module, "MORE_GROUPS", 1)
    loader = opened(model, arena)
    loader.feed("w.q", Q)
    with pytest.raises(InputError, match=r"1 tensors of 16 bytes wait .* near one another, such as w\.scale, w\.q"):
        loader.feed("v.raw", torch.zeros(3))


def test_a_load_that_fails_is_an_error_of_the_publish(arena: bytearray) -> None:
    """With the engine's own words, and the tensors that it was given."""

    class Broken(Model):
        def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
            raise InputError("load_weights of Qwen9 failed (KeyError: 'w')")

    loader = opened(Broken(), arena)
    with pytest.raises(
        InputError, match=r"^v\.raw cannot be loaded: load_weights of Qwen9 failed \(KeyError: 'w'\)$"
    ):
        loader.feed("v.raw", torch.zeros(3))


def test_only_what_is_loaded_is_bound(model: Model, arena: bytearray) -> None:
    """A load that strays into a copied parameter must not find its bytes."""
    opened(model, arena)
    assert set(model.bound) == {"w", "scale", "v"}


BUCKETS = [
    Bucket(offset=0, nbytes=256),
    Bucket(offset=256, nbytes=16),
    Bucket(offset=272, nbytes=LAYOUT.nbytes - 272),
]


def test_a_replay_fills_copies_and_loads_alike(model: Model, arena: bytearray) -> None:
    """Buckets are told when the last copied tensor or loaded group that touches them is there; none twice."""
    replayer = Replayer(PROGRAM, memoryview(arena), ALL, BUCKETS, load_with=lambda _: model)
    told: list[int] = []
    given = {"w.q": Q, "norm": torch.ones(4), "w.scale": torch.tensor(2.0), "v.raw": torch.zeros(3)}
    assert replayer.extents("w.q") == [(256, 516)]  # padding is closed
    assert replayer.note.startswith("3 parameters of rank 3")
    after: list[list[int]] = []
    for _ in range(2):
        replayer.begin()
        told.clear()
        after = []
        for name, tensor in given.items():
            replayer.feed(name, tensor, lambda full: told.extend(offset for offset, _ in full))
            after.append(list(told))
        replayer.finish()
    assert after == [[], [0], [0, 256], [0, 256, 272]]
    assert replayer.copied == replayer.nbytes == 16 + 32 + 4 + 12
    assert floats(arena, "norm") == [1.0] * 4
    assert floats(arena, "w") == (Q.float() * 2).flatten().tolist()
    replayer.close()
    assert not model.bound


def test_a_group_that_stayed_incomplete_is_missing(model: Model, arena: bytearray) -> None:
    """By the names that were not given; its bucket was never told."""
    replayer = Replayer(PROGRAM, memoryview(arena), ALL, BUCKETS, load_with=lambda _: model)
    told: list[int] = []
    for name, tensor in {"norm": torch.ones(4), "w.q": Q, "v.raw": torch.zeros(3)}.items():
        replayer.feed(name, tensor, lambda full: told.extend(offset for offset, _ in full))
    with pytest.raises(InputError, match=r"1 of 4 tensors were not published: w\.scale"):
        replayer.finish()
    assert told == [0]
    replayer.close()


def test_a_trainer_without_sglang_is_refused_before_a_byte(arena: bytearray) -> None:
    """As the Publisher makes a replayer: this environment has no SGLang."""
    engine = Rebuild(release="0.5.23", spec=EngineSpec(model="/model"), files={"config.json": "{}"})
    program = PROGRAM.model_copy(update={"engine": engine.model_dump_json()})
    with pytest.raises(InputError, match=r"w, scale, v\. They need SGLang's load_weights, and SGLang cannot be used"):
        Replayer(program, memoryview(arena), ALL, BUCKETS, load_with=rebuilt)
    assert not any(arena)
