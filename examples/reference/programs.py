"""Layout and copy program of each engine rank: what WeightSync must know to fill this engine. Pure but for writing.

Slicing is SGLang's: q by heads; k and v by heads, each head repeated where there are more ranks than KV heads;
gate and up by rows; o and down by columns; embedding and head by rows of the vocabulary; norms whole on every rank.
Parameters lie in checkpoint order, so that the first buckets are complete first.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from reference.config import EMBED, HEAD, ModelConfig, checkpoint_shapes
from reference.engine_model import fused_home
from weightsync import names
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE, Layout, lay_out

Slice = tuple[str, int, tuple[tuple[int, int], ...]]  # parameter, its first row, box of the checkpoint tensor


def check_parallelism(config: ModelConfig, tp: int) -> None:
    """Raises InputError where the model cannot be cut into ``tp`` equal ranks."""
    for what, size in (("heads", config.heads), ("intermediate", config.intermediate), ("vocab", config.vocab)):
        if size % tp:
            raise InputError(f"{what} {size} cannot be divided by {tp} ranks: choose a tp size that divides it")
    if config.kv_heads % tp and tp % config.kv_heads:
        raise InputError(f"{config.kv_heads} KV heads can be neither split nor repeated evenly over {tp} ranks")


def _local(config: ModelConfig, tp: int) -> tuple[int, int, int]:
    """Heads, KV heads and rows of gate on one rank."""
    return config.heads // tp, max(config.kv_heads // tp, 1), config.intermediate // tp


def rank_slice(config: ModelConfig, name: str, rank: int, tp: int) -> Slice:
    """What rank ``rank`` of ``tp`` holds of checkpoint tensor ``name``, and where in the fused parameter."""
    shape = checkpoint_shapes(config)[name]
    whole = tuple((0, extent) for extent in shape)
    heads, kv_heads, rows = _local(config, tp)
    d = config.head_dim
    parameter = fused_home(config, name)[0]
    kv_start = rank * config.kv_heads // tp * d
    by_rows = {
        "q_proj": (0, rank * heads * d, heads * d),
        "k_proj": (heads * d, kv_start, kv_heads * d),
        "v_proj": ((heads + kv_heads) * d, kv_start, kv_heads * d),
        "gate_proj": (0, rank * rows, rows),
        "up_proj": (rows, rank * rows, rows),
    }
    part = name.split(".")[-2]
    if part in by_rows:
        first, start, count = by_rows[part]
        return parameter, first, ((start, start + count), whole[1])
    if part in ("o_proj", "down_proj"):
        count = shape[1] // tp
        return parameter, 0, (whole[0], (rank * count, (rank + 1) * count))
    if name in (EMBED, HEAD):
        count = shape[0] // tp
        return parameter, 0, ((rank * count, (rank + 1) * count), whole[1])
    return parameter, 0, whole


def build_layout(config: ModelConfig, rank: int = 0, tp: int = 1, dtype: str = "float32") -> Layout:
    """The parameters of one rank, in the order of EngineModel.named_parameters()."""
    check_parallelism(config, tp)
    rows: dict[str, tuple[int, ...]] = {}
    for name in checkpoint_shapes(config):
        parameter, first, box = rank_slice(config, name, rank, tp)
        extent = first + box[0][1] - box[0][0]  # fused parts come in rising order: the last one decides
        rows[parameter] = (extent, *(stop - start for start, stop in box[1:]))
    return lay_out([(name, dtype, shape) for name, shape in rows.items()])


def build_program(
    config: ModelConfig, rank: int = 0, tp: int = 1, dtype: str = "float32", checkpoint_dtype: str = "float32"
) -> CopyProgram:
    """How rank ``rank`` of ``tp`` is filled from a checkpoint of ``checkpoint_dtype``. Raises InputError."""
    if not 0 <= rank < tp:
        raise InputError(f"rank {rank} does not exist among {tp} ranks")
    layout = build_layout(config, rank, tp, dtype)
    homes = {parameter.name: parameter for parameter in layout.parameters}
    size = ITEMSIZE[dtype]

    def copies() -> Iterator[TensorCopies]:
        for name, shape in checkpoint_shapes(config).items():
            parameter, first, box = rank_slice(config, name, rank, tp)
            home = homes[parameter]
            row = size * (home.shape[1] if len(shape) > 1 else 1)
            strides = (row, size) if len(shape) > 1 else (size,)
            piece = Piece(box=box, offset=home.offset + first * row, strides=strides, dtype=dtype)
            yield TensorCopies(name=name, dtype=checkpoint_dtype, shape=shape, pieces=(piece,))

    return CopyProgram(rank=rank, layout=layout, tensors=tuple(copies()))


def build_programs(
    config: ModelConfig, tp: int = 1, dtype: str = "float32", checkpoint_dtype: str = "float32"
) -> list[CopyProgram]:
    """One program for each rank."""
    return [build_program(config, rank, tp, dtype, checkpoint_dtype) for rank in range(tp)]


def write_programs(directory: Path, programs: list[CopyProgram]) -> list[Path]:
    """Write layouts/rank-<r>.json below the shared volume's ``directory``: each appears whole or not at all.

    Readable by all, since the agent runs as another user.
    """
    folder, written = directory / names.LAYOUTS, []
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        path = folder / f"rank-{program.rank}.json"
        temporary = path.with_suffix(f".{os.getpid()}.new")
        temporary.write_text(json.dumps(program.model_dump(mode="json"), separators=(",", ":")))
        temporary.chmod(0o644)
        temporary.replace(path)
        written.append(path)
    return written
