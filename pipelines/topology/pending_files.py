"""The files of events that wait for another attempt, or for another event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.consumer.topology.step.events import PendingEvent
from sequitur.pipelines.store.files import open_file
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.topology.event_columns import EVENT_SCHEMA, events, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sequitur.pipelines.store.files import Location

PENDING_SCHEMA: Final = pa.schema(
    [
        *EVENT_SCHEMA,
        ("attempts", pa.int32()),
        ("retry_at_ms", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("path", pa.string()),
    ]
)
"""An event that waits: `retry_at_ms` of one that failed, null of one that is held for another."""

_TOLD: Final = PENDING_SCHEMA.names[len(EVENT_SCHEMA) :]
_ROWS_AT_ONCE: Final = 1 << 16


def write_waiting(folder: Location, waiting: Sequence[PendingEvent]) -> Location | None:
    """Write events that wait into a file of a folder; where it is."""
    with PartFile(folder, PENDING_SCHEMA) as file:
        for begin in range(0, len(waiting), _ROWS_AT_ONCE):
            some = waiting[begin : begin + _ROWS_AT_ONCE]
            _, *told = zip(*some, strict=True)
            rows = table_of([one.event for one in some])
            for name, column in zip(_TOLD, told, strict=True):
                of = PENDING_SCHEMA.field(name)
                rows = rows.append_column(of, pa.array(column, of.type))
            file.write(rows)
    return file.location


def read_pending(paths: Iterable[Location]) -> list[PendingEvent]:
    """Read the events of some files of `write_waiting`, in their order."""
    found = []
    for path in paths:
        with open_file(path) as file, pq.ParquetFile(file) as parquet:
            rows = parquet.read(use_threads=False)
        told = zip(*(rows[name].to_pylist() for name in _TOLD), strict=True)
        found += [
            PendingEvent(event, *rest) for event, rest in zip(events(rows), told, strict=True)
        ]
    return sorted(found, key=lambda one: one.event[3:7])
