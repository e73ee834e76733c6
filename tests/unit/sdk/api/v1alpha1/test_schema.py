"""What becomes structural, and what is refused when the CRD is generated."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from weightsync.api.v1alpha1.schema import structural

Word = Annotated[str, Field(max_length=8)]


class Inner(BaseModel):
    """An inner
    object."""

    kind: Literal["Only"] = "Only"
    count: Annotated[int, Field(ge=0, le=9)] = 3


class Outer(BaseModel):
    """Everything that converts."""

    inner: Annotated[Inner, Field(description="Its own words.")] = Inner()
    maybe: Inner | None = None
    words: Annotated[tuple[Word, ...], Field(max_length=4)] = ()
    table: Annotated[dict[str, Word], Field(max_length=4)] = Field(default_factory=dict)
    digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


def walk(node: Any) -> list[dict[str, Any]]:
    """Every object of a JSON document."""
    if isinstance(node, dict):
        return [node, *(found for child in node.values() for found in walk(child))]
    return [found for child in node for found in walk(child)] if isinstance(node, list) else []


@pytest.mark.parametrize("defaults", [True, False], ids=["with defaults", "without"])
def test_nothing_is_left_that_is_not_structural(defaults: bool) -> None:
    """No references, unions, constants or closed objects."""
    for node in walk(structural(Outer, defaults=defaults)):
        assert not {"$ref", "$defs", "anyOf", "const", "title", "prefixItems"} & node.keys()
        assert node.get("additionalProperties") is not False
        assert defaults or "default" not in node


def test_what_each_part_becomes() -> None:
    """Constants are enums of one, optional objects plain ones, digests bounded, defaults filled from inside."""
    made = structural(Outer, defaults=True)["properties"]
    assert made["inner"]["description"] == "Its own words."
    assert made["maybe"]["description"] == "An inner object."
    assert made["inner"]["default"] == {}
    assert made["inner"]["properties"]["kind"] == {"type": "string", "enum": ["Only"], "default": "Only"}
    assert made["inner"]["properties"]["count"] == {
        "type": "integer", "format": "int64", "minimum": 0, "maximum": 9, "default": 3,
    }  # fmt: skip
    assert "default" not in made["words"]
    assert made["table"]["maxProperties"] == 4
    assert made["digest"]["maxLength"] == 32


class Unbounded(BaseModel):
    text: str


class UnboundedList(BaseModel):
    words: tuple[Word, ...]


class UnboundedMap(BaseModel):
    table: dict[str, Word]


class Union(BaseModel):
    either: Annotated[int, Field(ge=0)] | Word


class CountOrShare(BaseModel):
    most: int | str = "25%"


def test_a_count_or_a_share_is_the_servers_own_union() -> None:
    """Without a type, as the server wants it, and with its default."""
    made = structural(CountOrShare, defaults=True)
    assert made["properties"]["most"] == {"default": "25%", "x-kubernetes-int-or-string": True}


class Exclusive(BaseModel):
    number: Annotated[int, Field(gt=0)]


class Untyped(BaseModel):
    anything: Any


class Pair(BaseModel):
    pair: tuple[Word, Word]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Unbounded, r"Unbounded\.text: every string needs a bound"),
        (UnboundedList, r"UnboundedList\.words: every array needs a bound"),
        (UnboundedMap, r"UnboundedMap\.table: a map needs a bound"),
        (Union, r"Union\.either: a union of 2 types"),
        (Exclusive, r"Exclusive\.number: 'exclusiveMinimum' has no structural form"),
        (Untyped, r"Untyped\.anything: a structural schema needs a type"),
        (Pair, r"Pair\.pair: 'prefixItems' has no structural form"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_has_no_structural_form_is_refused(model: type[BaseModel], said: str) -> None:
    """When the CRD is generated, with the field's path; not when a server refuses it."""
    with pytest.raises(TypeError, match=said):
        structural(model, defaults=True)
