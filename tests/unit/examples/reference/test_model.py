"""The trainer's and the engine's form of the model are the same function."""

import dataclasses

import pytest
import torch

from reference.alone import feed
from reference.checkpoint import initial_state
from reference.config import ModelConfig, checkpoint_shapes
from reference.engine_model import build_engine_model
from reference.model import CheckpointModel, count_parameters
from weightsync.errors import InputError

PROMPT = [5, 9, 2, 40, 7, 7, 1, 30]


def variants(config: ModelConfig) -> dict[str, ModelConfig]:
    """Shapes that could each go wrong alone."""
    return {
        "grouped": config,
        "tied": dataclasses.replace(config, tied=True),
        "one KV head": dataclasses.replace(config, kv_heads=1),
        "as many KV heads": dataclasses.replace(config, kv_heads=4),
        "wide heads": dataclasses.replace(config, head_dim=16),
    }


@pytest.mark.parametrize("kind", ["grouped", "tied", "one KV head", "as many KV heads", "wide heads"])
def test_both_forms_give_the_same_logits(config: ModelConfig, kind: str) -> None:
    """Fused, with a cache, all at once or position by position: the trainer's logits, up to rounding."""
    chosen = variants(config)[kind]
    state = initial_state(chosen, 3)
    trainer, engine = CheckpointModel(chosen), build_engine_model(chosen, state)
    trainer.load_state_dict(state)
    expected = trainer(torch.tensor([PROMPT]))[0, -1]
    with torch.inference_mode():
        at_once = engine(torch.tensor([PROMPT]), engine.new_cache())[0]
        cache = engine.new_cache()
        engine(torch.tensor([PROMPT[:3]]), cache)
        in_parts = engine(torch.tensor([PROMPT[3:]]), cache)[0]
    for logits in (at_once, in_parts, feed(engine, engine.new_cache(), PROMPT)):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_batch_gives_each_row_its_own_logits(config: ModelConfig) -> None:
    """No row of a batch is seen by another."""
    engine = build_engine_model(config, initial_state(config, 3))
    prompts = [[1, 2, 3], [4, 5, 6], [1, 2, 40]]
    with torch.inference_mode():
        together = engine(torch.tensor(prompts), engine.new_cache(3))
    for row, prompt in zip(together, prompts, strict=True):
        torch.testing.assert_close(row, feed(engine, engine.new_cache(), prompt), rtol=1e-4, atol=1e-5)


def test_later_tokens_do_not_change_earlier_logits(config: ModelConfig) -> None:
    """The trainer's model is causal, so padding on the right is harmless."""
    trainer = CheckpointModel(config)
    trainer.load_state_dict(initial_state(config, 0))
    short, long = trainer(torch.tensor([PROMPT[:4]])), trainer(torch.tensor([PROMPT]))
    torch.testing.assert_close(long[:, :4], short)


def test_every_parameter_is_trained(config: ModelConfig) -> None:
    """named_parameters is the checkpoint, name for name, and each takes part in the loss."""
    trainer = CheckpointModel(config)
    trainer.load_state_dict(initial_state(config, 0))
    trainer(torch.tensor([PROMPT])).square().sum().backward()
    named = dict(trainer.named_parameters())
    assert {name: tuple(p.shape) for name, p in named.items()} == checkpoint_shapes(config)
    assert list(named) == list(checkpoint_shapes(config))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in named.values())
    assert count_parameters(config) == sum(p.numel() for p in named.values())


def test_a_kept_state_does_not_follow_training(config: ModelConfig) -> None:
    """checkpoint_state is a copy: what version 1 was stays what it was."""
    trainer = CheckpointModel(config)
    trainer.load_state_dict(initial_state(config, 0))
    kept = trainer.checkpoint_state()
    with torch.no_grad():
        trainer.model.norm.weight.add_(1)
    assert torch.equal(kept["model.norm.weight"], torch.ones(config.hidden))


def test_missing_and_misshapen_tensors_are_named(config: ModelConfig) -> None:
    """A checkpoint that does not fit is refused by the tensor's name."""
    state = initial_state(config, 0)
    with pytest.raises(InputError, match=r"lacks model\.norm\.weight"):
        build_engine_model(config, {name: t for name, t in state.items() if name != "model.norm.weight"})
    with pytest.raises(InputError, match=r"model\.norm\.weight \(3,\): expected \(32,\)"):
        build_engine_model(config, state | {"model.norm.weight": torch.ones(3)})
    engine = build_engine_model(config, state)
    with pytest.raises(InputError, match="no such tensor"):
        engine.load_weights([("model.layers.9.mlp.up_proj.weight", torch.ones(1))])


def test_a_position_past_the_model_is_refused(config: ModelConfig) -> None:
    """The rotary table has an end."""
    engine = build_engine_model(config, initial_state(config, 0))
    with pytest.raises(InputError, match="position 257 is past the model's 256"):
        engine(torch.zeros(1, 257, dtype=torch.long), engine.new_cache())
