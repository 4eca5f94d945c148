"""Timestamps of many records at once.

`sequitur.consumer.TimestampRule.of` is the reference; a test holds the two together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from sequitur.consumer import EVENT_TIME_HEADER, OutputTimestamp

if TYPE_CHECKING:
    from sequitur.consumer import TimestampRule
    from sequitur.pipelines.rows.record_layout import Headers

    Longs = np.ndarray[Any, np.dtype[np.int64]]

_EVENT_TIME: Final = "event_time_ms"
_SOURCE: Final = "timestamp_ms"


def timestamp_columns(rule: TimestampRule) -> tuple[str, ...]:
    """Return the columns that timestamps and their headers are made from."""
    if rule.taken_from is OutputTimestamp.SOURCE:
        return (_EVENT_TIME, _SOURCE)
    return (_EVENT_TIME,)


def with_timestamps(rows: pa.Table, headers: Headers, rule: TimestampRule) -> tuple[Longs, Headers]:
    """Return the timestamps of records, and their headers with what the timestamps do not say.

    Args:
        rows: `timestamp_columns`.
        headers: The records' headers so far.
        rule: Which timestamps.
    """
    event_times = rows[_EVENT_TIME]
    has_time = event_times.is_valid().to_numpy()
    times: Longs = event_times.fill_null(rule.now_ms).to_numpy()
    match rule.taken_from:
        case OutputTimestamp.EVENT_TIME:
            wanted = times
        case OutputTimestamp.SOURCE:
            wanted = rows[_SOURCE].to_numpy()
        case OutputTimestamp.NOW:
            wanted = np.full(len(rows), rule.now_ms, np.int64)
    timestamps: Longs = np.clip(wanted, rule.earliest_ms, rule.now_ms)
    if not rule.tells_event_time:
        return timestamps, headers
    told = has_time & ((timestamps != times) | (not rule.is_kept))
    if told.any():
        headers = headers.and_([(EVENT_TIME_HEADER, pa.array(times, mask=~told))])
    return timestamps, headers
