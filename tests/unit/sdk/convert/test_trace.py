"""Copies are followed into parameters through every way that loaders take; what is no copy is named."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from weightsync.convert import verify
from weightsync.convert.header import Header
from weightsync.convert.merge import Merged, Row, merge
from weightsync.convert.program import CopyProgram
from weightsync.convert.trace import ValueAsked, dtype_name, trace
from weightsync.errors import InputError
from weightsync.layout import Layout

Given = Iterator[tuple[str, torch.Tensor]]
Loader = Callable[["Model", Given], object]


class Model:
    """Parameters, and a load_weights that a test writes."""

    def __init__(self, loader: Loader, table: dict[str, tuple[tuple[int, ...], torch.dtype]], device: str) -> None:
        self.loader = loader
        self.parameters = {
            name: torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
            for name, (shape, dtype) in table.items()
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.parameters[name].data

    def load_weights(self, given: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.loader(self, iter(given))


def made(loader: Loader, table: dict[str, Any], headers: list[Header]) -> tuple[Merged, list[frozenset[str]]]:
    """Trace and merge, on the meta device."""
    model = Model(loader, table, "meta")
    traced = trace(model.load_weights, model.parameters, {}, headers)
    rows = [Row(name, dtype_name(p.dtype), tuple(p.shape)) for name, p in model.parameters.items()]
    return merge(rows, traced.blocks, headers, traced.joint), traced.joint


def check(loader: Loader, table: dict[str, Any], headers: list[Header]) -> CopyProgram:
    """Trace, merge, and compare with what the loader makes of random tensors."""
    merged, _ = made(loader, table, headers)
    program = CopyProgram(layout=merged.layout, tensors=merged.tensors, together=merged.together)
    model = Model(loader, table, "cpu")

    def bind(layout: Layout, view: memoryview, only: frozenset[str]) -> None:
        payload = torch.frombuffer(view, dtype=torch.uint8)
        for row in layout.parameters:
            parameter = model.parameters[row.name]
            parameter.data = payload[row.offset : row.offset + row.nbytes].view(parameter.dtype).view(row.shape)

    for unit in verify.units(program):
        verify.compare(unit, verify.Loads(bind, model.load_weights, lambda: None))
    return program


F32, BF16 = torch.float32, torch.bfloat16
X = Header("x", "float32", (6, 4))


def whole(model: Model, given: Given) -> None:
    model["p"].copy_(next(given)[1])


def halves_swapped(model: Model, given: Given) -> None:
    x = next(given)[1]
    model["p"].copy_(torch.cat([x[3:], x[:3]]))


def transposed_copy(model: Model, given: Given) -> None:
    model["p"].view(4, 6).copy_(next(given)[1].t().contiguous())


def stacked(model: Model, given: Given) -> None:
    x = next(given)[1]
    model["p"].view(2, 3, 4).copy_(torch.stack([x[:3], x[3:]]))


def every_other_row(model: Model, given: Given) -> None:
    x = next(given)[1]
    model["p"][:3].copy_(x[::2])
    model["p"][3:].copy_(x[1::2])


def interleaved(model: Model, given: Given) -> None:
    x = next(given)[1]
    model["p"][::2].copy_(x[:3])
    model["p"][1::2].copy_(x[3:])


def flattened(model: Model, given: Given) -> None:
    model["p"].view(-1)[2:24].copy_(next(given)[1].reshape(-1)[:22])
    model["p"].view(-1)[:2].fill_(0)


def twice_written(model: Model, given: Given) -> None:
    x = next(given)[1]
    model["p"].copy_(x)
    model["p"][1:3, 1:3].copy_(x[3:5, 2:4])


def through_a_pool(model: Model, given: Given) -> None:
    x = next(given)[1]
    with ThreadPoolExecutor() as pool:
        pool.submit(model["p"].copy_, x).result()


def zeroed_in_part(model: Model, given: Given) -> None:
    model["p"][:4].copy_(next(given)[1][:4])
    model["p"][4:].zero_()


def assigned_by_index(model: Model, given: Given) -> None:
    x = next(given)[1]
    for row in range(6):
        model["p"][row] = x[row]


def padded_with_zeros(model: Model, given: Given) -> None:
    x = next(given)[1][:4]
    model["p"].copy_(torch.cat([x, x.new_zeros(2, 4)]))


@pytest.mark.parametrize(
    "loader",
    [
        whole, halves_swapped, transposed_copy, stacked, every_other_row, interleaved, flattened, twice_written,
        through_a_pool, zeroed_in_part, assigned_by_index, padded_with_zeros,
    ],
)  # fmt: skip
def test_the_program_does_what_the_loader_does(loader: Loader) -> None:
    """Every byte, on random tensors."""
    check(loader, {"p": ((6, 4), F32)}, [X])


def test_a_cast_is_one_copy() -> None:
    """The destination's dtype stands in the piece."""
    program = check(whole, {"p": ((6, 4), BF16)}, [X])
    (piece,) = program.tensors[0].pieces
    assert (piece.dtype, piece.strides) == ("bfloat16", (8, 2))


