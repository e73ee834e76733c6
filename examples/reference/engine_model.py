"""What the engine runs: q, k and v fused into one parameter, gate and up into another, and a KV cache."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.config import ModelConfig, checkpoint_shapes
from reference.parts import Weight, rms_norm, rotary_table, rotate
from weightsync.errors import InputError

GROW = 64  # positions: a cache grows by this, and every head's block stays aligned to 64 bytes


class KVCache:
    """Keys and values of a batch of sequences of one length.

    keys, values: (layers, batch, kv_heads, capacity, head_dim). That a sequence's numbers do not depend on the
    capacity is what lets caches be cut, copied and grown without changing one bit of an answer.
    """

    def __init__(self, config: ModelConfig, batch: int, dtype: torch.dtype, capacity: int = GROW) -> None:
        capacity = -(-capacity // GROW) * GROW
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self.length = 0

    @property
    def batch(self) -> int:
        """Sequences held."""
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        """Positions that memory is held for."""
        return self.keys.shape[3]

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions in all."""
        if length > self.capacity:
            more = (0, 0, 0, -(-max(length, 2 * self.capacity) // GROW) * GROW - self.capacity)
            self.keys, self.values = functional.pad(self.keys, more), functional.pad(self.values, more)

    def select(self, rows: Tensor) -> "KVCache":
        """A cache of the given rows, in that order, repeats allowed."""
        return self._with(self.keys[:, rows], self.values[:, rows], self.length)

    def prefix(self, row: int, length: int) -> "KVCache":
        """A copy of one sequence's first ``length`` positions."""
        cut = -(-max(length, 1) // GROW) * GROW
        return self._with(
            self.keys[:, row : row + 1, :, :cut].clone(), self.values[:, row : row + 1, :, :cut].clone(), length
        )

    @staticmethod
    def join(parts: "list[KVCache]", length: int) -> "KVCache":
        """One batch of the first ``length`` positions of each part."""
        for part in parts:
            part.reserve(length)
        cut = -(-max(length, 1) // GROW) * GROW
        keys = torch.cat([part.keys[:, :, :, :cut] for part in parts], dim=1)
        values = torch.cat([part.values[:, :, :, :cut] for part in parts], dim=1)
        return KVCache._with(keys, values, length)

    @staticmethod
    def _with(keys: Tensor, values: Tensor, length: int) -> "KVCache":
        cache = KVCache.__new__(KVCache)
        cache.keys, cache.values, cache.length = keys, values, length
        return cache


class FusedAttention(nn.Module):
    """Grouped-query attention over a cache, one projection for q, k and v."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        c = config
        self.config = c
        self.qkv_proj = Weight((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden, dtype=dtype, trainable=False)
        self.o_proj = Weight(c.hidden, c.heads * c.head_dim, dtype=dtype, trainable=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None, cache: KVCache, at: int) -> Tensor:
        """x: (batch, positions, hidden); mask: added to the scores, (positions, length); at: the layer's index."""
        c = self.config
        batch, positions, _ = x.shape
        fused = functional.linear(x, self.qkv_proj.weight).view(batch, positions, -1, c.head_dim).transpose(1, 2)
        turned = rotate(fused[:, : c.heads + c.kv_heads], *turn)
        q, k, v = turned[:, : c.heads], turned[:, c.heads :], fused[:, c.heads + c.kv_heads :]
        start, stop = cache.length, cache.length + positions
        cache.keys[at, :, :, start:stop] = k
        cache.values[at, :, :, start:stop] = v
        keys, values = cache.keys[at, :, :, :stop], cache.values[at, :, :, :stop]
        # Heads that share a KV head stand together: (batch, kv_heads, heads / kv_heads x positions, head_dim).
        shared = c.heads // c.kv_heads
        q = q.reshape(batch, c.kv_heads, shared * positions, c.head_dim)
        scores = torch.matmul(q, keys.transpose(2, 3)) * c.head_dim**-0.5
        if mask is not None:
            scores = scores + mask.repeat(shared, 1)
        out = torch.matmul(scores.softmax(dim=-1), values)
        out = out.reshape(batch, c.heads, positions, c.head_dim).transpose(1, 2).flatten(2)
        return functional.linear(out, self.o_proj.weight)


class FusedMlp(nn.Module):
    """SwiGLU, one projection for gate and up."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up_proj = Weight(2 * config.intermediate, config.hidden, dtype=dtype, trainable=False)
        self.down_proj = Weight(config.hidden, config.intermediate, dtype=dtype, trainable=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden)."""
        gate, up = functional.linear(x, self.gate_up_proj.weight).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, self.down_proj.weight)


class EngineLayer(nn.Module):
    """One decoder layer; its modules stand in checkpoint order."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.self_attn = FusedAttention(config, dtype)
        self.mlp = FusedMlp(config, dtype)
        self.input_layernorm = Weight(config.hidden, dtype=dtype, trainable=False)
        self.post_attention_layernorm = Weight(config.hidden, dtype=dtype, trainable=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None, cache: KVCache, at: int) -> Tensor:
        """As FusedAttention.forward."""
        eps = self.config.rms_eps
        x = x + self.self_attn(rms_norm(x, self.input_layernorm.weight, eps), turn, mask, cache, at)
        out: Tensor = x + self.mlp(rms_norm(x, self.post_attention_layernorm.weight, eps))
        return out


class EngineDecoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = Weight(config.vocab, config.hidden, dtype=dtype, trainable=False)
        self.layers = nn.ModuleList(EngineLayer(config, dtype) for _ in range(config.layers))
        self.norm = Weight(config.hidden, dtype=dtype, trainable=False)


class EngineModel(nn.Module):
    """The whole model on one rank. A tied head is the embedding's parameter itself and has no name of its own.

    ``named_parameters()`` is in the order of the layout (programs.py). Starts as zeros.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.model = EngineDecoder(config, dtype)
        if not config.tied:
            self.lm_head = Weight(config.vocab, config.hidden, dtype=dtype, trainable=False)
        cos, sin = rotary_table(config.max_positions, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos.to(dtype), persistent=False)
        self.register_buffer("sin", sin.to(dtype), persistent=False)

    def new_cache(self, batch: int = 1) -> KVCache:
        """An empty cache for this model."""
        return KVCache(self.config, batch, self.dtype)

    def forward(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Logits (batch, vocab) after the last of ids (batch, positions), which follow what the cache holds."""
        start, positions = cache.length, ids.shape[1]
        stop = start + positions
        if stop > self.config.max_positions:
            raise InputError(f"position {stop} is past the model's {self.config.max_positions}")
        cache.reserve(stop)
        turn = (self.cos[start:stop], self.sin[start:stop])
        mask = None
        if positions > 1:
            mask = torch.full((positions, stop), float("-inf"), dtype=self.dtype).triu(start + 1)
        x = functional.embedding(ids, self.model.embed_tokens.weight)
        for at, layer in enumerate(self.model.layers):
            x = layer(x, turn, mask, cache, at)
        cache.length = stop
        x = rms_norm(x[:, -1], self.model.norm.weight, self.config.rms_eps)
        head = self.model.embed_tokens if self.config.tied else self.lm_head
        return functional.linear(x, head.weight)

    @torch.no_grad()
    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy checkpoint tensors into the fused parameters. Raises InputError that names what does not fit."""
        shapes, parameters = checkpoint_shapes(self.config), dict(self.named_parameters())
        for name, tensor in tensors:
            if name not in shapes or tuple(tensor.shape) != shapes[name]:
                known = f"expected {shapes[name]}" if name in shapes else "the model has no such tensor"
                raise InputError(f"checkpoint tensor {name} {tuple(tensor.shape)}: {known}")
            parameter, first = fused_home(self.config, name)
            parameters[parameter][first : first + tensor.shape[0]].copy_(tensor)


def fused_home(config: ModelConfig, name: str) -> tuple[str, int]:
    """The engine's parameter that holds checkpoint tensor ``name``, and the row where it begins (one rank)."""
    c = config
    rows = {
        "q_proj": ("qkv_proj", 0),
        "k_proj": ("qkv_proj", c.heads * c.head_dim),
        "v_proj": ("qkv_proj", (c.heads + c.kv_heads) * c.head_dim),
        "gate_proj": ("gate_up_proj", 0),
        "up_proj": ("gate_up_proj", c.intermediate),
    }
    for part, (fused, row) in rows.items():
        if name.endswith(f".{part}.weight"):
            return name.replace(part, fused), row
    return name, 0


def build_engine_model(
    config: ModelConfig, state: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> EngineModel:
    """An EngineModel that holds a whole checkpoint. Raises InputError where a tensor is missing."""
    missing = [name for name in checkpoint_shapes(config) if name not in state]
    if missing:
        raise InputError(f"checkpoint lacks {missing[0]} and {len(missing) - 1} more tensors")
    model = EngineModel(config, dtype)
    model.load_weights(state.items())
    return model
