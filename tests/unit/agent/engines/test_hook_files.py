"""Requests and results of the hook: none is taken for another's."""

import json
from pathlib import Path

import pytest

from weightsync.errors import EngineError
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.engines.hook_files import HookFiles, combined


@pytest.fixture
def files(tmp_path: Path) -> HookFiles:
    """A volume with the hook's folder."""
    (tmp_path / "hook").mkdir()
    return HookFiles(tmp_path)


def _result(files: HookFiles, **fields: object) -> None:
    files.result_path(1).write_text(json.dumps(fields))


def test_a_request_carries_its_fields_and_removes_the_old_result(files: HookFiles) -> None:
    """Whole in the file, readable by another user, and no result is left over."""
    _result(files, id="old", ok=True)
    request = files.ask(1, "pin", {"arena": "/a"})
    assert json.loads(files.request_path(1).read_text()) == {"id": request, "op": "pin", "arena": "/a"}
    assert files.request_path(1).stat().st_mode & 0o777 == 0o644
    assert not files.result_path(1).exists()
    assert [p.name for p in files.request_path(1).parent.iterdir()] == ["request-1.json"]
    files.withdraw(1)
    files.withdraw(1)
    assert not files.request_path(1).exists()


def test_the_result_of_that_request_is_taken(files: HookFiles) -> None:
    """By its id."""
    request = files.ask(1, "pin", {})
    _result(files, id=request, ok=True, nbytes=4)
    assert files.answer(1, request)["nbytes"] == 4


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        pytest.param(None, "HookSilent", "WEIGHTSYNC_DIR", id="no result: the volume is not shared"),
        pytest.param("{", "HookSilent", "cannot be read", id="no JSON"),
        pytest.param('{"id": "other", "ok": true}', "HookSilent", "of request 'other'", id="another call's result"),
    ],
)
def test_what_is_no_result_of_the_request(files: HookFiles, text: str | None, reason: str, words: str) -> None:
    """An error that may be tried again."""
    request = files.ask(1, "pin", {})
    if text is not None:
        files.result_path(1).write_text(text)
    with pytest.raises(EngineError, match=words) as caught:
        files.answer(1, request)
    assert (caught.value.reason, caught.value.retryable) == (reason, True)


def test_a_failure_keeps_the_hooks_reason_and_words(files: HookFiles) -> None:
    """And says whether the parameters were touched."""
    request = files.ask(1, "apply", {})
    _result(files, id=request, ok=False, reason="ArenaChanged", error="rank 1: changed", touched=True)
    with pytest.raises(
        EngineError, match=r"rank 1: changed \(after the first byte: its parameters are torn\)"
    ) as caught:
        files.answer(1, request)
    assert (caught.value.reason, caught.value.retryable) == ("ArenaChanged", True)
    _result(files, id=request, ok=False, reason="LayoutMismatch", error="rank 1: differs")
    with pytest.raises(EngineError) as caught:
        files.answer(1, request)
    assert caught.value.retryable is False


def test_a_volume_that_cannot_be_written(tmp_path: Path) -> None:
    """Named with its path."""
    with pytest.raises(EngineError, match=str(tmp_path)):
        HookFiles(tmp_path).ask(0, "pin", {})


def test_several_ranks_make_one_error() -> None:
    """The lowest rank's reason, each sentence once, retryable only if all are."""
    error = combined({
        2: engine_error("HookFailed", "rank 2: b"),
        0: engine_error("LayoutMismatch", "rank 0: a"),
        1: engine_error("HookFailed", "rank 2: b"),
    })  # fmt: skip
    assert (error.reason, str(error), error.retryable) == ("LayoutMismatch", "rank 0: a; rank 2: b", False)
