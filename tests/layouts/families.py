"""Tiny checkpoints of the main families: config.json and the tensors that Hugging Face's releases of them hold."""

from collections.abc import Iterator
from typing import Any, NamedTuple

Shape = tuple[int, ...]
BF16, FP32, FP8 = "bfloat16", "float32", "float8_e4m3fn"

FP8_BLOCKS = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
}  # fmt: skip


class Family(NamedTuple):
    """A model: its configuration, and its checkpoint as (name, dtype, shape)."""

    name: str
    config: dict[str, Any]
    tensors: list[tuple[str, str, Shape]]


def _base(model_type: str, architecture: str, **changed: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture], "model_type": model_type, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": BF16, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, **changed,
    }  # fmt: skip


def _attention(c: dict[str, Any], prefix: str, bias: bool, output_bias: bool = False) -> Iterator[tuple[str, Shape]]:
    d, hidden = c["head_dim"], c["hidden_size"]
    rows = {"q": c["num_attention_heads"] * d, "k": c["num_key_value_heads"] * d, "v": c["num_key_value_heads"] * d}
    for part, size in rows.items():
        yield f"{prefix}.{part}_proj.weight", (size, hidden)
        if bias:
            yield f"{prefix}.{part}_proj.bias", (size,)
    yield f"{prefix}.o_proj.weight", (hidden, rows["q"])
    if output_bias:
        yield f"{prefix}.o_proj.bias", (hidden,)


def _mlp(prefix: str, hidden: int, middle: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate_proj.weight", (middle, hidden)
    yield f"{prefix}.up_proj.weight", (middle, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, middle)


def _ends(c: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    yield "model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"])
    yield "model.norm.weight", (c["hidden_size"],)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], c["hidden_size"])


def _norms(layer: str, hidden: int) -> Iterator[tuple[str, Shape]]:
    yield f"{layer}.input_layernorm.weight", (hidden,)
    yield f"{layer}.post_attention_layernorm.weight", (hidden,)


