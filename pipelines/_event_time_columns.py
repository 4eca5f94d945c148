"""Event time as Spark columns: the answers of the reference in `consumer`, at Spark's speed.

The table in `tests/event_time_cases.py` holds the two together. Plain JSON objects are read by a
regular expression, which gives the parser's answer or none (`consumer._plain_json`), and all others
by the parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from consumer import (
    MISSING,
    NEGATIVE,
    UNPARSABLE,
    EventTimeSource,
    EventTimeSpec,
)
from consumer._event_time import BLANKS, ISO_PATTERN, MAX_TIME_MS, NUMBER_PATTERN
from consumer._plain_json import plain_json_pattern

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def with_event_time(rows: DataFrame, spec: EventTimeSpec) -> DataFrame:
    """Add `event_time_ms` (long) and `reason` (string): exactly one of them is not null.

    Whether an event time is too far in the future is left to `staged_rows`: it depends on when.

    Args:
        rows: Columns value, headers and timestamp_ms, as `read_source` gives them.
        spec: Where the event time stands.
    """
    # One projection after the other and not one expression: each of these is used more than once,
    # and Spark would write its code out at each place. The code's size is what a start costs.
    if spec.source is EventTimeSource.KAFKA_TIMESTAMP:
        found = F.when(F.col("timestamp_ms") >= 0, F.col("timestamp_ms"))
        return rows.withColumn("event_time_ms", found).withColumn(
            "reason", F.when(F.col("event_time_ms").isNull(), F.lit(MISSING))
        )
    text = F.col("_text")
    reason = (
        F.when(F.col("_found") >= 0, F.lit(None).cast("string"))
        .when(F.col("_found").isNotNull(), F.lit(NEGATIVE))
        .when(text.isNotNull(), F.lit(UNPARSABLE))
        .otherwise(_reason_without_text(spec))
    )
    return (
        rows.withColumn("_text", _text(spec))
        .withColumn("_found", _milliseconds(text))
        .withColumn("event_time_ms", F.when(F.col("_found") >= 0, F.col("_found")))
        .withColumn("reason", reason)
        .drop("_text", "_found")
    )


def _text(spec: EventTimeSpec) -> Column:
    """The event time as text, null without."""
    if spec.source is EventTimeSource.HEADER:
        name = spec.path[0]
        named = F.filter("headers", lambda header: header["key"] == F.lit(name))
        return F.try_element_at(named, F.lit(-1))["value"].cast("string")
    path = "$" + "".join(f"['{part}']" for part in spec.path)
    value = F.col("value").cast("string")
    parsed = F.get_json_object(value, path)
    pattern = plain_json_pattern(spec.path)
    if pattern is None:
        return parsed
    return F.coalesce(F.nullif(F.regexp_extract(value, pattern, 1), F.lit("")), parsed)


def _reason_without_text(spec: EventTimeSpec) -> Column:
    if spec.source is EventTimeSource.HEADER:
        return F.lit(MISSING)
    document = F.get_json_object(F.col("value").cast("string"), "$")
    is_broken = F.col("value").isNotNull() & document.isNull()
    return F.when(is_broken, F.lit(UNPARSABLE)).otherwise(F.lit(MISSING))


def _milliseconds(text: Column) -> Column:
    """Epoch ms of a text that is a number or an ISO 8601 time; null of any other."""
    # try_cast to bigint trims what BLANKS lists and takes [+-]?digits, so it needs no pattern.
    whole = text.try_cast("bigint")
    trimmed = F.trim(text, F.lit(BLANKS))
    number = trimmed.try_cast("double")
    limit = float(MAX_TIME_MS)
    floored = F.when(
        F.abs(number) < F.lit(float("inf")),
        F.floor(F.greatest(F.lit(-limit), F.least(number, F.lit(limit)))),
    )
    # Spark's cast wants seconds where there is a zone.
    seconds = F.regexp_replace(trimmed, "^(.{16})(Z|[+-])", "$1:00$2")
    iso = F.unix_millis(seconds.try_cast("timestamp"))
    return F.coalesce(
        whole,
        F.when(trimmed.rlike(NUMBER_PATTERN), floored).when(trimmed.rlike(ISO_PATTERN), iso),
    )
