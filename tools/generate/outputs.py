"""All generators, and the comparison of what they make with what is committed."""

from collections.abc import Callable
from pathlib import Path

from tools.generate import crds, dashboard, metrics, protocol, reference, values

GENERATORS: tuple[Callable[[], dict[str, str]], ...] = (
    crds.manifests,
    protocol.page,
    metrics.page,
    dashboard.file,
    values.page,
    reference.pages,
)


def outputs() -> dict[str, str]:
    """Every generated file: path from the root -> text."""
    files: dict[str, str] = {}
    for generator in GENERATORS:
        files |= generator()
    return files


def write(root: Path) -> list[str]:
    """Write what differs; returns those paths."""
    changed = differing(root)
    files = outputs()
    for path in changed:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files[path], encoding="utf-8")
    return changed


def differing(root: Path) -> list[str]:
    """Paths whose committed bytes are not what the code makes."""
    return [path for path, text in outputs().items() if _bytes(root / path) != text.encode()]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