def test_a_cast_by_way_of_a_wider_dtype_is_one_cast() -> None:
    """bfloat16 to float32 loses nothing, so that the way back is none."""

    def loader(model: Model, given: Given) -> None:
        model["p"].copy_(next(given)[1].float())

    program = check(loader, {"p": ((6, 4), BF16)}, [Header("x", "bfloat16", (6, 4))])
    assert program.tensors[0].pieces[0].dtype == "bfloat16"


def test_a_cast_by_way_of_a_narrower_dtype_is_left_to_loading() -> None:
    """float32 by way of bfloat16 has lost bits that one copy would keep."""

    def loader(model: Model, given: Given) -> None:
        model["p"].copy_(next(given)[1].bfloat16())

    merged, _ = made(loader, {"p": ((6, 4), F32)}, [X])
    (group,) = merged.by_loading
    assert "by way of bfloat16" in group.reason


def test_rows_that_were_copied_one_by_one_are_one_piece() -> None:
    """However many steps the loader took."""
    merged, _ = made(assigned_by_index, {"p": ((6, 4), F32)}, [X])
    assert len(merged.tensors[0].pieces) == 1


def test_tensors_of_one_copy_are_found_to_load_together() -> None:
    """Held back until both are there: named, without a list of names."""

    def loader(model: Model, given: Given) -> None:
        kept = dict(given)
        model["p"].copy_(torch.cat([kept["a"], kept["b"]]))

    headers = [Header("a", "float32", (2, 4)), Header("b", "float32", (4, 4))]
    merged, joint = made(loader, {"p": ((6, 4), F32)}, headers)
    assert merged.together == (("a", "b"),)
    assert joint == [frozenset({"a", "b"})]


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (lambda x: x * 2, "mul.Tensor"),
        (lambda x: x.max(0, keepdim=True)[0].expand(6, 4).clone(), "max.dim"),
        (lambda x: x[torch.arange(5, -1, -1)], "index.Tensor"),
        (lambda x: x.add_(1), "add_.Tensor"),
    ],
    ids=["scaled", "the largest", "chosen by an index", "changed in place"],
)
def test_what_is_computed_names_operation_and_tensor(
    operation: Callable[[torch.Tensor], torch.Tensor], said: str
) -> None:
    """The parameter is left to load_weights, the tensor has no pieces."""

    def loader(model: Model, given: Given) -> None:
        x = dict(given)["x"]
        model["p"].copy_(operation(x))

    merged, _ = made(loader, {"p": ((6, 4), F32)}, [X])
    (group,) = merged.by_loading
    assert group.parameters == ("p",)
    assert group.tensors == ("x",)
    assert f"p is computed by {said}" in group.reason
    assert merged.tensors[0].pieces == ()


def test_a_tensor_that_is_also_copied_pulls_its_other_parameter_along() -> None:
    """A tensor is copied or loaded, never both: what shares one is loaded with it; others are copied."""

    def loader(model: Model, given: Given) -> None:
        kept = dict(given)
        model["computed"].copy_(kept["a"] * 2)
        model["shared"].copy_(kept["a"])
        model["apart"].copy_(kept["b"])

    table = dict.fromkeys(("computed", "shared", "apart"), ((2,), F32))
    merged, _ = made(loader, table, [Header("a", "float32", (2,)), Header("b", "float32", (2,))])
    (group,) = merged.by_loading
    assert set(group.parameters) == {"computed", "shared"}
    assert [tensor.name for tensor in merged.tensors if tensor.pieces] == ["b"]


def test_an_unknown_value_is_no_copy() -> None:
    """Memory that nothing traced has written does not count as the tensor's."""

    def loader(model: Model, given: Given) -> None:
        mixed = torch.empty(6, 4, device=model["p"].device)
        mixed[:3] = next(given)[1][:3]
        model["p"].copy_(mixed)

    merged, _ = made(loader, {"p": ((6, 4), F32)}, [X])
    assert "in no checkpoint tensor" in merged.by_loading[0].reason


def test_a_tensor_that_fills_a_buffer_is_refused() -> None:
    """No engine hands out its buffers by name: their values would stay the old ones."""
    buffer = torch.empty(6, 4, device="meta")
    model = Model(lambda model, given: buffer.copy_(next(given)[1]), {}, "meta")
    with pytest.raises(InputError, match="x is loaded into the buffer b"):
        trace(model.load_weights, {}, {"b": buffer}, [X])


