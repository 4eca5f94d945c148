"""Event time, in pure Python: what one is, the clock of a topic, the log of the reorder job."""

from sequitur.consumer._errors import (
    ConservationError,
    ConsumerError,
    EventTimeSpecError,
    StateFormatError,
)
from sequitur.consumer._output_partition import OutputPartition
from sequitur.consumer._settings import ReorderSettings
from sequitur.consumer.lateness.judge import LateJudge, is_behind, late_against, staging_rules
from sequitur.consumer.lateness.key_state import (
    FOLD_LIMITS,
    Fold,
    FoldLimits,
    KeyLookup,
    KeyState,
    Upkeep,
)
from sequitur.consumer.lateness.policy import DataLoss, LatePolicy, ReorderMode
from sequitur.consumer.lateness.runs import Run
from sequitur.consumer.step_log.done import NOTHING_DONE, StepDone, finish
from sequitur.consumer.step_log.entry import StepEntry
from sequitur.consumer.step_log.staged import StagedStep
from sequitur.consumer.step_log.step_fields import Step, StepKind
from sequitur.consumer.step_log.totals import Totals
from sequitur.consumer.step_log.waiting import Awaited, awaited
from sequitur.consumer.time.adaptive_delay import (
    DelayPolicy,
    LatenessHistogram,
    LearnedDelays,
    StepLateness,
    bin_limit_ms,
    lateness_bin,
    learn,
)
from sequitur.consumer.time.bounds import TimeBounds
from sequitur.consumer.time.clock import (
    BEFORE_ALL_TIME_MS,
    EventClock,
    PartitionClock,
    SourcePartition,
)
from sequitur.consumer.time.event_time import (
    EventTime,
    EventTimeSource,
    EventTimeSpec,
    parse_event_time_spec,
    read_event_time,
)
from sequitur.consumer.time.output_timestamp import (
    EVENT_TIME_HEADER,
    OutputTimestamp,
    TimestampRule,
    now_of_step,
)
from sequitur.consumer.time.reasons import (
    FRONTIER_HEADER,
    LAST_RELEASED_HEADER,
    LATE,
    LATE_BY_HEADER,
    LIKELY_UNITS,
    MISSING,
    NEGATIVE,
    NO_KEY,
    OVERSIZED_HEADER,
    QUARANTINE_REASONS,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
    STALE,
    TOO_EARLY,
    TOO_FAR_FUTURE,
    TOO_LARGE,
    UNPARSABLE,
)
from sequitur.consumer.time.time_text import TimeFormat, TimeUnit

__all__ = [
    "BEFORE_ALL_TIME_MS",
    "EVENT_TIME_HEADER",
    "FOLD_LIMITS",
    "FRONTIER_HEADER",
    "LAST_RELEASED_HEADER",
    "LATE",
    "LATE_BY_HEADER",
    "LIKELY_UNITS",
    "MISSING",
    "NEGATIVE",
    "NOTHING_DONE",
    "NO_KEY",
    "OVERSIZED_HEADER",
    "QUARANTINE_REASONS",
    "REASON_HEADER",
    "SOURCE_OFFSET_HEADER",
    "SOURCE_PARTITION_HEADER",
    "SOURCE_TIMESTAMP_HEADER",
    "SOURCE_TOPIC_HEADER",
    "STALE",
    "TOO_EARLY",
    "TOO_FAR_FUTURE",
    "TOO_LARGE",
    "UNPARSABLE",
    "Awaited",
    "ConservationError",
    "ConsumerError",
    "DataLoss",
    "DelayPolicy",
    "EventClock",
    "EventTime",
    "EventTimeSource",
    "EventTimeSpec",
    "EventTimeSpecError",
    "Fold",
    "FoldLimits",
    "KeyLookup",
    "KeyState",
    "LateJudge",
    "LatePolicy",
    "LatenessHistogram",
    "LearnedDelays",
    "OutputPartition",
    "OutputTimestamp",
    "PartitionClock",
    "ReorderMode",
    "ReorderSettings",
    "Run",
    "SourcePartition",
    "StagedStep",
    "StateFormatError",
    "Step",
    "StepDone",
    "StepEntry",
    "StepKind",
    "StepLateness",
    "TimeBounds",
    "TimeFormat",
    "TimeUnit",
    "TimestampRule",
    "Totals",
    "Upkeep",
    "awaited",
    "bin_limit_ms",
    "finish",
    "is_behind",
    "late_against",
    "lateness_bin",
    "learn",
    "now_of_step",
    "parse_event_time_spec",
    "read_event_time",
    "staging_rules",
]
