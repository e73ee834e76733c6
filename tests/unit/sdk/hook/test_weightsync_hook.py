"""The in-engine hook on CPU: what it refuses before the first byte, what it copies, what it reports."""

import ast
import hashlib
import importlib.util
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from weightsync.arena import CHECKSUM, FIELDS, MAGIC, PAYLOAD, Arena, ArenaState, Header
from weightsync.convert.program import CopyProgram
from weightsync.hook import HOOK_FILE
from weightsync.layout import Layout, lay_out
from weightsync.version import Version

GRANT = "ab" * 16
VERSION = Version(lineage="01" * 8, number=3, root="cd" * 32)


class Small(torch.nn.Module):
    """bfloat16 and float32, a scalar, and an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = torch.nn.Parameter(torch.randn(6, 4, generator=generator).to(torch.bfloat16))
        self.norm = torch.nn.Parameter(torch.randn(5, generator=generator))
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.none = torch.nn.Parameter(torch.empty(0, 4))


class Engine:
    """A volume, a model and the hook, as one rank's process has them."""

    def __init__(self, folder: Path, model: torch.nn.Module) -> None:
        self.folder, self.model = folder, model
        (folder / "hook").mkdir()
        spec = importlib.util.spec_from_file_location("weightsync_hook", HOOK_FILE)
        assert spec is not None
        assert spec.loader is not None
        self.hook: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.hook)
        self.calls = 0
        self.program = folder / "layouts" / "rank-0.json"
        self.program.parent.mkdir()
        self.arena = folder / "arenas" / "0"

    def layout(self) -> Layout:
        """The model's own layout."""
        return lay_out([(n, str(p.dtype)[6:], tuple(p.shape)) for n, p in self.model.named_parameters()])

    def write_program(self, layout: Layout) -> None:
        self.program.write_bytes(CopyProgram(layout=layout, tensors=()).canonical())

    def seal(self, layout: Layout, fill: Callable[[str], int] = len) -> Arena:
        """A sealed arena whose rows are filled with one byte value each."""
        arena = Arena.create(self.arena, layout=layout.digest, program="00" * 16, nbytes=layout.nbytes)
        arena.fill(GRANT)
        for row in layout.parameters:
            arena.view[row.offset : row.offset + row.nbytes] = bytes([fill(row.name)]) * row.nbytes
        arena.seal(GRANT, VERSION)
        return arena

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request through the files, as the engine would be asked."""
        self.calls += 1
        request = {"id": f"call-{self.calls}", "op": op, **fields}
        (self.folder / "hook" / "request-0.json").write_text(json.dumps(request))
        self.hook.load(self.model, [])
        result: dict[str, Any] = json.loads((self.folder / "hook" / "result-0.json").read_text())
        assert result["id"] == request["id"]
        return result

    def request(self, of: Layout, /, **changes: Any) -> dict[str, Any]:
        fields = {
            "arena": str(self.arena), "program": str(self.program), "layout": of.digest,
            "grant": GRANT, "root": VERSION.root,
        }  # fmt: skip
        return {**fields, **changes}

    def parameters(self) -> dict[str, bytes]:
        """Every parameter's bytes."""
        return {
            n: bytes(p.data.contiguous().view(-1).view(torch.uint8).tolist())
            for n, p in self.model.named_parameters(remove_duplicate=False)
        }


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[torch.nn.Module], Engine]:
    """An engine around the given model."""
    monkeypatch.setenv("WEIGHTSYNC_DIR", str(tmp_path))
    return lambda model: Engine(tmp_path, model)


@pytest.fixture
def ready(make: Callable[[torch.nn.Module], Engine]) -> Engine:
    """A Small model with its program and a sealed arena."""
    engine = make(Small())
    engine.write_program(engine.layout())
    engine.seal(engine.layout()).close()
    return engine


