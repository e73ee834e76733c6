"""What each engine rank must hold, from the parallel layers' definition: no code of SGLang, none of ours.

Columns of a layer are cut by rows of its matrix, rows by columns; heads are cut evenly, and repeated where there are
more ranks than key-value heads; experts go to expert ranks in order, each cut over the tensor ranks that remain.
"""

from typing import Any, NamedTuple

import torch

Tensors = dict[str, torch.Tensor]


class Rank(NamedTuple):
    """One engine rank, and how the engine is cut."""

    rank: int
    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def stage(self) -> int:
        return self.rank // self.tp

    @property
    def local(self) -> int:
        return self.rank % self.tp

    def layers(self, count: int) -> range:
        """Those of this pipeline stage: the tests' layers divide evenly."""
        each = count // self.pp
        return range(self.stage * each, (self.stage + 1) * each)

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.pp - 1

    def cut(self, tensor: torch.Tensor, dimension: int = 0) -> torch.Tensor:
        """This rank's even part."""
        return tensor.chunk(self.tp, dimension)[self.local]


def expected(name: str, config: dict[str, Any], given: Tensors, rank: Rank) -> Tensors:
    """Every parameter of the rank, in the checkpoint's dtype."""
    slicer = _Slicer(config, given, rank)
    slicer.ends(head=rank.last or name == "llama")  # SGLang's llama has a head on every stage
    for layer in rank.layers(config["num_hidden_layers"]):
        slicer.layer(name, f"model.layers.{layer}", layer)
    return slicer.out


