"""Event time as Spark columns: the answers of the reference in `consumer`, at Spark's speed.

The table in `tests/event_time_cases.py` holds the two together. Whatever reads the text out of the
record stands alone in `_text`, so that a faster reader for JSON can take its place once it is shown
to give the same answer, or to step aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from consumer import (
    MISSING,
    NEGATIVE,
    TOO_FAR_FUTURE,
    UNPARSABLE,
    EventTimeSource,
    EventTimeSpec,
)
from consumer._event_time import BLANKS, ISO_PATTERN, MAX_TIME_MS, NUMBER_PATTERN

if TYPE_CHECKING:
    from pyspark.sql import Column


class EventTimeColumns(NamedTuple):
    """Two columns of which exactly one is not null.

    Attributes:
        ms: The event time in epoch ms (long).
        reason: Why there is none (string).
    """

    ms: Column
    reason: Column


def event_time_columns(
    spec: EventTimeSpec,
    *,
    value: Column,
    headers: Column,
    kafka_timestamp_ms: Column,
    latest_ms: Column,
) -> EventTimeColumns:
    """Columns that give the event time of each record, or why there is none.

    Args:
        spec: Where the event time stands.
        value: The record's value (binary).
        headers: Its headers (array of struct of key and value).
        kafka_timestamp_ms: Its timestamp (long), -1 without.
        latest_ms: Now + max_future_skew (long).
    """
    if spec.source is EventTimeSource.KAFKA_TIMESTAMP:
        found = kafka_timestamp_ms
        absent = F.when(kafka_timestamp_ms < 0, F.lit(MISSING))
    else:
        text, nothing = _text(spec, value, headers)
        found = _milliseconds(text)
        absent = F.when(text.isNull(), nothing).when(found.isNull(), F.lit(UNPARSABLE))
    reason = (
        F.when(absent.isNotNull(), absent)
        .when(found < 0, F.lit(NEGATIVE))
        .when(found > latest_ms, F.lit(TOO_FAR_FUTURE))
    )
    # The plain case first: no more is computed for a row with a good time.
    good = found.isNotNull() & (found >= 0) & (found <= latest_ms)
    return EventTimeColumns(
        ms=F.when(good, found), reason=F.when(good, F.lit(None).cast("string")).otherwise(reason)
    )


def _text(spec: EventTimeSpec, value: Column, headers: Column) -> tuple[Column, Column]:
    """The event time as text (null without), and the reason to give when it is null."""
    if spec.source is EventTimeSource.HEADER:
        name = spec.path[0]
        named = F.filter(headers, lambda header: header["key"] == F.lit(name))
        return F.try_element_at(named, F.lit(-1))["value"].cast("string"), F.lit(MISSING)
    document = value.cast("string")
    path = "$" + "".join(f"['{part}']" for part in spec.path)
    is_broken = value.isNotNull() & F.get_json_object(document, "$").isNull()
    nothing = F.when(is_broken, F.lit(UNPARSABLE)).otherwise(F.lit(MISSING))
    return F.get_json_object(document, path), nothing


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
