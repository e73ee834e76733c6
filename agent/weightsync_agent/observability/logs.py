"""Log lines: structlog's own and those of libraries, in one form, JSON or for people. No secret passes.

An event is a sentence or a few words; what it is about stands in fields (pod, rank, version, term, reason).
"""

import logging
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

import structlog
from stamina import instrumentation

HIDDEN = "(hidden)"
_SECRET = re.compile(r"(?i)(token|secret|password|authorization|api_?key|admin_?key)$")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]+")

Fields = dict[str, Any]


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Set up logging of the whole process, once. level: a setting's; form: json or console; stream: else stderr."""
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[Any] = (
        [structlog.processors.format_exc_info, hide, structlog.processors.JSONRenderer()]
        if form == "json"
        else [hide, structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # A line per probe and scrape says nothing; failures of requests are logged where they are handled.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # Whoever retries says so itself, once per reason, in words.
    instrumentation.set_on_retry_hooks([])


def about(what: object) -> AbstractContextManager[None]:
    """Lines within name the sync that a message or an action belongs to, on whichever agent it is handled.

    what: has ``sync``, or has it in its ``order`` or ``request``; without one nothing is named.
    """
    inner = getattr(what, "order", None) or getattr(what, "request", None) or what
    sync = getattr(inner, "sync", None)
    return structlog.contextvars.bound_contextvars(sync=sync) if isinstance(sync, str) else nullcontext()


def hide(_: object, __: str, event: Fields) -> Fields:
    """Replace values whose name says that they are secret, and bearer tokens inside of texts."""
    for key, value in event.items():
        if _SECRET.search(key):
            event[key] = HIDDEN
        elif isinstance(value, str):
            event[key] = _BEARER.sub(rf"\1{HIDDEN}", value)
    return event
