"""Committed files that are made from code are what the code makes, byte for byte."""

from pathlib import Path

import pytest

from tools.generate import outputs

ROOT = Path(__file__).resolve().parents[2]


def test_the_files_are_listed() -> None:
    """The CRDs are among them, plain and for the chart."""
    assert {path for path in outputs.outputs() if path.startswith("crds/")} == {
        f"crds/{path.name}" for path in (ROOT / "crds").glob("*.yaml")
    }


@pytest.mark.parametrize("path", sorted(outputs.outputs()))
def test_it_is_up_to_date(path: str) -> None:
    """`python -m tools.generate` would change nothing."""
    assert (ROOT / path).read_bytes() == outputs.outputs()[path].encode()


def test_a_difference_is_found(tmp_path: Path) -> None:
    """The comparison that CI relies on sees a missing and a changed file, and writing mends both."""
    assert set(outputs.differing(tmp_path)) == set(outputs.outputs())
    outputs.write(tmp_path)
    path = next(iter(outputs.outputs()))
    (tmp_path / path).write_text("edited by hand", encoding="utf-8")
    assert outputs.differing(tmp_path) == [path]
