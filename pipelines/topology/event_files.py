"""The columns of events in the files of a topology, and the files of those that wait."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.consumer.topology.step.events import PendingEvent
from sequitur.pipelines.rows.run_writer import RUN_ARROW_SCHEMA
from sequitur.pipelines.store.files import open_file
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sequitur.pipelines.store.files import Location

EVENT_COLUMNS: Final = (
    "key", "value", "headers", "event_time_ms", "topic", "partition", "offset", "timestamp_ms",
)  # fmt: skip
EVENT_SCHEMA: Final = pa.schema([RUN_ARROW_SCHEMA.field(name) for name in EVENT_COLUMNS])
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


def events(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a table as the values of events, in the order of `EventValues`."""
    headers = rows["headers"]
    lists: Iterable[Any] = itertools.repeat((), len(rows))
    if headers.null_count < len(rows):
        lists = (
            () if not several else [(one["key"], one["value"]) for one in several]
            for several in headers.to_pylist()
        )
    return zip(
        # By NumPy, which makes no scalar of Arrow's for each.
        rows["key"].to_numpy().tolist(),
        rows["value"].to_numpy().tolist(),
        lists,
        rows["event_time_ms"].to_numpy().tolist(),
        _texts(rows["topic"]),
        rows["partition"].to_numpy().tolist(),
        rows["offset"].to_numpy().tolist(),
        rows["timestamp_ms"].to_numpy().tolist(),
        strict=True,
    )


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Texts of a column, each different one made once."""
    encoded = column.combine_chunks().dictionary_encode()
    different = encoded.dictionary.to_pylist()
    if len(different) == 1:
        same: list[str] = different * len(column)
        return same
    texts: list[str] = [different[place] for place in encoded.indices.to_numpy().tolist()]
    return texts


def table_of(given: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Make a table of `EVENT_SCHEMA`, of the values of at least one event."""
    key, value, headers, *rest = zip(*given, strict=True)
    lists: Sequence[Any] = [None] * len(headers)
    if any(headers):
        lists = [[{"key": name, "value": said} for name, said in several] for several in headers]
    columns = zip((key, value, lists, *rest), EVENT_SCHEMA.types, strict=True)
    return pa.table([pa.array(column, of) for column, of in columns], schema=EVENT_SCHEMA)


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
