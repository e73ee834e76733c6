"""Log lines: one form for all, and no secret in them."""

import io
import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import structlog

from weightsync_agent.observability import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What the process would have written; logging is as before afterwards."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    found = io.StringIO()
    yield found
    root.handlers, root.level = before[0], before[1]
    structlog.reset_defaults()


def test_json_lines_of_ours_and_of_libraries_have_one_form(stream: io.StringIO) -> None:
    """One JSON object a line: event, level, logger, time, fields; libraries' lines too."""
    logs.configure("info", "json", stream)
    structlog.get_logger("weightsync_agent.x").info("a sync ended", version="aa.1", engines=3)
    logging.getLogger("aiohttp.server").warning("%s was slow", "it")
    logging.getLogger("aiohttp.access").info("GET /healthz")
    structlog.get_logger("weightsync_agent.x").debug("too fine")
    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ours.pop("timestamp").endswith("Z")
    assert ours == {
        "event": "a sync ended", "level": "info", "logger": "weightsync_agent.x", "version": "aa.1", "engines": 3,
    }  # fmt: skip
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("it was slow", "warning", "aiohttp.server")


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_is_logged(stream: io.StringIO, form: str) -> None:
    """Fields named as secrets and bearer tokens in texts are hidden in either form, in tracebacks of JSON as well."""
    logs.configure("info", form, stream)
    log = structlog.get_logger("weightsync_agent.x")
    log.info("sent Bearer abc.def-ghi to a peer", peer="p", **dict.fromkeys(("token", "admin_key"), "abc.def-ghi"))
    logging.getLogger("lib").error("headers: {'Authorization': 'Bearer abc.def-ghi'}")
    assert "abc.def" not in stream.getvalue()
    assert stream.getvalue().count("(hidden)") == 4


def test_json_exceptions_are_one_line(stream: io.StringIO) -> None:
    """A traceback is a field of its line, not lines of its own, and is cleaned too."""
    logs.configure("info", "json", stream)
    try:
        raise ValueError("refused: Bearer abc.def")
    except ValueError:
        structlog.get_logger("weightsync_agent.x").exception("the call failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: refused: Bearer (hidden)" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("what", "sync"),
    [
        pytest.param(SimpleNamespace(sync="a"), "a", id="a message that names it"),
        pytest.param(SimpleNamespace(order=SimpleNamespace(sync="b")), "b", id="an order within a message"),
        pytest.param(SimpleNamespace(request=SimpleNamespace(sync="c")), "c", id="a request within an action"),
        pytest.param(SimpleNamespace(term=1), None, id="none"),
    ],
)
def test_lines_about_a_sync_name_it(stream: io.StringIO, what: object, sync: str | None) -> None:
    """Within the block, and no longer after it."""
    logs.configure("info", "json", stream)
    log = structlog.get_logger("weightsync_agent.x")
    with logs.about(what):
        log.info("within")
    log.info("after")
    within, after = (json.loads(line) for line in stream.getvalue().splitlines())
    assert within.get("sync") == sync
    assert "sync" not in after
