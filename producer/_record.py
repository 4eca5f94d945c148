"""An event as it is given to `send_many`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from producer._batch import Header

_COLUMNS = ("value", "key", "headers", "partition", "timestamp_ms")


class Record(msgspec.Struct, frozen=True, gc=False):
    """One event.

    Attributes:
        value: Its payload; None is a tombstone.
        key: Chooses the partition, as in Java; None goes to the sticky partition.
        headers: Names and values.
        partition: The partition, if it is not to be chosen.
        timestamp_ms: The record's timestamp, milliseconds since 1970; the time of acceptance if
            None. Leave it so: the broker forgets a producer by its newest record's timestamp, so
            with old ones a repeat after a restart might not be recognised. Event time belongs into
            payload or header.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def records_of_arrow(data: Any) -> Iterator[Record]:
    """The rows of an Arrow table or record batch.

    Args:
        data: Has a column `value` (binary or string), and may have `key` (likewise), `headers`
            (list of structs of name and value, or map), `partition` and `timestamp_ms` (integers).

    Raises:
        ValueError: There is no column `value`, or one of another name.
    """
    names = list(data.schema.names)
    if "value" not in names or not set(names) <= set(_COLUMNS):
        raise ValueError(f"columns {names}: expected value, and of {', '.join(_COLUMNS[1:])}")
    batches = data.to_batches() if hasattr(data, "to_batches") else [data]
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in names}
        rows = zip(*columns.values(), strict=True)
        for row in rows:
            yield _record(dict(zip(names, row, strict=True)))


def _record(row: dict[str, Any]) -> Record:
    headers = row.get("headers") or ()
    return Record(
        value=_encoded(row["value"]),
        key=_encoded(row.get("key")),
        headers=[_header(header) for header in headers],
        partition=row.get("partition"),
        timestamp_ms=row.get("timestamp_ms"),
    )


def _header(header: Any) -> Header:
    name, value = header.values() if isinstance(header, dict) else header
    return (name, _encoded(value))


def _encoded(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
