"""The image that holds a pod's namespaces: a program that waits for its end, in an archive of its own.

No image registry is needed: a few lines of C, linked statically, are the whole image.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tools.cluster import layout as places
from tools.setup import cache, commands

SOURCE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) { (void)number; _exit(0); }
static void collect(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
    /* As the first process of the pod it has no default actions, and it inherits the pod's orphans. */
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    signal(SIGCHLD, collect);
    for (;;) pause();
}
"""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(machine: str) -> Path:
    """Return the image archive for `machine` (as `uname -m` names it), built if it is not in the cache."""

    def build(folder: Path) -> None:
        source = folder / "pause.c"
        source.write_text(SOURCE, encoding="utf-8")
        program = folder / "pause"
        argv = ["gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", str(program), str(source)]
        commands.run(argv, cache.log_file("image-pause"))
        architecture = ARCHITECTURES.get(machine, machine)
        (folder / "image.tar").write_bytes(pack(program.read_bytes(), architecture, places.PAUSE_IMAGE))

    return cache.entry("image-pause", cache.key(SOURCE, machine, places.PAUSE_IMAGE), build) / "image.tar"


def pack(program: bytes, architecture: str, name: str) -> bytes:
    """Return an image archive, in the form of `docker save`, of one layer with `program` as /pause."""
    layer = _tar({"pause": program}, mode=0o755)
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65532:65532"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    return _tar({"config.json": config, "layer.tar": layer, "manifest.json": manifest}, mode=0o644)


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as opened:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            opened.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
