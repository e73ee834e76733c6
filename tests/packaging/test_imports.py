"""Every module of the sdk can be imported first and alone, and brings along nothing that it must not.

A child process per package forks for each module, from a state in which only third-party libraries are loaded: as
good as a fresh interpreter for import cycles and for what a module loads, and a hundred times cheaper.
"""

import json
import os
import pkgutil
import subprocess
import sys

import pytest

import weightsync

HEAVY = ("aiohttp", "kopf", "kubernetes", "mooncake", "numpy", "torch")
# These may load torch: what copies tensors, and what runs in the engine's process. Their own tests import them.
TORCH = frozenset(
    f"weightsync.{name}"
    for name in (
        "convert.engine_replica", "convert.fallback", "convert.gather", "convert.given", "convert.lanes",
        "convert.portion", "convert.queueing", "convert.replay", "convert.sharing", "convert.ties", "convert.trace",
        "convert.verify", "hook.weightsync_hook", "replicas.replica", "replicas.sglang",
    )
)  # fmt: skip

PROBE = """
import importlib, json, os, sys
import pydantic, xxhash
heavy, modules = json.loads(sys.argv[1])
for module in modules:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(module)
            found = [name for name in heavy if name in sys.modules]
        except BaseException as error:
            found = [f"{type(error).__name__}: {error}"]
        os.write(1, (json.dumps([module, found]) + "\\n").encode())
        os._exit(0)
    os.waitpid(child, 0)
"""


def modules_of(package: object) -> list[str]:
    """Names of all its modules that must not load torch, itself included."""
    path, name = package.__path__, package.__name__  # type: ignore[attr-defined]
    return sorted({name, *(found.name for found in pkgutil.walk_packages(path, f"{name}."))} - TORCH)


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Module -> the heavy libraries that importing it alone loads, or the error."""
    asked = json.dumps([HEAVY, modules_of(weightsync)])
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, asked],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return dict(json.loads(line) for line in run.stdout.splitlines())


@pytest.mark.parametrize("module", modules_of(weightsync))
def test_a_module_stands_alone(loaded: dict[str, list[str]], module: str) -> None:
    """No cycle, no torch, no Kubernetes client: trainers and engines have environments of their own."""
    assert loaded[module] == []


def test_using_the_publisher_loads_no_torch() -> None:
    """Nor does making one: torch is the trainer's own, and is met with its first tensor."""
    script = "import sys, weightsync; weightsync.Publisher; weightsync.PublishHandle; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
