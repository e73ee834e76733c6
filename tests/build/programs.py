"""Copy programs of the shape and size of real models' ranks."""

from collections.abc import Iterator

from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.layout import Layout, lay_out

HIDDEN, INTER, BLOCK = 7168, 2048, 128  # of Kimi-K2 and DeepSeek-V3
FP8, SCALE = "float8_e4m3fn", "float32"


def experts(layers: int, count: int, tp: int, rank: int) -> CopyProgram:
    """The experts of an FP8-block model, each cut over ``tp`` ranks: six checkpoint tensors an expert and layer."""
    rows = INTER // tp
    table: list[tuple[str, str, tuple[int, ...]]] = []
    for layer in range(layers):
        where = f"model.layers.{layer}.mlp.experts"
        table += [
            (f"{where}.w13_weight", FP8, (count, 2 * rows, HIDDEN)),
            (f"{where}.w2_weight", FP8, (count, HIDDEN, rows)),
            (f"{where}.w13_weight_scale_inv", SCALE, (count, 2 * rows // BLOCK, HIDDEN // BLOCK)),
            (f"{where}.w2_weight_scale_inv", SCALE, (count, HIDDEN // BLOCK, rows // BLOCK)),
        ]
    layout = lay_out(table)
    return CopyProgram(rank=rank, layout=layout, tensors=tuple(_tensors(layout, layers, count, tp, rank)))


def _tensors(layout: Layout, layers: int, count: int, tp: int, rank: int) -> Iterator[TensorCopies]:
    homes = {parameter.name: parameter for parameter in layout.parameters}
    for layer in range(layers):
        where = f"model.layers.{layer}.mlp.experts"
        for expert in range(count):
            for part, fused, half in (("gate_proj", "w13", 0), ("up_proj", "w13", 1), ("down_proj", "w2", 0)):
                for suffix, dtype, unit, size in (("", FP8, 1, 1), ("_scale_inv", SCALE, BLOCK, 4)):
                    home = homes[f"{where}.{fused}_weight{suffix}"]
                    high, wide = home.shape[1:]
                    cut = INTER // tp // unit
                    mine, full = (rank * cut, (rank + 1) * cut), HIDDEN // unit
                    box = (mine, (0, full)) if fused == "w13" else ((0, full), mine)
                    shape = (INTER // unit, full) if fused == "w13" else (full, INTER // unit)
                    offset = home.offset + (expert * high + half * cut) * wide * size
                    piece = Piece(box, offset, (wide * size, size), dtype)
                    yield TensorCopies(f"{where}.{expert}.{part}.weight{suffix}", dtype, shape, (piece,))
