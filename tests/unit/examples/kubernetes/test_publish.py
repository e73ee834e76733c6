"""The example's trainer: its stages share the checkpoint out, and its tensors are the files'."""

import importlib.util
import json
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

SCRIPT = Path(__file__).resolve().parents[4] / "examples" / "kubernetes" / "sglang" / "publish.py"


@pytest.fixture(scope="module")
def publish() -> ModuleType:
    """The script, loaded as the container runs it: from its file."""
    spec = importlib.util.spec_from_file_location("example_publish", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_every_tensor_belongs_to_one_stage(publish: ModuleType, stages: int) -> None:
    """Layers stay whole; what is in no layer is the first stage's."""
    names = ["embed", "lm_head", *(f"model.layers.{n}.{part}" for n in range(7) for part in ("up", "down"))]
    shares = [publish.stage_names(names, stage, stages) for stage in range(stages)]
    assert sorted(chain.from_iterable(shares)) == sorted(names)
    assert set(shares[0]) >= {"embed", "lm_head"}
    layers = [{publish.layer_of(name) for name in share} - {None} for share in shares]
    assert all(not a & b for i, a in enumerate(layers) for b in layers[i + 1 :])


@pytest.mark.parametrize("index", [True, False], ids=["files with an index", "files without one"])
def test_tensors_are_read_from_the_file_that_holds_them(publish: ModuleType, tmp_path: Path, index: bool) -> None:
    """One by one, in the order asked for."""
    held = {"a": torch.arange(3), "b": torch.arange(4), "c": torch.arange(5)}
    save_file({"a": held["a"], "c": held["c"]}, tmp_path / "1.safetensors")
    save_file({"b": held["b"]}, tmp_path / "2.safetensors")
    if index:
        table = {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}
        (tmp_path / publish.INDEX).write_text(json.dumps({"weight_map": table}))
    files = publish.places(tmp_path)
    found = list(publish.tensors(files, ["b", "c", "a"], "cpu"))
    assert [name for name, _ in found] == ["b", "c", "a"]
    assert all(torch.equal(tensor, held[name]) for name, tensor in found)
