"""The sizes of a model, and which checkpoint tensors follow from them: names, shapes, order, owning stage. Pure."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weightsync.errors import InputError

EMBED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# Our field: Hugging Face's key in config.json.
KEYS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "rope_theta": "rope_theta",
    "rms_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}


@dataclass(frozen=True)
class ModelConfig:
    """A llama-like decoder: RoPE, RMSNorm, grouped-query attention, SwiGLU, no biases. Sizes in elements."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    max_positions: int = 512
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-6
    tied: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, bool) and value <= 0:
                raise InputError(f"model config: {name} is {value}, it must be above 0")
        if self.heads % self.kv_heads:
            raise InputError(f"model config: {self.heads} heads cannot share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise InputError(f"model config: head_dim {self.head_dim} must be even for rotary positions")

    def to_json(self) -> dict[str, Any]:
        """As config.json has it."""
        ours = asdict(self)
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
            **{theirs: ours[name] for name, theirs in KEYS.items()},
        }

    @classmethod
    def from_json(cls, document: dict[str, Any], origin: str = "config.json") -> "ModelConfig":
        """Read config.json's object. Raises InputError that names ``origin`` and the key."""
        kind = document.get("model_type")
        if kind != "llama":
            raise InputError(f"{origin}: model_type {kind!r} is not supported, only 'llama' is")
        document = {"head_dim": _head_dim(document), **document}
        missing = [theirs for theirs in KEYS.values() if theirs not in document]
        if missing:
            raise InputError(f"{origin}: key {missing[0]!r} is missing")
        return cls(**{name: document[theirs] for name, theirs in KEYS.items()})

    @classmethod
    def load(cls, directory: Path) -> "ModelConfig":
        """Read ``directory``/config.json."""
        path = directory / "config.json"
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from error
        return cls.from_json(document, str(path))


def _head_dim(document: dict[str, Any]) -> int:
    """Older checkpoints leave it out: hidden size over heads."""
    return int(document.get("hidden_size", 0) // max(document.get("num_attention_heads", 1), 1))


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Checkpoint tensors of one layer, in checkpoint order."""
    c, prefix = config, f"model.layers.{layer}."
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (c.heads * c.head_dim, c.hidden),
        "self_attn.k_proj": (c.kv_heads * c.head_dim, c.hidden),
        "self_attn.v_proj": (c.kv_heads * c.head_dim, c.hidden),
        "self_attn.o_proj": (c.hidden, c.heads * c.head_dim),
        "mlp.gate_proj": (c.intermediate, c.hidden),
        "mlp.up_proj": (c.intermediate, c.hidden),
        "mlp.down_proj": (c.hidden, c.intermediate),
        "input_layernorm": (c.hidden,),
        "post_attention_layernorm": (c.hidden,),
    }
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def checkpoint_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every checkpoint tensor, in checkpoint order. A tied head is the embedding and has no tensor of its own."""
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab, config.hidden)}
    for layer in range(config.layers):
        shapes |= layer_shapes(config, layer)
    shapes[NORM] = (config.hidden,)
    if not config.tied:
        shapes[HEAD] = (config.vocab, config.hidden)
    return shapes


def stage_names(config: ModelConfig, stage: int, stages: int) -> list[str]:
    """Checkpoint tensors that pipeline stage ``stage`` of ``stages`` owns, in checkpoint order.

    Layers are split evenly (earlier stages take what is left over); the embedding belongs to the first stage,
    also where the head is tied to it, the last norm and the head to the last.
    """
    if not 0 <= stage < stages <= config.layers:
        raise InputError(f"stage {stage} of {stages} does not exist in a model of {config.layers} layers")
    base, left = divmod(config.layers, stages)
    first = stage * base + min(stage, left)
    names = [EMBED] if stage == 0 else []
    for layer in range(first, first + base + (stage < left)):
        names += layer_shapes(config, layer)
    if stage == stages - 1:
        names += [NORM] if config.tied else [NORM, HEAD]
    return names
