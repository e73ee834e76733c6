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

# A copy program comes from another pod, and is data: what would have its code run here is refused.
RUN_CODE = ("--trust-remote-code", "--custom-weight-loader")


def rebuilt(program: CopyProgram) -> "Replica":
    """The rank's model without memory. Raises InputError where the engine's SGLang release cannot be imported."""
    rebuild = Rebuild.read(program.engine, f"the copy program of rank {program.rank}: engine")
    here = release()
    if rebuild.release != here:
        raise InputError(f"the copy program was made by SGLang {rebuild.release}, here is {here}")
    if code := next(filter(runs_code, rebuild.spec.flags), None):
        raise InputError(f"its engine runs code that comes with the model ({code}), which a trainer does not")
    from weightsync.replicas.sglang import build_replica  # noqa: PLC0415 - torch

    with tempfile.TemporaryDirectory(prefix="weightsync-model-") as folder:
        return build_replica(rebuild.lay(Path(folder)), program.rank)


def runs_code(flag: str) -> bool:
    """Also an abbreviation of such a flag, which SGLang's parser takes."""
    name = flag.partition("=")[0]
    return len(name) > len("--") and any(code.startswith(name) for code in RUN_CODE)
