"""The columns of events in the files of a topology."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sequitur.pipelines.rows.run_writer import RUN_ARROW_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

EVENT_COLUMNS: Final = (
    "key", "value", "headers", "event_time_ms", "topic", "partition", "offset", "timestamp_ms",
)  # fmt: skip
EVENT_SCHEMA: Final = pa.schema([RUN_ARROW_SCHEMA.field(name) for name in EVENT_COLUMNS])


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
        _objects(rows["key"]),
        _objects(rows["value"]),
        lists,
        rows["event_time_ms"].to_numpy().tolist(),
        _texts(rows["topic"]),
        rows["partition"].to_numpy().tolist(),
        rows["offset"].to_numpy().tolist(),
        rows["timestamp_ms"].to_numpy().tolist(),
        strict=True,
    )


def _objects(column: pa.ChunkedArray) -> list[bytes | None]:
    """Bytes of a column: by NumPy, which makes no scalar of Arrow's for each."""
    made: list[bytes | None] = column.to_numpy().tolist()
    return made


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
