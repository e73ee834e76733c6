"""What a trainer trains: the unfused form of the model, its parameters named as in a Hugging Face checkpoint."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.config import ModelConfig
from reference.engine_model import EngineModel
from reference.parts import Weight, rms_norm, rotary_table, rotate

__all__ = ["CheckpointModel", "EngineModel", "ModelConfig"]


class Attention(nn.Module):
    """Causal grouped-query attention with separate projections."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c = config
        self.config = c
        self.q_proj = Weight(c.heads * c.head_dim, c.hidden)
        self.k_proj = Weight(c.kv_heads * c.head_dim, c.hidden)
        self.v_proj = Weight(c.kv_heads * c.head_dim, c.hidden)
        self.o_proj = Weight(c.hidden, c.heads * c.head_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: (batch, positions, hidden)."""
        c = self.config

        def heads(projection: Weight, count: int) -> Tensor:
            return functional.linear(x, projection.weight).view(*x.shape[:2], count, c.head_dim).transpose(1, 2)

        q = rotate(heads(self.q_proj, c.heads), cos, sin)
        k = rotate(heads(self.k_proj, c.kv_heads), cos, sin)
        v = heads(self.v_proj, c.kv_heads)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c.heads != c.kv_heads)
        return functional.linear(out.transpose(1, 2).flatten(2), self.o_proj.weight)


class Mlp(nn.Module):
    """SwiGLU with separate projections."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Weight(config.intermediate, config.hidden)
        self.up_proj = Weight(config.intermediate, config.hidden)
        self.down_proj = Weight(config.hidden, config.intermediate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden)."""
        gated = functional.silu(functional.linear(x, self.gate_proj.weight)) * functional.linear(
            x, self.up_proj.weight
        )
        return functional.linear(gated, self.down_proj.weight)


class Layer(nn.Module):
    """One decoder layer, normalised before each half."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = Weight(config.hidden)
        self.post_attention_layernorm = Weight(config.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: (batch, positions, hidden)."""
        eps = self.config.rms_eps
        x = x + self.self_attn(rms_norm(x, self.input_layernorm.weight, eps), cos, sin)
        out: Tensor = x + self.mlp(rms_norm(x, self.post_attention_layernorm.weight, eps))
        return out


class Decoder(nn.Module):
    """Embedding, layers and last norm; the module that checkpoints call ``model``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Weight(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Weight(config.hidden)


class CheckpointModel(nn.Module):
    """Trainable; ``named_parameters()`` yields exactly the checkpoint's tensors, in checkpoint order.

    Starts as zeros: load a checkpoint's state (checkpoint.initial_state or read_checkpoint) before use.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tied:
            self.lm_head = Weight(config.vocab, config.hidden)
        cos, sin = rotary_table(config.max_positions, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, positions, vocab) of ids (batch, positions). Pad on the right."""
        positions = ids.shape[1]
        cos, sin = self.cos[:positions], self.sin[:positions]
        x = functional.embedding(ids, self.model.embed_tokens.weight)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        x = rms_norm(x, self.model.norm.weight, self.config.rms_eps)
        head = self.model.embed_tokens if self.config.tied else self.lm_head
        return functional.linear(x, head.weight)

    def checkpoint_state(self) -> dict[str, Tensor]:
        """A copy of the parameters under their checkpoint names, to keep what a version was."""
        return {name: parameter.detach().clone() for name, parameter in self.named_parameters()}


def count_parameters(config: ModelConfig) -> int:
    """Elements of all checkpoint tensors."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in CheckpointModel(config).parameters())
