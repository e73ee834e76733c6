"""The sdk with the oldest packages that it says it can live with: trainers and engines bring their own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.setup import oldest_env

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import pydantic
from weightsync import Publisher
from weightsync.convert.program import CopyProgram
from weightsync.wire import local, v1
for module in (local, v1):
    for each in vars(module).values():
        if isinstance(each, type) and issubclass(each, pydantic.BaseModel):
            each.model_json_schema()
print(pydantic.VERSION)
"""


def test_the_sdk_lives_with_the_oldest_pydantic_that_it_allows() -> None:
    """Every record of the wire can be defined: a constraint that only newer releases know breaks all of them."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (lowest,) = (each.partition(">=")[2] for each in asked if each.startswith("pydantic>="))
    path = os.pathsep.join([str(oldest_env.prepare(ROOT)), str(ROOT / "sdk")])
    command, environment = [sys.executable, "-c", SCRIPT], {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().startswith(f"{lowest}."), "another pydantic came before the oldest"
