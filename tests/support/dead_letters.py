"""Dead letters as the process job writes them."""

from __future__ import annotations

from typing import Any

from sequitur.base.copy_headers import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.cli.topic_reader import TopicRecord

T0 = 1_700_000_000_000
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "job.py", line 3, in parse\n'
    "    return int(given.value)\n"
    "ValueError: invalid literal for int() with base 10: 'x'\n"
)

Headers = list[tuple[str, str | bytes | None]]


def dead_headers(
    *,
    reason: str = "exception",
    event_time_ms: int = T0,
    source_offset: int = 0,
    failed_at_ms: int = T0 + 60_000,
    detail: str = TRACEBACK,
) -> Headers:
    """The headers that the job adds behind the event's own."""
    return [
        (DEAD_REASON_HEADER, reason),
        (DEAD_DETAIL_HEADER, detail),
        (DEAD_ATTEMPTS_HEADER, "5"),
        (DEAD_PATH_HEADER, "spout > parse > count"),
        (DEAD_TOPOLOGY_HEADER, "words"),
        (DEAD_TIME_HEADER, str(failed_at_ms)),
        (DEAD_EVENT_TIME_HEADER, str(event_time_ms)),
        (SOURCE_TOPIC_HEADER, "readings"),
        (SOURCE_PARTITION_HEADER, "2"),
        (SOURCE_OFFSET_HEADER, str(source_offset)),
    ]


def dead_record(
    offset: int = 0, *, key: bytes | None = b"k", own: Headers | None = None, **said: Any
) -> TopicRecord:
    """A record of the dead-letter topic.

    Args:
        offset: Its offset.
        key: Its key.
        own: The event's own headers.
        said: As for `dead_headers`.
    """
    headers = tuple(
        (name, value.encode() if isinstance(value, str) else value)
        for name, value in (*(own or ()), *dead_headers(**said))
    )
    return TopicRecord(0, offset, T0 + 5, key, b"x", headers)
