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
SHARED = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LATENT = {
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
YARN = {
    "type": "yarn", "rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 256, "mscale": 0.7,
    "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
}  # fmt: skip
SECTIONS = {
    "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0],
    "mrope_interleaved": True,
}  # fmt: skip
TEXT = {
    **BASE, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
}  # fmt: skip
VISION = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "window_size": 112,
    "fullatt_block_indexes": [1],
}  # fmt: skip


class Other(NamedTuple):
    """A family: architecture, what its configuration changes, and where releases keep the experts that transformers
    stacks: (module in transformers, module in releases, gate, up, down).

    renamed: parts of names in transformers and in releases; flags: what SGLang needs to build it without a GPU.
    """

    architecture: str
    changed: dict[str, Any] = {}  # noqa: RUF012 - never written
    experts: tuple[str, str, str, str, str] | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()


PLAIN = ("mlp", "mlp", "gate_proj", "up_proj", "down_proj")
NUMBERED = ("mlp", "block_sparse_moe", "w1", "w3", "w2")
HYBRID = ("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule")
TRITON = ("--attention-backend", "triton")

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
    "gemma2": Other("Gemma2ForCausalLM", {
        **TIED, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 16, "sliding_window": 64,
    }),
    "cohere2": Other("Cohere2ForCausalLM", {**TIED, "sliding_window": 64}),
    "phi": Other("PhiForCausalLM", {
        "partial_rotary_factor": 0.5, "num_key_value_heads": 4, "intermediate_size": 256,
    }),
    "hunyuan_v1_dense": Other("HunYuanDenseV1ForCausalLM", {"use_qk_norm": True}),
    "exaone4": Other("Exaone4ForCausalLM", {
        "sliding_window": 64, "sliding_window_pattern": "LG", "layer_types": ["sliding_attention", "full_attention"],
    }, flags=TRITON),
    "exaone_moe": Other("ExaoneMoEForCausalLM", {
        "num_experts": 4, "num_shared_experts": 1, "n_group": 1, "topk_group": 1, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"], "is_moe_layer": [False, True],
        "mlp_layer_types": ["dense", "sparse"], **EXPERTS,
    }, PLAIN, ((".mlp.gate.e_score", ".mlp.e_score"),), TRITON),
    "deepseek_v2": Other("DeepseekV2ForCausalLM", {
        **SHARED, **LATENT, **EXPERTS, "q_lora_rank": None, "topk_method": "greedy", "scoring_func": "softmax",
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "moe_layer_freq": 1, "rope_scaling": YARN,
    }, PLAIN),
    "glm4_moe_lite": Other("Glm4MoeLiteForCausalLM", {
        **SHARED, **LATENT, **EXPERTS, "q_lora_rank": 32, "mlp_layer_types": ["dense", "sparse"],
    }, PLAIN),
    "ernie4_5_moe": Other("Ernie4_5_MoeForCausalLM", {
        "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_intermediate_size": 32,
        "moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_layer_interval": 1, "use_bias": False,
    }, PLAIN, ((".mlp.gate.moe_statics", ".mlp.moe_statics"),)),
    "phimoe": Other("PhiMoEForCausalLM", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "attention_bias": True,
        "lm_head_bias": True,
    }, NUMBERED, ((".router.weight", ".gate.weight"),)),
    "lfm2_moe": Other("Lfm2MoeForCausalLM", {
        "num_experts": 4, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"], **EXPERTS,
    }, ("feed_forward", "feed_forward", "w1", "w3", "w2")),
    "qwen3_next": Other("Qwen3NextForCausalLM", {
        **LINEAR, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }, PLAIN, flags=HYBRID),
    "qwen3_5_text": Other("Qwen3_5ForCausalLM", {**LINEAR, "rope_parameters": SECTIONS}, flags=HYBRID),
    "qwen3_5_moe_text": Other("Qwen3_5MoeForCausalLM", {
        **LINEAR, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32, "rope_parameters": SECTIONS,
    }, flags=HYBRID),
    "qwen2_5_vl": Other("Qwen2_5_VLForConditionalGeneration", {
        **TEXT, "text_config": TEXT, "vision_config": VISION,
    }, renamed=(("model.language_model.", "model."), ("model.visual.", "visual."))),
}  # fmt: skip

# What is no copy: the norms are stored less one.
COMPUTED = {"gemma": Other("GemmaForCausalLM", {**TIED, "hidden_activation": "gelu_pytorch_tanh"})}


def config_of(model_type: str) -> dict[str, Any]:
    """The config.json of a family."""
    other = {**OTHERS, **COMPUTED}[model_type]
    return {**BASE, "architectures": [other.architecture], "model_type": model_type, **other.changed}


def released(
    tensors: list[tuple[str, str, tuple[int, ...]]],
    experts: tuple[str, str, str, str, str] | None,
    renamed: tuple[tuple[str, str], ...] = (),
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Names as in the releases' files: transformers has all experts of a layer in one tensor."""
    for ours, theirs in renamed:
        tensors = [(name.replace(ours, theirs), dtype, shape) for name, dtype, shape in tensors]
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
