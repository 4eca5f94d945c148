"""The daemon's log: one line an event, whoever says it."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from sequitur.producer.daemon.log import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Logging is the process's own: the tests after these find it as those before left it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.promise("cli-client-library-something")
def test_json_lines_hold_the_fields() -> None:
    """Of structlog's loggers as of the standard library's; a library's chatter is left out.

    Of the Kafka client all is: what it says of connections we say ourselves, once.
    """
    stream = io.StringIO()
    configure_logging("json", stream)
    structlog.stdlib.get_logger("ours").info("started", topic="t", size=3)
    logging.getLogger("aiohttp.server").warning("client %d is gone", 7)
    logging.getLogger("aiohttp.server").info("connected")
    logging.getLogger("aiokafka.conn").error("Unable connect to node with id 0")
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert ours.pop("timestamp") <= theirs.pop("timestamp")
    assert ours == {"event": "started", "level": "info", "logger": "ours", "topic": "t", "size": 3}
    assert theirs == {
        "event": "client 7 is gone",
        "level": "warning",
        "logger": "aiohttp.server",
    }


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_shows_no_events(log_format: str) -> None:
    stream = io.StringIO()
    configure_logging("json" if log_format == "json" else "console", stream)
    payload = "of a customer".replace("a", "one")
    try:
        int(payload[:3])
    except ValueError:
        structlog.stdlib.get_logger("ours").exception("failed")
    assert "ValueError" in stream.getvalue()
    assert payload not in stream.getvalue()


def test_console_lines_are_for_people() -> None:
    stream = io.StringIO()
    configure_logging("console", stream)
    structlog.stdlib.get_logger("ours").warning("held back", topic="t")
    (line,) = stream.getvalue().splitlines()
    assert "[warning  ] held back" in line
    assert "topic=t" in line
    assert "\x1b" not in line
