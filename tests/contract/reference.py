"""Starts the reference engine as the suite wants it: two checkpoints, the hook, keys, a volume."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reference.checkpoint import make_checkpoint
from reference.config import ModelConfig
from tests.contract.api import Api, Json
from tests.contract.run import answers_of
from tests.contract.table import Case
from tests.contract.world import World
from weightsync.names import DIRECTORY_ENV, HOOK_LOADER
from weightsync_agent.engines.keys import Keys
from weightsync_agent.engines.sglang import SGLangEngine
from weightsync_agent.volume import Volume

ROOT = Path(__file__).parents[2]
ADMIN, KEY = "contract-admin-key", "contract-api-key"
CONFIG = ModelConfig(
    vocab=128, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128, max_positions=1024
)


@dataclass(frozen=True)
class Engine:
    """A running one."""

    url: str
    volume: Path
    before: Path
    after: Path

    async def answers(self, cases: dict[str, Case]) -> tuple[dict[str, Json], dict[str, str]]:
        """Its answers, and the cases that raised."""
        async with (
            Api(self.url, ADMIN, KEY) as api,
            SGLangEngine(self.url, self.volume, Keys(ADMIN, KEY)) as engine,
        ):
            world = World(
                api, engine, self.volume, self.before, self.after,
                admin=ADMIN, key=KEY, long_tokens=400, settle=0.1, counts=True,
            )  # fmt: skip
            return await answers_of(world, cases)


@contextmanager
def running(folder: Path, release: str, *before: Path) -> Iterator[Engine]:
    """The engine, acting as that release, past its first token. before: where it looks for modules first."""
    volume = folder / "volume"
    Volume(volume).prepare()
    for seed, name in enumerate(("before", "after")):
        make_checkpoint(folder / name, CONFIG, seed)
    path = [*before, volume / "python", ROOT / "tests" / "contract" / "loaders", ROOT / "examples", ROOT / "sdk"]
    command = [
        sys.executable, "-m", "reference.server", "--model-path", str(folder / "before"), "--port", "0",
        "--custom-weight-loader", HOOK_LOADER, "raising_loader.load", "--act-as", release,
        "--admin-api-key", ADMIN, "--api-key", KEY,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, path)), DIRECTORY_ENV: str(volume)}
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield Engine(f"http://127.0.0.1:{_port(process)}", volume, folder / "before", folder / "after")
        finally:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


def _port(process: "subprocess.Popen[str]") -> int:
    """Read its events until it serves."""
    port = 0
    for line in process.stdout or ():
        event = json.loads(line)
        port = int(event.get("port", port))
        if event["event"] == "up":
            return port
    raise RuntimeError(f"the reference engine ended with {process.wait(10)} before it served")
