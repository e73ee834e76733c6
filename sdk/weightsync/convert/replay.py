"""Runs a copy program: trainer tensors into the arena of one engine rank.

Everything that does not depend on the tensors' bytes is done once, when a Replayer is made: destination views over
the arena, joined copies, bucket accounting (fill.py). A publish then costs one strided copy per portion: at once or
by several threads for tensors in host memory (sharing.py), queued on a lane beside the trainer's own work for those
of a device (lanes.py).
"""

import difflib
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from weightsync.buckets import Bucket, Extent, merge, needed
from weightsync.convert.digesting import BucketDigester, step_of
from weightsync.convert.fallback import Build, Fallback
from weightsync.convert.fill import BucketIndex, portions
from weightsync.convert.given import check
from weightsync.convert.lanes import Lanes, OpenLane
from weightsync.convert.portion import Copy, Views, is_plain
from weightsync.convert.program import ByLoading, CopyProgram, TensorCopies
from weightsync.convert.queueing import DeviceCopies
from weightsync.convert.sharing import SharedCopies
from weightsync.convert.strands import FillThreads
from weightsync.errors import InputError

Full = tuple[int, str]  # a bucket's offset, and its digest where that was taken on the way, else ""
OnFilled = Callable[[list[Full]], None]

AHEAD = 2  # buckets' worth of device tensors that may be held until their copies are done


class _Task(NamedTuple):
    """All that happens to one checkpoint tensor; no copies: the rank or the stage does not hold it."""

    tensor: TensorCopies
    copies: tuple[Copy, ...]

    @property
    def nbytes(self) -> int:
        """That it puts into the payload."""
        return sum(copy.nbytes for copy in self.copies)


