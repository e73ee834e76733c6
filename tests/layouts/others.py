"""Further families, by configuration alone: names and shapes of their tensors come from transformers' own models."""

from typing import Any, NamedTuple

BASE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 256,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
TIED = {"tie_word_embeddings": True}
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, **TIED}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


class Other(NamedTuple):
    """A family: architecture, what its configuration changes, and where releases keep the experts that transformers
    stacks: (module in transformers, module in releases, gate, up, down).
    """

    architecture: str
    changed: dict[str, Any] = {}  # noqa: RUF012 - never written
    experts: tuple[str, str, str, str, str] | None = None


PLAIN = ("mlp", "mlp", "gate_proj", "up_proj", "down_proj")
NUMBERED = ("mlp", "block_sparse_moe", "w1", "w3", "w2")

OTHERS: dict[str, Other] = {
    "mistral": Other("MistralForCausalLM", {"sliding_window": None}),
    "gemma3_text": Other("Gemma3ForCausalLM", {**TIED, "query_pre_attn_scalar": 16, "sliding_window": 64}),
    "phi3": Other("Phi3ForCausalLM", {"original_max_position_embeddings": 256}),
    "olmo2": Other("Olmo2ForCausalLM"),
    "olmo3": Other("Olmo3ForCausalLM", {"sliding_window": 64}),
    "granite": Other("GraniteForCausalLM"),
    "glm4": Other("Glm4ForCausalLM", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "stablelm": Other("StableLmForCausalLM", {"partial_rotary_factor": 0.5}),
    "cohere": Other("CohereForCausalLM", TIED),
    "gpt2": Other("GPT2LMHeadModel", GPT2),
    "gpt_bigcode": Other("GPTBigCodeForCausalLM", GPT2),
    "starcoder2": Other("Starcoder2ForCausalLM", TIED),
    "opt": Other("OPTForCausalLM", {"ffn_dim": 128, "word_embed_proj_dim": 64, **TIED}),
    "persimmon": Other("PersimmonForCausalLM"),
    "ernie4_5": Other("Ernie4_5_ForCausalLM"),
    "arcee": Other("ArceeForCausalLM", {"hidden_act": "relu2"}),
    "granitemoe": Other("GraniteMoeForCausalLM", {"num_local_experts": 4, **EXPERTS}),
    "lfm2": Other("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    "mixtral": Other("MixtralForCausalLM", {"num_local_experts": 4, **EXPERTS}, NUMBERED),
    "qwen2_moe": Other(
        "Qwen2MoeForCausalLM", {"num_experts": 4, "shared_expert_intermediate_size": 64, **EXPERTS}, PLAIN
    ),
    "olmoe": Other("OlmoeForCausalLM", {"num_experts": 4, "num_key_value_heads": 4, **EXPERTS}, PLAIN),
}  # fmt: skip

# What is no copy: the norms are stored less one.
COMPUTED = {"gemma": Other("GemmaForCausalLM", {**TIED, "hidden_activation": "gelu_pytorch_tanh"})}


def config_of(model_type: str) -> dict[str, Any]:
    """The config.json of a family."""
    other = {**OTHERS, **COMPUTED}[model_type]
    return {**BASE, "architectures": [other.architecture], "model_type": model_type, **other.changed}


def released(
    tensors: list[tuple[str, str, tuple[int, ...]]], experts: tuple[str, str, str, str, str] | None
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Names as in the releases' files: transformers has all experts of a layer in one tensor."""
    if experts is None:
        return tensors
    module, home, gate, up, down = experts
    out: list[tuple[str, str, tuple[int, ...]]] = []
    for full, dtype, shape in tensors:
        name = full.replace(f".{module}.", f".{home}.")
        if name.endswith(".experts.gate_up_proj"):
            for at in range(shape[0]):
                half = (shape[1] // 2, shape[2])
                out += [
                    (f"{name.removesuffix('gate_up_proj')}{at}.{part}.weight", dtype, half) for part in (gate, up)
                ]
        elif name.endswith(".experts.down_proj"):
            stem = name.removesuffix("down_proj")
            out += [(f"{stem}{at}.{down}.weight", dtype, shape[1:]) for at in range(shape[0])]
        else:
            out.append((name, dtype, shape))
    return out
