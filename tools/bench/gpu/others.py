"""The same bytes by other ways, in the same run: Mooncake into the parameters, and SGLang's call with GPU tensors.

Only a real engine has them. Each is timed from pause to continue, after the engine's parameters were overwritten, and
must leave the checksums of a load from disk.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tools.bench.gpu.oracle import Look, checksums
from tools.bench.gpu.site import Site
from tools.world.processes import ROOT, WorldError
from weightsync import names
from weightsync.arena import PAYLOAD
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.layout import Layout
from weightsync.measures import Measure
from weightsync_agent.transfer.settings import TransferSettings, child_environment

REPEATS = 3
BUCKET = 1 << 30  # bytes of tensors in one call
SECONDS = 120.0


def paused(site: Site, push: Callable[[], None]) -> float:
    """Seconds from pause to continue around ``push``."""
    began = time.perf_counter()
    site.ask("/pause_generation", {"mode": "retract"})
    try:
        push()
    finally:
        site.ask("/continue_generation", {"torch_empty_cache": False})
    return time.perf_counter() - began


def measured(site: Site, oracle: Look, name: str, push: Callable[[], None], what: str) -> list[Measure]:
    """Time a way, after one push that is not counted."""
    seconds, right = [], 0
    for _ in range(REPEATS + 1):
        site.ask("/weights_checker", {"action": "reset_tensors"})
        if checksums(site) == oracle.checksums:  # asking also waits for the reset's kernels: a write does not
            raise WorldError("the engine's tensors are as they were after their reset")
        seconds.append(paused(site, push))
        right += checksums(site) == oracle.checksums
    how = f"{what}, pause to continue, median of {REPEATS}, {site.nbytes} bytes"
    return [
        Measure(name=name, value=statistics.median(seconds[1:]), unit="s", better="lower", how=how),
        Measure(name=f"{name}: checksums as from disk", value=right, unit="1", bound=REPEATS + 1, better="higher",
                how=how),
    ]  # fmt: skip


class Direct:
    """Mooncake straight into the parameters that the seed engine registered, out of the pure copies' arena."""

    def __init__(self, site: Site) -> None:
        if site.pure is None:
            raise WorldError("no arena")
        program = CopyProgram.load(site.engine.volume / names.LAYOUTS / "rank-0.json")
        arena = site.pure.arena
        if arena.header.nbytes < program.layout.nbytes:
            raise WorldError(f"{program.layout.nbytes} bytes do not fit the arena of {arena.header.nbytes}")
        with arena.view[: program.layout.nbytes] as payload:
            replayer = Replayer(program, payload)
            for tensor_name, tensor in site.states["after"].items():
                replayer.feed(tensor_name, tensor)
            replayer.finish()
            replayer.close()
        session, table = site.ask("/remote_instance_transfer_engine_info?rank=0")[
            "remote_instance_transfer_engine_info"
        ]
        self._order = {
            "session": session, "rows": rows(program.layout, table), "piece": 64 << 20, "window": 64, "poll": 0.001,
        }  # fmt: skip
        settings = TransferSettings()
        self._peer = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.gpu.direct_peer", str(arena.path), str(PAYLOAD),
             str(arena.header.nbytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**child_environment(settings, "127.0.0.1", os.environ), "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self._line()

    def _line(self) -> Any:
        line = self._peer.stdout.readline() if self._peer.stdout else ""
        if not line:
            raise WorldError(f"the writing process ended with status {self._peer.wait()}")
        return json.loads(line)

    def push(self) -> None:
        """Write everything."""
        if self._peer.stdin is None:
            raise WorldError("the writing process was started without a pipe")
        self._peer.stdin.write(json.dumps(self._order) + "\n")
        self._peer.stdin.flush()
        self._line()

    def close(self) -> None:
        """End the process."""
        self._peer.kill()
        self._peer.wait()


def rows(layout: Layout, table: dict[str, list[int]]) -> list[tuple[int, int, int]]:
    """(offset, address, bytes) of each parameter. Raises WorldError where the engine's table is another."""
    found = []
    for parameter in layout.parameters:
        if parameter.name not in table:
            raise WorldError(f"{parameter.name} is not in the engine's table")
        address, numel, size = table[parameter.name]
        if numel * size != parameter.nbytes:
            raise WorldError(f"{parameter.name}: {numel * size} bytes in the engine, {parameter.nbytes} here")
        found.append((parameter.offset, address, parameter.nbytes))
    return found


def direct(site: Site, oracle: Look) -> list[Measure]:
    """Mooncake over TCP into GPU memory."""
    way = Direct(site)
    try:
        return measured(site, oracle, "Mooncake into the parameters", way.push, "TCP, 4 threads, slices of 1 MiB")
    finally:
        way.close()


def from_tensor(site: Site, oracle: Look) -> list[Measure]:
    """/update_weights_from_tensor: the engine maps this process's GPU memory, in flattened buckets."""
    # By name: only the environment of a real engine has it, and it takes twenty seconds to import.
    serializer = importlib.import_module("sglang.srt.utils").MultiprocessingSerializer
    flattened = importlib.import_module("sglang.srt.weight_sync.tensor_bucket").FlattenedTensorBucket
    importlib.import_module("sglang.srt.utils.patch_torch").monkey_patch_torch_reductions()

    def push() -> None:
        for named in _buckets(site.states["after"]):
            bucket = flattened(named_tensors=named)
            content = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
            torch.cuda.synchronize()
            payload = base64.b64encode(serializer.serialize(content)).decode()
            body = {
                "serialized_named_tensors": [payload],
                "load_format": "flattened_bucket",
                "flush_cache": False,
            }
            answer = site.ask("/update_weights_from_tensor", body)
            if not answer.get("success"):
                raise WorldError(f"/update_weights_from_tensor: {answer}")

    return measured(site, oracle, "/update_weights_from_tensor", push, "CUDA IPC on the same GPU, 1 GiB a call")


def _buckets(state: dict[str, torch.Tensor]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    bucket: list[tuple[str, torch.Tensor]] = []
    for pair in state.items():
        bucket.append(pair)
        if sum(tensor.nbytes for _, tensor in bucket) >= BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
