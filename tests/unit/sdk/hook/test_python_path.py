"""What an engine's Python gets is enough to make copy programs there, and asks for nothing of ours."""

import os
import subprocess
import sys
from pathlib import Path

from weightsync.hook.python_path import python_files

# An engine's image has torch and pydantic. Whatever else is imported must come from the folder itself.
BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"{{name}} is not in an engine's image", name=name)
sys.meta_path.insert(0, Absent())
from importlib import import_module
for module in {modules}:
    print(import_module(module).__file__)
"""
MODULES = {
    "weightsync_hook": "weightsync_hook.py", "weightsync": "weightsync/__init__.py",
    "weightsync.convert.verify": "weightsync/convert/verify.py",
    "weightsync.replicas.__main__": "weightsync/replicas/__main__.py",
}  # fmt: skip
ABSENT = {"xxhash", "aiohttp", "structlog", "kubernetes", "mooncake", "typer", "rich", "stamina", "prometheus_client"}


def test_an_engines_image_can_import_it(tmp_path: Path) -> None:
    """From the folder alone, without what only agents and trainers have installed."""
    for name, content in python_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = BLOCKED.format(absent=ABSENT, modules=list(MODULES))
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [str(tmp_path / path) for path in MODULES.values()]


def test_it_is_small() -> None:
    """It lies in memory, in every engine's pod; and no test tool is among it."""
    files = python_files()
    assert sum(map(len, files.values())) < 2**20
    assert not [name for name in files if "testing" in name]
    assert set(files) > {"weightsync_hook.py", "weightsync/__init__.py"}
