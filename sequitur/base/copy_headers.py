"""Headers of a record that is a copy of another: where that one is, why it was copied."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

SOURCE_TOPIC_HEADER: Final = "sequitur-source-topic"
SOURCE_PARTITION_HEADER: Final = "sequitur-source-partition"
SOURCE_OFFSET_HEADER: Final = "sequitur-source-offset"
SOURCE_TIMESTAMP_HEADER: Final = "sequitur-source-timestamp"
"""The record's timestamp there, in epoch ms."""

DEAD_REASON_HEADER: Final = "sequitur-dlq-reason"
"""One of `FailReason`."""
DEAD_DETAIL_HEADER: Final = "sequitur-dlq-traceback"
DEAD_ATTEMPTS_HEADER: Final = "sequitur-dlq-attempts"
DEAD_PATH_HEADER: Final = "sequitur-dlq-path"
"""The components that the failed tuple had passed, with `>` between them."""
DEAD_TOPOLOGY_HEADER: Final = "sequitur-dlq-topology"
DEAD_TIME_HEADER: Final = "sequitur-dlq-failed-at-ms"
DEAD_EVENT_TIME_HEADER: Final = "sequitur-dlq-event-time-ms"
DEAD_COMPONENT_HEADER: Final = "sequitur-dlq-component"
"""The bolt that made the tuple without an input, on a tick or at the end of a batch."""
DEAD_STREAM_HEADER: Final = "sequitur-dlq-stream"
"""The stream that such a tuple was emitted to."""
DEAD_HEADERS: Final = (
    DEAD_REASON_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_ATTEMPTS_HEADER,
    DEAD_PATH_HEADER,
    DEAD_TOPOLOGY_HEADER,
    DEAD_TIME_HEADER,
    DEAD_EVENT_TIME_HEADER,
)
"""Headers of all dead letters. They also have the headers of the source position, as on the late
topic.
"""


class FailReason(StrEnum):
    """Why an event was not processed to the end."""

    FAILED = "failed"
    """A bolt failed it."""
    EXCEPTION = "exception"
    """A bolt raised."""
    TIMEOUT = "timeout"
    """A call took longer than `call_timeout`."""
    NEVER_ACKED = "never-acked"
    """Its batch ended while a tuple of it was neither acked nor failed."""
    CRASH = "crash"
    """The process that ran it died."""
