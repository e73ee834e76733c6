"""Only an empty list passes, and nothing of a payload is ever executed."""

import base64
import os
import pickle
from typing import Any

import pytest

from reference.payload import decode_named_tensors
from weightsync.errors import InputError

SENTENCE = "only an empty list is accepted"


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/nonexistent/evil",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_empty_list_of_any_protocol_passes(protocol: int) -> None:
    """Whatever pickle its sender used."""
    assert decode_named_tensors(base64.b64encode(pickle.dumps([], protocol)).decode()) == []


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        pytest.param(pickle.dumps([Evil()]), SENTENCE, id="a function to call"),
        pytest.param(pickle.dumps([("name", 1)]), SENTENCE, id="a list with something in it"),
        pytest.param(pickle.dumps({}), SENTENCE, id="a dict"),
        pytest.param(pickle.dumps([[]]), SENTENCE, id="a list of lists"),
        pytest.param(pickle.dumps([]) + pickle.dumps([]), None, id="what follows the end is never read"),
        pytest.param(pickle.dumps([])[:-1], "no pickle", id="an unfinished pickle"),
        pytest.param(b"", "no pickle", id="nothing"),
        pytest.param(b"\x80\x04" + b"]" * 10000 + b".", "no pickle|only an empty", id="too long"),
        pytest.param(b"hello", "no pickle|only an empty", id="no pickle"),
    ],
)
def test_anything_else_is_refused_unopened(payload: bytes, sentence: str | None) -> None:
    """An InputError, which the caller answers with 400."""
    entry = base64.b64encode(payload).decode()
    if sentence is None:
        assert decode_named_tensors(entry) == []
        return
    with pytest.raises(InputError, match=sentence):
        decode_named_tensors(entry)


def test_what_is_no_base64_is_refused() -> None:
    """With the same kind of sentence."""
    with pytest.raises(InputError, match="no pickle in base64"):
        decode_named_tensors("not base64!")
