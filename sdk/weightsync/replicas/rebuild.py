"""From what a copy program says of its engine to a model of that rank, where the engine's checkpoint is not."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.replicas.engine import Rebuild
from weightsync.replicas.release import release

if TYPE_CHECKING:
    from weightsync.replicas.replica import Replica


def rebuilt(program: CopyProgram) -> "Replica":
    """The rank's model without memory. Raises InputError where the engine's SGLang release cannot be imported."""
    rebuild = Rebuild.read(program.engine, f"the copy program of rank {program.rank}: engine")
    here = release()
    if rebuild.release != here:
        raise InputError(f"the copy program was made by SGLang {rebuild.release}, here is {here}")
    from weightsync.replicas.sglang import build_replica  # noqa: PLC0415 - torch

    with tempfile.TemporaryDirectory(prefix="weightsync-model-") as folder:
        return build_replica(rebuild.lay(Path(folder)), program.rank)
