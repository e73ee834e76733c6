"""One SGLang server with the hook, from its start to its first token and its end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from weightsync.names import DIRECTORY_ENV, HOOK_LOADER
from weightsync_agent.volume import Volume

# Small and quick to start, and nothing that a bare machine lacks: no CUDA graphs, no grammars, no tokenizer files.
FLAGS = (
    "--device", "cuda", "--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none",
    "--disable-cuda-graph", "--skip-tokenizer-init", "--mem-fraction-static", "0.3",
)  # fmt: skip
LOADERS = Path(__file__).parents[2] / "tests" / "contract" / "loaders"  # the one that raises


@dataclass
class Server:
    """``with Server(...)``: the first token has come when the block begins. volume is made ready for the hook."""

    model: Path
    volume: Path
    log: Path
    admin: str = ""
    key: str = ""
    port: int = 30000
    patience: float = 280.0
    flags: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        Volume(self.volume).prepare()
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.model), "--host", "127.0.0.1",
            "--port", str(self.port), *FLAGS, *self.flags,
            "--custom-weight-loader", HOOK_LOADER, "raising_loader.load",
        ]  # fmt: skip
        if self.key:
            command += ["--api-key", self.key]
        if self.admin:
            command += ["--admin-api-key", self.admin]
        path = [str(self.volume / "python"), str(LOADERS), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, path)), DIRECTORY_ENV: str(self.volume)}
        with self.log.open("ab") as log:
            # A session of its own: the server's processes are ended together.
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait(self) -> None:
        begin = time.monotonic()
        while True:
            spent = time.monotonic() - begin
            if self._process.poll() is not None or spent > self.patience:
                tail = self.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the server did not come up in {spent:.0f} s:\n{tail}")
            try:
                self._get("/model_info")
                self.seconds.setdefault("table", spent)
                # It answers long before it can generate: kernels are compiled at the first token.
                self._get("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}})
                self.seconds.setdefault("token", time.monotonic() - begin)
                self._get("/health")  # 503 until its own warm-up is over
            except (urllib.error.URLError, OSError):
                time.sleep(1.0)
                continue
            return

    def _get(self, path: str, body: object = None) -> None:
        request = urllib.request.Request(self.url + path, headers={"Content-Type": "application/json"})  # noqa: S310
        if body is not None:
            request.data = json.dumps(body).encode()
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        with urllib.request.urlopen(request, timeout=self.patience) as reply:  # noqa: S310 - our own address
            reply.read()

    def stop(self) -> None:
        """It drains for more than 10 s at SIGTERM: killed, whole group, and waited for."""
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
