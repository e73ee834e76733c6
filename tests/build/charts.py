"""Helm, and our chart as it renders."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "weightsync"
Json = dict[str, Any]


class Helm:
    """The program, on our chart."""

    path = CHART

    def __init__(self, program: Path) -> None:
        self._program = program

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Any call; the caller judges its exit code."""
        return subprocess.run([self._program, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def text(self, *arguments: str) -> str:
        """The rendered manifests of release ``weightsync`` in namespace ``weightsync-system``."""
        done = self.run(
            "template", "weightsync", str(CHART), "--namespace=weightsync-system", "--skip-tests", *arguments
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def hooks(self, *arguments: str) -> list[Json]:
        """What `helm test` makes."""
        place = ("--namespace=weightsync-system", "--show-only=templates/tests/works.yaml")
        done = self.run("template", "weightsync", str(CHART), *place, *arguments)
        assert done.returncode == 0, done.stderr
        return [made for made in yaml.safe_load_all(done.stdout) if made]

    def objects(self, *arguments: str) -> list[Json]:
        """The same, parsed."""
        return [made for made in yaml.safe_load_all(self.text(*arguments)) if made]


def named(objects: list[Json], kind: str, name: str, namespace: str = "") -> Json:
    """The one object of that kind and name."""
    (found,) = [
        made
        for made in objects
        if made["kind"] == kind
        and made["metadata"]["name"] == name
        and (not namespace or made["metadata"].get("namespace") == namespace)
    ]
    return found
