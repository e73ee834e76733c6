"""Layouts and copy programs equal an independent slicing of the checkpoint in plain torch."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference.checkpoint import initial_state
from reference.config import ModelConfig, stage_names
from reference.engine_model import EngineModel, build_engine_model
from reference.programs import build_layout, build_program, build_programs, write_programs
from reference.shards import Shards
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.layout import lay_out
from weightsync_agent.engines.payload import EMPTY_LIST


def replay(program: CopyProgram, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run a program in the plainest way: each piece into a strided view of the bytes. Unwritten bytes are 0xAA."""
    payload = torch.full((program.layout.nbytes,), 0xAA, dtype=torch.uint8)
    for copies in program.tensors:
        tensor = state[copies.name]
        assert str(tensor.dtype) == f"torch.{copies.dtype}"
        for piece in copies.pieces:
            dtype = getattr(torch, piece.dtype)
            size = dtype.itemsize
            strides = [stride // size for stride in piece.strides]
            target = payload.view(dtype).as_strided(piece.shape, strides, piece.offset // size)
            target.copy_(tensor[tuple(slice(*edge) for edge in piece.box)])
    return {
        p.name: payload[p.offset : p.offset + p.nbytes].view(getattr(torch, p.dtype)).view(p.shape)
        for p in program.layout.parameters
    }


def sliced(config: ModelConfig, state: dict[str, Tensor], rank: int, tp: int) -> dict[str, Tensor]:
    """One rank's parameters, cut by chunks of heads; written apart from programs.py, by torch's own splitting."""

    def rows(name: str) -> Tensor:
        return state[name].chunk(tp, dim=0)[rank]

    def heads(name: str, count: int) -> Tensor:
        each = state[name].view(count, config.head_dim, config.hidden)
        if tp > count:
            each = each.repeat_interleave(tp // count, dim=0)
        return each.chunk(tp, dim=0)[rank].flatten(0, 1)

    found = {"model.embed_tokens.weight": rows("model.embed_tokens.weight")}
    for layer in range(config.layers):
        at = f"model.layers.{layer}."
        qkv = [
            heads(f"{at}self_attn.{part}_proj.weight", count)
            for part, count in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
        ]
        found[f"{at}self_attn.qkv_proj.weight"] = torch.cat(qkv)
        found[f"{at}self_attn.o_proj.weight"] = state[f"{at}self_attn.o_proj.weight"].chunk(tp, dim=1)[rank]
        gate_up = [rows(f"{at}mlp.{part}_proj.weight") for part in ("gate", "up")]
        found[f"{at}mlp.gate_up_proj.weight"] = torch.cat(gate_up)
        found[f"{at}mlp.down_proj.weight"] = state[f"{at}mlp.down_proj.weight"].chunk(tp, dim=1)[rank]
        for norm in ("input", "post_attention"):
            found[f"{at}{norm}_layernorm.weight"] = state[f"{at}{norm}_layernorm.weight"]
    found["model.norm.weight"] = state["model.norm.weight"]
    if not config.tied:
        found["lm_head.weight"] = rows("lm_head.weight")
    return found


@st.composite
def shapes(draw: st.DrawFn) -> tuple[ModelConfig, int]:
    """Configs with a tp size that divides them; also more ranks than KV heads."""
    tp = draw(st.sampled_from([1, 2, 4]))
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    heads = kv_heads * draw(st.sampled_from([4 // min(kv_heads, 4), 4]))
    config = ModelConfig(
        vocab=tp * draw(st.integers(1, 5)),
        hidden=draw(st.integers(1, 6)),
        layers=draw(st.integers(1, 3)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 3)),
        intermediate=tp * draw(st.integers(1, 5)),
        tied=draw(st.booleans()),
    )
    return config, tp


@settings(deadline=None, max_examples=60)
@given(shapes(), st.sampled_from(["float32", "bfloat16"]), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_a_program_puts_every_byte_where_plain_slicing_does(
    shape: tuple[ModelConfig, int], dtype: str, checkpoint_dtype: str
) -> None:
    """For every rank, dtype and cast: the same names, order, shapes and bytes."""
    config, tp = shape
    state = initial_state(config, 5, getattr(torch, checkpoint_dtype))
    for program in build_programs(config, tp, dtype, checkpoint_dtype):
        expected = sliced(config, state, program.rank, tp)
        found = replay(program, state)
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor.to(getattr(torch, dtype))), name


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_the_layout_is_the_running_models(tied: bool) -> None:
    """Row for row, in order, what the hook finds in the engine's model; and the replica is its weights."""
    config = ModelConfig(vocab=16, hidden=12, layers=2, heads=4, kv_heads=2, head_dim=4, intermediate=20, tied=tied)
    state = initial_state(config, 2)
    engine = build_engine_model(config, state)
    rows = [(name, "float32", tuple(p.shape)) for name, p in engine.named_parameters()]
    assert lay_out(rows) == build_layout(config)
    replica = replay(build_program(config), state)
    assert all(torch.equal(replica[name], p) for name, p in engine.named_parameters())
    assert isinstance(engine, EngineModel)


def test_two_stages_feed_disjoint_bytes_and_all_of_them() -> None:
    """Split over pipeline stages, the pieces of a rank's program cover each parameter byte exactly once."""
    config = ModelConfig(vocab=16, hidden=12, layers=3, heads=4, kv_heads=2, head_dim=4, intermediate=20)
    for program in build_programs(config, 2):
        touched = torch.zeros(program.layout.nbytes // 4, dtype=torch.int32)
        owned = [name for stage in range(2) for name in stage_names(config, stage, 2)]
        assert owned == [copies.name for copies in program.tensors]
        for copies in program.tensors:
            for piece in copies.pieces:
                strides = [stride // 4 for stride in piece.strides]
                touched.as_strided(piece.shape, strides, piece.offset // 4).add_(1)
        expected = torch.zeros_like(touched)
        for p in program.layout.parameters:
            expected[p.offset // 4 : (p.offset + p.nbytes) // 4] = 1
        assert torch.equal(touched, expected)


@pytest.mark.parametrize(
    ("change", "tp", "sentence"),
    [
        pytest.param({}, 3, "heads 4 cannot be divided by 3", id="heads"),
        pytest.param({"intermediate": 21}, 2, "intermediate 21 cannot be divided by 2", id="intermediate"),
        pytest.param({"vocab": 17}, 2, "vocab 17 cannot be divided by 2", id="vocab"),
        pytest.param({"heads": 6, "kv_heads": 3}, 2, "3 KV heads can be neither split nor repeated", id="KV heads"),
    ],
)
def test_a_model_that_cannot_be_cut_evenly_is_refused(change: dict[str, Any], tp: int, sentence: str) -> None:
    """The message says which size and which number of ranks."""
    config = ModelConfig(vocab=16, hidden=12, layers=1, heads=4, kv_heads=2, head_dim=4, intermediate=20)
    with pytest.raises(InputError, match=sentence):
        build_program(dataclasses.replace(config, **change), 0, tp)


def test_a_rank_that_does_not_exist_is_refused(config: ModelConfig) -> None:
    """Ranks are numbered from 0."""
    with pytest.raises(InputError, match="rank 2 does not exist among 2 ranks"):
        build_program(config, 2, 2)


def test_programs_are_files_that_others_read(config: ModelConfig, tmp_path: Path) -> None:
    """One file a rank, readable by all, whole, and the same program again after reading; no temporary is left."""
    programs = build_programs(config, 2)
    paths = write_programs(tmp_path, programs)
    assert [path.name for path in paths] == ["rank-0.json", "rank-1.json"]
    assert sorted(p.name for p in (tmp_path / "layouts").iterdir()) == ["rank-0.json", "rank-1.json"]
    for path, program in zip(paths, programs, strict=True):
        assert path.stat().st_mode & 0o777 == 0o644
        read = CopyProgram.load(path)
        assert read == program
        assert read.digest == program.digest
        assert json.loads(path.read_text())["format"] == 1


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_servers_ranks_hold_what_their_programs_say(
    config: ModelConfig, tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name and byte; what a loader writes into them, knowing its rank, is what the whole model computes with."""
    state, other = initial_state(config, seed=1), initial_state(config, seed=2)
    programs = build_programs(config, tp)
    model = build_engine_model(config, state)
    shards = Shards(model, tp)
    for program, module in zip(programs, shards.ranks, strict=True):
        held, meant = dict(module.named_parameters()), replay(program, state)
        assert list(held) == list(meant)
        assert all(torch.equal(held[name], meant[name]) for name in held)
    called = list[int]()

    def loader(module: torch.nn.Module, given: list[tuple[str, Any]]) -> None:
        rank = torch.distributed.get_rank() if tp > 1 else 0
        called.append(rank)
        for name, tensor in replay(programs[rank], other).items():
            module.get_parameter(name).data.copy_(tensor)

    monkeypatch.setattr("reference.shards.loader_of", {"hook.load": loader}.__getitem__)
    shards.load("hook.load", [EMPTY_LIST] * tp)
    assert called == list(range(tp))
    expected = dict(build_engine_model(config, other).named_parameters())
    assert all(torch.equal(value, expected[name]) for name, value in model.named_parameters())
    assert not torch.distributed.is_initialized()
