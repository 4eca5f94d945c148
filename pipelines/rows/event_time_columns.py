"""Event times as a Spark column, for Spark's own progress: what is decided goes by the tasks'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import EventTimeSource, EventTimeSpec
from sequitur.consumer.time.time_text import AUTO_LIMITS, MAX_EVENT_TIME_MS, TimeUnit

if TYPE_CHECKING:
    from pyspark.sql import Column

_MOST_SECONDS: Final = MAX_EVENT_TIME_MS // 1000


def shown_time_ms(spec: EventTimeSpec) -> Column:
    """Return the event time, epoch ms, where it is a whole number or an ISO 8601 time; else null.

    Args:
        spec: Where it stands, in the columns value, headers or timestamp_ms.
    """
    if spec.source is EventTimeSource.KAFKA_TIMESTAMP:
        return _by_unit(F.col("timestamp_ms"), spec.format.unit)
    if spec.source is EventTimeSource.HEADER:
        named = F.filter("headers", lambda header: header["key"] == F.lit(spec.path[0]))
        text = F.try_element_at(named, F.lit(-1))["value"].cast("string")
    else:
        path = "$" + "".join(f"['{part}']" for part in spec.path)
        text = F.get_json_object(F.col("value").cast("string"), path)
    return F.coalesce(
        _by_unit(text.try_cast("bigint"), spec.format.unit),
        F.unix_millis(text.try_cast("timestamp")),
    )


def _by_unit(number: Column, unit: TimeUnit | None) -> Column:
    """Return epoch ms of a whole number that is not negative, in a unit."""
    ways = {
        TimeUnit.S: F.least(number, F.lit(_MOST_SECONDS)) * 1000,
        TimeUnit.MS: number,
        TimeUnit.US: F.call_function("div", number, F.lit(1_000)),
        TimeUnit.NS: F.call_function("div", number, F.lit(1_000_000)),
    }
    chosen = ways[TimeUnit.NS if unit is TimeUnit.AUTO else unit or TimeUnit.MS]
    if unit is TimeUnit.AUTO:
        for one, limit in reversed(AUTO_LIMITS):
            chosen = F.when(number < limit, ways[one]).otherwise(chosen)
    return F.when(number >= 0, chosen)
