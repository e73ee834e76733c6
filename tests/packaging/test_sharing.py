"""What is told to stay together, or to come first, is there."""

from pathlib import Path

import pytest

from tests import sharing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("place", [place for places in sharing.FIRST for place in places])
def test_every_place_of_a_unit_holds_tests(place: str) -> None:
    """A file that was renamed is renamed in the table, too: it would run apart, and last."""
    found = ROOT / place
    assert found.is_file() if place.endswith(".py") else any(found.rglob("test_*.py"))


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        pytest.param("tests/e2e/test_demo.py::test_a", "tests/e2e/", id="of the node"),
        pytest.param("tests/cluster/test_node_lifecycle.py::test_a[b::c]", "tests/e2e/", id="of the node, elsewhere"),
        pytest.param("tests/unit/a/test_b.py::test_c[d]", "tests/unit/a/test_b.py", id="of no unit: its file"),
    ],
)
def test_a_test_belongs_to_one_unit(nodeid: str, unit: str) -> None:
    """The same one in every process, from the name alone."""
    assert sharing.unit(nodeid) == unit