def test_the_header_is_the_arenas(make: Callable[[torch.nn.Module], Engine], tmp_path: Path) -> None:
    """The hook's struct, magic, checksum, payload offset and state numbers are those of weightsync.arena."""
    hook = make(Small()).hook
    assert (hook.MAGIC, hook.FIELDS.format, hook.CHECKSUM.format) == (MAGIC, FIELDS.format, CHECKSUM.format)
    assert hook.PAYLOAD == PAYLOAD
    assert {s.value: s.name.capitalize() for s in ArenaState} == hook.STATES
    header = Header(ArenaState.SEALED, 8, "0a" * 16, "0b" * 16, GRANT, VERSION)
    path = tmp_path / "arena"
    path.write_bytes(header.pack().ljust(PAYLOAD, b"\0") + bytes(8))
    assert hook.Mapped(str(path)).header() == (ArenaState.SEALED, 8, "0a" * 16, GRANT, VERSION.root)


def test_the_layouts_digest_is_recomputed_alike(ready: Engine) -> None:
    """The digest that the hook computes from the program file equals Layout.digest, rows and size included."""
    layout = ready.layout()
    digest, nbytes, rows = ready.hook.STATE.layout(str(ready.program))
    assert (digest, nbytes) == (layout.digest, layout.nbytes)
    assert [tuple(row) for row in rows] == [(p.name, p.dtype, p.shape, p.offset, p.nbytes) for p in layout.parameters]


def test_it_needs_nothing_but_torch() -> None:
    """It is copied alone into the engine's container: every import is the standard library's or torch."""
    tree = ast.walk(ast.parse(HOOK_FILE.read_text()))
    found = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    tree = ast.walk(ast.parse(HOOK_FILE.read_text()))
    found |= {node.module or "." for node in tree if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in found} - sys.stdlib_module_names == {"torch"}


def test_describe_tells_the_table_and_the_life(ready: Engine) -> None:
    """Names, dtypes, shapes, bytes in the model's order; pid and start time; no address or offset."""
    result = ready.call("describe")
    assert result["ok"]
    assert result["incarnation"] == ready.hook.incarnation()
    assert result["incarnation"].startswith(f"{os.getpid()}-")
    assert [p["name"] for p in result["parameters"]] == ["embed", "norm", "scale", "none"]
    assert result["parameters"][0] == {
        "name": "embed", "dtype": "bfloat16", "shape": [6, 4], "contiguous": True, "nbytes": 48, "device": "cpu",
        "tied": "", "constant": None,
    }  # fmt: skip


def test_pin_on_a_cpu_only_maps(ready: Engine) -> None:
    """Nothing is pinned without CUDA, and that is no failure."""
    result = ready.call("pin", arena=str(ready.arena), program=str(ready.program))
    assert (result["ok"], result["pinned"], result["nbytes"]) == (True, False, ready.layout().nbytes)


def test_apply_copies_every_row(ready: Engine) -> None:
    """After apply each parameter holds its row's bytes, and readback says so."""
    layout = ready.layout()
    before = {n: p.data_ptr() for n, p in ready.model.named_parameters()}
    result = ready.call("apply", **ready.request(layout))
    assert result["ok"], result
    assert result["nbytes"] == 48 + 20 + 4
    assert ready.parameters() == {n: bytes([len(n)]) * len(b) for n, b in ready.parameters().items()}
    assert {n: p.data_ptr() for n, p in ready.model.named_parameters()} == before
    back = ready.call("readback", **ready.request(layout, digests=True))
    assert (back["equal"], back["difference"]) == (True, "")
    assert back["digests"]["norm"] == hashlib.blake2b(bytes([4]) * 20, digest_size=16).hexdigest()


def test_apply_works_under_inference_mode_and_on_inference_tensors(make: Callable[[Any], Engine]) -> None:
    """Engines build models and run their loop in inference mode; copying in place must work there and outside."""
    with torch.inference_mode():
        engine = make(Small())
    engine.write_program(engine.layout())
    engine.seal(engine.layout()).close()
    assert engine.call("apply", **engine.request(engine.layout()))["ok"]
    with torch.inference_mode():
        assert engine.call("apply", **engine.request(engine.layout()))["ok"]
    assert engine.call("readback", **engine.request(engine.layout()))["equal"]


def test_readback_names_the_first_byte_that_differs(ready: Engine) -> None:
    """One flipped bit in a parameter is found, by name and byte."""
    layout = ready.layout()
    ready.call("apply", **ready.request(layout))
    with torch.no_grad():
        ready.hook.flat(ready.model.norm.data)[7] ^= 1
    back = ready.call("readback", **ready.request(layout))
    assert back["equal"] is False
    assert "norm float32 (5,): byte 7 of 20" in back["difference"]


