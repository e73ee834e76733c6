"""What no copy makes: the engine's own ``load_weights``, run on a replica whose parameters are the arena's bytes.

A tensor that is computed with others (convert/program.py: ByLoading) is kept until all of its group are there; then
they go into one call, alone, and the bytes of the group's parameters are final. So memory is bounded by the groups
that are incomplete at one time, and each group's buckets are written as early as those of copied tensors.
"""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from weightsync.convert.program import ByLoading, CopyProgram, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE, Layout

log = logging.getLogger(__name__)

LEAST_HELD = 2**30  # bytes that may be kept in any case, and MORE_GROUPS of the largest group
MORE_GROUPS = 4
SHOWN = 5  # names in a sentence

_told: set[str] = set()  # digests of the programs whose fallback this process has spoken of
_WIDE = frozenset({"float64", "float32", "float16", "bfloat16"})


class Replica(Protocol):
    """One engine rank's model; replicas/sglang.py has the real one."""

    def bind(self, layout: Layout, view: memoryview, only: frozenset[str] | None = None) -> None:
        """These parameters are the payload's bytes from here on; the others have no memory."""

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """One call of the model's own load_weights. Raises InputError with the engine's own words."""

    def release(self) -> None:
        """Let go of the payload."""


Build = Callable[[CopyProgram], Replica]  # the rank's model without memory; InputError where it cannot be built


class Fallback:
    """The groups of one program that a stage owns, over one arena. close() before the arena is closed.

    Raises InputError that names the parameters where their replica cannot be built here.
    """

    def __init__(self, program: CopyProgram, view: memoryview, owned: frozenset[str], make: Build | None) -> None:
        self._program = program
        self._groups = [group for group in program.by_loading if owned.intersection(group.tensors)]
        parted = next((g for g in self._groups if not owned.issuperset(g.tensors)), None)
        if parted is not None:
            raise InputError(f"{_few(parted.tensors)} must be published by the same stage: they load together")
        self._names = [name for group in self._groups for name in group.parameters]
        self._reasons = _few(sorted({group.reason for group in self._groups}), 2)
        self._by_name = {name: group for group in self._groups for name in group.tensors}
        loaded = [tensor for tensor in program.tensors if tensor.name in self._by_name] if self._groups else []
        self._order = {tensor.name: at for at, tensor in enumerate(loaded)}
        self._dtypes = {tensor.name: tensor.dtype for tensor in loaded}
        self._kept: dict[str, torch.Tensor] = {}
        self._replica: Replica | None = None
        self._limit = self._most(loaded)
        self.note = ""
        if self._groups:
            self.note = self._said()
            self._replica = self._build(make or _nobody, view)
            if program.digest not in _told:  # a replayer is made for each arena, and again as names become known
                _told.add(program.digest)
                log.warning("%s", self.note)

    def _most(self, loaded: Iterable[TensorCopies]) -> int:
        sizes = {tensor.name: ITEMSIZE[tensor.dtype] * math.prod(tensor.shape) for tensor in loaded}
        largest = max((sum(sizes[name] for name in group.tensors) for group in self._groups), default=0)
        return max(LEAST_HELD, MORE_GROUPS * largest)

    def _said(self) -> str:
        return (
            f"{len(self._names)} parameters of rank {self._program.rank} are no copy of the checkpoint and are "
            f"filled by SGLang's load_weights, which is slower: {_few(self._names)} ({self._reasons})"
        )

    def _build(self, make: Build, view: memoryview) -> Replica:
        try:
            replica = make(self._program)
        except InputError as error:
            raise InputError(
                f"{len(self._names)} parameters of rank {self._program.rank} are no copy of the checkpoint "
                f"({self._reasons}): {_few(self._names)}. They need SGLang's load_weights, and SGLang cannot be used "
                f"in the trainer: {error}. Install the engine's SGLang release in the trainer's image, or serve a "
                "checkpoint without such parameters"
            ) from error
        # The others stay without memory: a load that strays into them changes nothing that was copied.
        replica.bind(self._program.layout, view, frozenset(self._names))
        return replica

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def groups(self) -> tuple[ByLoading, ...]:
        """Those that are loaded here."""
        return tuple(self._groups)

    def begin(self) -> None:
        """Start a publish: nothing is kept."""
        self._kept.clear()

    def feed(self, name: str, tensor: torch.Tensor) -> ByLoading | None:
        """Keep a copy of the tensor; the group that is complete by it, whose parameters are then in the arena.

        Raises InputError for a dtype that no cast makes of the checkpoint's, where too much would have to be kept,
        and where load_weights fails.
        """
        group, wanted = self._by_name[name], self._dtypes[name]
        given = str(tensor.dtype).removeprefix("torch.")
        if given != wanted and not {given, wanted} <= _WIDE:
            raise InputError(
                f"tensor {name} is {given}, the checkpoint {wanted}: yield it as the checkpoint holds it"
            )
        held = sum(kept.nbytes for kept in self._kept.values())
        if held + tensor.nbytes > self._limit:
            raise InputError(
                f"{len(self._kept)} tensors of {held} bytes wait for those that load with them, when {name} comes: "
                f"yield tensors that load together near one another, such as {_few(self._waiting())}"
            )
        self._kept[name] = tensor.detach().to("cpu", getattr(torch, wanted), copy=True)
        if any(each not in self._kept for each in group.tensors):
            return None
        self._load(group)
        return group

    def _waiting(self) -> list[str]:
        first = next(iter(self._kept))
        return sorted(self._by_name[first].tensors, key=self._order.__getitem__)

    def _load(self, group: ByLoading) -> None:
        if self._replica is None:
            raise InputError("this replayer is closed")
        names = sorted(group.tensors, key=self._order.__getitem__)
        try:
            self._replica.load((name, self._kept.pop(name)) for name in names)
        except InputError as error:
            raise InputError(f"{_few(names)} cannot be loaded: {error}") from error

    def close(self) -> None:
        """Let go of arena and model."""
        self._kept.clear()
        if self._replica is not None:
            self._replica.release()
            self._replica = None


def _nobody(program: CopyProgram) -> Replica:
    raise InputError("nothing that builds its models was given")


def _few(names: Iterable[str], shown: int = SHOWN) -> str:
    listed = list(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more
