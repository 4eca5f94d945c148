"""How late the rows of a batch are, counted while they are staged.

The whole histogram is one observed metric: Spark's `approx_top_k` over a number that stands for
(source partition, behind the frontier or not, bin). With fewer different numbers than it tracks the
counts are exact, and there are some hundreds a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import SourcePartition, StepLateness, is_behind
from sequitur.consumer.time.adaptive_delay import (
    BINS_PER_DOUBLING,
    LAST_BIN,
    LATENESS_LIMIT_MS,
    ROUNDING,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column

    from sequitur.consumer import EventClock

_LATE: Final = 256
_CODES: Final = 2 * _LATE
"""Numbers of one source partition: its bins, and again for rows behind the frontier."""
_MOST_TRACKED: Final = 1_000_000
assert LAST_BIN < _LATE


def lateness_counts(clock: EventClock, partitions: Sequence[SourcePartition]) -> Column:
    """Count rows with an event time by source partition, behind the frontier or not, and bin.

    Args:
        clock: The clocks before the batch: rows are late against these.
        partitions: All source partitions. Rows of one without an event time so far do not count.
    """
    seen = {
        source: clock.partitions[source].max_event_time_ms
        for source in partitions
        if source in clock.partitions
    }
    event_time = F.col("event_time_ms")
    lateness = _by_source(seen) - event_time
    behind = F.ceil(
        F.lit(BINS_PER_DOUBLING) * F.log2(lateness.cast("double")) - F.lit(ROUNDING)
    ) + F.lit(1)
    number = (
        F.when(lateness <= 0, F.lit(0))
        .when(lateness >= LATENESS_LIMIT_MS, F.lit(LAST_BIN))
        .otherwise(behind)
    )
    late = F.when(is_behind(event_time, _fixed(clock.frontier_ms)), F.lit(_LATE)).otherwise(
        F.lit(0)
    )
    first = {source: place * _CODES for place, source in enumerate(partitions)}
    # Null, and in no bin, where there is no event time, or none so far to be behind of.
    code = F.when(lateness.isNotNull(), _by_source(first) + late + number).cast("bigint")
    tracked = min(_MOST_TRACKED, 2 * _CODES * max(1, len(partitions)))
    return F.call_function("approx_top_k", code, F.lit(tracked), F.lit(tracked))


def read_lateness(
    counted: Iterable[Any], partitions: Sequence[SourcePartition]
) -> dict[SourcePartition, StepLateness]:
    """Read the result of `lateness_counts` by source partition; one without rows is left out.

    Args:
        counted: Rows of (item, count).
        partitions: As given to `lateness_counts`.
    """
    rows: dict[int, int] = {}
    late: dict[int, int] = {}
    behind: dict[int, dict[int, int]] = {}
    for found in counted:
        if found["item"] is None:
            continue
        place, code = divmod(found["item"], _CODES)
        is_late, number = divmod(code, _LATE)
        count = found["count"]
        rows[place] = rows.get(place, 0) + count
        late[place] = late.get(place, 0) + (count if is_late else 0)
        if number:
            bins = behind.setdefault(place, {})
            bins[number] = bins.get(number, 0) + count
    return {
        partitions[place]: StepLateness(rows[place], late[place], behind.get(place, {}))
        for place in rows
    }


def _by_source(numbers: Mapping[SourcePartition, int | None]) -> Column:
    """Return the number of a row's source partition; null where there is none."""
    found = F.lit(None).cast("bigint")
    for topic in sorted({source.topic for source in numbers}):
        last = max(source.partition for source in numbers if source.topic == topic)
        listed = [numbers.get(SourcePartition(topic, place)) for place in range(last + 1)]
        # An array is handed to the code that Spark generates from outside; plain numbers would
        # stand in it, and it would be compiled anew for each batch.
        array = F.array(*(F.lit(number).cast("bigint") for number in listed))
        found = F.when(F.col("topic") == topic, F.get(array, F.col("partition"))).otherwise(found)
    return found


def _fixed(value: int) -> Column:
    return F.get(F.array(F.lit(value).cast("bigint")), F.col("partition") * 0)
