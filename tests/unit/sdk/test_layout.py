"""A layout is a checked table with an identity, and two of them differ in a nameable row."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import InputError
from weightsync.layout import ALIGNMENT, ITEMSIZE, Layout, Parameter, first_difference, lay_out

Row = tuple[str, str, tuple[int, ...]]

ROWS = st.lists(
    st.tuples(
        st.text("abc.", min_size=1, max_size=6),
        st.sampled_from(sorted(ITEMSIZE)),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda row: row[0],
)


@given(ROWS)
def test_laid_out_parameters_are_aligned_and_disjoint(rows: list[Row]) -> None:
    """In the order given, each on ALIGNMENT, within the payload; a payload is never empty."""
    layout = lay_out(rows)
    assert [(p.name, p.dtype, p.shape) for p in layout.parameters] == rows
    end = 0
    for p in layout.parameters:
        assert p.offset % ALIGNMENT == 0
        assert p.offset >= end
        end = p.offset + p.nbytes
    assert layout.nbytes >= max(end, 1)


@given(ROWS)
def test_a_layout_survives_its_own_json(rows: list[Row]) -> None:
    """Read back it is equal, digest included: agents of different machines name it alike."""
    layout = lay_out(rows)
    again = Layout.read(layout.canonical(), "test")
    assert again == layout
    assert again.digest == layout.digest
    assert first_difference(layout, again) is None


def parameter(**changes: object) -> dict[str, object]:
    """A parameter's fields: w float32 (2, 2) at 0."""
    return {"name": "w", "dtype": "float32", "shape": (2, 2), "offset": 0, "nbytes": 16} | changes


@pytest.mark.parametrize(
    ("parameters", "nbytes", "words"),
    [
        pytest.param([parameter(dtype="float33")], 16, "'float33' is not known", id="an unknown dtype"),
        pytest.param([parameter(nbytes=12)], 16, r"12 bytes do not fit float32 \(2, 2\)", id="bytes that do not fit"),
        pytest.param(
            [parameter(), parameter(name="v", offset=8)],
            64,
            "v: offset 8 lies before 16",
            id="overlapping parameters",
        ),
        pytest.param([parameter(offset=2)], 64, "offset 2 is not aligned", id="an offset off its dtype"),
        pytest.param([parameter(), parameter(offset=16)], 64, "w appears twice", id="a name twice"),
        pytest.param([parameter()], 8, "end at 16, past the layout's 8", id="a payload too small"),
        pytest.param([], 0, "nbytes", id="an empty payload"),
    ],
)
def test_tables_that_cannot_be(parameters: list[dict[str, object]], nbytes: int, words: str) -> None:
    """Refused with the parameter and what is wrong."""
    with pytest.raises(InputError, match=words):
        Layout.read(json.dumps({"parameters": parameters, "nbytes": nbytes}), "test")


A = lay_out([("w", "float32", (2, 2)), ("v", "bfloat16", (4,))])


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        pytest.param(A, None, id="equal layouts have none"),
        pytest.param(
            lay_out([("w", "float32", (2, 2)), ("v", "float16", (4,))]),
            "v bfloat16 (4,) at 256 here, v float16 (4,) at 256 there",
            id="the first row that differs is named with both sides",
        ),
        pytest.param(
            lay_out([("w", "float32", (2, 2))]),
            "2 parameters here, 1 there; v bfloat16 (4,) is only here",
            id="a row too many is named",
        ),
        pytest.param(
            Layout(parameters=A.parameters, nbytes=A.nbytes + 1), "512 bytes here, 513 there", id="the payload's size"
        ),
    ],
)
def test_the_first_difference(theirs: Layout, sentence: str | None) -> None:
    """One sentence that a user can act on; the digest differs exactly when there is one."""
    assert first_difference(A, theirs) == sentence
    assert (A.digest == theirs.digest) == (sentence is None)


def test_the_digest_is_what_others_have_stored() -> None:
    """Announcements, arenas and files carry it: changing how it is made is a change of format."""
    assert lay_out([("w", "float32", (2, 2))]).digest == "9ff23f1ae663a8baf28d0ae730e8f612"


def test_a_parameter_describes_itself() -> None:
    """For messages."""
    p = Parameter(name="w", dtype="float32", shape=(2,), offset=0, nbytes=8)
    assert p.describe() == "w float32 (2,)"
