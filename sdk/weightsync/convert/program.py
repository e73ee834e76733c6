"""The copy program: which region of which checkpoint tensor goes to which bytes of a layout. Plain data, pure."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from weightsync.bounds import MANY, PROGRAM, Rank
from weightsync.convert.checkpoint import checkpoint_digest
from weightsync.convert.series import AsCopies, Copies, Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import Layout
from weightsync.records import Record

__all__ = ["ByLoading", "CopyProgram", "Piece", "TensorCopies", "grouped"]

Extent = tuple[int, int]


class ByLoading(Record):
    """Parameters that no copy makes: the engine's own ``load_weights`` computes them (convert/fallback.py).

    tensors: the checkpoint tensors that must go into one call; parameters: all that the call writes,
    each wholly; reason: why they are no copy, in a sentence.
    """

    tensors: Annotated[tuple[str, ...], Field(min_length=1), MANY]
    parameters: Annotated[tuple[str, ...], Field(min_length=1), MANY]
    reason: Annotated[str, Field(max_length=1024)]


def grouped(rows: Iterable[tuple[str, Sequence[str], str]]) -> tuple[ByLoading, ...]:
    """Groups that can be loaded apart: parameters that share a tensor belong to one.

    rows: parameter, the checkpoint tensors that it is computed from, and the operation.
    """
    groups: list[tuple[dict[str, None], dict[str, None], dict[str, None]]] = []
    for parameter, tensors, operation in rows:
        joined = ({**dict.fromkeys(tensors)}, {parameter: None}, {operation: None})
        apart = []
        for group in groups:
            if group[0].keys() & joined[0].keys() or parameter in group[1]:
                joined = tuple({**a, **b} for a, b in zip(group, joined, strict=True))  # type: ignore[assignment]
            else:
                apart.append(group)
        groups = [*apart, joined]
    return tuple(
        ByLoading(tensors=tuple(tensors), parameters=tuple(parameters), reason=", ".join(sorted(operations))[:1024])
        for tensors, parameters, operations in groups
    )


class CopyProgram(Record):
    """How one engine rank's replica is made. The layout is part of it, so a program stands alone.

    tensors: of the whole checkpoint, each once; together: names that must be given to the same publish;
    by_loading: what is no copy, and engine: what a replica of the engine's rank is built from for it (JSON text that
    replicas/ reads); origin: where the program comes from, for messages.
    """

    format: Literal[1] = 1
    rank: Rank = 0
    layout: Layout
    tensors: Annotated[Sequence[TensorCopies], AsCopies]
    together: Annotated[tuple[tuple[str, ...], ...], MANY] = ()
    by_loading: Annotated[tuple[ByLoading, ...], MANY] = ()
    engine: str = ""
    origin: Annotated[str, Field(max_length=512)] = ""

    @classmethod
    def read(cls, text: str | bytes, origin: str) -> Self:
        """Parse JSON, of bounded length: records take a hundred times the bytes of their text."""
        if len(text) > PROGRAM:
            raise InputError(f"{origin}: has {len(text)} bytes, a copy program at most {PROGRAM}")
        return super().read(text, origin)

    @property
    def copies(self) -> Copies:
        """The tensors as series."""
        if not isinstance(self.tensors, Copies):
            raise TypeError("the tensors of a program that was not validated")
        return self.tensors

    @model_validator(mode="after")
    def _inside(self) -> "CopyProgram":
        names = set[str]()
        for series in self.copies.series:
            if problem := series.problem(self.layout.nbytes):
                raise ValueError(problem)
            for name in series.names():
                if name in names:
                    raise ValueError(f"tensor {name} appears twice")
                names.add(name)
        for what, groups in (("together", self.together), ("byLoading", tuple(g.tensors for g in self.by_loading))):
            missing = next((name for group in groups for name in group if name not in names), None)
            if missing is not None:
                raise ValueError(f"{what} names {missing}, which is no tensor of the program")
        if self.by_loading:
            self._check_loading()
        return self

    def _check_loading(self) -> None:
        if not self.engine:
            raise ValueError("byLoading without engine: nothing says of what its replica is built")
        fed, written = set[str](), set[str]()
        known = {parameter.name for parameter in self.layout.parameters}
        for group in self.by_loading:
            for name in group.parameters:
                if name not in known or name in written:
                    how = "is written by two groups" if name in written else "is no parameter of the layout"
                    raise ValueError(f"byLoading names {name}, which {how}")
                written.add(name)
            if twice := next((name for name in group.tensors if name in fed), None):
                raise ValueError(f"byLoading loads tensor {twice} twice")
            fed.update(group.tensors)
        if both := next((t.name for t in self.tensors if t.pieces and t.name in fed), None):
            raise ValueError(f"tensor {both} is both copied and loaded")

    @cached_property
    def loaded(self) -> dict[str, ByLoading]:
        """By the name of each tensor that is not copied: its group."""
        return {name: group for group in self.by_loading for name in group.tensors}

    @cached_property
    def _places(self) -> dict[str, Extent]:
        return {p.name: (p.offset, p.offset + p.nbytes) for p in self.layout.parameters if p.nbytes}

    def written(self, group: ByLoading) -> list[Extent]:
        """The bytes of the payload that loading the group writes."""
        return [self._places[name] for name in group.parameters if name in self._places]

    def spans(self, tensor: TensorCopies) -> list[Extent]:
        """The bytes of the payload that giving the tensor fills; of a tensor that is loaded, all of its group's."""
        if tensor.pieces:
            return [piece.span for piece in tensor.pieces]
        group = self.loaded.get(tensor.name)
        return self.written(group) if group else []

    @cached_property
    def digest(self) -> str:
        """16 bytes of blake2b over layout and copies, in hex: the identity of a rank's replica.

        Wherever the program comes from: two engines whose replicas are made alike share one.
        """
        table = self.model_dump(mode="json", exclude={"origin"}, exclude_defaults=True)
        text = json.dumps(table, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @cached_property
    def checkpoint(self) -> str:
        """Which checkpoint it reads: 16 bytes of blake2b over names, dtypes and shapes of all tensors, in hex.

        All ranks of a model have one, whatever their parallelism: engines that share it can be fed together.
        """
        return checkpoint_digest(self.copies.series)
