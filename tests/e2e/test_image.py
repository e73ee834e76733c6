"""What is in the image that pods run."""

import json
import struct
import tarfile
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tools.images import build
from tools.setup.errors import SetupError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
HEADER = 16  # bytes of a compiled file: what it is, flags, its source's time and size


def test_compiled_files_are_those_of_their_sources() -> None:
    """Python looks at time and size: one that differs is compiled in every process, since none may write there."""
    try:
        archive = build.prepare(ROOT)[-1]
    except SetupError as error:
        unavailable(f"the image cannot be built: {error}")
    sources: dict[str, tuple[int, int]] = {}
    compiled: dict[str, tuple[int, int]] = {}
    with tarfile.open(archive.path) as outer:
        last = json.load(outer.extractfile("manifest.json"))[0]["Layers"][-1]
        with tarfile.open(fileobj=outer.extractfile(last)) as layer:
            for each in layer:
                path = Path(each.name)
                if path.suffix == ".py":
                    sources[str(path.with_suffix(""))] = (int(each.mtime), each.size)
                elif path.suffix == ".pyc":
                    name = path.parents[1] / path.name.partition(".")[0]
                    compiled[str(name)] = struct.unpack("<4x4xII", layer.extractfile(each).read(HEADER))
    assert any(name.endswith("weightsync_agent/app") for name in sources)
    assert compiled == sources
