"""Replicas for the suite: a checkpoint's tensors in the arena of a rank, by the names that engines give them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from weightsync.arena import Arena
from weightsync.convert.program import CopyProgram
from weightsync.layout import Layout, lay_out
from weightsync.version import Version
from weightsync_agent.engines.base import Description

# Rows of a fused parameter, in the order in which llama-like models stack them (one tensor-parallel rank).
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

LINEAGE = "c0" * 8


def layout_of(description: Description) -> Layout:
    """A layout with the rows of a running rank."""
    return lay_out([(p.name, p.dtype, p.shape) for p in description.parameters if not p.tied])


def engine_tensor(name: str, checkpoint: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What parameter ``name`` of the engine must hold after the checkpoint was loaded."""
    if name in checkpoint:
        return checkpoint[name]
    for fused, parts in FUSED.items():
        if f".{fused}." in name:
            return torch.cat([checkpoint[name.replace(fused, part)] for part in parts])
    raise KeyError(f"no checkpoint tensor for parameter {name}")


class Replica:
    """One rank's arena and program in the volume. seal() makes it a version; every write renews the file."""

    def __init__(self, volume: Path, layout: Layout, name: str = "contract") -> None:
        self.layout = layout
        self.path = volume / "arenas" / name
        self.program = volume / "layouts" / f"{name}.json"
        self.path.parent.mkdir(exist_ok=True)
        self.program.parent.mkdir(exist_ok=True)
        program = CopyProgram(layout=layout, tensors=())
        self.program.write_bytes(program.canonical())
        self.arena = Arena.create(self.path, layout=layout.digest, program=program.digest, nbytes=layout.nbytes)
        self.arena.prefault([(0, layout.nbytes)])
        self.number = 0
        self.version = Version(lineage=LINEAGE, number=1, root="00" * 32)

    @property
    def grant(self) -> str:
        """The last seal's."""
        return f"{self.number:032x}"

    def fill(self, directory: Path) -> Version:
        """Seal the checkpoint in ``directory`` as the next version. Its root is no digest: the hook only compares."""
        checkpoint = load_file(directory / "model.safetensors")
        self.number += 1
        self.version = Version(lineage=LINEAGE, number=self.number, root=f"{self.number:064x}")
        self.arena.fill(self.grant)
        payload = torch.frombuffer(self.arena.view, dtype=torch.uint8)
        for row in self.layout.parameters:
            tensor = engine_tensor(row.name, checkpoint).contiguous().view(-1).view(torch.uint8)
            payload[row.offset : row.offset + row.nbytes] = tensor
        del payload
        self.arena.seal(self.grant, self.version)
        return self.version

    def close(self) -> None:
        """Drop the mapping; the file stays."""
        self.arena.close()
