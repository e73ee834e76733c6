"""Commands against the cluster: kubectl and helm, their words in the error where they fail."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.demo.errors import DemoError


def run(argv: Sequence[str | Path], *, seconds: float, stdin: str | None = None) -> str:
    """Run a program and return what it prints. Raises DemoError with its words."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise DemoError(f"`{' '.join(words)}` did not end within {seconds:.0f} s") from error
    if done.returncode != 0:
        raise DemoError(f"`{' '.join(words)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@dataclass(frozen=True)
class Kubectl:
    """kubectl in one namespace of one cluster."""

    program: Path
    kubeconfig: Path
    namespace: str

    def __call__(self, *words: str | Path, seconds: float = 60.0, stdin: str | None = None) -> str:
        """Run it with these words."""
        start: list[str | Path] = [self.program, "--kubeconfig", self.kubeconfig, "--namespace", self.namespace]
        return run([*start, *words], seconds=seconds, stdin=stdin)

    def get(self, *words: str) -> Any:
        """`kubectl get WORDS -o json`, parsed."""
        return json.loads(self("get", *words, "-o", "json"))


@dataclass(frozen=True)
class Helm:
    """helm for one release."""

    program: Path
    kubeconfig: Path
    namespace: str
    release: str

    def _run(self, *words: str | Path, seconds: float) -> str:
        place: list[str | Path] = ["--kubeconfig", self.kubeconfig, "--namespace", self.namespace]
        return run([self.program, *words, *place], seconds=seconds)

    def install(self, chart: Path, values: Sequence[str]) -> str:
        """Install the chart and wait until it is ready."""
        settings = [word for value in values for word in ("--set", value)]
        words: list[str | Path] = [
            "install",
            self.release,
            chart,
            "--create-namespace",
            "--wait",
            "--timeout",
            "180s",
        ]
        return self._run(*words, *settings, seconds=240)

    def uninstall(self) -> str:
        """Remove what was installed, if it was."""
        return self._run("uninstall", self.release, "--ignore-not-found", "--wait", "--timeout", "60s", seconds=90)