def test_readback_without_an_arena_gives_digests_only(ready: Engine) -> None:
    """Digests of the parameters asked for, no verdict about an arena."""
    back = ready.call("readback", digests=True, parameters=["scale", "none"])
    assert back["equal"] is None
    wanted = {"scale": ready.parameters()["scale"], "none": b""}
    assert back["digests"] == {n: hashlib.blake2b(b, digest_size=16).hexdigest() for n, b in wanted.items()}


def _filling(engine: Engine, arena: Arena) -> None:
    arena.fill(GRANT)


def _empty(engine: Engine, arena: Arena) -> None:
    arena.empty()


def _torn(engine: Engine, arena: Arena) -> None:
    with engine.arena.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")


def _no_arena(engine: Engine, arena: Arena) -> None:
    with engine.arena.open("r+b") as file:
        file.write(b"SOMETHNG")


def _short(engine: Engine, arena: Arena) -> None:
    os.truncate(engine.arena, PAYLOAD + 8)


def _gone(engine: Engine, arena: Arena) -> None:
    engine.arena.unlink()


def _no_program(engine: Engine, arena: Arena) -> None:
    engine.program.write_text('{"rank": 0}')


@pytest.mark.parametrize(
    ("damage", "reason", "words"),
    [
        pytest.param(_filling, "NotSealed", "is Filling", id="an arena that is being filled"),
        pytest.param(_empty, "NotSealed", "is Empty", id="an empty arena"),
        pytest.param(_torn, "ArenaInvalid", "torn", id="a torn header"),
        pytest.param(_no_arena, "ArenaInvalid", "not an arena", id="another file"),
        pytest.param(_short, "ArenaInvalid", "in a file of", id="a file shorter than its header says"),
        pytest.param(_gone, "ArenaMissing", "no such arena", id="no file"),
        pytest.param(_no_program, "ProgramInvalid", "KeyError", id="a program without a layout"),
    ],
)
def test_a_bad_file_is_refused_before_the_first_byte(
    ready: Engine, damage: Callable[[Engine, Arena], None], reason: str, words: str
) -> None:
    """The reason names it, and no parameter has changed."""
    before = ready.parameters()
    with Arena.open(ready.arena) as arena:
        damage(ready, arena)
        result = ready.call("apply", **ready.request(ready.layout()))
    assert (result["ok"], result["reason"], result["touched"]) == (False, reason, False)
    assert words in result["error"]
    assert ready.parameters() == before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"layout": "ee" * 16}, "LayoutMismatch", id="another layout"),
        pytest.param({"grant": "ee" * 16}, "GrantMismatch", id="another grant"),
        pytest.param({"root": "ee" * 32}, "RootMismatch", id="another root"),
        pytest.param({"root": None}, "RootMismatch", id="no root"),
        pytest.param({"incarnation": "1-1"}, "EngineRestarted", id="an earlier life of the engine"),
    ],
)
def test_what_the_request_does_not_mean_is_refused(ready: Engine, changes: dict[str, Any], reason: str) -> None:
    """The arena must be the one that was asked for, in the process that was meant."""
    before = ready.parameters()
    result = ready.call("apply", **ready.request(ready.layout(), **changes))
    assert (result["ok"], result["reason"], result["touched"]) == (False, reason, False)
    assert ready.parameters() == before


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param(
            [("embed", "bfloat16", (6, 4)), ("norm", "float32", (4,)), ("scale", "float32", ()),
             ("none", "float32", (0, 4))],
            "norm float32 (4,) in the layout, float32 (5,) in the engine", id="another shape",
        ),
        pytest.param(
            [("embed", "float16", (6, 4)), ("norm", "float32", (5,)), ("scale", "float32", ()),
             ("none", "float32", (0, 4))],
            "embed float16 (6, 4) in the layout, bfloat16 (6, 4) in the engine", id="another dtype of the same size",
        ),
        pytest.param(
            [("embed", "bfloat16", (6, 4)), ("norm", "float32", (5,)), ("none", "float32", (0, 4))],
            "scale float32 () of the engine is in no row", id="a parameter that no row fills",
        ),
        pytest.param(
            [("embed", "bfloat16", (6, 4)), ("norm", "float32", (5,)), ("scale", "float32", ()),
             ("none", "float32", (0, 4)), ("extra", "int8", (1,))],
            "extra int8 (1,) is in the layout and no parameter", id="a row without a parameter",
        ),
    ],
)  # fmt: skip
def test_another_layout_is_refused_by_its_first_difference(
    ready: Engine, table: list[tuple[str, str, tuple[int, ...]]], words: str
) -> None:
    """Arena and program agree with each other and not with the model: nothing is written."""
    layout = lay_out(table)
    ready.write_program(layout)
    ready.seal(layout).close()
    before = ready.parameters()
    result = ready.call("apply", **ready.request(layout))
    assert (result["reason"], result["touched"]) == ("LayoutMismatch", False)
    assert words in result["error"]
    assert ready.parameters() == before


