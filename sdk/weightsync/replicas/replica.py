"""One engine rank's model on the meta device: its table, its trace, and its load_weights into given bytes."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from weightsync.convert.header import Header
from weightsync.convert.merge import Row
from weightsync.convert.trace import Traced, dtype_name, trace
from weightsync.errors import InputError
from weightsync.layout import Layout

# The engine's parallel state belongs to the process.
ALONE = threading.RLock()


class Place(Protocol):
    """The parallel state of one rank."""

    def entered(self) -> AbstractContextManager[None]:
        """Make it the process's."""


class Replica:
    """A rank's model. Its parameters are on the meta device, but for those that are bound."""

    def __init__(self, model: torch.nn.Module, place: Place, rank: int) -> None:
        self.model = model
        self._load_weights: Any = model.load_weights
        self.rank = rank
        self._place = place
        self._bound: list[tuple[str, torch.nn.Parameter, torch.Tensor]] = []
        if callable(getattr(model, "post_load_weights", None)):
            # What it derives from parameters (MLA's w_kc and w_vc) are no parameters: the engine makes its own, here
            # it would cost a pass over them in every call.
            model.post_load_weights = _nothing  # type: ignore[assignment]
        _let_go_of_views(model)
        for name, parameter in self.named.items():
            if not parameter.is_meta:  # its layer asks for a device by name, whatever the default is (qwen3-next)
                _exchange(name, parameter, torch.empty_like(parameter, device="meta"))

    @property
    def named(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by name, tied ones once, in the model's order."""
        return dict(self.model.named_parameters())

    def parameters(self) -> list[Row]:
        """The rank's table."""
        return [Row(name, dtype_name(p.dtype), tuple(p.shape), _constant(p)) for name, p in self.named.items()]

    def trace(self, headers: Sequence[Header]) -> Traced:
        """Watch one load_weights of tensors that exist by name only. Raises InputError where it cannot be watched."""
        derived = remade(self.model)
        buffers = {n: buffer for n, buffer in self.model.named_buffers() if buffer.is_meta and n not in derived}
        with self._ready():
            try:
                return trace(self._load_weights, self.named, buffers, headers)
            except InputError:
                raise
            except Exception as error:
                raise InputError(
                    f"rank {self.rank}: load_weights of {type(self.model).__name__} cannot be traced "
                    f"({type(error).__name__}: {error})"
                ) from error

    def bind(self, layout: Layout, view: memoryview, only: frozenset[str] | None = None) -> None:
        """Let parameters be tensors on the payload's bytes; ``only`` these, the others stay on meta. A layout may
        leave out the engine's own constants.

        Raises InputError where the layout is not this rank's.
        """
        self.release()
        if view.nbytes != layout.nbytes:
            raise InputError(f"rank {self.rank}: {view.nbytes} bytes are given, the layout has {layout.nbytes}")
        named = self.named
        rows = {row.name: row for row in layout.parameters}
        strangers = {name for name in set(rows) ^ set(named) if name not in named or not _constant(named[name])}
        if only is None and strangers:
            raise InputError(f"rank {self.rank}: {min(strangers)} is not both in the layout and in the model")
        payload = torch.frombuffer(view, dtype=torch.uint8)
        for name in rows if only is None else sorted(only):
            row, parameter = rows[name], named[name]
            if (row.dtype, row.shape) != (dtype_name(parameter.dtype), tuple(parameter.shape)):
                raise InputError(
                    f"rank {self.rank}: {row.describe()} in the layout, {parameter.dtype} {tuple(parameter.shape)} "
                    "in the model"
                )
            place = payload[row.offset : row.offset + row.nbytes].view(parameter.dtype).view(parameter.shape)
            self._bound.append((name, parameter, _exchange(name, parameter, place)))

    def release(self) -> None:
        """Let go of the bytes: every parameter is on the meta device again."""
        for name, parameter, before in self._bound:
            _exchange(name, parameter, before)
        self._bound.clear()

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """One call of the model's load_weights. Raises InputError with the engine's own words."""
        with self._ready(), torch.no_grad():
            try:
                self._load_weights(iter(tensors))
            except Exception as error:
                raise InputError(
                    f"rank {self.rank}: load_weights of {type(self.model).__name__} failed "
                    f"({type(error).__name__}: {error})"
                ) from error

    @contextmanager
    def _ready(self) -> Iterator[None]:
        with ALONE, self._place.entered():
            for module in (self.model, *self.model.children()):
                module.__dict__.pop("_cached_params_dict", None)  # a table of parameters as they were
            yield


def _constant(parameter: torch.nn.Parameter) -> bool:
    """Whether SGLang gives it a value where the checkpoint has none (attention's k_scale: 1): its mark for what two
    engines need not have in common. Only of scalars: the hook reads their values.
    """
    return parameter.numel() == 1 and bool(getattr(parameter, "_skip_weight_check", False))


def remade(model: torch.nn.Module) -> set[str]:
    """Buffers that a weight's loader fills from the weight itself, and the hook makes anew after each copy: Gemma's
    norms keep weight + 1 (gemma2, qwen3-next, qwen3.5). Found as the hook finds them: see its derived_buffers.
    """
    found = set()
    for name, module in model.named_modules():
        weight, kept = getattr(module, "weight", None), getattr(module, "gemma_weight", None)
        if isinstance(weight, torch.Tensor) and isinstance(kept, torch.Tensor) and kept.shape == weight.shape:
            found.add(f"{name}.gemma_weight".lstrip("."))
    return found


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Instead of a step that a replica has no use for."""


def _let_go_of_views(model: torch.nn.Module) -> None:
    """Layers keep views of parameters for their forward (the convolutions of qwen3-next and qwen3.5), and with them
    the parameters' memory. A replica computes nothing: something of the same shape does.
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and id(value._base) in parameters:
                vars(module)[name] = torch.empty_like(value, device="meta")


def _exchange(name: str, parameter: torch.nn.Parameter, data: torch.Tensor) -> torch.Tensor:
    """Give a parameter other memory, also on another device, where it stands: layers and loaders hold on to the
    object. Returns what it was before. Raises InputError where somebody holds on to its memory, too.
    """
    fresh = torch.Tensor._make_subclass(type(parameter), data, parameter.requires_grad)
    fresh.__dict__.update(parameter.__dict__)
    try:
        torch.utils.swap_tensors(parameter, fresh)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise InputError(
            f"{name} cannot be given other memory, since its model keeps a view of it: report the model"
        ) from error
    return fresh
