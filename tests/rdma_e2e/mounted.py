"""What the pods mount of this machine, read-only: programs, the stand-in for torch, checkpoints, packages."""

import compileall
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.setup import examples_env

ROOT = Path(__file__).resolve().parents[2]
# Side by side, as packages of one folder; light holds the module torch and comes first on the path.
PROGRAMS = ("sdk/weightsync", "examples/reference", "tests/rdma/light", "tests/rdma_e2e/trainer.py")


@dataclass(frozen=True)
class Mounted:
    """Folders of this machine, by where pods have them."""

    programs: Path
    models: Path
    packages: Path

    @property
    def places(self) -> dict[str, Path]:
        """Mount point -> folder."""
        return {"/opt/trial": self.programs, "/opt/models": self.models, "/opt/packages": self.packages}


def prepare(folder: Path) -> Mounted:
    """Make them below ``folder``. Raises SetupError."""
    packages = examples_env.prepare(ROOT)
    programs, models = folder / "programs", folder / "models"
    programs.mkdir()
    for name in PROGRAMS:
        source, target = ROOT / name, programs / Path(name).name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    # Here, since pods may not write there, and each of them would compile all of it anew. Their Python is this one's
    # release, or the packages would not fit either.
    compileall.compile_dir(programs, quiet=1)
    subprocess.run([sys.executable, "-m", "tests.rdma_e2e.weights", str(models)], check=True)
    for path in (programs, models):
        _let_all_read(path)
    return Mounted(programs, models, packages)


def _let_all_read(folder: Path) -> None:
    """The pods' user is not root, and a umask may be strict."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