def test_a_program_with_the_same_rows_elsewhere_is_refused(ready: Engine) -> None:
    """Names, dtypes and shapes fit the model, but the arena was filled with other offsets."""
    layout = ready.layout()
    ready.write_program(lay_out([(p.name, p.dtype, p.shape) for p in reversed(layout.parameters)]))
    before = ready.parameters()
    result = ready.call("apply", **ready.request(layout))
    assert (result["ok"], result["reason"], result["touched"]) == (False, "LayoutMismatch", False)
    assert ready.parameters() == before


def test_a_parameter_that_is_not_contiguous_is_refused_by_name(make: Callable[[Any], Engine]) -> None:
    """A transposed view has the right shape and the wrong order of bytes."""
    model = torch.nn.Module()
    model.plain = torch.nn.Parameter(torch.zeros(3))
    model.turned = torch.nn.Parameter(torch.zeros(3, 2).t())
    engine = make(model)
    engine.write_program(engine.layout())
    engine.seal(engine.layout()).close()
    assert engine.call("describe")["parameters"][1]["contiguous"] is False
    for op in ("apply", "readback"):
        result = engine.call(op, **engine.request(engine.layout()))
        assert (result["ok"], result["reason"], result["touched"]) == (False, "NotContiguous", False)
        assert "turned" in result["error"]
    assert engine.parameters()["plain"] == bytes(12)


def _same_object() -> torch.nn.Module:
    model = torch.nn.Module()
    model.embed = torch.nn.Linear(3, 2, bias=False)
    model.head = torch.nn.Linear(3, 2, bias=False)
    model.head.weight = model.embed.weight
    return model


def _same_memory() -> torch.nn.Module:
    model = torch.nn.Module()
    model.embed = torch.nn.Linear(3, 2, bias=False)
    model.head = torch.nn.Linear(3, 2, bias=False)
    model.head.weight = torch.nn.Parameter(model.embed.weight.data)
    return model


@pytest.mark.parametrize("build", [_same_object, _same_memory])
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["embed.weight"], id="a row for the first name"),
        pytest.param(["head.weight"], id="a row for the second name"),
        pytest.param(["embed.weight", "head.weight"], id="a row for both"),
    ],
)
def test_tied_parameters_are_filled_once(
    make: Callable[[Any], Engine], build: Callable[[], torch.nn.Module], names: list[str]
) -> None:
    """Either name fills both; two rows copy once, and readback notices where the second says otherwise."""
    engine = make(build())
    assert [p["tied"] for p in engine.call("describe")["parameters"]] == ["", "embed.weight"]
    layout = lay_out([(name, "float32", (2, 3)) for name in names])
    engine.write_program(layout)
    engine.seal(layout, fill=lambda name: 7).close()
    result = engine.call("apply", **engine.request(layout))
    assert (result["ok"], result["nbytes"]) == (True, 24)
    assert engine.parameters() == {"embed.weight": bytes([7]) * 24, "head.weight": bytes([7]) * 24}
    assert engine.call("readback", **engine.request(layout))["equal"]
    if len(names) == 2:
        engine.seal(layout, fill=len).close()
        engine.call("apply", **engine.request(layout))
        assert "head.weight" in engine.call("readback", **engine.request(layout))["difference"]


