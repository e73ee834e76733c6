"""Records are frozen, closed and the same bytes everywhere; wire records forgive what a newer peer adds."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from weightsync.errors import InputError
from weightsync.records import Record, WireRecord, replace_file


class Inner(Record):
    """A part."""

    some_count: int = 0


class Outer(Record):
    """A whole."""

    inner: Inner = Inner()
    by_name: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it


class Wire(WireRecord):
    """A body."""

    some_count: int = 0


def test_canonical_bytes_do_not_depend_on_order() -> None:
    """Digests are taken of them: keys sorted, no blanks, camelCase, defaults written."""
    a = Outer(by_name={"z": 1, "a": 2})
    b = Outer(by_name={"a": 2, "z": 1}, inner=Inner(some_count=0))
    assert a.canonical() == b.canonical() == b'{"byName":{"a":2,"z":1},"inner":{"someCount":0}}'


def test_records_do_not_change() -> None:
    """A digest that was taken stays true."""
    with pytest.raises(ValidationError):
        Inner().some_count = 1  # type: ignore[misc]


@pytest.mark.parametrize("text", ['{"some_count": 3}', '{"someCount": 3}'])
def test_fields_are_read_under_both_names(text: str) -> None:
    """As JSON writes them, and as Python does."""
    assert Inner.read(text, "here") == Inner(some_count=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('{"inner": {"someCuont": 1}}', r"^plan\.yaml: inner\.someCuont: ", id="a misspelt key"),
        pytest.param('{"inner": {"someCount": "x"}}', r"^plan\.yaml: inner\.someCount: .*integer", id="a wrong type"),
        pytest.param("{", r"^plan\.yaml: document: ", id="no JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, words: str) -> None:
    """The origin, the path of the field, and the problem."""
    with pytest.raises(InputError, match=words):
        Outer.read(text, "plan.yaml")


def test_a_newer_peer_may_say_more() -> None:
    """Unknown keys of a body are dropped, since its sender may be a release ahead."""
    assert Wire.read('{"someCount": 1, "later": true}', "peer") == Wire(some_count=1)


def test_files_are_named_when_they_cannot_be_read(tmp_path: Path) -> None:
    """InputError with the path, for a missing file as for a wrong one."""
    path = tmp_path / "x.json"
    with pytest.raises(InputError, match=f"{path}: cannot be read: No such file"):
        Inner.load(path)
    path.write_bytes(Inner(some_count=4).canonical())
    assert Inner.load(path).some_count == 4
    path.write_text("[]")
    with pytest.raises(InputError, match=f"{path}: document: "):
        Inner.load(path)


def test_a_file_is_replaced_and_no_link_is_followed(tmp_path: Path) -> None:
    """A link where the new file is made, or where it goes, leads nowhere: what it points to stays as it was."""
    precious, path = tmp_path / "precious", tmp_path / "request.json"
    precious.write_text("ours")
    (tmp_path / "request.json.new").symlink_to(precious)
    path.symlink_to(precious)
    for text in (b"one", b"two"):
        replace_file(path, text)
        assert path.read_bytes() == text
        assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o644
    assert precious.read_text() == "ours"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["precious", "request.json"]
