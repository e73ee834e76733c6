"""Structured logs: ours and those of libraries in one form, on standard error."""

import logging
import sys

import structlog

# kopf says at INFO of each handler that it succeeded: with a handler per pod event that drowns everything else.
QUIET = {"kopf.objects": logging.WARNING, "kopf": logging.INFO, "aiohttp.access": logging.WARNING}


def configure(level: str, form: str) -> None:
    """level: a name of logging's; form: json or console."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                last,
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, logging.getLevelName(level.upper())))
