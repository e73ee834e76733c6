"""Bad input: JSON of any kind, valid documents with something wrong in them, and bytes that are no document."""

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

NUMBERS = [-1, 0, 1, 2**16, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -(2**70), 0.5, -0.0, 1e300]
SPECIAL = [float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "", " ", "x" * 5000, "../../../etc/passwd", "\x00", "a\nb", "\ud800", "\u202e\U0001f600", "null", "-1", "1e999",
    "0" * 16, "0" * 32, "f" * 64, "F" * 32, "g" * 32, "torn:", "127.0.0.1:1", "[::1]:1", "%s%n", "{}", "$(id)",
]  # fmt: skip


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


LEAVES = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(SPECIAL), st.sampled_from(TEXTS),
    st.integers(), st.text(max_size=40),
)  # fmt: skip
JSON = st.one_of(
    LEAVES,
    st.sampled_from([[], {}, nested(150), [0] * 3000, ["x"] * 3000, {str(n): n for n in range(2000)}, {"": {}}]),
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner)),
)


def dumped(value: Any) -> bytes:
    """JSON text; with NaN and Infinity, which Python writes and JSON does not know."""
    return json.dumps(value).encode()


# Bodies that are no JSON document of ours, whatever the model.
RAW = st.one_of(
    st.binary(max_size=200),
    JSON.map(dumped),
    st.sampled_from([
        b"", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"[" * 100 + b"]" * 100, b"\xff\xfe{}", b"\xef\xbb\xbf{}",
        b'{"term": 1e400}', b'{"term": ' + b"9" * 5000 + b"}", b"NaN", b"'", b'"\\ud800"', b"\x00" * 1000,
        b"{} {}", b"{}\n\n", b'{"a": 1, "a": 2}', b"\x1f\x8b" + b"\x00" * 64, b"1" * 10_000,
    ]),
)  # fmt: skip


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)
    return found


@st.composite
def mutated(draw: st.DrawFn, document: dict[str, Any], most: int = 3) -> dict[str, Any]:
    """``document`` with up to ``most`` things changed: replaced, left out, doubled, added, or moved elsewhere."""
    value = deepcopy(document)
    for _ in range(draw(st.integers(0, most))):
        places = _places(value, [])
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "double", "add", "swap"])):
            case "replace":
                holder[key] = deepcopy(draw(JSON))  # the strategy's own lists must not be changed by the next step
            case "remove":
                del holder[key]
            case "double" if isinstance(holder, list):
                holder += [holder[key]] * draw(st.sampled_from([1, 2, 300]))
            case "add" if isinstance(holder, dict):
                holder[draw(st.sampled_from(["x", "", "term", "rank", "__class__"]))] = draw(LEAVES)
            case "swap":
                other, at = draw(st.sampled_from(places))
                if at in (range(len(other)) if isinstance(other, list) else other):
                    holder[key] = deepcopy(other[at])
    return value


def bodies(document: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """What may be sent where ``document`` is expected; mostly close to it: what is refused at once tries little."""
    return st.one_of(mutated(document).map(dumped), mutated(document, 1).map(dumped), RAW)
