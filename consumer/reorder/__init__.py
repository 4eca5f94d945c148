"""The rules of the reorder job: what an event time is, when a row is released, when it is late.

Pure: no rows, no files and no Kafka client. The public names are its settings and their values.
docs/reorder.md is its page.
"""

from sequitur.base.time_format import TimeFormat, TimeUnit
from sequitur.consumer.reorder._settings import ReorderSettings
from sequitur.consumer.reorder.event_time import (
    EventTimeSource,
    EventTimeSpec,
    parse_event_time_spec,
)
from sequitur.consumer.reorder.late_policy import DataLoss, LatePolicy, ReorderMode
from sequitur.consumer.reorder.step_log import Totals
from sequitur.consumer.reorder.timestamps import OutputTimestamp

__all__ = [
    "DataLoss",
    "EventTimeSource",
    "EventTimeSpec",
    "LatePolicy",
    "OutputTimestamp",
    "ReorderMode",
    "ReorderSettings",
    "TimeFormat",
    "TimeUnit",
    "Totals",
    "parse_event_time_spec",
]
