"""The parameters of several tensor-parallel ranks, beside the whole model that computes.

All are in one process, or some in those of other nodes (nodes.py), of which mirrors stand here. Copy programs fill
the ranks' parameters, and loaders run once in each rank. Generation is that of the whole model, put together from the
ranks after every load: an engine of any parallelism gives the very same tokens. Real engines have a process for each
rank, and compute in parts.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from reference.config import checkpoint_shapes
from reference.engine_model import EngineModel, fused_home
from reference.nodes import Peers, loader_of, parameters_of
from reference.payload import decode_named_tensors
from reference.programs import build_layout, rank_slice

Loader = Callable[[nn.Module, list[tuple[str, Any]]], None]


class Shards:
    """See the module. With one rank its parameters are the model's own. Raises InputError: it cannot be cut so.

    peers: the processes of other nodes.
    """

    def __init__(self, model: EngineModel, tp: int = 1, peers: Peers | None = None) -> None:
        self._model = model
        self._peers = peers
        self.ranks: tuple[nn.Module, ...] = (model,)
        self._pairs: list[tuple[Tensor, Tensor]] = []  # a part of the whole model, and where a rank has it
        if tp > 1:
            self.ranks = tuple(_module(model, rank, tp) for rank in range(tp))
            self._pairs = [pair for rank in range(tp) for pair in self._parts(rank)]
            self.split()

    def _parts(self, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
        config = self._model.config
        whole, own = dict(self._model.named_parameters()), dict(self.ranks[rank].named_parameters())
        for name, shape in checkpoint_shapes(config).items():
            parameter, first, box = rank_slice(config, name, rank, len(self.ranks))
            home, row = fused_home(config, name)
            tensor = whole[home].data[row : row + shape[0]]
            yield (
                tensor[tuple(slice(start, stop) for start, stop in box)],
                own[parameter].data[first : first + box[0][1] - box[0][0]],
            )

    def load(self, name: str, payloads: Sequence[str]) -> None:
        """Run the loader of that name in every rank with what it is given, as a real engine's processes would."""
        loader, given = loader_of(name), [decode_named_tensors(payload) for payload in payloads]
        if len(self.ranks) == 1:
            loader(self._model, given[0])
            return
        there = self._peers.ranks if self._peers is not None else frozenset()
        if self._peers is not None:
            self._peers.load(name, payloads)
        for rank in range(len(self.ranks)):
            if rank not in there:
                self.run(rank, loader, given[rank])
        if self._peers is not None:
            self._peers.take(self._mirrors(there))
        self._join()

    def run(self, rank: int, loader: Loader, given: list[tuple[str, Any]]) -> None:
        """A loader in one rank of this process."""
        with _as_rank(rank, len(self.ranks)):
            loader(self.ranks[rank], given)

    def _mirrors(self, ranks: Collection[int]) -> dict[int, list[Tensor]]:
        return {rank: parameters_of(self.ranks[rank]) for rank in ranks}

    def split(self) -> None:
        """The model was changed: so are the ranks."""
        for whole, own in self._pairs:
            own.copy_(whole)
        if self._peers is not None:
            self._peers.put(self._mirrors(self._peers.ranks))

    def _join(self) -> None:
        for whole, own in self._pairs:
            whole.copy_(own)


def _module(model: EngineModel, rank: int, tp: int) -> nn.Module:
    """Nested modules whose ``named_parameters()`` are the rank's layout."""
    root = nn.Module()
    for row in build_layout(model.config, rank, tp).parameters:
        *path, leaf = row.name.split(".")
        at = root
        for part in path:
            if part not in dict(at.named_children()):
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        at.register_parameter(leaf, nn.Parameter(torch.zeros(row.shape, dtype=model.dtype), requires_grad=False))
    return root


@contextmanager
def _as_rank(rank: int, tp: int) -> Iterator[None]:
    """torch.distributed says that this process is rank ``rank``: loaders ask it."""
    distributed.init_process_group("fake", rank=rank, world_size=tp, store=FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()
