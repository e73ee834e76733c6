"""Images as containerd's folder has them once they are unpacked: made here, since in a guest it takes minutes.

The folder comes to the guests as a disk: by 9p each of its thousands of small files is a question to this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tools.cluster import containers, pause
from tools.cluster.errors import ClusterError
from tools.images.archives import Archive, forget_old
from tools.setup import cache, commands

NAME = "guest-store"
RECIPE = "2"  # raise it when what is done here changes
DISK = "images.ext4"
KEPT = 2  # with the unpacked images each has more than a gigabyte
ANSWER_SECONDS = 30.0
PAUSE_SECONDS = 0.1


def prepare(archives: Sequence[Archive], programs: Mapping[str, Path]) -> Path:
    """The disk, made if it is not in the cache: each archive's image under its two names, and pause's."""
    first = pause.archive(os.uname().machine)
    parts = [RECIPE, programs["containerd"].parent.name, first.parent.name]
    parts += [word for archive in archives for word in (archive.name, archive.alias)]
    entry = cache.entry(NAME, cache.key(*parts), partial(_fill, archives, first, programs))
    forget_old(entry.parent, entry, KEPT)
    return entry / DISK


def _fill(archives: Sequence[Archive], first: Path, programs: Mapping[str, Path], folder: Path) -> None:
    log = cache.log_file(NAME)
    tree = folder / "tree"
    with _containerd(programs, tree, log) as socket:
        client = containers.Client(programs["ctr"], socket)
        for archive in (first, *(each.path for each in archives)):
            words: list[str | Path] = [programs["ctr"], "--address", socket, "--namespace", containers.NAMESPACE]
            commands.run([*words, "images", "import", "--local", archive], log)
        for each in archives:
            client.tag(each.name, each.alias)
    used = int(commands.output(["du", "--summarize", "--block-size=1M", tree]).split()[0])
    size = f"{used + used // 8 + 64}M"  # with what the file system needs for itself
    commands.run(
        ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree, folder / DISK, size], log
    )
    shutil.rmtree(tree)


@contextmanager
def _containerd(programs: Mapping[str, Path], root: Path, log: Path) -> Iterator[Path]:
    """A containerd that only keeps images, in ``root``. Gives its socket."""
    with tempfile.TemporaryDirectory(prefix="weightsync-store-") as state:
        socket, config = Path(state) / "socket", Path(state) / "config.toml"
        config.write_text(
            f'version = 3\nroot = "{root}"\nstate = "{state}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", '
            '"io.containerd.cri.v1.runtime"]\n'
            f'[grpc]\n  address = "{socket}"\n'
            f"[plugins.'io.containerd.internal.v1.opt']\n  path = \"{state}/opt\"\n"
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            process = subprocess.Popen([programs["containerd"], "--config", config], stdout=sink, stderr=sink)
        try:
            client, limit = containers.Client(programs["ctr"], socket), time.monotonic() + ANSWER_SECONDS
            while not client.answers():
                if process.poll() is not None or time.monotonic() > limit:
                    raise ClusterError(f"containerd does not answer; {log} ends with:\n{commands.tail(log)}")
                time.sleep(PAUSE_SECONDS)
            yield socket
        finally:
            process.terminate()
            process.wait()
