"""An event as users give it: checked, serialized, and put where a partitioner wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from sequitur.errors import WrongRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.kafka.record_batch import Header
    from sequitur.producer.batching.route import Route

_HEADER_PARTS = 2
_EXPECTED_HEADERS = "expected a sequence of (str, bytes or None) pairs"
_LISTS = frozenset({list, tuple})
_NO_HEADERS = ()
_CHANGEABLE = (bytearray, memoryview)
_COLUMNS = ("value", "key", "headers", "partition", "timestamp_ms")


class Record(msgspec.Struct, frozen=True, gc=False):
    """One event, for `send_many`.

    Attributes:
        value: Its payload, as bytes. None is a tombstone. A bytearray or memoryview is copied when
            the event is accepted. The same holds for keys and values of headers.
        key: Chooses the partition, as in Java. None goes to the sticky partition.
        headers: Pairs of a name and a value, which is bytes or None.
        partition: The partition. None: it is chosen by the key.
        timestamp_ms: The record's timestamp, milliseconds since 1970. None, which is recommended:
            the time of acceptance. A broker forgets a producer by the timestamp of its newest
            record, so with old timestamps it may miss duplicates after a restart. Put the event
            time into the payload or a header.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
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
    if headers is not _NO_HEADERS and not _are_plain(headers):
        record = _with_own_headers(record)
        _check_headers(record.headers)
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


def _are_plain(headers: Any) -> bool:
    """Whether headers are as nearly all are: tuples of a name and bytes, which nobody changes."""
    if type(headers) not in _LISTS:
        return False
    for header in headers:
        if type(header) is not tuple or len(header) != _HEADER_PARTS:
            return False
        name, value = header
        if type(name) is not str or type(value) is not bytes:
            return False
    return True


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


Serializer: TypeAlias = Callable[[Any], bytes]
"""Makes the bytes of a key or value. It is not called for None."""

Partitioner: TypeAlias = Callable[[bytes | None, list[int], list[int]], int]
"""Chooses a partition from the key's bytes, all partitions and those with a leader."""


class RecordMaker:
    """Makes the records of one producer."""

    def __init__(
        self,
        *,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
        partitioner: Partitioner | None,
        has_leader: Callable[[str, int], bool],
    ) -> None:
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._has_leader = has_leader
        self._serializes = key_serializer is not None or value_serializer is not None
        self.is_plain = not self._serializes and partitioner is None

    def record(
        self,
        value: Any,
        key: Any = None,
        headers: Sequence[Header] | None = _NO_HEADERS,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """Return an event as a record."""
        if self._serializes:
            if self._value_serializer is not None and value is not None:
                value = self._value_serializer(value)
            if self._key_serializer is not None and key is not None:
                key = self._key_serializer(key)
        if headers is None:
            headers = _NO_HEADERS
        return checked(Record(value, key, headers, partition, timestamp_ms))

    def record_of(self, event: Any) -> Record:
        """Return the record of an event of `send_many`: a `Record`, or a value by itself."""
        if not isinstance(event, Record):
            return self.record(event)
        return self.record(
            event.value, event.key, event.headers, event.partition, event.timestamp_ms
        )

    def placed(self, record: Record, route: Route) -> Record:
        """Return the record with the partition that the partitioner chooses, if there is one.

        Raises:
            OutdatedError: See `Route.refuse`.
            ValueError: The topic has no such partition.
        """
        if self._partitioner is None or record.partition is not None:
            return record
        everywhere = list(range(route.partitions))
        led = [partition for partition in everywhere if self._has_leader(route.topic, partition)]
        chosen = self._partitioner(record.key, everywhere, led or everywhere)
        if chosen not in everywhere:
            route.refuse_partition(chosen, "the partitioner gave")
        return Record(record.value, record.key, record.headers, int(chosen), record.timestamp_ms)
