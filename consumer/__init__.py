"""Event time, in pure Python: what one is, the clock of a topic, the log of the reorder job."""

from consumer._clock import BEFORE_ALL_TIME_MS, EventClock, PartitionClock, SourcePartition
from consumer._errors import (
    ConservationError,
    ConsumerError,
    EventTimeSpecError,
    StateFormatError,
)
from consumer._event_time import (
    EventTime,
    EventTimeSource,
    EventTimeSpec,
    parse_event_time_spec,
    read_event_time,
)
from consumer._frontier import (
    NOTHING_DONE,
    Run,
    StepDone,
    StepEntry,
    StepKind,
    Totals,
    finish,
)
from consumer._reasons import (
    FRONTIER_HEADER,
    LATE,
    LATE_BY_HEADER,
    MISSING,
    NEGATIVE,
    QUARANTINE_REASONS,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
    TOO_FAR_FUTURE,
    UNPARSABLE,
)
from consumer._settings import ReorderSettings

__all__ = [
    "BEFORE_ALL_TIME_MS",
    "FRONTIER_HEADER",
    "LATE",
    "LATE_BY_HEADER",
    "MISSING",
    "NEGATIVE",
    "NOTHING_DONE",
    "QUARANTINE_REASONS",
    "REASON_HEADER",
    "SOURCE_OFFSET_HEADER",
    "SOURCE_PARTITION_HEADER",
    "SOURCE_TOPIC_HEADER",
    "TOO_FAR_FUTURE",
    "UNPARSABLE",
    "ConservationError",
    "ConsumerError",
    "EventClock",
    "EventTime",
    "EventTimeSource",
    "EventTimeSpec",
    "EventTimeSpecError",
    "PartitionClock",
    "ReorderSettings",
    "Run",
    "SourcePartition",
    "StateFormatError",
    "StepDone",
    "StepEntry",
    "StepKind",
    "Totals",
    "finish",
    "parse_event_time_spec",
    "read_event_time",
]
