"""Runs where SGLang can be imported: makes copy programs for the tests, one rank after the other.

A process of its own, since importing SGLang takes half a minute and changes its process. Requests and answers are
JSON over a socket of their own, because SGLang writes to the standard streams.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from importlib import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.layouts.others import released
from weightsync.convert.header import Header
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.convert.verify import random_tensor
from weightsync.errors import InputError
from weightsync.hook import HOOK_FILE
from weightsync.replicas.__main__ import main
from weightsync.replicas.engine import EngineSpec, Rebuild
from weightsync.replicas.layouts import Check, make
from weightsync.replicas.rebuild import rebuilt
from weightsync.replicas.release import release
from weightsync.replicas.sglang import build_replica

Json = dict[str, Any]


def serve(connection: Connection) -> None:
    """Answer until the test session has ended."""
    with tempfile.TemporaryDirectory() as folder:
        while True:
            try:
                request = json.loads(connection.recv_bytes())
            except EOFError:
                return
            try:
                answer = ANSWERS[request["op"]](request, Path(folder))
            except InputError as error:
                answer = {"refused": str(error)}
            except Exception:  # noqa: BLE001 - the test that asked fails with it
                answer = {"failed": traceback.format_exc()}
            connection.send_bytes(json.dumps(answer).encode())


def spec_of(request: Json, folder: Path) -> EngineSpec:
    """A model folder of its own for each configuration: SGLang remembers configurations by path."""
    text = json.dumps(request["config"])
    model = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(text)
    return EngineSpec(model=str(model), flags=tuple(request.get("flags", ())), **request["cut"])


def make_program(request: Json, folder: Path) -> Json:
    """The program of one rank, every parameter compared with load_weights."""
    rebuild = Rebuild.of(spec_of(request, folder), release())
    headers = headers_of(request)
    start = time.perf_counter()
    program, row = make(rebuild, headers, request["rank"], Check.FULL)
    return {
        "program": program.model_dump(mode="json"), "row": row.model_dump(mode="json"),
        "digests": loaded(request, folder, program), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def headers_of(request: Json) -> list[Header]:
    """The checkpoint: as the request lists it, or as transformers' model of that configuration has it."""
    if request.get("tensors"):
        return [Header(name, dtype, tuple(shape)) for name, dtype, shape in request["tensors"]]
    import transformers

    config = dict(request["config"])
    known = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    # A model that also sees is none of those for text alone.
    auto = getattr(transformers, f"AutoModelFor{'ImageTextToText' if 'vision_config' in config else 'CausalLM'}")
    with torch.device("meta"):
        model = auto.from_config(known, dtype=torch.bfloat16)
    tied = set(model._tied_weights_keys or {}) if known.tie_word_embeddings else set()
    listed = [
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in model.state_dict().items()
        if name not in tied
    ]
    return [Header(*row) for row in released(listed, request.get("experts"), request.get("renamed", ()))]


def loaded(request: Json, folder: Path, program: CopyProgram) -> dict[str, str]:
    """What load_weights of the whole checkpoint leaves in each parameter: a digest of its bytes."""
    replica = build_replica(spec_of(request, folder), request["rank"])
    payload = bytearray(program.layout.nbytes)
    replica.bind(program.layout, memoryview(payload))
    replica.load((tensor.name, random_tensor(tensor)) for tensor in program.tensors)
    replica.release()
    return digests(program, payload)


def digests(program: CopyProgram, payload: bytearray) -> dict[str, str]:
    """Of each parameter's bytes."""
    return {
        row.name: hashlib.blake2b(payload[row.offset : row.offset + row.nbytes], digest_size=16).hexdigest()
        for row in program.layout.parameters
    }


def load_some(request: Json, folder: Path) -> Json:
    """Which parameters load_weights changes, when it gets only some tensors in one call."""
    rebuild = Rebuild.of(spec_of(request, folder), release())
    program, _ = make(rebuild, headers_of(request), request["rank"], Check.OFF)
    replica = build_replica(rebuild.spec, request["rank"])
    payload = bytearray(b"\xa5" * program.layout.nbytes)
    replica.bind(program.layout, memoryview(payload))
    replica.load((t.name, random_tensor(t)) for t in program.tensors if t.name in request["only"])
    replica.release()
    changed = [
        row.name for row in program.layout.parameters
        if payload[row.offset : row.offset + row.nbytes] != b"\xa5" * row.nbytes
    ]  # fmt: skip
    return {"changed": changed, "release": release()}


def replay(request: Json, folder: Path) -> Json:
    """Fill an arena as a Publisher does, twice, where SGLang can be imported: what is in it, and what is said."""
    rebuild = Rebuild.of(spec_of(request, folder), release())
    program, _ = make(rebuild, headers_of(request), request["rank"], Check.OFF)
    payload = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(payload), load_with=rebuilt)
    for _ in range(2):
        payload[:] = bytes(len(payload))
        replayer.begin()
        for tensor in program.tensors:
            replayer.feed(tensor.name, random_tensor(tensor))
        replayer.finish()
    note = replayer.note
    replayer.close()
    return {"held": digests(program, payload), "loaded": loaded(request, folder, program), "note": note}


def describe(request: Json, folder: Path) -> Json:
    """The program, and the hook's own table of the loaded model, after SGLang's post-load step of its attention."""
    rebuild = Rebuild.of(spec_of(request, folder), release())
    program, _ = make(rebuild, headers_of(request), request["rank"], Check.OFF)
    replica = build_replica(rebuild.spec, request["rank"])
    payload = bytearray(program.layout.nbytes)
    replica.bind(program.layout, memoryview(payload))
    replica.load((tensor.name, random_tensor(tensor).abs()) for tensor in program.tensors)
    for module in replica.model.modules():
        if hasattr(module, "k_scale_float") and isinstance(module.k_scale, torch.nn.Parameter):
            method: Any = module.quant_method
            if module.k_scale.is_meta:  # in no layout, so it has no memory yet
                method.create_weights(module)
            method.process_weights_after_loading(module)
    place = util.spec_from_file_location("weightsync_hook", HOOK_FILE)
    if place is None or place.loader is None:
        raise ImportError(f"{HOOK_FILE} cannot be loaded")
    hook = util.module_from_spec(place)
    place.loader.exec_module(hook)
    table = hook.describe(replica.model, {}, {})
    return {"program": program.model_dump(mode="json"), "described": {**table, "rank": request["rank"]}}


def list_headers(request: Json, folder: Path) -> Json:
    """The checkpoint's tensors."""
    return {"headers": headers_of(request)}


def run_command(request: Json, folder: Path) -> Json:
    """`python -m weightsync.replicas` with these arguments, without importing SGLang once more."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(request["arguments"])
    return {"status": status, "printed": printed.getvalue()}


ANSWERS = {
    "describe": describe, "headers": list_headers, "load_some": load_some, "make": make_program, "replay": replay,
    "run": run_command,
}  # fmt: skip

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    serve(Connection(int(sys.argv[1])))
    os._exit(0)  # an orderly end of all that SGLang has imported takes seconds
