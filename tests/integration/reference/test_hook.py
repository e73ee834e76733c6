"""The real hook in the reference engine: a sealed arena becomes the served weights, with nothing between faked."""

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import weightsync.hook
from reference.checkpoint import read_checkpoint
from reference.config import ModelConfig
from reference.programs import build_program, write_programs
from weightsync import names
from weightsync.arena import Arena
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.version import Version

GRANT = "ab" * 16
ROOT = "cd" * 32
UPDATE = {
    "serialized_named_tensors": [base64.b64encode(pickle.dumps([])).decode()],
    "load_format": names.HOOK_LOADER,
    "flush_cache": False,
}


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pod's shared volume, and the hook where the engine finds it."""
    monkeypatch.setenv(names.DIRECTORY_ENV, str(tmp_path))
    monkeypatch.syspath_prepend(str(next(iter(weightsync.hook.__path__))))
    (tmp_path / names.HOOK).mkdir()
    return tmp_path


def sealed(volume: Path, program: CopyProgram, checkpoint: Path) -> Path:
    """An arena that holds the checkpoint as the program lays it out."""
    path = volume / names.ARENAS / "a"
    layout = program.layout
    with Arena.create(path, layout=layout.digest, program=program.digest, nbytes=layout.nbytes) as arena:
        arena.fill(GRANT)
        replayer = Replayer(program, arena.view)
        for name, tensor in read_checkpoint(checkpoint)[1].items():
            replayer.feed(name, tensor)
        replayer.finish()
        replayer.close()
        arena.seal(GRANT, Version(lineage="01" * 8, number=1, root=ROOT))
    return path


async def test_an_arena_becomes_the_served_weights(
    start: Any, volume: Path, config: ModelConfig, checkpoints: list[Path]
) -> None:
    """describe, apply, readback: the checksums are those of the same checkpoint loaded from disk."""
    engine = await start("--custom-weight-loader", names.HOOK_LOADER)
    program = build_program(config)
    (program_path,) = write_programs(volume, [program])
    arena = sealed(volume, program, checkpoints[1])

    async def hook(op: str) -> dict[str, Any]:
        request = {
            "id": op, "op": op, "arena": str(arena), "program": str(program_path),
            "layout": program.layout.digest, "grant": GRANT, "root": ROOT,
        }  # fmt: skip
        (volume / names.HOOK / "request-0.json").write_text(json.dumps(request))
        for path, body in (
            ("begin_weight_update", {}),
            ("update_weights_from_tensor", UPDATE),
            ("end_weight_update", {}),
        ):
            assert (await engine.post(f"/{path}", body))[0] == 200
        result: dict[str, Any] = json.loads((volume / names.HOOK / "result-0.json").read_text())
        assert result["ok"], result
        return result

    async def checksums() -> Any:
        return (await engine.post("/weights_checker", {}))[1]["ranks"][0]["checksums"]

    before = await checksums()
    described = (await hook("describe"))["parameters"]
    rows = [(row["name"], row["dtype"], tuple(row["shape"])) for row in described]
    assert rows == [(p.name, p.dtype, p.shape) for p in program.layout.parameters]
    assert (await engine.post("/pause_generation", {"mode": "retract"}))[0] == 200
    assert (await hook("apply"))["nbytes"] == sum(p.nbytes for p in program.layout.parameters)
    assert (await hook("readback"))["equal"] is True
    assert (await engine.post("/continue_generation", {}))[0] == 200
    applied = await checksums()
    assert applied != before
    assert (await engine.post("/update_weights_from_disk", {"model_path": str(checkpoints[1])}))[0] == 200
    assert await checksums() == applied
