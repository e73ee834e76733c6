"""One mixture-of-experts layer: compiled copies against the engine's own ``load_weights``, one tensor a call.

python -m tools.bench.experts --runs N --tp N      in an environment with SGLang; prints one JSON line
A trainer that hands tensors over as it gathers them calls ``load_weights`` so, into a replica on the CPU. The model
has the sizes and all the layers of Qwen3-30B-A3B, since what a call costs depends on them; one layer has memory.
"""

from __future__ import annotations

import argparse
import json
import mmap
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from weightsync.convert.header import Header
from weightsync.convert.merge import merge
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.replicas.engine import EngineSpec
from weightsync.replicas.replica import Replica
from weightsync.replicas.sglang import build_replica

EXPERTS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCAB, LAYERS = 128, 2048, 768, 32, 4, 128, 151936, 48
LAYER = "model.layers.7."
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
    "hidden_size": HIDDEN, "intermediate_size": INNER, "moe_intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB,
    "num_experts": EXPERTS, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "max_position_embeddings": 4096, "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    """The layer's tensors in the checkpoint."""
    layer = LAYER
    found: dict[str, tuple[int, ...]] = {
        f"{layer}input_layernorm.weight": (HIDDEN,),
        f"{layer}self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        f"{layer}self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        f"{layer}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
        f"{layer}self_attn.q_norm.weight": (HEAD,),
        f"{layer}self_attn.k_norm.weight": (HEAD,),
        f"{layer}post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}mlp.gate.weight": (EXPERTS, HIDDEN),
    }
    for expert in range(EXPERTS):
        for name in ("gate_proj", "up_proj"):
            found[f"{layer}mlp.experts.{expert}.{name}.weight"] = (INNER, HIDDEN)
        found[f"{layer}mlp.experts.{expert}.down_proj.weight"] = (HIDDEN, INNER)
    return found


class Layer:
    """The layer's checkpoint, its program, and the engine's replica of it."""

    def __init__(self, folder: Path, tp: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.state = {
            name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes().items()
        }
        folder.joinpath("config.json").write_text(json.dumps(CONFIG))
        self._replica: Replica = build_replica(EngineSpec(model=str(folder), tp=tp), 0)
        headers = [Header(name, "bfloat16", tuple(tensor.shape)) for name, tensor in self.state.items()]
        table = [row for row in self._replica.parameters() if row.name.startswith(LAYER)]
        traced = self._replica.trace(headers)
        merged = merge(table, traced.blocks, headers, traced.joint)
        program = CopyProgram(layout=merged.layout, tensors=merged.tensors)
        self.nbytes = merged.layout.nbytes
        self._loaded, self._copied = mmap.mmap(-1, self.nbytes), mmap.mmap(-1, self.nbytes)
        self._replica.bind(merged.layout, memoryview(self._loaded), frozenset(row.name for row in table))
        self._replayer = Replayer(program, memoryview(self._copied))

    def load(self) -> float:
        """Processor seconds of load_weights, one call for each tensor."""
        with self._replica._ready():
            began = time.thread_time()
            for pair in self.state.items():
                self._replica.model.load_weights([pair])  # type: ignore[operator]
            return time.thread_time() - began

    def replay(self) -> float:
        """Processor seconds of the compiled copies."""
        began = time.thread_time()
        self._replayer.begin()
        for name, tensor in self.state.items():
            self._replayer.feed(name, tensor)
        self._replayer.finish()
        return time.thread_time() - began

    @property
    def equal(self) -> bool:
        """Both made the same bytes."""
        return self._loaded[:] == self._copied[:]


def main(arguments: list[str]) -> int:
    """Print the pairs; 1 where the two ways made different bytes."""
    parser = argparse.ArgumentParser(prog="bench experts", description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--tp", type=int, default=4)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="weightsync-experts-") as folder:
        layer = Layer(Path(folder), options.tp)
    pairs = [(layer.load(), layer.replay()) for _ in range(options.runs + 1)][1:]
    if not layer.equal:
        sys.stderr.write("load_weights and the compiled copies made different bytes\n")
        return 1
    what = (
        f"a layer of {EXPERTS} experts in Qwen3-30B-A3B's sizes, rank 0 of {options.tp}, {len(layer.state)} tensors, "
        f"SGLang {metadata.version('sglang')}"
    )
    sys.stdout.write(json.dumps({"what": what, "nbytes": layer.nbytes, "seconds": pairs}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
