"""Run everything against a real SGLang and write what it answered.

PYTHONPATH=.:sdk:agent python -m tools.contract_gpu --out DIR [--release 0.5.17] [--parts hook fill suite ...]

Writes DIR/sglang-RELEASE.json (the suite's answers, to be committed as tests/contract/sglang-RELEASE.json),
DIR/timings.json, DIR/hook.json, DIR/fill.json, DIR/server.log. Needs a GPU and an importable SGLang of that release;
models and arenas lie in --shm (memory-backed, 30 GB for the 4b model).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools.contract_gpu import checkpoint, measure
from tools.contract_gpu.server import Server

ADMIN, KEY = "contract-admin-key", "contract-api-key"


def say(text: str) -> None:
    """Progress, with the time of day."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


class Run:
    """The parts; each leaves its files in ``out``."""

    def __init__(self, out: Path, shm: Path, release: str) -> None:
        self.out, self.shm, self.release = out, shm, release
        out.mkdir(parents=True, exist_ok=True)

    def models(self, size: str) -> tuple[Path, Path]:
        """Two checkpoints of one shape."""
        made = []
        for seed in (0, 1):
            directory = self.shm / f"{size}-{seed}"
            if not (directory / "model.safetensors").exists():
                checkpoint.write(directory, checkpoint.SIZES[size], seed)
            made.append(directory)
        return made[0], made[1]

    def server(self, model: Path, volume: str, *, keys: bool) -> Server:
        """A server that is not started yet."""
        admin, key = (ADMIN, KEY) if keys else ("", "")
        return Server(model, self.shm / volume, self.out / "server.log", admin=admin, key=key)

    def hook(self) -> None:
        """The hook on CUDA, in a process of its own: it leaves memory pinned."""
        self._claims("hook", "hook_on_cuda")

    def fill(self) -> None:
        """Filling an arena from CUDA tensors."""
        self._claims("fill", "fill_on_cuda")

    def _claims(self, name: str, module: str) -> None:
        code = f"import sys, json, pathlib; from tools.contract_gpu import {module} as m; "
        code += "print(json.dumps(m.check(pathlib.Path(sys.argv[1]))))"
        done = subprocess.run(
            [sys.executable, "-c", code, str(self.shm / f"{name}-volume")],
            check=False, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{module} ended with status {done.returncode}")
        claims = json.loads(done.stdout.splitlines()[-1])
        (self.out / f"{name}.json").write_text(json.dumps(claims, indent=1) + "\n")
        for claim, holds in claims.items():
            say(f"{'yes' if holds else 'NO '}  {claim}")
        if not all(claims.values()):
            raise RuntimeError(f"{module}: {[claim for claim, holds in claims.items() if not holds]}")

    def suite(self) -> None:
        """All cases, and at the end the one that wedges the server."""
        before, after = self.models("small")
        with self.server(before, "suite-volume", keys=True) as server:
            say(f"server up: {server.seconds}")
            self._cases(server, before, after)
            self._cases(server, before, after, "an abort pause on top of one in place")

    def measured(self) -> None:
        """Timings, and at the end the case that ends the server."""
        before, after = self.models("4b")
        say("checkpoints written")
        with self.server(before, "measure-volume", keys=False) as server:
            say(f"server up: {server.seconds}")
            timings = measure.run(server.url, server.volume, before, after)
            timings["sglang"] = self.release
            (self.out / "timings.json").write_text(json.dumps(timings, indent=1) + "\n")
            say(json.dumps(timings))
            self._cases(server, before, after, "a loader that raises")

    def _cases(self, server: Server, before: Path, after: Path, fatal: str = "") -> None:
        command = [
            sys.executable, "-m", "tests.contract.run", "--url", server.url, "--volume", str(server.volume),
            "--before", str(before), "--after", str(after), "--out", str(self.out / f"sglang-{self.release}.json"),
            "--long-tokens", "1000", "--admin-key", server.admin, "--api-key", server.key,
        ]  # fmt: skip
        done = subprocess.run([*command, "--fatal", fatal] if fatal else command, check=False)
        say(f"cases {fatal or 'all'}: exit {done.returncode}")


def main() -> int:
    """Run the parts in order; 1 where one of them raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shm", type=Path, default=Path("/dev/shm/weightsync-contract"))  # noqa: S108
    parser.add_argument("--release", default="0.5.17")
    parser.add_argument("--parts", nargs="*", default=["hook", "fill", "suite", "measure"])
    o = parser.parse_args()
    run = Run(o.out, o.shm, o.release)
    parts: dict[str, Callable[[], None]] = {
        "hook": run.hook, "fill": run.fill, "suite": run.suite, "measure": run.measured,
    }  # fmt: skip
    failed = []
    for name in o.parts:
        say(f"--- {name}")
        try:
            parts[name]()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # the other parts can still run
            failed.append(name)
            say(f"{name} FAILED: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
