"""The hook's CUDA side without a server: pinning, a refused pin that leaves no error behind, a replaced arena."""

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from weightsync.arena import Arena
from weightsync.convert.program import CopyProgram
from weightsync.hook import HOOK_FILE
from weightsync.layout import Layout, lay_out
from weightsync.version import Version

GRANT, VERSION = "ab" * 16, Version(lineage="01" * 8, number=1, root="cd" * 32)


def check(volume: Path) -> dict[str, bool]:
    """Claims about the hook in this process, each true or false."""
    os.environ["WEIGHTSYNC_DIR"] = str(volume)
    (volume / "hook").mkdir(parents=True, exist_ok=True)
    first = torch.nn.Linear(512, 1024)
    model = torch.nn.Sequential(first, torch.nn.Linear(1024, 256)).to("cuda", torch.bfloat16)
    layout = lay_out([(n, "bfloat16", tuple(p.shape)) for n, p in model.named_parameters()])
    program = CopyProgram(layout=layout, tensors=())
    (volume / "cuda.json").write_bytes(program.canonical())
    hook = _load()
    claims: dict[str, bool] = {}

    def call(op: str, **more: Any) -> dict[str, Any]:
        request = {
            "id": os.urandom(4).hex(), "op": op, "arena": str(volume / "cuda"), "program": str(volume / "cuda.json"),
            "layout": layout.digest, "grant": GRANT, "root": VERSION.root, **more,
        }  # fmt: skip
        (volume / "hook" / "request-0.json").write_text(json.dumps(request))
        hook.load(model, [])
        result: dict[str, Any] = json.loads((volume / "hook" / "result-0.json").read_text())
        return result

    _seal(volume / "cuda", layout, 1)
    claims["pinned"] = call("pin")["pinned"]
    claims["seen as pinned by torch"] = hook.STATE.mapped[str(volume / "cuda")].bytes.is_pinned()
    claims["applied"] = call("apply")["ok"]
    claims["read back equal"] = call("readback")["equal"]
    with torch.no_grad():
        first.weight[3, 5] += 1
    claims["a changed element is seen"] = call("readback")["equal"] is False
    _seal(volume / "cuda", layout, 2)
    replaced = call("apply")
    claims["a replaced arena is pinned anew"] = replaced["ok"] and replaced["pinned"]
    claims["its bytes are in"] = call("readback", digests=True)["equal"]
    _seal(volume / "cuda", layout, 3)
    mapped = hook.STATE.arena(str(volume / "cuda"))
    torch.cuda.cudart().cudaHostRegister(mapped.bytes.data_ptr(), mapped.size, 0)  # type: ignore[no-untyped-call]
    refused = call("pin")
    claims["a refused pin is an error"] = refused["ok"] is False and refused["reason"] == "PinFailed"
    claims["it leaves no error for the next kernel"] = bool((torch.ones(4, device="cuda") * 2).sum() == 8)
    unpinned = call("apply")
    claims["apply goes on, and says so"] = unpinned["ok"] and not unpinned["pinned"] and bool(unpinned["unpinned"])
    return {name: bool(value) for name, value in claims.items()}


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weightsync_hook", HOOK_FILE)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{HOOK_FILE} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _seal(path: Path, layout: Layout, value: int) -> None:
    with Arena.create(path, layout=layout.digest, program="00" * 16, nbytes=layout.nbytes) as arena:
        arena.fill(GRANT)
        arena.view[:] = bytes([value]) * layout.nbytes
        arena.seal(GRANT, VERSION)
