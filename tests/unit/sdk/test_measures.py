"""The form of reports: bounds in both directions, and a closed schema."""

import json
from typing import Any

import pytest

from weightsync.errors import InputError
from weightsync.measures import Measure, Measures


def measure(**changes: Any) -> Measure:
    """A ratio with a lower bound, with changes."""
    fields = {"name": "ratio", "value": 0.8, "unit": "1", "bound": 0.75, "better": "higher", "how": "by hand"}
    return Measure.model_validate({**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        pytest.param({}, True, id="over a bound that higher values keep"),
        pytest.param({"value": 0.75}, True, id="at the bound"),
        pytest.param({"value": 0.74}, False, id="under a bound that higher values keep"),
        pytest.param({"better": "lower"}, False, id="over a bound that lower values keep"),
        pytest.param({"better": "lower", "value": 0}, True, id="under a bound that lower values keep"),
        pytest.param({"better": "lower", "value": 0.75}, True, id="at a bound that lower values keep"),
        pytest.param({"value": -1, "bound": None}, True, id="a figure that is only told"),
    ],
)
def test_bound(changes: dict[str, Any], holds: bool) -> None:
    """A bound is kept on its better side and at itself."""
    assert measure(**changes).holds is holds


def test_report_names_what_is_broken() -> None:
    """Only the measures that break their bound."""
    report = Measures(environment={}, measures=(measure(), measure(name="torn", value=1, bound=0, better="lower")))
    assert [one.name for one in report.broken] == ["torn"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param('{"environment": {}}', "measures", id="no measures"),
        pytest.param('{"environment": {}, "measures": [{"name": "a"}]}', "measures.0", id="a half measure"),
        pytest.param('{"environment": {}, "measures": [], "extra": 1}', "extra", id="an unknown key"),
        pytest.param('{"environment": {"a": null}, "measures": []}', "environment.a", id="a fact without a value"),
    ],
)
def test_wrong_form_is_refused(text: str, part: str) -> None:
    """The error names the file and the field."""
    with pytest.raises(InputError, match=part):
        Measures.read(text, "report.json")


def test_form_is_the_documented_one() -> None:
    """The keys that every report file has, and no others."""
    dumped = json.loads(Measures(environment={"cores": 2}, measures=(measure(),)).canonical())
    assert sorted(dumped) == ["environment", "measures"]
    assert sorted(dumped["measures"][0]) == ["better", "bound", "how", "name", "unit", "value"]


def test_not_a_number_is_refused() -> None:
    """A measurement that failed must not become a report."""
    with pytest.raises(ValueError, match="finite"):
        measure(value=float("nan"))
