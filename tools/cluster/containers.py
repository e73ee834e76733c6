"""Talking to the node's containerd by its own command-line program."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.cluster.errors import ClusterError

NAMESPACE = "k8s.io"  # where kubelet's containers and images live


class Client:
    """containerd at one socket."""

    def __init__(self, ctr: Path, socket: Path) -> None:
        self._argv = [str(ctr), "--address", str(socket), "--namespace", NAMESPACE]

    def answers(self) -> bool:
        """Whether containerd is up."""
        return self._run("version").returncode == 0

    def images(self) -> list[str]:
        """Names of the images that pods can use."""
        return self._checked("images", "ls", "--quiet").split()

    def load(self, archive: Path) -> None:
        """Load an image archive (OCI or Docker form); its images keep the names that it gives them."""
        if not archive.is_file():
            raise ClusterError(f"there is no image archive {archive}")
        self._checked("images", "import", str(archive))

    def tag(self, name: str, alias: str) -> None:
        """Let `alias` mean the image called `name`, whatever it meant before."""
        self._checked("images", "tag", "--force", name, alias)

    def processes(self) -> dict[str, int]:
        """The first process of each running container: container id -> process id of the host."""
        rows = [line.split() for line in self._checked("tasks", "ls").splitlines()[1:]]
        return {name: int(pid) for name, pid, state in rows if state == "RUNNING"}

    def _checked(self, *words: str) -> str:
        answer = self._run(*words)
        if answer.returncode != 0:
            raise ClusterError(f"`ctr {' '.join(words)}` failed: {answer.stderr.strip() or answer.stdout.strip()}")
        return answer.stdout

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._argv, *words], capture_output=True, text=True, check=False)
