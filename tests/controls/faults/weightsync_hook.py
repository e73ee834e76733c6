"""A double of the in-engine hook: the real one, with one fault around its apply.

It stands before the real file on the engine's PYTHONPATH, under the name that the agent calls. Which fault: the word
in the file ``fault`` of the shared volume.

flip   one bit of the arena changes after its buckets were verified, before it is copied
skip   one layer keeps its old parameters
late   the parameters change only seconds after the engine was told to go on
"""

import importlib.util
import json
import os
import threading
from pathlib import Path
from types import ModuleType

import torch

VOLUME = Path(os.environ["WEIGHTSYNC_DIR"])
PAYLOAD = 4096
SKIPPED = ".layers.1."
LATE_SECONDS = 5.0


def _real() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_weightsync_hook", VOLUME / "python" / "weightsync_hook.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"no hook in {VOLUME / 'python'}: the agent lays it there before the engine starts")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REAL = _real()


def load(model: torch.nn.Module, named_tensors: object) -> None:
    """As the real one, but for the fault."""
    request = json.loads((VOLUME / "hook" / "request-0.json").read_bytes())
    fault = (VOLUME / "fault").read_text() if (VOLUME / "fault").exists() else ""
    if request["op"] != "apply" or not fault:
        REAL.load(model, named_tensors)
        return
    if fault == "flip":
        _flip(Path(request["arena"]))
    before = _copy(model)
    REAL.load(model, named_tensors)
    if fault == "skip":
        _restore(model, {name: tensor for name, tensor in before.items() if SKIPPED in name})
    if fault == "late":
        after = _copy(model)
        _restore(model, before)
        threading.Timer(LATE_SECONDS, _restore, (model, after)).start()


def _copy(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@torch.inference_mode()
def _restore(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in tensors:
            parameter.copy_(tensors[name])


def _flip(arena: Path) -> None:
    """The lowest bit of one weight's exponent, in the middle of the payload."""
    middle = PAYLOAD + (arena.stat().st_size - PAYLOAD) // 2 // 4 * 4 + 2
    with arena.open("r+b") as file:
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 0x80]))
