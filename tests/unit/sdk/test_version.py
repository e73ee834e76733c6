"""A version's parts, and the names that engines report for it."""

import pytest
from pydantic import ValidationError

from weightsync.version import Version, torn_name, version_name

ROOT = "ab" * 32


def test_the_name_has_lineage_and_number() -> None:
    """Not the root: engines report the name, and one (lineage, number) has one root."""
    version = Version(lineage="00000000000000ff", number=12, root=ROOT)
    assert version.name == version_name("00000000000000ff", 12) == "00000000000000ff.12"
    assert torn_name(version.name) == "torn:00000000000000ff.12"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"lineage": "ff"}, id="a short lineage"),
        pytest.param({"lineage": "00000000000000FF"}, id="capital digits"),
        pytest.param({"number": 0}, id="number zero"),
        pytest.param({"root": ROOT[:-1]}, id="a short root"),
    ],
)
def test_versions_that_cannot_be(changes: dict[str, object]) -> None:
    """They are packed into fixed fields of an arena's header."""
    fields: dict[str, object] = {"lineage": "00000000000000ff", "number": 1, "root": ROOT} | changes
    with pytest.raises(ValidationError):
        Version.model_validate(fields)
