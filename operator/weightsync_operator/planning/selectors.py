"""Label selectors: does a pod match, and how a selector reads in a message. Pure."""

from collections.abc import Callable, Mapping

from weightsync.api.v1alpha1.weightsync import Requirement, Selector

# As the API defines them: NotIn and DoesNotExist hold for a pod without the label too.
_OPERATORS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether all parts hold. An empty selector matches nothing: admission refuses it, and so does this."""
    if not selector.match_labels and not selector.match_expressions:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _OPERATORS[e.operator](labels.get(e.key), e.values) for e in selector.match_expressions
    )


def describe(selector: Selector) -> str:
    """As kubectl writes it after -l: ``app=trainer,tier in (a,b),!old``."""
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    return ",".join(parts + [_expression(e) for e in selector.match_expressions])


def _expression(e: Requirement) -> str:
    match e.operator:
        case "Exists":
            return e.key
        case "DoesNotExist":
            return f"!{e.key}"
        case _:
            return f"{e.key} {e.operator.lower()} ({','.join(e.values)})"
