"""One trainer's pod and one engine's pod as processes of this machine, from a plan file; two checkpoints.

The same site stands on a CPU, with the reference engine in SGLang's place: the path is the same, the figures are not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import urllib.error
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from reference.checkpoint import make_checkpoint
from tools.bench.agents import config
from tools.bench.gpu import programs
from tools.bench.gpu.pure import PureCopy
from tools.contract_gpu import checkpoint
from tools.contract_gpu.server import FLAGS
from tools.world.pod import Pod
from tools.world.processes import Child, WorldError, python, wait
from tools.world.world import World
from weightsync import Publisher, names
from weightsync.announcement import Mode
from weightsync.convert.program import CopyProgram
from weightsync_agent.engines.seed import SEED_FLAG

State = dict[str, torch.Tensor]
HOST = "127.0.0.1"


class SGLangWorld(World):
    """A world whose engines are real ones. seed: the engine also registers its parameters with Mooncake."""

    seed = True

    def _start_engine(self, pod: Pod, model: Path, flags: Sequence[str]) -> None:
        wait(f"{pod.name}'s volume", (pod.volume / names.PYTHON / "weightsync_hook.py").exists, 60, [pod.agent])
        command = python(
            "sglang.launch_server", "--model-path", str(model), "--host", pod.host, "--port", str(pod.engine_port),
            *FLAGS, *([SEED_FLAG] if self.seed else []), "--custom-weight-loader", names.HOOK_LOADER, *flags,
        )  # fmt: skip
        environment = {
            names.DIRECTORY_ENV: str(pod.volume),
            "PYTHONPATH": str(pod.volume / names.PYTHON),
            "MOONCAKE_PROTOCOL": "tcp",
            "SGLANG_HOST_IP": HOST,
            "MC_NUM_TCP_IO_THREADS": "4",
            "MC_TCP_SLICE_SIZE": str(2**20),
            "MC_LOG_LEVEL": "WARNING",
        }
        pod.engine = Child(f"{pod.name} engine", command, environment, self.folder / f"{pod.name}-engine.log")
        pod.engine.start()

    def close(self) -> None:
        """Engines first, each with the processes that it started: SGLang drains for longer than anyone waits."""
        for pod in self.pods.values():
            if pod.engine is not None and pod.engine.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pod.engine.pid, signal.SIGKILL)
        super().close()


@dataclass
class Site:
    """What the parts work with. before: what the engine was started with; states: by the checkpoint's folder name."""

    world: World
    device: str
    before: Path
    after: Path
    trainer: Pod
    engine: Pod
    mode: Mode = "Staged"
    nbytes: int = 0
    program_problem: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    pure: PureCopy | None = None
    publisher: Publisher | None = None

    @property
    def real(self) -> bool:
        """The engine is SGLang."""
        return isinstance(self.world, SGLangWorld)

    @property
    def long(self) -> int:
        """Tokens of a request that outlasts a publish, within the model's context."""
        return 1000 if self.real else 400

    def ask(self, path: str, body: dict[str, Any] | None = None, *, seconds: float = 300.0) -> Any:
        """Any call to the engine; the body of its answer, {} where that is no JSON. Raises WorldError."""
        try:
            return self.world.ask_engine(self.engine, path, body, seconds=seconds)
        except ValueError:  # a text, as /flush_cache gives
            return {}

    def timed(self, what: str, call: Callable[[], Any]) -> Any:
        """Call, and note its seconds under ``what``."""
        began = time.perf_counter()
        result = call()
        self.seconds[what] = time.perf_counter() - began
        return result

    def close(self) -> None:
        """Let go of the trainer's side."""
        if self.publisher is not None:
            self.publisher.close()
        if self.pure is not None:
            self.pure.close()


def checkpoints(folder: Path, size: str, *, real: bool) -> tuple[Path, Path]:
    """Two of one shape. size: one of tools.contract_gpu.checkpoint.SIZES; for the reference engine: bytes."""
    for seed, name in enumerate(("before", "after")):
        if real:
            checkpoint.write(folder / name, checkpoint.SIZES[size], seed)
        else:
            make_checkpoint(folder / name, config(int(size)), seed)
    return folder / "before", folder / "after"


def build(world: World, size: str, device: str, flags: Sequence[str] = (), *, mode: Mode = "Staged") -> Site:
    """Start all of it: when this returns the engine serves, its program is known and the plan names it."""
    real = isinstance(world, SGLangWorld)
    began = time.perf_counter()
    before, after = checkpoints(world.folder, size, real=real)
    written = time.perf_counter() - began
    trainer = world.trainer("trainer")
    engine = world.engine("engine", before, *flags, WEIGHTSYNC_MODE=mode)
    site = Site(world, device, before, after, trainer, engine, mode)
    site.seconds["two checkpoints written"] = written
    if real:
        _programs(site)
    else:
        site.timed("engine's first token", lambda: _first_token(site, 60))
    return site


def _programs(site: Site) -> None:
    """The copy program is made while the engine starts: neither needs the other."""

    def trace() -> None:
        log = site.world.folder / "layout.log"
        site.program_problem = site.timed(
            "weightsync layout", lambda: programs.trace(site.before, site.engine.volume, log)
        )

    thread = threading.Thread(target=trace)
    thread.start()
    try:
        site.timed("engine's first token", lambda: _first_token(site, 280))
    finally:
        thread.join()
    if site.program_problem:
        with_rule = programs.by_rule(
            {
                name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
                for name, tensor in load_file(site.after / "model.safetensors").items()
            }
        )
        programs.write(with_rule, site.engine.volume)


def _first_token(site: Site, seconds: float) -> None:
    def answers() -> bool:
        try:
            site.ask("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}, seconds=seconds)
        except (WorldError, urllib.error.URLError):
            return False
        return True

    engine = site.engine.engine
    wait("the engine's first token", answers, seconds, [engine] if engine else [])


def connect(site: Site) -> None:
    """The trainer's side: tensors on the device, the Publisher, the pure copies' memory; the plan with its engine."""
    for path in (site.before, site.after):
        load = partial(load_file, path / "model.safetensors", device=site.device)
        site.states[path.name] = site.timed(f"{path.name} on the device", load)
    site.nbytes = sum(tensor.nbytes for tensor in site.states["after"].values())
    # As large as the rank's layout, padding included: Mooncake into the parameters takes its rows from there.
    layout = CopyProgram.load(site.engine.volume / names.LAYOUTS / "rank-0.json").layout
    memory = partial(PureCopy, site.world.folder, layout.nbytes, site.device)
    site.pure = site.timed("the pure copies' memory", memory)
    site.publisher = Publisher(rank=0, world_size=1, directory=site.trainer.volume)
    site.timed("engine in the plan, certified", lambda: site.world.wait_for_engines(1, seconds=180))
