"""Runs a copy program: trainer tensors into the arena of one engine rank. The only torch of the trainer's side.

Everything that does not depend on the tensors' bytes is done once, when a Replayer is made: destination views over
the arena, joined copies, bucket accounting (fill.py). A publish then costs one strided copy per portion.
"""

import ctypes
import difflib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch

from weightsync.buckets import Bucket, Extent, merge, needed
from weightsync.convert.digesting import STEP, BucketDigester
from weightsync.convert.fill import BucketIndex, Move, portions
from weightsync.convert.program import CopyProgram, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE

Full = tuple[int, str]  # a bucket's offset, and its digest where that was taken on the way, else ""
OnFilled = Callable[[list[Full]], None]

# Between these a trainer's tensor is converted, as the engine's own loading would; every other difference of dtypes
# (to or from integers and 8-bit floats) needs scales that a cast does not have.
_WIDE = frozenset({"float64", "float32", "float16", "bfloat16"})


class _Copy(NamedTuple):
    """One portion, ready to run: region of the tensor, where it goes, and the buckets that it leaves.

    region: None for the whole tensor; address, nbytes: of a target that is one run of bytes, else zero; offset: of
    the target in the payload.
    """

    region: tuple[slice, ...] | None
    target: torch.Tensor
    offset: int
    address: int
    nbytes: int
    leaves: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], move: Move, target: torch.Tensor, leaves: tuple[int, ...]) -> "_Copy":
        """A copy out of a tensor of that shape."""
        region = None if move.shape == shape else tuple(slice(*span) for span in move.box)
        if not target.is_contiguous():
            return cls(region, target, move.offset, 0, 0, leaves)
        nbytes = target.numel() * target.element_size()
        return cls(region, target, move.offset, target.data_ptr(), nbytes, leaves)


class _Task(NamedTuple):
    """All that happens to one checkpoint tensor; no copies: the rank or the stage does not hold it."""

    tensor: TensorCopies
    copies: tuple[_Copy, ...]


class Replayer:
    """A program over one arena. Feed every tensor of a publish, then finish(); then begin() for the next.

    view: the arena's payload, writable, of the layout's size; owned: the checkpoint names that the stage fills
    (None: not known yet, all are copied); buckets: those to account for, empty while they are not known.
    The views hold no reference that keeps the arena mapped: close() before the arena is closed.
    Raises InputError where program, payload and buckets do not fit one another.
    """

    def __init__(
        self,
        program: CopyProgram,
        view: memoryview,
        owned: Iterable[str] | None = None,
        buckets: Sequence[Bucket] = (),
    ) -> None:
        if view.nbytes != program.layout.nbytes:
            raise InputError(f"the arena has {view.nbytes} bytes, the program's layout {program.layout.nbytes}")
        self.program = program
        held = {tensor.name for tensor in program.tensors if tensor.pieces}
        self.owned = frozenset(held if owned is None else owned)
        if strange := sorted(self.owned - {tensor.name for tensor in program.tensors}):
            raise InputError(f"the owned tensor {strange[0]} is not in the copy program of rank {program.rank}")
        self._index = BucketIndex(buckets)
        self._digests = BucketDigester(self._index, needed(program), view)
        with torch.inference_mode(False):  # views made inside that mode could not be written outside it
            self._views = _Views(view)
            self._tasks = {tensor.name: self._prepare(tensor) for tensor in program.tensors}
        self._touching = [0] * len(self._index.offsets)
        for task in self._tasks.values():
            for copy in task.copies:
                for bucket in copy.leaves:
                    self._touching[bucket] += 1
        for offset, count in zip(self._index.offsets, self._touching, strict=True):
            if count == 0:
                raise InputError(
                    f"no owned tensor fills the bucket at byte {offset} of rank {program.rank}'s replica"
                )
        self.begin()

    def _prepare(self, tensor: TensorCopies) -> _Task:
        if tensor.name not in self.owned:
            return _Task(tensor, ())
        copies = (
            _Copy.of(tensor.shape, move, self._views.target(tensor.name, move), leaves)
            for move, leaves in portions(tensor, self._index)
        )
        return _Task(tensor, tuple(copies))

    def begin(self) -> None:
        """Start a publish: nothing is fed, no bucket is full."""
        self._digests.begin()
        self._fed: set[str] = set()
        self._remaining = list(self._touching)

    def extents(self, name: str) -> list[Extent]:
        """Bytes of the payload that feeding ``name`` writes; nothing for a name that is not owned or not known."""
        task = self._tasks.get(name)
        return merge(piece.span for piece in task.tensor.pieces) if task and task.copies else []

    def feed(self, name: str, tensor: torch.Tensor, on_filled: OnFilled | None = None) -> list[int]:
        """Copy one tensor; the offsets of the buckets that became full by it, told to ``on_filled`` at once, with
        their digests where these could be taken on the way.

        When it returns, the tensor may change or go away. Raises InputError, before a byte is copied, for a name
        that the program does not know or that was fed before, and for a shape, dtype or kind of tensor that does
        not fit; and where torch cannot copy.
        """
        task = self._tasks.get(name)
        if task is None:
            raise InputError(self._unknown(name))
        if name in self._fed:
            raise InputError(f"tensor {name} was given twice to one publish")
        _check(task.tensor, tensor)
        self._fed.add(name)
        filled: list[int] = []
        source = tensor.detach().resolve_neg()
        for copy in task.copies:
            _run(name, copy, source, self._digests)
            full = self._count_off(copy.leaves)
            if full and on_filled:
                on_filled([(self._index.offsets[bucket], self._digests.digest(bucket)) for bucket in full])
            filled += [self._index.offsets[bucket] for bucket in full]
        return filled

    def _count_off(self, leaves: tuple[int, ...]) -> list[int]:
        full = []
        for bucket in leaves:
            self._remaining[bucket] -= 1
            if self._remaining[bucket] == 0:
                full.append(bucket)
        return full

    def finish(self, owned: Iterable[str] | None = None) -> None:
        """End the publish. Raises InputError that names the owned tensors that were not fed.

        owned: where the replayer was made without, those that the stage turned out to own.
        """
        wanted = self.owned if owned is None else frozenset(owned)
        missing = [name for name in self._tasks if name in wanted and name not in self._fed]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InputError(
                f"{len(missing)} of {len(wanted)} tensors were not published: {', '.join(missing[:3])}{more}; "
                "every publish must yield the whole of its stage"
            )

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._tasks, n=1)
        hint = f": did you mean {near[0]}?" if near else ": yield tensors under the checkpoint's names"
        return f"tensor {name} is not in the copy program of rank {self.program.rank}{hint}"

    def close(self) -> None:
        """Drop all views into the arena; the arena may be closed now, the Replayer is of no use any more."""
        self._tasks = {}
        self._digests.close()
        self._views.drop()


