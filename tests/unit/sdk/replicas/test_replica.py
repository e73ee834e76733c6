"""A rank's model is made ready to be given other memory, whatever its layers keep of their parameters."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import util
from typing import Any

import pytest
import torch

from weightsync.convert.header import Header
from weightsync.errors import InputError
from weightsync.hook import HOOK_FILE
from weightsync.layout import lay_out
from weightsync.replicas.replica import Replica, remade

HEADERS = [Header(f"{name}.weight", "float32", (4, 2)) for name in ("norm", "convolution")]


class Anywhere:
    """A parallel state of nothing."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """See Place."""
        yield


class Norm(torch.nn.Module):
    """Keeps weight + 1 in a buffer, as SGLang's for Gemma."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 2), requires_grad=False)
        self.register_buffer("gemma_weight", torch.ones(4, 2), persistent=False)

    def load(self, given: torch.Tensor) -> None:
        """The weight's loader."""
        self.weight.data.copy_(given)
        self.get_buffer("gemma_weight").copy_(self.weight.data).add_(1.0)


class Convolution(torch.nn.Module):
    """Keeps a view of its weight for its forward; the weight lies on the device that is asked for by name."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 2, device=device), requires_grad=False)
        self.kept = self.weight.view(8)

    def load(self, given: torch.Tensor) -> None:
        """The weight's loader."""
        self.weight.data.copy_(given)


class Model(torch.nn.Module):
    """Two layers."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.norm, self.convolution = Norm(), Convolution(device)

    def load_weights(self, given: Iterable[tuple[str, torch.Tensor]]) -> None:
        """By name."""
        for name, tensor in given:
            layer: Any = self.get_submodule(name.removesuffix(".weight"))
            layer.load(tensor)


def replica(device: str = "cpu") -> Replica:
    """Of the model, built as SGLang's are: on meta but for what asks for another device."""
    with torch.device("meta"):
        return Replica(Model(device), Anywhere(), 0)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_views_and_devices_of_layers_are_no_matter(device: str) -> None:
    """All parameters are on meta, are traced, and can be given an arena's bytes and be let go again."""
    made = replica(device)
    assert all(parameter.is_meta for parameter in made.named.values())
    blocks = made.trace(HEADERS).blocks
    assert {name: block.names() for name, block in blocks.items()} == {
        f"{name}.weight": {f"{name}.weight"} for name in ("norm", "convolution")
    }
    layout = lay_out([(row.name, row.dtype, row.shape) for row in made.parameters()])
    payload = bytearray(layout.nbytes)
    made.bind(layout, memoryview(payload))
    made.load((header.name, torch.full(header.shape, 2.0)) for header in HEADERS)
    made.release()
    assert all(parameter.is_meta for parameter in made.named.values())
    for row in layout.parameters:
        held = torch.frombuffer(payload, dtype=torch.float32)[row.offset // 4 : (row.offset + row.nbytes) // 4]
        assert held.tolist() == [2.0] * 8


def test_a_view_that_nobody_finds_is_said_by_name() -> None:
    """Kept out of sight, in a list: the parameter cannot be given other memory, and the sentence names it."""
    with torch.device("meta"):
        model = Model("meta")
        model.convolution.__dict__["hidden"] = [model.convolution.weight.view(8)]
        made = Replica(model, Anywhere(), 0)
    layout = lay_out([(row.name, row.dtype, row.shape) for row in made.parameters()])
    with pytest.raises(InputError, match=r"convolution\.weight cannot be given other memory, since its model"):
        made.bind(layout, memoryview(bytearray(layout.nbytes)))


def test_what_is_not_brought_is_what_the_hook_makes_anew() -> None:
    """A buffer that is left out here and not made there would keep the first version's values for ever."""
    place = util.spec_from_file_location("weightsync_hook", HOOK_FILE)
    assert place is not None
    assert place.loader is not None
    hook = util.module_from_spec(place)
    place.loader.exec_module(hook)
    model = Model()
    left = remade(model)
    assert left == {"norm.gemma_weight"}
    torch.nn.init.constant_(model.norm.weight, 5.0)
    for step in hook.derived_buffers(model):
        step()
    for name in left:
        assert model.get_buffer(name).flatten().tolist() == [6.0] * 8