def test_the_models_own_step_runs_after_the_bytes(make: Callable[[Any], Engine]) -> None:
    """What the model derives from its parameters is derived from the new ones."""

    class Derived(Small):
        doubled = 1.0

        def post_load_weights(self) -> None:
            self.doubled = float(self.scale.detach()) * 2

    model = Derived()
    engine = make(model)
    layout = engine.layout()
    engine.write_program(layout)
    engine.seal(layout, fill=lambda name: 0x40).close()
    assert engine.call("apply", **engine.request(layout))["post_load"] is True
    assert model.doubled == float(model.scale.detach()) * 2 != 1.0


def test_a_wrapped_models_step_runs_where_the_wrapper_has_none(make: Callable[[Any], Engine]) -> None:
    """A vision model around an MLA model derives nothing itself: the inner model's step is its loader's last line."""

    class Language(Small):
        derived = 0

        def post_load_weights(self) -> None:
            self.derived += 1

    model = torch.nn.Module()
    model.vision = Small()
    model.language_model = Language()
    engine = make(model)
    engine.write_program(engine.layout())
    engine.seal(engine.layout()).close()
    result = engine.call("apply", **engine.request(engine.layout()))
    assert (result["ok"], result["post_load"], model.language_model.derived) == (True, True, 1)
    assert 0 <= result["post_load_seconds"] <= result["seconds"]


class _Cached(torch.nn.Module):
    """A layer whose forward reads a buffer in place of its weight."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
        self.register_buffer(name, torch.full((4,), -1.0), persistent=False)


class _Refreshing(_Cached):
    """The same, with a method for it, as newer releases have."""

    def refresh_gemma_weight(self) -> None:
        self.get_buffer("gemma_weight").copy_(self.weight.data).add_(1.0)


@pytest.mark.parametrize(
    ("layer", "name", "more"),
    [
        pytest.param(_Cached("gemma_weight", torch.float32), "gemma_weight", 1.0, id="a norm that keeps weight + 1"),
        pytest.param(_Refreshing("gemma_weight", torch.float32), "gemma_weight", 1.0, id="one with a method for it"),
        pytest.param(_Cached("_weight_fp32", torch.bfloat16), "_weight_fp32", 0.0, id="a gate kept in float32"),
    ],
)
def test_buffers_that_forward_reads_in_place_of_a_weight_are_made_anew(
    make: Callable[[Any], Engine], layer: torch.nn.Module, name: str, more: float
) -> None:
    """Otherwise the engine serves new parameters with old norms; in place, where CUDA graphs read them."""
    model = torch.nn.Module()
    model.norm = layer
    before = layer.get_buffer(name).data_ptr()
    engine = make(model)
    engine.write_program(engine.layout())
    engine.seal(engine.layout(), fill=lambda _: 0x40).close()
    result = engine.call("apply", **engine.request(engine.layout()))
    assert (result["ok"], result["post_load"]) == (True, True)
    assert torch.equal(layer.get_buffer(name), layer.get_parameter("weight").data.float() + more)
    assert layer.get_buffer(name).data_ptr() == before


class _Method:
    """What SGLang hangs on a layer."""

    def __init__(self, *, trtllm: bool = False) -> None:
        self.use_flashinfer_trtllm_moe = trtllm

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Change its parameters."""


class UnquantizedFusedMoEMethod(_Method):
    """Leaves bf16 experts as they are, but for one kind of kernel."""


class Fp8LinearMethod(_Method):
    """Repacks."""


@pytest.mark.parametrize(
    ("method", "words"),
    [
        pytest.param(None, "", id="a layer without a method"),
        pytest.param(UnquantizedFusedMoEMethod(), "", id="plain experts"),
        pytest.param(Fp8LinearMethod(), "experts (Fp8LinearMethod) is repacked", id="a quantised layer"),
        pytest.param(UnquantizedFusedMoEMethod(trtllm=True), "TRT-LLM", id="experts shuffled for their kernel"),
    ],
)
def test_describe_tells_what_is_repacked_after_loading(
    make: Callable[[Any], Engine], method: _Method | None, words: str
) -> None:
    """Also where only the checkpoint says that it is quantised, so that no flag of the server does."""
    model = torch.nn.Module()
    model.experts = Small()
    vars(model.experts)["quant_method"] = method
    found = make(model).call("describe")["repacked"]
    assert words in found
    assert bool(found) == bool(words)


