"""Log lines of a node: events with fields, for people on a terminal, JSON otherwise."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from node.settings.settings import Settings

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(settings: Settings, stream: TextIO | None = None) -> None:
    """Once, at the start of the process."""
    to = sys.stderr if stream is None else stream
    human = settings.log_format == "human" or (settings.log_format == "auto" and to.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Both show local variables unless told otherwise, and those hold bodies and passwords.
    if human:
        plain = structlog.dev.plain_traceback
        last: list[structlog.typing.Processor] = [
            structlog.dev.ConsoleRenderer(exception_formatter=plain)
        ]
    else:
        as_dicts = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        exceptions = structlog.processors.ExceptionRenderer(as_dicts)
        last = [exceptions, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        logger_factory=structlog.WriteLoggerFactory(to),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(node=settings.node)
    # aiohttp and asyncio speak through the standard library; only their warnings matter here.
    logging.basicConfig(
        stream=to, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s"
    )
