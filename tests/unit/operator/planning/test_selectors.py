"""Label selectors mean what they mean to the API server."""

import pytest

from weightsync.api.v1alpha1.weightsync import Requirement, Selector
from weightsync_operator.planning.selectors import describe, matches

LABELS = {"app": "rollout", "tier": "gold"}


def selector(*expressions: Requirement, **labels: str) -> Selector:
    return Selector(match_labels=labels, match_expressions=expressions)


def expression(key: str, operator: str, *values: str) -> Requirement:
    return Requirement.model_validate({"key": key, "operator": operator, "values": values})


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(selector(app="rollout"), True, id="a label with its value matches"),
        pytest.param(selector(app="trainer"), False, id="another value does not match"),
        pytest.param(selector(app="rollout", zone="a"), False, id="every label must be there"),
        pytest.param(selector(), False, id="an empty selector matches nothing"),
        pytest.param(selector(expression("tier", "In", "gold", "iron")), True, id="In finds the value"),
        pytest.param(selector(expression("tier", "In", "iron")), False, id="In misses the value"),
        pytest.param(selector(expression("zone", "In", "a")), False, id="In needs the label"),
        pytest.param(selector(expression("tier", "NotIn", "iron")), True, id="NotIn with another value"),
        pytest.param(selector(expression("tier", "NotIn", "gold")), False, id="NotIn with the value"),
        pytest.param(selector(expression("zone", "NotIn", "a")), True, id="NotIn holds without the label"),
        pytest.param(selector(expression("tier", "Exists")), True, id="Exists with the label"),
        pytest.param(selector(expression("zone", "Exists")), False, id="Exists without the label"),
        pytest.param(selector(expression("zone", "DoesNotExist")), True, id="DoesNotExist without the label"),
        pytest.param(selector(expression("tier", "DoesNotExist")), False, id="DoesNotExist with the label"),
        pytest.param(selector(expression("tier", "Exists"), app="trainer"), False, id="all parts must hold"),
    ],
)
def test_matches(wanted: Selector, expected: bool) -> None:
    """A selector holds exactly where the API's own definition says so."""
    assert matches(wanted, LABELS) is expected


def test_describe_reads_like_kubectl() -> None:
    """A selector in a message can be pasted after `kubectl get pods -l`."""
    wanted = selector(
        expression("tier", "In", "a", "b"), expression("old", "DoesNotExist"), expression("new", "Exists"), app="x"
    )
    assert describe(wanted) == "app=x,tier in (a,b),!old,new"