class _Views:
    """Strided views of every dtype over one payload."""

    def __init__(self, view: memoryview) -> None:
        self._bytes: torch.Tensor | None = torch.frombuffer(view, dtype=torch.uint8)
        self._typed: dict[str, torch.Tensor] = {}

    def target(self, name: str, move: Move) -> torch.Tensor:
        """Where the copy lands, in the shape of its box."""
        size = ITEMSIZE[move.dtype]
        strides = [stride // size for stride in move.strides]
        try:
            return self._as(move.dtype).as_strided(move.shape, strides, move.offset // size)
        except (RuntimeError, AttributeError) as error:
            raise InputError(f"tensor {name}: its copy to byte {move.offset} has no place: {error}") from error

    def _as(self, dtype: str) -> torch.Tensor:
        if self._bytes is None:
            raise InputError("this replayer is closed")
        if dtype not in self._typed:
            size = ITEMSIZE[dtype]
            whole = self._bytes[: self._bytes.numel() // size * size]
            self._typed[dtype] = whole.view(getattr(torch, dtype))
        return self._typed[dtype]

    def drop(self) -> None:
        """Let go of the payload."""
        self._bytes = None
        self._typed.clear()


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check(expected: TensorCopies, tensor: object) -> None:
    """Raises InputError that says what is wrong with the tensor, and what to yield instead."""
    name = expected.name
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"tensor {name} is a {type(tensor).__name__}: yield torch tensors")
    if hasattr(tensor, "full_tensor"):  # a DTensor: each rank holds a shard of it, and gathering is collective
        raise InputError(f"tensor {name} is sharded over ranks: yield tensor.full_tensor() on all of them")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise InputError(f"tensor {name} is {tensor.layout} on {tensor.device}: yield a dense tensor with data")
    if tuple(tensor.shape) != expected.shape:
        raise InputError(
            f"tensor {name} has shape {tuple(tensor.shape)}, the checkpoint {expected.shape}: "
            "yield whole tensors in the checkpoint's shape"
        )
    given = _dtype_name(tensor.dtype)
    if given == expected.dtype or {given, expected.dtype} <= _WIDE:
        return
    if any(piece.dtype != given for piece in expected.pieces):
        raise InputError(
            f"tensor {name} is {given}, the checkpoint {expected.dtype}: no cast makes one of the other, "
            "yield it as the checkpoint holds it"
        )


def _run(name: str, copy: _Copy, source: torch.Tensor, digests: BucketDigester) -> None:
    """One portion. When it returns, its bytes are in the arena."""
    part = source if copy.region is None else source[copy.region]
    target = copy.target
    same = copy.nbytes and part.dtype == target.dtype and part.is_contiguous()
    if same and _is_plain(part) and not _is_faster_in_threads(copy.nbytes):
        address = part.data_ptr()
        for at in range(0, copy.nbytes, STEP):
            size = min(STEP, copy.nbytes - at)
            ctypes.memmove(copy.address + at, address + at, size)  # lets go of the interpreter lock
            digests.copied(copy.offset + at, copy.offset + at + size)
        return
    try:
        with torch.no_grad():
            if part.is_cuda and copy.nbytes:
                # Queued behind whatever computes the tensor. torch stages strided targets itself, so only these
                # may be asynchronous; a pinned arena, and one wait for several portions, would go here.
                target.copy_(part, non_blocking=True)
                torch.cuda.current_stream(part.device).synchronize()
            else:
                target.copy_(part)
    except RuntimeError as error:  # torch's only class: out of device memory, a lost device
        raise InputError(f"tensor {name} cannot be copied: {error}") from error


def _is_faster_in_threads(nbytes: int) -> bool:
    """Whether torch's own copy of so many bytes in host memory beats memmove.

    Measured on 16 cores, pieces of 1 to 512 MiB: in one thread memmove is 1.15 to 1.8 times as fast (torch reads the
    target's lines before it writes them), in four threads torch is 1.7 to 2.8 times as fast. torchrun gives each rank
    one thread unless told otherwise.
    """
    return nbytes >= 2**20 and torch.get_num_threads() > 2


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether data_ptr() is the bytes: a subclass may be a wrapper around others."""
    return tensor.device.type == "cpu" and type(tensor) is torch.Tensor
