"""Event time as Spark columns: the answers of the reference in `consumer`, at Spark's speed.

The table in `tests/support/event_time_cases.py` holds the two together. Plain JSON objects are read
by a regular expression, which gives the parser's answer or none
(`sequitur.consumer.time.plain_json`), and all others by the parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import (
    MISSING,
    NEGATIVE,
    UNPARSABLE,
    EventTimeSource,
    EventTimeSpec,
)
from sequitur.consumer.time.plain_json import plain_json_pattern
from sequitur.consumer.time.time_text import (
    AUTO_LIMITS,
    BLANKS,
    ISO_PATTERN,
    MAX_EVENT_TIME_MS,
    MONTHS,
    NUMBER_PATTERN,
    TimeForm,
    TimeUnit,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sequitur.consumer import TimeFormat


def with_event_time(rows: DataFrame, spec: EventTimeSpec) -> DataFrame:
    """Add `event_time_ms` (long) and `reason` (string): exactly one of them is not null.

    Whether an event time is believed is left to `staged_rows`: it depends on when.

    Args:
        rows: Columns value, headers and timestamp_ms, as `read_source` gives them.
        spec: Where the event time stands.
    """
    # One projection after the other and not one expression: each of these is used more than once,
    # and Spark would write its code out at each place. The code's size is what a start costs.
    if spec.source is EventTimeSource.KAFKA_TIMESTAMP:
        given = F.col("timestamp_ms")
        found = F.when(given >= 0, _of_whole(given, spec.format.unit))
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
        .withColumn("_found", _milliseconds(text, spec.format))
        .withColumn("event_time_ms", F.when(F.col("_found") >= 0, F.col("_found")))
        .withColumn("reason", reason)
        .drop("_text", "_found")
    )


def _text(spec: EventTimeSpec) -> Column:
    """Return the event time as text, null without."""
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


def _milliseconds(text: Column, written: TimeFormat) -> Column:
    """Epoch ms of a text that is written so; null of any other."""
    trimmed = F.trim(text, F.lit(BLANKS))
    if written.form is not None:
        return _of_iso(_as_iso(trimmed, written.form))
    # try_cast to bigint trims what BLANKS lists and takes [+-]?digits, so it needs no pattern.
    whole = text.try_cast("bigint")
    number = trimmed.try_cast("double")
    limit = float(MAX_EVENT_TIME_MS)
    within = F.greatest(F.lit(-limit), F.least(number, F.lit(limit)))
    floored = F.when(
        F.abs(number) < F.lit(float("inf")), F.floor(_of_fraction(within, written.unit))
    )
    iso = F.when(trimmed.rlike(ISO_PATTERN), _of_iso(trimmed))
    return F.coalesce(
        _of_whole(whole, written.unit),
        F.when(trimmed.rlike(NUMBER_PATTERN), floored).otherwise(iso),
    )


def _of_whole(number: Column, unit: TimeUnit | None) -> Column:
    """Epoch ms of a whole number; -1 of any that is negative."""
    most = MAX_EVENT_TIME_MS // 1000
    seconds = F.when(number > most, F.lit(MAX_EVENT_TIME_MS)).otherwise(number * 1000)
    ways = {
        TimeUnit.S: seconds,
        TimeUnit.MS: number,
        TimeUnit.US: F.call_function("div", number, F.lit(1_000)),
        TimeUnit.NS: F.call_function("div", number, F.lit(1_000_000)),
    }
    return F.when(number < 0, F.lit(-1)).when(number >= 0, _by_unit(number, unit, ways))


def _of_fraction(number: Column, unit: TimeUnit | None) -> Column:
    """Epoch ms of a double, with their fractions."""
    ways = {
        TimeUnit.S: F.rint(number * 1e6) / 1e3,
        TimeUnit.MS: number,
        TimeUnit.US: number / 1e3,
        TimeUnit.NS: number / 1e6,
    }
    return _by_unit(F.abs(number), unit, ways)


def _by_unit(size: Column, unit: TimeUnit | None, ways: dict[TimeUnit, Column]) -> Column:
    if unit is not TimeUnit.AUTO:
        return ways[unit or TimeUnit.MS]
    chosen = ways[TimeUnit.NS]
    for one, limit in reversed(AUTO_LIMITS):
        chosen = F.when(size < limit, ways[one]).otherwise(chosen)
    return chosen


def _of_iso(text: Column) -> Column:
    """Epoch ms of an ISO 8601 time."""
    # Spark's cast wants seconds where there is a zone.
    seconds = F.regexp_replace(text, "^(.{16})(Z|[+-])", "$1:00$2")
    return F.unix_millis(seconds.try_cast("timestamp"))


def _as_iso(text: Column, form: TimeForm) -> Column:
    """Rewrite a text of a form as an ISO 8601 time; null of any other."""
    pattern = form.pattern + r"\z"
    found = {
        part: F.regexp_extract(text, pattern, place)
        for place, part in enumerate(form.parts, start=1)
    }
    if form.has_month_name:
        numbers = [
            F.lit(item) for place, name in enumerate(MONTHS, 1) for item in (name, str(place))
        ]
        found["month"] = F.try_element_at(F.create_map(*numbers), F.lower(found["month"]))
    month, day, hour, minute, second = (
        F.lpad(found.get(part, F.lit("0")), 2, "0")
        for part in ("month", "day", "hour", "minute", "second")
    )
    fraction, zone = found.get("fraction", F.lit("0")), found.get("zone", F.lit("Z"))
    iso = F.format_string(
        "%s-%s-%sT%s:%s:%s.%s%s",
        *(found["year"], month, day, hour, minute, second, fraction, zone),
    )
    return F.when(text.rlike(pattern) & month.isNotNull(), iso)