class _Slicer:
    def __init__(self, config: dict[str, Any], given: Tensors, rank: Rank) -> None:
        self.config = config
        self.given = given
        self.rank = rank
        self.out: Tensors = {}

    def ends(self, head: bool) -> None:
        if self.rank.first:
            self.out["model.embed_tokens.weight"] = self.rank.cut(self.given["model.embed_tokens.weight"])
        if self.rank.last:
            self.whole("model.norm.weight")
        if head:
            if not self.config["tie_word_embeddings"]:
                self.out["lm_head.weight"] = self.rank.cut(self.given["lm_head.weight"])
            elif self.rank.pp > 1:  # the last stage has no embedding to share
                self.out["lm_head.weight"] = self.rank.cut(self.given["model.embed_tokens.weight"])

    def whole(self, name: str) -> None:
        self.out[name] = self.given[name]

    def layer(self, family: str, layer: str, index: int) -> None:
        self.whole(f"{layer}.input_layernorm.weight")
        self.whole(f"{layer}.post_attention_layernorm.weight")
        if family == "deepseek-v3":
            self.latent_attention(f"{layer}.self_attn")
        else:
            self.attention(family, f"{layer}.self_attn")
        if family == "gpt-oss":
            self.stacked_experts(f"{layer}.mlp")
        elif f"{layer}.mlp.gate.weight" in self.given:
            self.sparse(f"{layer}.mlp")
        else:
            self.mlp(f"{layer}.mlp")

    def attention(self, family: str, prefix: str) -> None:
        for kind in ("weight", "bias", "weight_scale_inv"):
            if f"{prefix}.q_proj.{kind}" in self.given:
                parts = [self.rank.cut(self.given[f"{prefix}.q_proj.{kind}"])]
                parts += [self.kv_heads(self.given[f"{prefix}.{part}_proj.{kind}"]) for part in "kv"]
                self.out[f"{prefix}.qkv_proj.{kind}"] = torch.cat(parts)
        for kind in ("weight", "weight_scale_inv"):
            if f"{prefix}.o_proj.{kind}" in self.given:
                self.out[f"{prefix}.o_proj.{kind}"] = self.rank.cut(self.given[f"{prefix}.o_proj.{kind}"], 1)
        if f"{prefix}.o_proj.bias" in self.given:
            self.whole(f"{prefix}.o_proj.bias")
        for norm in ("q_norm", "k_norm"):
            if f"{prefix}.{norm}.weight" in self.given:
                self.whole(f"{prefix}.{norm}.weight")
        if family == "gpt-oss":
            self.out[f"{prefix}.sinks"] = self.rank.cut(self.given[f"{prefix}.sinks"])

    def kv_heads(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rank's key or value heads: at least one, so that several ranks may hold the same."""
        heads = self.config["num_key_value_heads"]
        each = max(heads // self.rank.tp, 1)
        first = self.rank.local * heads // self.rank.tp
        return tensor.reshape(heads, -1, *tensor.shape[1:])[first : first + each].reshape(-1, *tensor.shape[1:])

    def latent_attention(self, prefix: str) -> None:
        self.whole(f"{prefix}.q_a_layernorm.weight")
        self.whole(f"{prefix}.kv_a_layernorm.weight")
        for kind in self.kinds(f"{prefix}.o_proj"):
            joined = [self.given[f"{prefix}.{part}.{kind}"] for part in ("q_a_proj", "kv_a_proj_with_mqa")]
            self.out[f"{prefix}.fused_qkv_a_proj_with_mqa.{kind}"] = torch.cat(joined)
            for part in ("q_b_proj", "kv_b_proj"):
                self.out[f"{prefix}.{part}.{kind}"] = self.rank.cut(self.given[f"{prefix}.{part}.{kind}"])
            self.out[f"{prefix}.o_proj.{kind}"] = self.rank.cut(self.given[f"{prefix}.o_proj.{kind}"], 1)
        for scale in ("k_scale", "v_scale"):  # only where the checkpoint has them
            if f"{prefix}.{scale[0]}_proj.{scale}" in self.given:
                self.out[f"{prefix}.attn_mqa.{scale}"] = self.given[f"{prefix}.{scale[0]}_proj.{scale}"]

    def kinds(self, layer: str) -> list[str]:
        """What a linear layer has: its weight, and of FP8 by blocks each block's scale."""
        return [kind for kind in ("weight", "weight_scale_inv") if f"{layer}.{kind}" in self.given]

    def mlp(self, prefix: str) -> None:
        for kind in ("weight", "weight_scale_inv"):
            if f"{prefix}.gate_proj.{kind}" in self.given:
                halves = [self.rank.cut(self.given[f"{prefix}.{part}_proj.{kind}"]) for part in ("gate", "up")]
                self.out[f"{prefix}.gate_up_proj.{kind}"] = torch.cat(halves)
                self.out[f"{prefix}.down_proj.{kind}"] = self.rank.cut(self.given[f"{prefix}.down_proj.{kind}"], 1)

    def sparse(self, prefix: str) -> None:
        self.whole(f"{prefix}.gate.weight")
        if f"{prefix}.gate.e_score_correction_bias" in self.given:
            self.whole(f"{prefix}.gate.e_score_correction_bias")
            self.mlp(f"{prefix}.shared_experts")
        count = self.config.get("num_experts") or self.config["n_routed_experts"]
        cut = self.rank.tp // self.rank.ep
        group, within = divmod(self.rank.local, cut)
        each = count // self.rank.ep
        for kind in self.kinds(f"{prefix}.experts.0.up_proj"):
            first, second = [], []
            for expert in range(group * each, (group + 1) * each):
                gate, up, down = (
                    self.given[f"{prefix}.experts.{expert}.{p}_proj.{kind}"] for p in ("gate", "up", "down")
                )
                first.append(torch.cat([gate.chunk(cut)[within], up.chunk(cut)[within]]))
                second.append(down.chunk(cut, 1)[within])
            self.out[f"{prefix}.experts.w13_{kind}"] = torch.stack(first)
            self.out[f"{prefix}.experts.w2_{kind}"] = torch.stack(second)

    def stacked_experts(self, prefix: str) -> None:
        self.whole(f"{prefix}.router.weight")
        self.whole(f"{prefix}.router.bias")
        experts = f"{prefix}.experts"
        gate_up = self.given[f"{experts}.gate_up_proj"].transpose(1, 2)
        self.out[f"{experts}.w13_weight"] = self.rank.cut(gate_up, 1)
        self.out[f"{experts}.w13_weight_bias"] = self.rank.cut(self.given[f"{experts}.gate_up_proj_bias"], 1)
        self.out[f"{experts}.w2_weight"] = self.rank.cut(self.given[f"{experts}.down_proj"].transpose(1, 2), 2)
        bias = self.given[f"{experts}.down_proj_bias"]  # added once: ranks are summed
        self.out[f"{experts}.w2_weight_bias"] = bias if self.rank.local == 0 else torch.zeros_like(bias)