def test_a_parameter_that_is_not_contiguous_is_refused() -> None:
    """Its bytes are no run of an arena."""
    with pytest.raises(InputError, match="p is not contiguous"):
        trace(lambda given: None, {"p": torch.empty(4, 6, device="meta").t()}, {}, [])


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda model, given: list(given), "nothing of the checkpoint into p"),
        (lambda model, given: model["p"][:2].copy_(next(given)[1][:2]), r"only part of p \(8 of 24"),
    ],
    ids=["nothing is written", "a part is written"],
)
def test_what_is_not_covered_is_refused_by_name(loader: Loader, said: str) -> None:
    """The replica would carry zeros into the engine."""
    with pytest.raises(InputError, match=said):
        made(loader, {"p": ((6, 4), F32)}, [X])


def test_a_wrong_program_is_found_by_the_comparison() -> None:
    """The first byte that differs is named, and nothing is written."""
    merged, _ = made(whole, {"p": ((6, 4), F32)}, [X])
    program = CopyProgram(layout=merged.layout, tensors=merged.tensors)
    model = Model(halves_swapped, {"p": ((6, 4), F32)}, "cpu")

    def bind(layout: Layout, view: memoryview, only: frozenset[str]) -> None:
        model.parameters["p"].data = torch.frombuffer(view, dtype=F32)[:24].view(6, 4)

    (unit,) = verify.units(program)
    with pytest.raises(InputError, match="parameter p float32"):
        verify.compare(unit, verify.Loads(bind, model.load_weights, lambda: None))


def _constants(loader: Loader) -> Merged:
    """Of a model with a weight and two constants of the engine's own."""
    table = {"w": ((4,), torch.float32), "k_scale": ((), torch.float32), "v_scale": ((), torch.float32)}
    headers = [Header("w", "float32", (4,)), Header("k_scale", "float32", ())]
    model = Model(loader, table, "meta")
    traced = trace(model.load_weights, model.parameters, {}, headers)
    rows = [Row(name, dtype_name(p.dtype), tuple(p.shape), name != "w") for name, p in model.parameters.items()]
    return merge(rows, traced.blocks, headers, traced.joint)


def test_a_constant_that_nothing_writes_is_left_out() -> None:
    """The checkpoint's own scale has its row; the other is the engine's, and no zero may reach it."""

    def both(model: Model, given: Given) -> None:
        for name, tensor in given:
            model[name].copy_(tensor)

    merged = _constants(both)
    assert [(p.name, p.shape) for p in merged.layout.parameters] == [("w", (4,)), ("k_scale", ())]
    assert {tensor.name: len(tensor.pieces) for tensor in merged.tensors} == {"w": 1, "k_scale": 1}


def test_a_weight_that_nothing_writes_is_refused_beside_a_constant() -> None:
    """Only the constant is left out."""

    def one(model: Model, given: Given) -> None:
        for name, tensor in given:
            if name != "w":
                model[name].copy_(tensor)

    with pytest.raises(InputError, match="nothing of the checkpoint into w: "):
        _constants(one)


SCALAR = [Header("s", "float32", (1,)), Header("w", "float32", (4,))]
SCALARS = {"s": ((), torch.bfloat16), "w": ((4,), torch.float32)}


def test_a_scalar_that_is_filled_with_its_value_is_a_copy() -> None:
    """As SGLang's default loader writes what has one element: by Tensor.item(), cast on the way."""

    def load(model: Model, given: Given) -> None:
        for name, tensor in given:
            if tensor.numel() == 1:
                model[name].fill_(tensor.item())
            else:
                model[name].copy_(tensor)

    program = check(load, SCALARS, SCALAR)
    assert [(tensor.name, len(tensor.pieces)) for tensor in program.tensors] == [("s", 1), ("w", 1)]


def _half(model: Model, tensor: torch.Tensor) -> None:
    model["s"].fill_(tensor.item() / 2)


def _rounded(model: Model, tensor: torch.Tensor) -> None:
    model["s"].fill_(int(tensor.item()))


def _decided(model: Model, tensor: torch.Tensor) -> None:
    if tensor > 0:
        model["s"].copy_(tensor.reshape(()))


def _later(model: Model, tensor: torch.Tensor) -> None:
    value = tensor.item()
    model["w"].zero_()
    model["s"].fill_(value)


def _unused(model: Model, tensor: torch.Tensor) -> None:
    tensor.item()


@pytest.mark.parametrize("use", [_half, _rounded, _decided, _later, _unused])
def test_a_value_that_is_more_than_written_is_refused(use: Callable[[Model, torch.Tensor], None]) -> None:
    """The stand-in decides nothing: no program comes of it, and the tensor is named."""

    def load(model: Model, given: Given) -> None:
        for name, tensor in given:
            if name == "s":
                use(model, tensor)

    with pytest.raises(ValueAsked, match=r"the value of s by Tensor\.item\(\)"):
        made(load, SCALARS, SCALAR[:1])
