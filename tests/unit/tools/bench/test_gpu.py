"""The GPU benchmark without a GPU: its report, its stand-in program, the engine's table. Never the run itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tools.bench.gpu.command import Report
from tools.bench.gpu.others import rows
from tools.bench.gpu.programs import by_rule
from tools.bench.gpu.pure import PureCopy
from tools.world.processes import WorldError
from weightsync.convert.replay import Replayer
from weightsync.layout import lay_out
from weightsync.measures import Measure, Measures

FINE = Measure(name="fine", value=1, unit="1", bound=1, better="lower", how="a test")


def _fails() -> list[Measure]:
    raise KeyError("wire")


@pytest.mark.parametrize(
    ("part", "ran"),
    [pytest.param(lambda: [FINE], True, id="a part that runs"), pytest.param(_fails, False, id="one that fails")],
)
def test_a_part_leaves_its_result_at_once(tmp_path: Path, part: Callable[[], list[Measure]], ran: bool) -> None:
    """The report is whole after each; a failure is a broken bound with its reason, and the earlier parts stand."""
    report = Report(tmp_path, "gpu", {"size": "small"})
    report.part("first", lambda: [FINE])
    assert report.part("second", part) is ran
    written = Measures.load(tmp_path / "bench" / "gpu.json")
    assert [m.name for m in written.measures][:2] == ["fine", "part: first"]
    last = written.measures[-1]
    assert (last.name, last.holds) == ("part: second", ran)
    assert ran or "KeyError: 'wire'" in last.how


def test_the_stand_in_program_stacks_rows() -> None:
    """q, k, v and gate, up as a llama-like engine fuses them; every other tensor as it is."""
    table = {
        "a.q_proj.weight": ("float32", (2, 3)), "a.k_proj.weight": ("float32", (1, 3)),
        "a.v_proj.weight": ("float32", (1, 3)), "norm.weight": ("float32", (3,)),
    }  # fmt: skip
    program = by_rule(table)
    state = {name: torch.rand(shape) for name, (_, shape) in table.items()}
    arena = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(arena))
    for name, tensor in state.items():
        replayer.feed(name, tensor)
    fused, norm = program.layout.parameters
    assert (fused.name, fused.shape, norm.shape) == ("a.qkv_proj.weight", (4, 3), (3,))
    expected = torch.cat([state["a.q_proj.weight"], state["a.k_proj.weight"], state["a.v_proj.weight"]])
    assert arena[fused.offset : fused.offset + fused.nbytes] == expected.numpy().tobytes()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param({}, "w is not in the engine's table", id="a parameter that the engine does not name"),
        pytest.param({"w": [4096, 2, 4]}, "8 bytes in the engine, 16 here", id="one of another size"),
    ],
)
def test_an_engine_with_another_table_is_not_written_to(table: dict[str, list[int]], words: str) -> None:
    """Mooncake would write past the parameter's end."""
    with pytest.raises(WorldError, match=words):
        rows(lay_out([("w", "float32", (2, 2))]), table)


def test_pure_copies_move_the_block_both_ways(tmp_path: Path) -> None:
    """What they time is a copy of all bytes."""
    pure = PureCopy(tmp_path, 8192, "cpu")
    pure.block.fill_(7)
    assert pure.to_host() > 0
    assert int(pure.host.sum()) == 7 * 8192
    pure.host.fill_(9)
    assert pure.to_device() > 0
    assert int(pure.block.sum()) == 9 * 8192
    pure.close()