def _qk_norms(layer: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{layer}.self_attn.q_norm.weight", (width,)
    yield f"{layer}.self_attn.k_norm.weight", (width,)


def _experts(prefix: str, count: int, hidden: int, middle: int) -> Iterator[tuple[str, Shape]]:
    for expert in range(count):
        yield from _mlp(f"{prefix}.experts.{expert}", hidden, middle)


def _family(name: str, config: dict[str, Any], tensors: Iterator[tuple[str, Shape]], **dtypes: str) -> Family:
    """dtypes: of tensors whose name ends with the keyword, where it is not bfloat16."""

    def dtype(tensor: str) -> str:
        return next((d for end, d in dtypes.items() if tensor.endswith(end)), BF16)

    return Family(name, config, [(tensor, dtype(tensor), shape) for tensor, shape in tensors])


def _dense(c: dict[str, Any], bias: bool = False, qk_norm: bool = False) -> Iterator[tuple[str, Shape]]:
    yield from _ends(c)
    for at in range(c["num_hidden_layers"]):
        layer = f"model.layers.{at}"
        yield from _attention(c, f"{layer}.self_attn", bias)
        if qk_norm:
            yield from _qk_norms(layer, c["head_dim"])
        yield from _mlp(f"{layer}.mlp", c["hidden_size"], c["intermediate_size"])
        yield from _norms(layer, c["hidden_size"])


def llama(**changed: Any) -> Family:
    c = _base("llama", "LlamaForCausalLM", **changed)
    return _family("llama", c, _dense(c))


def qwen2(**changed: Any) -> Family:
    c = _base("qwen2", "Qwen2ForCausalLM", **changed)
    return _family("qwen2", c, _dense(c, bias=True))


def qwen3(**changed: Any) -> Family:
    c = _base("qwen3", "Qwen3ForCausalLM", attention_bias=False, **changed)
    return _family("qwen3", c, _dense(c, qk_norm=True))


def qwen3_fp8(**changed: Any) -> Family:
    """FP8 by blocks of 128 x 128, as Qwen3's FP8 releases: a scale for each block beside each matrix."""
    c = _base(
        "qwen3", "Qwen3ForCausalLM", attention_bias=False, hidden_size=256, intermediate_size=512, head_dim=128,
        quantization_config=FP8_BLOCKS, **changed,
    )  # fmt: skip

    def tensors() -> Iterator[tuple[str, str, Shape]]:
        for name, shape in _dense(c, qk_norm=True):
            if "_proj." in name:
                yield name, FP8, shape
                yield f"{name}_scale_inv", BF16, (shape[0] // 128, shape[1] // 128)
            else:
                yield name, BF16, shape

    return Family("qwen3-fp8", c, list(tensors()))


def qwen3_moe(**changed: Any) -> Family:
    c = _base(
        "qwen3_moe", "Qwen3MoeForCausalLM", attention_bias=False, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=32, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], **changed,
    )  # fmt: skip

    def tensors() -> Iterator[tuple[str, Shape]]:
        yield from _ends(c)
        for at in range(c["num_hidden_layers"]):
            layer = f"model.layers.{at}"
            yield from _attention(c, f"{layer}.self_attn", bias=False)
            yield from _qk_norms(layer, c["head_dim"])
            yield f"{layer}.mlp.gate.weight", (c["num_experts"], c["hidden_size"])
            yield from _experts(f"{layer}.mlp", c["num_experts"], c["hidden_size"], c["moe_intermediate_size"])
            yield from _norms(layer, c["hidden_size"])

    return _family("qwen3-moe", c, tensors())


def glm4_moe(**changed: Any) -> Family:
    """First layer dense, then experts with shared ones; a layer for multi-token prediction at the end."""
    c = _base(
        "glm4_moe", "Glm4MoeForCausalLM", attention_bias=True, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1, norm_topk_prob=True, n_group=1,
        topk_group=1, routed_scaling_factor=1.0, use_qk_norm=True, partial_rotary_factor=0.5,
        num_nextn_predict_layers=1, **changed,
    )  # fmt: skip

    def tensors() -> Iterator[tuple[str, Shape]]:
        yield from _ends(c)
        for at in range(c["num_hidden_layers"] + 1):
            layer = f"model.layers.{at}"
            yield from _attention(c, f"{layer}.self_attn", bias=True)
            yield from _qk_norms(layer, c["head_dim"])
            yield from _norms(layer, c["hidden_size"])
            yield from _sparse(c, layer, at)
        last = f"model.layers.{c['num_hidden_layers']}"
        yield f"{last}.eh_proj.weight", (c["hidden_size"], 2 * c["hidden_size"])
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{last}.{norm}.weight", (c["hidden_size"],)

    return _family("glm4-moe", c, tensors(), e_score_correction_bias=FP32)


def _sparse(c: dict[str, Any], layer: str, at: int) -> Iterator[tuple[str, Shape]]:
    hidden, middle = c["hidden_size"], c["moe_intermediate_size"]
    if at < c["first_k_dense_replace"]:
        yield from _mlp(f"{layer}.mlp", hidden, c["intermediate_size"])
        return
    yield f"{layer}.mlp.gate.weight", (c["n_routed_experts"], hidden)
    yield f"{layer}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
    yield from _mlp(f"{layer}.mlp.shared_experts", hidden, middle * c["n_shared_experts"])
    yield from _experts(f"{layer}.mlp", c["n_routed_experts"], hidden, middle)


def deepseek_v3(**changed: Any) -> Family:
    """MLA: queries and keys through low ranks; q_a_proj and kv_a_proj_with_mqa end in one parameter."""
    sizes = {
        "moe_intermediate_size": 32, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16,
    }  # fmt: skip
    c = _base(
        "deepseek_v3", "DeepseekV3ForCausalLM", attention_bias=False, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, first_k_dense_replace=1, norm_topk_prob=True, n_group=2,
        topk_group=1, routed_scaling_factor=1.0, topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1,
        num_nextn_predict_layers=1, num_key_value_heads=4,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
                      "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, **{**sizes, **changed},
    )  # fmt: skip

    def tensors() -> Iterator[tuple[str, Shape]]:
        yield from _ends(c)
        heads, hidden, kv = c["num_attention_heads"], c["hidden_size"], c["kv_lora_rank"]
        nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        for at in range(c["num_hidden_layers"] + 1):
            layer = f"model.layers.{at}"
            attention = f"{layer}.self_attn"
            yield f"{attention}.q_a_proj.weight", (c["q_lora_rank"], hidden)
            yield f"{attention}.q_a_layernorm.weight", (c["q_lora_rank"],)
            yield f"{attention}.q_b_proj.weight", (heads * (nope + rope), c["q_lora_rank"])
            yield f"{attention}.kv_a_proj_with_mqa.weight", (kv + rope, hidden)
            yield f"{attention}.kv_a_layernorm.weight", (kv,)
            yield f"{attention}.kv_b_proj.weight", (heads * (nope + value), kv)
            yield f"{attention}.o_proj.weight", (hidden, heads * value)
            yield from _norms(layer, hidden)
            yield from _sparse(c, layer, at)
        last = f"model.layers.{c['num_hidden_layers']}"
        yield f"{last}.eh_proj.weight", (hidden, 2 * hidden)
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{last}.{norm}.weight", (hidden,)

    return _family("deepseek-v3", c, tensors(), e_score_correction_bias=FP32)


def deepseek_v3_fp8(*more: tuple[str, str, Shape]) -> Family:
    """FP8 by blocks, as DeepSeek-V3 and Kimi-K2 are released: all of attention and experts, gates and norms not.

    more: further tensors of the checkpoint.
    """
    plain = deepseek_v3(
        hidden_size=256, intermediate_size=512, moe_intermediate_size=256, q_lora_rank=128, kv_lora_rank=128,
        qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64, quantization_config=FP8_BLOCKS,
    )  # fmt: skip

    def tensors() -> Iterator[tuple[str, str, Shape]]:
        for name, dtype, shape in plain.tensors:
            if name.endswith(("_proj.weight", "_with_mqa.weight")) and "eh_proj" not in name:
                yield name, FP8, shape
                yield f"{name}_scale_inv", FP32, (-(-shape[0] // 128), -(-shape[1] // 128))
            else:
                yield name, dtype, shape

    return Family(plain.name, plain.config, [*tensors(), *more])


def gpt_oss(**changed: Any) -> Family:
    """Experts stacked in one tensor, inputs first; gate and up interleaved; biases and attention sinks."""
    c = _base(
        "gpt_oss", "GptOssForCausalLM", attention_bias=True, num_local_experts=4, num_experts_per_tok=2,
        experts_per_token=2, intermediate_size=64, sliding_window=128, attention_dropout=0.0,
        layer_types=["sliding_attention", "full_attention"], swiglu_limit=7.0, router_aux_loss_coef=0.9,
        rope_scaling={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                      "original_max_position_embeddings": 128}, **changed,
    )  # fmt: skip

    def tensors() -> Iterator[tuple[str, Shape]]:
        yield from _ends(c)
        experts, hidden, middle = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
        for at in range(c["num_hidden_layers"]):
            layer = f"model.layers.{at}"
            yield from _attention(c, f"{layer}.self_attn", bias=True, output_bias=True)
            yield f"{layer}.self_attn.sinks", (c["num_attention_heads"],)
            yield from _norms(layer, hidden)
            yield f"{layer}.mlp.router.weight", (experts, hidden)
            yield f"{layer}.mlp.router.bias", (experts,)
            yield f"{layer}.mlp.experts.gate_up_proj", (experts, hidden, 2 * middle)
            yield f"{layer}.mlp.experts.gate_up_proj_bias", (experts, 2 * middle)
            yield f"{layer}.mlp.experts.down_proj", (experts, middle, hidden)
            yield f"{layer}.mlp.experts.down_proj_bias", (experts, hidden)

    return _family("gpt-oss", c, tensors())
