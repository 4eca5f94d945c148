"""The daemon's log: one line an event, on standard error, for people or as JSON.

All of it goes through the standard library's logging. So the web server's lines are in the same
log, in the same form. The Kafka client is silent: `sequitur.kafka.wire` logs for it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final, Literal, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import Processor

LogFormat = Literal["console", "json"]
_QUIET: Final = ("asyncio", "aiohttp")
"""Libraries of which only warnings are logged: they would log each connection."""
# Without the local variables: events are in them, and no log is to hold those.
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def configure_logging(log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Configure the log's form for the whole process."""
    stream = stream or sys.stderr
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    if log_format == "json":
        rendering: Sequence[Processor] = (
            _TRACEBACKS,
            structlog.processors.JSONRenderer(),
        )
    else:
        rendering = (
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
