"""Footers of Parquet files: what each row group holds, as columns; read once in a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.parquet as pq

from sequitur.pipelines.rows.fetched_files import KeptValues, open_rows

if TYPE_CHECKING:
    from sequitur.pipelines.store.files import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]

ALL_TIME: Final = (-(1 << 63), (1 << 63) - 1)
_UNKNOWN: Final = -1
_MOST_BYTES: Final = 4 << 20
"""Of footers that a process remembers, as they are in files: in memory they are some times that."""


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """What a file says of its row groups; the columns have an element for each."""

    metadata: pq.FileMetaData
    places: dict[str, int]  # where columns stand in it
    rows: Longs
    size_bytes: Longs
    first_ms: Longs  # smallest event time
    last_ms: Longs
    untimed: Longs  # rows without event time; -1 where that is not said
    unmarked: Longs  # rows without a reason; likewise
    first_partition: Longs  # smallest output partition
    last_partition: Longs

    def statistics(self, number: int, name: str) -> pq.Statistics | None:
        """Return what a row group says of a column; None where it says nothing."""
        return _statistics(self.metadata.row_group(number), self.places.get(name))


_known: Final = KeptValues[Footer](_MOST_BYTES)


def footer_of(path: Location) -> Footer:
    """Return a file's footer."""
    footer = _known.get(path)
    if footer is None:
        with open_rows(path) as file:
            footer = _read(pq.read_metadata(file))
        _known.keep(path, footer, footer.metadata.serialized_size)
    return footer


def reach(statistics: pq.Statistics | None) -> tuple[int, int]:
    """Smallest and greatest number of a column; all there are where the file does not say."""
    if statistics is None or not statistics.has_min_max:
        return ALL_TIME
    return statistics.min, statistics.max


def only_value(statistics: pq.Statistics | None) -> Any:
    """Return what a column has in all rows, where the file says so."""
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
        return None
    return statistics.min


def _read(metadata: pq.FileMetaData) -> Footer:
    places: dict[str, int] = {}
    for number in range(metadata.num_columns):
        # Flat columns, and the first part of each nested one.
        places.setdefault(metadata.schema.column(number).path.partition(".")[0], number)
    found = np.empty((8, metadata.num_row_groups), np.int64)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        times = _statistics(group, places.get("event_time_ms"))
        reasons = _statistics(group, places.get("reason"))
        found[:, number] = (
            group.num_rows,
            group.total_byte_size,
            *reach(times),
            _nulls(times),
            _nulls(reasons),
            *reach(_statistics(group, places.get("output_partition"))),
        )
    return Footer(metadata, places, *found)


def _statistics(group: pq.RowGroupMetaData, place: int | None) -> pq.Statistics | None:
    return None if place is None else group.column(place).statistics


def _nulls(statistics: pq.Statistics | None) -> int:
    if statistics is None or not statistics.has_null_count:
        return _UNKNOWN
    nulls: int = statistics.null_count
    return nulls