class Replayer:
    """A program over one arena. Feed every tensor of a publish, then finish(); then begin() for the next.

    view: the arena's payload, writable, of the layout's size; owned: the checkpoint names that the stage fills
    (None: not known yet, all are copied); buckets: those to account for, empty while they are not known;
    open_lane: how a device's tensors are copied, None: by lanes.Lanes; load_with: builds the model whose load_weights
    makes what is no copy (replicas/rebuild.py), None: such programs are refused; threads: what copies tensors in host
    memory, None: the caller's thread. Then buckets are told in these threads, one at a time.
    The views hold no reference that keeps the arena mapped: close() before the arena is closed.
    Raises InputError where program, payload and buckets do not fit one another.
    """

    def __init__(
        self,
        program: CopyProgram,
        view: memoryview,
        owned: Iterable[str] | None = None,
        buckets: Sequence[Bucket] = (),
        open_lane: OpenLane | None = None,
        *,
        load_with: Build | None = None,
        threads: FillThreads | None = None,
    ) -> None:
        if view.nbytes != program.layout.nbytes:
            raise InputError(f"the arena has {view.nbytes} bytes, the program's layout {program.layout.nbytes}")
        self.program = program
        held = {tensor.name for tensor in program.tensors if tensor.pieces or tensor.name in program.loaded}
        self.owned = frozenset(held if owned is None else owned)
        if strange := sorted(self.owned - {tensor.name for tensor in program.tensors}):
            raise InputError(f"the owned tensor {strange[0]} is not in the copy program of rank {program.rank}")
        self._index = BucketIndex(buckets)
        step = step_of(threads.count if threads is not None else 1)
        self._digests = BucketDigester(self._index, needed(program), view, step)
        with torch.inference_mode(False):  # views made inside that mode could not be written outside it
            self._views = Views(view)
            self._tasks = {tensor.name: self._prepare(tensor) for tensor in program.tensors}
        self._loads = Fallback(program, view, self.owned, load_with)
        self._touching = [0] * len(self._index.offsets)
        for leaves in (
            *(copy.leaves for task in self._tasks.values() for copy in task.copies),
            *map(self._left, self._loads.groups),
        ):
            for bucket in leaves:
                self._touching[bucket] += 1
        for offset, count in zip(self._index.offsets, self._touching, strict=True):
            if count == 0:
                raise InputError(
                    f"no owned tensor fills the bucket at byte {offset} of rank {program.rank}'s replica"
                )
        self.nbytes = sum(task.nbytes for task in self._tasks.values()) + sum(map(self._loaded, self._loads.groups))
        extents = [(bucket.offset, bucket.offset + bucket.nbytes) for bucket in buckets]
        self._lanes = Lanes(self._views.payload, extents)
        self._open_lane = open_lane or self._lanes
        self._ahead = AHEAD * max((bucket.nbytes for bucket in buckets), default=0)
        self._devices: dict[torch.device, DeviceCopies] = {}
        self._threads = threads
        self._shared = SharedCopies(threads, self._digests) if threads is not None else None
        self._counting = threading.Lock()
        self.begin()

    def _prepare(self, tensor: TensorCopies) -> _Task:
        if tensor.name not in self.owned:
            return _Task(tensor, ())
        copies = (
            Copy.of(tensor.shape, move, self._views.target(tensor.name, move), leaves)
            for move, leaves in portions(tensor, self._index)
        )
        return _Task(tensor, tuple(copies))

    def _left(self, group: ByLoading) -> tuple[int, ...]:
        """The buckets that a group's parameters touch, all of them full of it at once."""
        touched = {b for span in self.program.written(group) for b in self._index.touched(span)}
        return tuple(sorted(touched))

    def _loaded(self, group: ByLoading) -> int:
        return sum(stop - start for start, stop in self.program.written(group))

    @property
    def note(self) -> str:
        """What a user should know of this replay, in a sentence; "" where there is nothing."""
        return self._loads.note

    def begin(self) -> None:
        """Start a publish: nothing is fed, no bucket is full. What a failed one left in flight is waited for."""
        self.abandon()
        self._telling = True
        self._digests.begin()
        self._loads.begin()
        self._fed: set[str] = set()
        self._remaining = list(self._touching)
        self.copied = 0  # bytes of nbytes that are in the arena

    def knows(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return name in self._tasks

    def extents(self, name: str) -> list[Extent]:
        """Bytes of the payload that feeding ``name`` writes; nothing for a name that is not owned or not known."""
        task = self._tasks.get(name)
        return merge(self.program.spans(task.tensor)) if task and name in self.owned else []

    def feed(self, name: str, tensor: torch.Tensor, on_filled: OnFilled | None = None, *, kept: bool = False) -> None:
        """Copy one tensor. The buckets that are full by then are told to ``on_filled``, with their digests where
        these could be taken on the way.

        A tensor in host memory may change or go away when it returns, unless it is ``kept``: as it is until the
        replay is drained. One on a device is copied while the caller goes on; what the caller's current stream does
        next waits for that, so that it may be changed there too.
        Raises InputError, before a byte is copied, for a name that the program does not know or that was fed
        before, and for a shape, dtype or kind of tensor that does not fit; and where torch cannot copy this tensor
        or, with threads, one before.
        """
        task = self._tasks.get(name)
        if task is None:
            raise InputError(self._unknown(name))
        if name in self._fed:
            raise InputError(f"tensor {name} was given twice to one publish")
        source = check(task.tensor, tensor).detach().resolve_neg()
        self._fed.add(name)
        if name in self._loads:
            group = self._loads.feed(name, source)
            if group is not None:
                self._done(on_filled, self._loaded(group), self._left(group))
            return
        lane = self._open_lane(source.device) if task.copies else None
        if lane is not None:
            if source.device not in self._devices:
                self._devices[source.device] = DeviceCopies(lane, self._ahead, self._digests)
            self._devices[source.device].feed(name, task.copies, source, partial(self._done, on_filled))
            return
        if self._shared is not None and is_plain(source):
            share = self._shared.keep if kept else self._shared.pass_on
            share(name, task.copies, source, partial(self._done, on_filled))
            return
        done = self._done if self._threads is not None else self._count
        for copy in task.copies:
            copy.run(name, source, self._digests)
            done(on_filled, copy.nbytes, copy.leaves)

    def _done(self, on_filled: OnFilled | None, nbytes: int, leaves: tuple[int, ...]) -> None:
        """So many bytes are in the arena, and their tensor touches these buckets no more."""
        with self._counting:
            if self._telling:
                self._count(on_filled, nbytes, leaves)

    def _count(self, on_filled: OnFilled | None, nbytes: int, leaves: tuple[int, ...]) -> None:
        self.copied += nbytes
        full = []
        for bucket in leaves:
            self._remaining[bucket] -= 1
            if self._remaining[bucket] == 0:
                full.append(bucket)
        if full and on_filled:
            on_filled([(self._index.offsets[bucket], self._digests.digest(bucket)) for bucket in full])

    def finish(self, owned: Iterable[str] | None = None) -> None:
        """End the publish: wait for what is in flight; the last buckets are told meanwhile.

        owned: where the replayer was made without, those that the stage turned out to own. Raises InputError that
        names the owned tensors that were not fed.
        """
        self.drain()
        wanted = self.owned if owned is None else frozenset(owned)
        missing = [name for name in self._tasks if name in wanted and name not in self._fed]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InputError(
                f"{len(missing)} of {len(wanted)} tensors were not published: {', '.join(missing[:3])}{more}; "
                "every publish must yield the whole of its stage"
            )

    def drain(self, useless: Callable[[], bool] = lambda: False) -> None:
        """Wait for what is in flight; the buckets that it fills are told meanwhile. Raises InputError as feed().

        useless: asked whenever a thread has filled a bucket; then what it has not begun is left out.
        """
        if self._threads is not None and self._shared is not None:
            self._shared.flush()
            self._threads.drain(useless)
        for device in self._devices.values():
            device.drain()

    def abandon(self) -> None:
        """The publish failed: nothing more is told, and nothing is written to the arena once this returns."""
        self._telling = False
        if self._threads is not None and self._shared is not None:
            self._shared.drop()
            self._threads.stop()
        for device in self._devices.values():
            device.abandon()

    def _unknown(self, name: str) -> str:
        if ".lora_" in name or ".base_layer." in name:
            return (
                f"tensor {name} is part of an adapter, which the checkpoint does not have: merge adapters before "
                "publish(), and yield the merged weights under the checkpoint's names"
            )
        near = difflib.get_close_matches(name, self._tasks, n=1)
        hint = f": did you mean {near[0]}?" if near else ": yield tensors under the checkpoint's names"
        return f"tensor {name} is not in the copy program of rank {self.program.rank}{hint}"

    def close(self) -> None:
        """Drop all views into the arena; the arena may be closed now, the Replayer is of no use any more."""
        try:
            self.abandon()
        finally:
            self._lanes.close()
            self._loads.close()
            self._tasks = {}
            self._digests.close()
            self._views.drop()
