"""The engine rank's copy program: by `weightsync layout` where SGLang imports, else one written by rule.

The second serves only to have the other lines measured where the first fails, and the report says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.world.processes import CODE, ROOT
from weightsync import names
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.layout import ITEMSIZE, lay_out
from weightsync.records import replace_file

Table = Mapping[str, tuple[str, tuple[int, ...]]]  # checkpoint name -> dtype, shape

PATIENCE = 110.0  # seconds for one attempt: SGLang alone takes twenty to import
FUSED = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}  # fmt: skip


def trace(model: Path, volume: Path, log: Path) -> str:
    """Write rank 0's program into the volume; "" or why not. Without a GPU first: none is needed."""
    command = [
        sys.executable, "-m", "weightsync.replicas", "--model", str(model), "--tp", "1", "--pp", "1", "--ep", "1",
        "--out", str(volume / names.LAYOUTS),
    ]  # fmt: skip
    path = os.pathsep.join([*map(str, CODE), os.environ.get("PYTHONPATH", "")])
    problem = ""
    for hidden in ({"CUDA_VISIBLE_DEVICES": ""}, {}):
        environment = {**os.environ, "PYTHONPATH": path, **hidden}
        try:
            with log.open("ab") as file:
                done = subprocess.run(
                    command, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=PATIENCE, cwd=ROOT,
                    check=False,
                )  # fmt: skip
        except subprocess.TimeoutExpired:
            problem = f"it took longer than {PATIENCE:.0f} s"
            continue
        if done.returncode == 0:
            return ""
        problem = log.read_text(errors="replace").strip().splitlines()[-1][-300:]
    return problem


def by_rule(checkpoint: Table) -> CopyProgram:
    """A llama-like model on one rank: q, k and v stacked by rows, gate and up stacked by rows, the rest as it is."""
    rows: dict[str, int] = {}
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    places: dict[str, tuple[str, int]] = {}
    for name, (dtype, shape) in checkpoint.items():
        home = ".".join(FUSED.get(part, part) for part in name.split("."))
        places[name] = (home, rows.get(home, 0))
        rows[home] = rows.get(home, 0) + shape[0]
        shapes[home] = (dtype, (rows[home], *shape[1:]))
    layout = lay_out([(home, dtype, shape) for home, (dtype, shape) in shapes.items()])
    offsets = {parameter.name: parameter.offset for parameter in layout.parameters}
    tensors = []
    for name, (dtype, shape) in checkpoint.items():
        home, first = places[name]
        size = ITEMSIZE[dtype]
        strides = (shape[1] * size, size) if len(shape) > 1 else (size,)
        box = tuple((0, extent) for extent in shape)
        piece = Piece(box=box, offset=offsets[home] + first * strides[0], strides=strides, dtype=dtype)
        tensors.append(TensorCopies(name=name, dtype=dtype, shape=shape, pieces=(piece,)))
    return CopyProgram(layout=layout, tensors=tuple(tensors))


def write(program: CopyProgram, volume: Path) -> None:
    """Where the engine's agent looks for it."""
    path = volume / names.LAYOUTS / f"rank-{program.rank}.json"
    replace_file(path, program.canonical())
