"""Tensors that are sharded over ranks (torch's DTensor) made whole, each by a collective of all these ranks."""

from typing import cast

import torch
import xxhash
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from weightsync.errors import InputError


class _Walk:
    """What was gathered over one mesh so far, and along which of its dimensions ranks met for it."""

    def __init__(self) -> None:
        self.digest = xxhash.xxh3_128()
        self.along: set[int] = set()

    def add(self, name: str, tensor: DTensor) -> None:
        """One more."""
        self.digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.placements}\n".encode())
        self.along.update(d for d, placement in enumerate(tensor.placements) if not placement.is_replicate())


class Gathers:
    """The gathers of one publish. All ranks of a mesh must do the same ones in the same order, then agree()."""

    def __init__(self) -> None:
        self._walks: dict[DeviceMesh, _Walk] = {}

    def whole(self, name: str, tensor: object) -> object:
        """The whole of a DTensor; anything else as it is, and so a DTensor of a mesh that this rank is no part of.

        Raises what torch raises: then nobody knows how far the other ranks have come, and no further collective of
        this mesh is of use.
        """
        if not isinstance(tensor, DTensor) or tensor.device_mesh.get_coordinate() is None:
            return tensor
        self._walks.setdefault(tensor.device_mesh, _Walk()).add(name, tensor)
        return gathered(tensor)

    def agree(self) -> None:
        """Compare what the ranks of each mesh gathered; a collective, after the last gather.

        Two ranks in different orders take part in one another's collectives, and shards of two tensors of one shape
        are put together without an error. Raises InputError on all ranks of a mesh on which that happened.
        """
        strayed = [len(found) for found in map(_met, self._walks.items()) if any(row != found[0] for row in found)]
        if strayed:  # only now: another mesh's ranks wait for this one, too
            raise InputError(
                f"the {strayed[0]} ranks that share sharded tensors gave publish() different ones, or in different "
                "orders, and what was gathered is mixed: give the same names in the same order on all of them, as "
                "state dicts do"
            )


def _met(walked: tuple[DeviceMesh, _Walk]) -> list[list[int]]:
    """What each rank of a mesh gathered over it, as two numbers."""
    mesh, walk = walked
    digest = walk.digest.digest()
    halves = [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
    mine = torch.tensor([halves], dtype=torch.int64, device=mesh.device_type)
    # Replicas that meet for no shard need not meet for this: they may not publish at all.
    placements = [Shard(0) if d in walk.along else Replicate() for d in range(mesh.ndim)]
    found: list[list[int]] = gathered(DTensor.from_local(mine, mesh, placements)).tolist()
    return found


def gathered(tensor: DTensor) -> torch.Tensor:
    """One gather, outside autograd."""
    kind = tensor.device_mesh.device_type
    with torch.no_grad():  # a parameter's gather would be recorded, and keep what it gathered
        if tensor.device.type != kind:  # offloaded: the mesh's own backend may know its device alone
            tensor = cast("DTensor", tensor.to(kind))
        return tensor.full_tensor()
