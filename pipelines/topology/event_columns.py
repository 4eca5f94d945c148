"""The columns of events in the files of a topology."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PLACE_FIELDS: Final = (("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()))
EVENT_COLUMNS: Final = (
    "key", "value", "headers", "event_time_ms", "topic", "partition", "offset", "timestamp_ms",
)  # fmt: skip


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


def headers_array(lists: Sequence[Any]) -> pa.Array:
    """Make a column of headers, of one sequence of (name, value) a row."""
    if not any(lists):
        return pa.nulls(len(lists), HEADERS_TYPE)
    made = [[{"key": name, "value": value} for name, value in several] for several in lists]
    return pa.array(made, HEADERS_TYPE)
