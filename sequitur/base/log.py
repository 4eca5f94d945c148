"""Logging of a library: through structlog where the program configured it, else through `logging`.

Without a configuration structlog prints to standard output, which belongs to the program; the
standard library's logging is silent below warnings, which go to standard error. So a program that
configures nothing gets the usual behaviour of a library.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog


class Logger:
    """Logs an event, with details as fields."""

    __slots__ = ("_plain", "_structured")

    def __init__(self, name: str) -> None:
        self._plain = logging.getLogger(name)
        self._structured = structlog.stdlib.get_logger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what an operator may have to handle."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if structlog.is_configured():
            self._structured.log(level, event, **fields)
        elif self._plain.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            text = " ".join(f"{name}={value!r}" for name, value in fields.items())
            self._plain.log(level, "%s %s" if text else "%s%s", event, text, exc_info=error)
