"""Event time: settings of the reorder job, and where a record has its event time.

The job and the commands import what else they need from the modules. The last names of the list
are parts of the job that benchmarks measure one by one.
"""

from sequitur.base.time_format import TimeFormat, TimeUnit
from sequitur.consumer._settings import ReorderSettings
from sequitur.consumer.clock import (
    BEFORE_ALL_TIME_MS,
    DelayPolicy,
    EventClock,
    LearnedDelays,
    StepLateness,
    lateness_bin,
)
from sequitur.consumer.event_time import (
    EventTimeSource,
    EventTimeSpec,
    OutputTimestamp,
    parse_event_time_spec,
)
from sequitur.consumer.lateness import DataLoss, LatePolicy, ReorderMode
from sequitur.consumer.step_log import Totals
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.kafka.partition import SourcePartition

__all__ = [
    "BEFORE_ALL_TIME_MS",
    "Cursor",
    "CursorIdentity",
    "DataLoss",
    "DelayPolicy",
    "EventClock",
    "EventTimeSource",
    "EventTimeSpec",
    "LatePolicy",
    "LearnedDelays",
    "OutputTimestamp",
    "ReorderMode",
    "ReorderSettings",
    "SourcePartition",
    "StepLateness",
    "TimeFormat",
    "TimeUnit",
    "Totals",
    "lateness_bin",
    "parse_event_time_spec",
]
