"""The files of events that wait for another attempt, or for another event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.consumer.topology.step.events import PendingEvent
from sequitur.pipelines.store.files import open_file
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.topology.event_columns import (
    HEADERS_TYPE,
    PLACE_FIELDS,
    events,
    headers_array,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sequitur.pipelines.store.files import Location

PENDING_SCHEMA: Final = pa.schema(
    [
        *PLACE_FIELDS,
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("event_time_ms", pa.int64()),
        ("attempts", pa.int32()),
        ("retry_at_ms", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("path", pa.string()),
    ]
)
"""An event that waits: `retry_at_ms` of one that failed, null of one that is held for another."""

_ROWS_AT_ONCE: Final = 1 << 16


def write_waiting(folder: Location, waiting: Sequence[PendingEvent]) -> Location | None:
    """Write events that wait into a file of a folder; where it is."""
    with PartFile(folder, PENDING_SCHEMA) as file:
        for begin in range(0, len(waiting), _ROWS_AT_ONCE):
            some = waiting[begin : begin + _ROWS_AT_ONCE]
            columns = list(zip(*(one.event for one in some), strict=True))
            key, value, headers, times, topics, partitions, offsets, timestamps = columns
            file.write(
                pa.table(
                    {
                        "topic": pa.array(topics, pa.string()),
                        "partition": pa.array(partitions, pa.int32()),
                        "offset": pa.array(offsets, pa.int64()),
                        "timestamp_ms": pa.array(timestamps, pa.int64()),
                        "key": pa.array(key, pa.binary()),
                        "value": pa.array(value, pa.binary()),
                        "headers": headers_array(headers),
                        "event_time_ms": pa.array(times, pa.int64()),
                        "attempts": pa.array([one.attempts for one in some], pa.int32()),
                        "retry_at_ms": pa.array([one.retry_at_ms for one in some], pa.int64()),
                        "reason": pa.array([one.reason for one in some], pa.string()),
                        "detail": pa.array([one.detail for one in some], pa.string()),
                        "path": pa.array([one.path for one in some], pa.string()),
                    }
                )
            )
    return file.location


def read_pending(paths: Iterable[Location]) -> list[PendingEvent]:
    """Read the events of some files of `write_waiting`, in their order."""
    found = [one for path in paths for one in waiting_events(_read(path))]
    found.sort(key=lambda one: (*one.event[3:7],))
    return found


def _read(path: Location) -> pa.Table:
    with open_file(path) as file, pq.ParquetFile(file) as parquet:
        return parquet.read(use_threads=False)


def waiting_events(rows: pa.Table) -> Iterator[PendingEvent]:
    """Return the events of a table of `PENDING_SCHEMA`."""
    more = [rows[name].to_pylist() for name in PENDING_SCHEMA.names[-5:]]
    for event, *rest in zip(events(rows), *more, strict=True):
        yield PendingEvent(event, *rest)
