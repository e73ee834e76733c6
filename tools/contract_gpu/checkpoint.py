"""Random Qwen3 checkpoints: enough for an engine to load, generate from and be told apart by."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Size:
    """Elements along each dimension; the head is not tied."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int


SIZES = {
    "small": Size(hidden=256, layers=4, heads=8, kv_heads=4, head_dim=32, intermediate=512, vocab=1024),
    "4b": Size(hidden=2560, layers=36, heads=32, kv_heads=8, head_dim=128, intermediate=9728, vocab=151936),
}


def config(size: Size) -> dict[str, object]:
    """config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor."""
    attention, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    yield "model.embed_tokens.weight", (size.vocab, size.hidden)
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}."
        for name, shape in {
            "input_layernorm": (size.hidden,),
            "self_attn.q_proj": (attention, size.hidden),
            "self_attn.k_proj": (keys, size.hidden),
            "self_attn.v_proj": (keys, size.hidden),
            "self_attn.o_proj": (size.hidden, attention),
            "self_attn.q_norm": (size.head_dim,),
            "self_attn.k_norm": (size.head_dim,),
            "post_attention_layernorm": (size.hidden,),
            "mlp.gate_proj": (size.intermediate, size.hidden),
            "mlp.up_proj": (size.intermediate, size.hidden),
            "mlp.down_proj": (size.hidden, size.intermediate),
        }.items():
            yield f"{prefix}{name}.weight", shape
    yield "model.norm.weight", (size.hidden,)
    yield "lm_head.weight", (size.vocab, size.hidden)


def write(directory: Path, size: Size, seed: int) -> None:
    """config.json and model.safetensors. Norms lie around 1, everything else around 0."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors = {}
    for name, shape in shapes(size):
        values = torch.empty(shape, dtype=torch.bfloat16, device=device)
        tensors[name] = values.normal_(1.0 if len(shape) == 1 else 0.0, 0.02, generator=generator).cpu()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(size)))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
