"""Names that wrappers changed are the checkpoint's again, and nothing is guessed."""

import pytest

from weightsync.errors import InputError
from weightsync.publisher.naming import GivenNames, unwrapped

CHECKPOINT = {"model.layers.0.weight", "lm_head.weight", "head.module.weight", "module.gate.weight", "gate.weight"}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        pytest.param("lm_head.weight", "lm_head.weight", id="its own name stays"),
        pytest.param("module.lm_head.weight", "lm_head.weight", id="DDP"),
        pytest.param("_orig_mod.lm_head.weight", "lm_head.weight", id="torch.compile"),
        pytest.param("_orig_mod.module.lm_head.weight", "lm_head.weight", id="DDP inside torch.compile"),
        pytest.param("module._orig_mod.lm_head.weight", "lm_head.weight", id="torch.compile inside DDP"),
        pytest.param("module.module.lm_head.weight", "lm_head.weight", id="two wrappers of one kind"),
        pytest.param("model.layers.0._orig_mod.weight", "model.layers.0.weight", id="a compiled layer"),
        pytest.param(
            "_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.weight",
            "model.layers.0.weight",
            id="FSDP1 and activation checkpointing",
        ),
        pytest.param("model.module.layers.0.weight", "model.layers.0.weight", id="DDP around a part"),
        pytest.param("module.head.module.weight", "head.module.weight", id="a part of the model called module"),
        pytest.param("module.gate.weight", "module.gate.weight", id="a known name is never changed"),
        pytest.param("module.other.weight", "module.other.weight", id="a name that leads nowhere"),
        pytest.param("my_module.lm_head.weight", "my_module.lm_head.weight", id="a part that only sounds alike"),
        pytest.param("_orig_mod", "_orig_mod", id="a mark alone"),
    ],
)
def test_what_a_wrapper_added_is_taken_off(given: str, meant: str) -> None:
    """When the checkpoint has the one name and not the other."""
    names = GivenNames(CHECKPOINT.__contains__)
    assert names.take(given) == meant
    assert names.meant == (meant,)


def test_one_of_two_names_that_may_be_meant_is_not_chosen() -> None:
    """Both are named."""
    with pytest.raises(InputError, match=r"may be the checkpoint's module\.gate\.weight or gate\.weight"):
        GivenNames(CHECKPOINT.__contains__).take("_orig_mod.module.gate.weight")


@pytest.mark.parametrize(
    "pair", [("module.lm_head.weight", "lm_head.weight"), ("lm_head.weight", "_orig_mod.lm_head.weight")]
)
def test_two_names_for_one_tensor_are_refused(pair: tuple[str, str]) -> None:
    """In either order; the message has both."""
    names = GivenNames(CHECKPOINT.__contains__)
    names.take(pair[0])
    with pytest.raises(InputError, match=f"tensors {pair[0]} and {pair[1]} are both the checkpoint's lm_head.weight"):
        names.take(pair[1])


def test_without_a_checkpoint_names_stay() -> None:
    """A rank that feeds nobody knows none."""
    assert GivenNames(lambda _: False).take("module.lm_head.weight") == "module.lm_head.weight"


def test_no_name_is_its_own_candidate() -> None:
    """Nor is the empty one."""
    for name in ("a", "module", "module.a", "_orig_mod", "module.module"):
        assert not {"", name} & set(unwrapped(name))