def test_a_step_that_fails_is_reported_as_touched(make: Callable[[Any], Engine]) -> None:
    """The bytes are in, the model is not right: the agent must know that, and the engine must live."""

    class Broken(Small):
        def post_load_weights(self) -> None:
            raise ValueError("kv_b_proj")

    engine = make(Broken())
    engine.write_program(engine.layout())
    engine.seal(engine.layout()).close()
    result = engine.call("apply", **engine.request(engine.layout()))
    assert (result["ok"], result["reason"], result["touched"]) == (False, "HookFailed", True)
    assert "ValueError: kv_b_proj" in result["error"]


def test_an_arena_that_changes_under_the_copy_is_reported(ready: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is compared again after the last byte."""
    real = ready.hook.flat

    def meanwhile(tensor: torch.Tensor) -> torch.Tensor:
        with Arena.open(ready.arena) as arena:
            arena.fill("ee" * 16)
        flattened: torch.Tensor = real(tensor)
        return flattened

    monkeypatch.setattr(ready.hook, "flat", meanwhile)
    result = ready.call("apply", **ready.request(ready.layout()))
    assert (result["ok"], result["reason"], result["touched"]) == (False, "ArenaChanged", True)


def test_a_replaced_arena_is_mapped_anew(ready: Engine) -> None:
    """A new file at the same path is seen, and the old mapping is dropped."""
    layout = ready.layout()
    ready.call("pin", **ready.request(layout))
    old = ready.hook.STATE.mapped[str(ready.arena)]
    ready.seal(layout, fill=lambda name: 9).close()
    assert ready.call("apply", **ready.request(layout))["ok"]
    assert ready.parameters()["norm"] == bytes([9]) * 20
    assert not hasattr(old, "bytes")
    assert list(ready.hook.STATE.mapped) == [str(ready.arena)]


def test_a_program_is_parsed_once_and_again_when_replaced(ready: Engine) -> None:
    """Parsing is outside the pause: pin reads it, apply finds it, a new file is read anew."""
    layout = ready.layout()
    ready.call("pin", **ready.request(layout))
    first = dict(ready.hook.STATE.layouts)
    ready.call("apply", **ready.request(layout))
    assert ready.hook.STATE.layouts == first
    ready.program.write_text(ready.program.read_text() + " \n")
    ready.call("apply", **ready.request(layout))
    assert ready.hook.STATE.layouts.keys() != first.keys()
    assert len(ready.hook.STATE.layouts) == 1


def test_a_request_is_run_once(ready: Engine) -> None:
    """A second call for the same id leaves the first result as it stands, and touches nothing."""
    layout = ready.layout()
    ready.call("apply", **ready.request(layout))
    path = ready.folder / "hook" / "result-0.json"
    first = path.read_text()
    ready.seal(layout, fill=lambda name: 9).close()
    ready.hook.load(ready.model, [])
    assert path.read_text() == first
    assert ready.parameters()["norm"] == bytes([4]) * 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("{", "HookFailed", id="a request that is no JSON"),
        pytest.param('{"id": "x", "op": "dance"}', "HookFailed", id="an unknown operation"),
        pytest.param('{"id": "x", "op": "apply"}', "HookFailed", id="an apply without fields"),
    ],
)
def test_nothing_is_raised_out_of_the_hook(ready: Engine, text: str, reason: str) -> None:
    """An exception would end the engine: it goes into the result file, with the traceback."""
    (ready.folder / "hook" / "request-0.json").write_text(text)
    ready.hook.load(ready.model, [])
    result = json.loads((ready.folder / "hook" / "result-0.json").read_text())
    assert (result["ok"], result["reason"]) == (False, reason)
    assert "Traceback" in result["trace"]


def test_a_rank_that_was_not_asked_says_nothing(ready: Engine) -> None:
    """One call runs the hook in every rank: without a request of its own a rank writes no result."""
    ready.hook.load(ready.model, [])
    assert list((ready.folder / "hook").iterdir()) == []


def test_a_result_that_cannot_be_written_does_not_end_the_engine(
    ready: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent sees that no result came; the engine's log says why."""
    (ready.folder / "hook" / "request-0.json").write_text('{"id": "x", "op": "describe"}')
    (ready.folder / "hook" / f"result-0.{os.getpid()}.new").mkdir()
    ready.hook.load(ready.model, [])
    assert "IsADirectoryError" in capsys.readouterr().err


class Attention(torch.nn.Module):
    """A weight, and a scale as SGLang's attention keeps it: marked, and as a number beside."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.k_scale = torch.nn.Parameter(torch.tensor(scale), requires_grad=False)
        self.mark(self.k_scale)
        self.k_scale_float = scale

    def mark(self, parameter: torch.nn.Parameter) -> None:
        parameter._skip_weight_check = True  # type: ignore[attr-defined]


def _scaled(
    make: Callable[[torch.nn.Module], Engine], scale: float, *, row: float | None
) -> tuple[Engine, Attention, Layout]:
    """An engine whose scale has that value, and a version with that row for it, or none."""
    attention = Attention(scale)
    engine = make(torch.nn.ModuleDict({"attn": attention}))
    table: list[tuple[str, str, tuple[int, ...]]] = [("attn.weight", "float32", (3,))]
    layout = lay_out(table + ([("attn.k_scale", "float32", ())] if row is not None else []))
    engine.write_program(layout)
    with engine.seal(layout) as arena:
        if row is not None:
            at = layout.parameters[1].offset
            arena.view[at : at + 4] = struct.pack("<f", row)
    return engine, attention, layout


def test_a_constant_of_the_engines_own_is_described_with_its_value(make: Callable[[Any], Engine]) -> None:
    """Whether it may be missing from a layout depends on who set it, which its value tells."""
    described = _scaled(make, 0.5, row=None)[0].call("describe")["parameters"]
    assert {row["name"]: row["constant"] for row in described} == {"attn.weight": None, "attn.k_scale": 0.5}


def test_a_constant_of_the_engines_own_may_have_no_row(make: Callable[[Any], Engine]) -> None:
    """All else is copied and reads back, a snapshot too, and the constant stays as it was."""
    engine, attention, layout = _scaled(make, 1.0, row=None)
    assert engine.call("apply", **engine.request(layout))["ok"]
    assert engine.call("readback", **engine.request(layout))["equal"]
    assert attention.k_scale.item() == 1.0
    assert engine.parameters()["attn.weight"] == bytes([len("attn.weight")]) * 12


def test_a_marked_parameter_that_is_no_scalar_needs_its_row(make: Callable[[Any], Engine]) -> None:
    """The mark alone says that two engines may differ, not that nothing of a checkpoint goes there."""
    engine, attention, _ = _scaled(make, 1.0, row=None)
    attention.mark(attention.weight)
    layout = lay_out([("attn.k_scale", "float32", ())])
    engine.write_program(layout)
    engine.seal(layout).close()
    result = engine.call("apply", **engine.request(layout))
    assert (result["reason"], result["touched"]) == ("LayoutMismatch", False)
    assert "attn.weight float32 (3,) of the engine is in no row" in result["error"]


def test_a_scale_of_the_checkpoint_is_a_row_like_others(make: Callable[[Any], Engine]) -> None:
    """The version brings the value that the engine has: applied, and compared on reading back."""
    engine, attention, layout = _scaled(make, 0.5, row=0.5)
    assert engine.call("apply", **engine.request(layout))["ok"]
    assert engine.call("readback", **engine.request(layout))["equal"]
    attention.k_scale.fill_(0.25)
    assert "attn.k_scale" in engine.call("readback", **engine.request(layout))["difference"]


def test_a_scale_that_changes_is_refused_before_the_first_byte(make: Callable[[Any], Engine]) -> None:
    """The engine's kernels hold the old one as a number: the new one would be in force in some of them only."""
    engine, _, layout = _scaled(make, 0.5, row=0.25)
    before = engine.parameters()
    result = engine.call("apply", **engine.request(layout))
    assert (result["reason"], result["touched"]) == ("ConstantChanged", False)
    assert "attn.k_scale is 0.25 in the version and 0.5 in the engine" in result["error"]
    assert engine.parameters() == before
