"""Watches load_weights: which region of which checkpoint tensor ends in which bytes of which parameter.

A dispatch mode sees every operation on tensors. Copies are followed as blocks (block.py), through views and through
temporary tensors; whatever is no copy taints what it writes with its name. All tensors may be on the meta device:
no byte of the checkpoint or of the model is needed, so that a model of any size is traced in little memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weightsync.convert.block import BITS, CAST, Block, Computed, Constant, Part, Region, Term, align, named
from weightsync.convert.grid import Irregular, Loop, dense, volume
from weightsync.convert.header import Header
from weightsync.convert.one_thread import in_this_thread
from weightsync.errors import InputError

aten = torch.ops.aten

STAND_IN = 1.2345678901234567e-300  # the answer to Tensor.item(), whose value nobody has here
UNKNOWN = Computed("a value that is in no checkpoint tensor", ())
# Operations whose result has the elements of their first argument, in its order.
_COPIES = {
    aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default, aten._reshape_copy.default,
    aten.detach_copy.default, aten.alias_copy.default, aten.view_copy.default, aten.expand_copy.default,
}  # fmt: skip
_FILLS = {aten.fill_.Scalar, aten.zero_.default}
_MADE = {
    aten.zeros.default: 0.0, aten.zeros_like.default: 0.0, aten.new_zeros.default: 0.0,
    aten.ones.default: 1.0, aten.ones_like.default: 1.0, aten.new_ones.default: 1.0,
}  # fmt: skip
_BLANK = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default}


class ValueAsked(RuntimeError):
    """load_weights wants to know a value, and does more with it than to write it down."""


class Traced(NamedTuple):
    """What one call of load_weights did. blocks: content by parameter; joint: sets of checkpoint tensors that went
    through one and the same copy into a parameter, so that one alone would have been held back.
    """

    blocks: dict[str, Block]
    joint: list[frozenset[str]]


class _Tensor(NamedTuple):
    """A tensor seen: its block, and whether a parameter's. kept: so that no other memory gets the same identity."""

    block: Block
    parameter: str
    kept: torch.UntypedStorage


def dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16`` of torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the elements of checkpoint tensors into parameters."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.joint: set[frozenset[str]] = set()
        self._seen: dict[int, _Tensor] = {}
        self._asked: torch.Tensor | None = None
        for name, parameter in parameters.items():
            if not parameter.is_contiguous():
                raise InputError(f"parameter {name} is not contiguous (strides {parameter.stride()}): it is refused")
            if parameter.untyped_storage()._cdata in self._seen:
                other = self._seen[parameter.untyped_storage()._cdata].parameter
                raise InputError(f"parameters {other} and {name} share their memory but for a tie: they are refused")
            self._keep(parameter, Block(tuple(parameter.shape), dtype_name(parameter.dtype)), name)

    def feed(self, header: Header) -> torch.Tensor:
        """The tensor to give to load_weights for ``header``."""
        tensor = torch.empty(header.shape, dtype=getattr(torch, header.dtype), device="meta")
        self._keep(tensor, Block.of(header.name, header.shape, header.dtype))
        return tensor

    def watch(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, Block]:
        """Follow what goes into memory that is no parameter's, too."""
        watched = {}
        for name, buffer in buffers.items():
            if self._known(buffer) is None:
                watched[name] = self._target(buffer).block
        return watched

    @property
    def blocks(self) -> dict[str, Block]:
        """The parameters' content."""
        return {seen.parameter: seen.block for seen in self._seen.values() if seen.parameter}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        asked = self.settle(func is aten.fill_.Scalar and args[1] == STAND_IN)
        if func is aten._local_scalar_dense.default and self._known(args[0]) is not None:
            self._asked = args[0]
            return STAND_IN
        out = func(*args, **kwargs)
        if asked is not None:
            self._copy(out, asked.reshape(()))
        elif func is aten.copy_.default:
            self._copy(args[0], args[1])
        elif func in _COPIES and isinstance(out, torch.Tensor):
            if self._known(args[0]) is not None and self._known(out) is None:
                self._copy(out, args[0])
        elif func in {aten.cat.default, aten.stack.default}:
            self._join(func, out, args)
        elif func in _FILLS and self._known(args[0]) is not None:
            self._fill(out, Constant(float(args[1]) if len(args) > 1 else 0.0))
        elif func in _MADE:
            self._fill(out, Constant(_MADE[func]))
        elif func not in _BLANK:
            self._other(func, args, kwargs, out)
        return out

    def settle(self, written: bool = False) -> torch.Tensor | None:
        """The tensor whose value was asked for in the operation before: SGLang loads scalars by fill_(tensor.item()),
        which is a copy. Raises ValueAsked where the value was not ``written`` at once: it may decide anything then.
        """
        asked, self._asked = self._asked, None
        if asked is not None and not written:
            names = ", ".join(sorted(self._reached(asked))) or "a tensor"
            raise ValueAsked(f"it asks for the value of {names} by Tensor.item(), which needs the checkpoint's bytes")
        return asked

    def _keep(self, tensor: torch.Tensor, block: Block, parameter: str = "") -> _Tensor:
        storage = tensor.untyped_storage()
        seen = self._seen[storage._cdata] = _Tensor(block, parameter, storage)
        return seen

    def _known(self, tensor: object) -> _Tensor | None:
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        return self._seen.get(tensor.untyped_storage()._cdata)

    def _target(self, tensor: torch.Tensor) -> _Tensor:
        """The block that a tensor is written in, made where the memory is new."""
        known = self._known(tensor)
        if known is not None:
            return known
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        shape = tuple(tensor.shape) if whole else (tensor.untyped_storage().nbytes() // tensor.element_size(),)
        return self._keep(tensor, Block(shape, dtype_name(tensor.dtype)))

    def _copy(self, target: torch.Tensor, source: object) -> None:
        known = self._known(source)
        if known is None or not isinstance(source, torch.Tensor):
            if self._known(target) is not None:
                self._fill(target, UNKNOWN)
            return
        if target.numel() == 0:
            return
        to = self._target(target)
        expanded = source.expand(target.shape)
        loops = tuple(
            Loop(*dimension) for dimension in zip(target.shape, expanded.stride(), target.stride(), strict=True)
        )
        try:
            parts = self._parts(known.block, expanded, to.block, target, loops)
        except Irregular:
            parts = None
        if parts is None:
            self._fill(target, Computed("a copy of irregular strides", tuple(sorted(known.block.names()))))
            return
        names = {name for part in parts for name in named(part.source)}
        if to.parameter and len(names) > 1:
            self.joint.add(frozenset(names))

    def _parts(
        self, source: Block, read: torch.Tensor, target: Block, written: torch.Tensor, loops: tuple[Loop, ...]
    ) -> list[Part]:
        if read.element_size() != _size(source.dtype) or written.element_size() != _size(target.dtype):
            raise Irregular
        path = _path(source.dtype, dtype_name(read.dtype), dtype_name(written.dtype), target.dtype)
        found: list[Part] = []
        source = source.fresh
        starts = int(read.storage_offset()), int(written.storage_offset())
        for run, reading, writing in align(loops, source, starts[0], target, starts[1]):
            counts = tuple(loop.steps for loop in run)
            parts = [_with(part, path) for part in source.read(reading, counts)]
            target.write(writing, counts, _whole(parts, counts))
            found += parts
        return found

    def _fill(self, target: torch.Tensor, source: Constant | Computed) -> None:
        if target.numel() == 0:
            return
        to = self._target(target)
        loops = tuple(Loop(n, 0, step) for n, step in zip(target.shape, target.stride(), strict=True))
        nothing = Block((1,), to.block.dtype)
        nothing.put(Term(((0, 1),), source))
        try:
            for run, reading, writing in align(loops, nothing, 0, to.block, int(target.storage_offset())):
                counts = tuple(loop.steps for loop in run)
                to.block.write(writing, counts, nothing.read(reading, counts))
        except Irregular:
            names = to.block.names() | set(named(source))
            to.block.put(Term(to.block.whole, Computed("a fill of irregular strides", tuple(sorted(names)))))

    def _join(self, func: Any, out: torch.Tensor, args: tuple[Any, ...]) -> None:
        tensors: Sequence[torch.Tensor] = args[0]
        if not any(self._known(tensor) is not None for tensor in tensors):
            return
        self._target(out)
        dimension = (args[1] if len(args) > 1 else 0) % max(out.dim(), 1)
        at = 0
        for tensor in tensors:
            if func is aten.stack.default:
                self._copy(out.select(dimension, at), tensor)
                at += 1
            elif tensor.numel():
                self._copy(out.narrow(dimension, at, tensor.shape[dimension]), tensor)
                at += tensor.shape[dimension]

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Any other operation: what it writes, or makes anew out of what is known, is computed."""
        inputs = [tensor for tensor in tree_leaves((args, kwargs)) if self._known(tensor) is not None]
        if not inputs:
            return
        written = [tensor for tensor in tree_leaves(out) if isinstance(tensor, torch.Tensor)]
        if func._schema.is_mutable:
            written += _mutated(func, args, kwargs)
        elif written and all(self._known(tensor) is not None for tensor in written):
            return  # views
        names = {name for tensor in inputs for name in self._reached(tensor)}
        for tensor in written:
            if tensor.layout is torch.strided:
                self._fill(tensor, Computed(str(func).removeprefix("aten."), tuple(sorted(names))))

    def _reached(self, tensor: torch.Tensor) -> set[str]:
        """The checkpoint tensors in a view."""
        known = self._known(tensor)
        if known is None or tensor.numel() == 0:
            return set()
        # As if written side by side: then the same code takes the view apart.
        imagined = Block((tensor.numel(),), known.block.dtype)
        steps = dense(tuple(tensor.shape))
        loops = tuple(Loop(*way) for way in zip(tensor.shape, tensor.stride(), steps, strict=True))
        source, found = known.block.fresh, set[str]()
        try:
            for run, reading, _ in align(loops, source, int(tensor.storage_offset()), imagined, 0):
                for part in source.read(reading, tuple(loop.steps for loop in run)):
                    found.update(named(part.source))
        except Irregular:
            return known.block.names()
        return found


def _whole(parts: list[Part], counts: tuple[int, ...]) -> list[Part]:
    """The parts, on top of an unknown value where memory was read that nothing had written."""
    whole = Part(tuple((0, count) for count in counts), UNKNOWN, 0, (0,) * len(counts))
    return parts if sum(volume(part.ranges) for part in parts) == volume(whole.ranges) else [whole, *parts]


def _size(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def _path(*dtypes: str) -> tuple[tuple[str, str], ...]:
    """Block's dtype, seen as, converted to, laid down as: the steps that change anything."""
    stored, seen, written, laid = dtypes
    steps = [(BITS, seen)] if seen != stored else []
    if written != seen:
        steps.append((CAST, written))
    if laid != written:
        steps.append((BITS, laid))
    return tuple(steps)


def _with(part: Part, path: tuple[tuple[str, str], ...]) -> Part:
    if not path:
        return part
    if isinstance(part.source, Region):
        return part._replace(source=part.source._replace(path=part.source.path + path))
    if isinstance(part.source, Constant) and part.source.value != 0:
        return part._replace(source=Computed(f"the constant {part.source.value} in another dtype", ()))
    return part


def _mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that an operation writes."""
    found = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[at] if at < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    return found


def trace(
    load_weights: Any,
    parameters: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    headers: Iterable[Header],
) -> Traced:
    """Call ``load_weights`` once with all of ``headers``, as meta tensors, and say what went where.

    Raises InputError where a checkpoint tensor goes into a buffer, which no engine hands out by name.
    """
    watcher = Watcher(parameters)
    watched = watcher.watch(buffers)
    with torch.no_grad(), in_this_thread(), watcher:
        load_weights((header.name, watcher.feed(header)) for header in headers)
        watcher.settle()
    for name, block in watched.items():
        if names := sorted(block.names()):
            raise InputError(
                f"{names[0]} is loaded into the buffer {name}: only parameters can be brought to an engine"
            )
    return Traced(watcher.blocks, sorted(watcher.joint, key=sorted))
