"""An event as it is given to `send_many`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sequitur.errors import WrongRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.kafka.record_batch import Header

_HEADER_PARTS = 2
_EXPECTED_HEADERS = "expected a sequence of (str, bytes or None) pairs"
_LISTS = frozenset({list, tuple})
_NO_HEADERS = ()
_CHANGEABLE = (bytearray, memoryview)
_COLUMNS = ("value", "key", "headers", "partition", "timestamp_ms")


class Record(msgspec.Struct, frozen=True, gc=False):
    """One event.

    Attributes:
        value: Its payload, bytes; None is a tombstone. A bytearray or memoryview, also as a key or
            a header's value, is copied when the event is accepted.
        key: Chooses the partition, as in Java; None goes to the sticky partition.
        headers: Names and values.
        partition: The partition, if it is not to be chosen.
        timestamp_ms: The record's timestamp, milliseconds since 1970; the time of acceptance if
            None. Leave it so: the broker forgets a producer by its newest record's timestamp, so
            with old ones duplicates after a restart might not be recognised. Event time belongs
            into payload or header.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def checked_all(records: Sequence[Record]) -> Sequence[Record]:
    """`checked` of each."""
    found: list[Record] = []
    for index, record in enumerate(records):
        try:
            found.append(checked(record))
        except TypeError as error:
            raise WrongRecordError(index, str(error)) from None
    return found


def checked(record: Record) -> Record:
    """Refuse what no record can be made of, and copy bytes that may change."""
    value, key, headers = record.value, record.key, record.headers
    # By the type first: this is run for each event of `send`.
    if type(value) is not bytes or (key is not None and type(key) is not bytes):
        value, key = _bytes_of("value", value), _bytes_of("key", key)
        if value is not record.value or key is not record.key:
            record = msgspec.structs.replace(record, value=value, key=key)
    if headers is not _NO_HEADERS:
        record = _with_own_headers(record)
        headers = record.headers
        _check_headers(headers)
    if record.partition is not None:
        _check_number("partition", record.partition)
    if record.timestamp_ms is not None:
        _check_number("timestamp_ms", record.timestamp_ms)
    return record


def _bytes_of(name: str, part: object) -> bytes | None:
    if part is None or isinstance(part, bytes):
        return part
    if not isinstance(part, _CHANGEABLE):
        raise TypeError(f"{name} is {_kind(part)}, expected bytes or None")
    return bytes(part)


def _with_own_headers(record: Record) -> Record:
    """Return a record whose headers nobody changes, if they were bytes that may change."""
    headers: Any = record.headers
    if not isinstance(headers, (list, tuple)) or not any(
        isinstance(header, (list, tuple))
        and len(header) == _HEADER_PARTS
        and isinstance(header[1], _CHANGEABLE)
        for header in headers
    ):
        return record
    copied = [
        (name, bytes(value) if isinstance(value, _CHANGEABLE) else value) for name, value in headers
    ]
    return msgspec.structs.replace(record, headers=copied)


def _check_number(name: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} is {_kind(number)}, expected int or None")


def _check_headers(headers: Any) -> None:
    if type(headers) not in _LISTS and (
        not isinstance(headers, Sequence) or isinstance(headers, (str, bytes))
    ):
        raise TypeError(f"headers is {_kind(headers)}, {_EXPECTED_HEADERS}")
    for header in headers:
        if type(header) is tuple and len(header) == _HEADER_PARTS:
            name, value = header
            if type(name) is str and type(value) is bytes:
                continue
        _check_header(header)


def _check_header(header: object) -> None:
    if not isinstance(header, (tuple, list)) or len(header) != _HEADER_PARTS:
        raise TypeError(f"a header is {_kind(header)}, {_EXPECTED_HEADERS}")
    name, value = header
    if not isinstance(name, str):
        raise TypeError(f"the name of a header is {_kind(name)}, expected str")
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"header {name} is {_kind(value)}, expected bytes or None")


def _kind(found: object) -> str:
    return type(found).__name__


def records_of_arrow(data: Any) -> Iterator[Record]:
    """Yield the rows of an Arrow table or record batch."""
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
