"""Timestamps of many records at once, in Arrow's columns and in Spark's.

`sequitur.consumer.TimestampRule.of` is the reference; a test holds the three together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import EVENT_TIME_HEADER, OutputTimestamp
from sequitur.pipelines.rows.columns import varying_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sequitur.consumer import TimestampRule
    from sequitur.pipelines.rows.record_layout import Headers

    Longs = np.ndarray[Any, np.dtype[np.int64]]

TIMESTAMP_COLUMN: Final = "record_timestamp_ms"
_EVENT_TIME: Final = "event_time_ms"
_SOURCE: Final = "timestamp_ms"
_HEADERS: Final = "array<struct<key: string, value: binary>>"


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


def with_timestamp_column(rows: DataFrame, rule: TimestampRule) -> DataFrame:
    """Return the rows with `TIMESTAMP_COLUMN`, and in `headers` what the timestamps do not say.

    Args:
        rows: `timestamp_columns`, partition and headers.
        rule: Which timestamps.
    """
    now, earliest = varying_number(rule.now_ms), varying_number(rule.earliest_ms)
    event_time = F.col(_EVENT_TIME)
    wanted = {
        OutputTimestamp.EVENT_TIME: F.coalesce(event_time, now),
        OutputTimestamp.SOURCE: F.col(_SOURCE) if _SOURCE in rows.columns else now,
        OutputTimestamp.NOW: now,
    }[rule.taken_from]
    stamped = rows.withColumn(TIMESTAMP_COLUMN, F.greatest(earliest, F.least(wanted, now)))
    if not rule.tells_event_time:
        return stamped
    told = event_time.isNotNull()
    if rule.is_kept:
        told &= F.col(TIMESTAMP_COLUMN) != event_time
    header = F.struct(
        F.lit(EVENT_TIME_HEADER).alias("key"),
        event_time.cast("string").cast("binary").alias("value"),
    )
    own = F.coalesce("headers", F.array().cast(_HEADERS))
    more = F.concat(own, F.array(header).cast(_HEADERS))
    return stamped.withColumn("headers", F.when(told, more).otherwise(F.col("headers")))
