"""Kafka's record batch, version 2: built without a sequence, stamped with one when it gets it.

A batch is built and compressed once. Producer id, epoch and base sequence are in its header only,
so that renumbering it after a renewal of the identity costs a checksum and not a new batch.
aiokafka's builder (Cython) lays out the records. `seal` may run in any thread, and its slow parts
release the interpreter's lock. What stands where: `kafka.record_format`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import google_crc32c
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from sequitur.kafka.record_format import (
    ATTRIBUTES,
    ATTRIBUTES_OFFSET,
    CODECS,
    COMPRESSION_CODES,
    COUNT,
    COUNT_OFFSET,
    FRONT,
    HEADER_SIZE,
    LEADER_AND_MAGIC,
    LENGTH,
    LENGTH_OFFSET,
    MAGIC,
    MIDDLE,
    NOT_IN_LENGTH,
    STAMP,
    STAMP_OFFSET,
    lz4_frame,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.kafka.record_format import Compression

Header: TypeAlias = tuple[str, bytes | None]
Buffer: TypeAlias = bytes | bytearray | memoryview

_NO_PRODUCER: Final = -1


class Builder(Protocol):
    """The part of aiokafka's builder that we use."""

    def append(
        self,
        offset: int,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> object | None:
        """Add a record; None when it does not fit. The first one always fits."""

    def build(self) -> bytes | bytearray:
        """Return the batch, uncompressed."""

    def size(self) -> int:
        """Return how many bytes it has so far, with the header."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The fields by which the broker recognises duplicates."""

    producer_id: int
    epoch: int
    base_sequence: int

    @classmethod
    def of(cls, batch: bytes) -> Self:
        return cls(*STAMP.unpack_from(batch, STAMP_OFFSET))


NO_STAMP: Final = Stamp(_NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def new_builder(batch_bytes: int) -> Builder:
    """Return an empty batch for up to `batch_bytes`, uncompressed, header included."""
    builder: Builder = DefaultRecordBatchBuilder(
        MAGIC, 0, 0, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, batch_bytes
    )
    return builder


def seal(builder: Builder, compression: Compression, stamp: Stamp = NO_STAMP) -> bytes:
    """Return the batch's bytes, compressed if that makes it smaller."""
    plain = builder.build()
    if compression == "none":
        return stamped(plain, stamp)
    records = memoryview(plain)[HEADER_SIZE:]
    packed = CODECS[compression](records)
    if len(packed) >= len(records):
        return stamped(plain, stamp)
    return _assembled(
        plain[:LENGTH_OFFSET] + LENGTH.pack(HEADER_SIZE - NOT_IN_LENGTH + len(packed)),
        ATTRIBUTES.pack(COMPRESSION_CODES[compression])
        + plain[ATTRIBUTES_OFFSET + 2 : STAMP_OFFSET],
        stamp,
        plain[COUNT_OFFSET:HEADER_SIZE],
        packed,
    )


def stamped(batch: bytes | bytearray, stamp: Stamp, last_ms: int | None = None) -> bytes:
    """Return the batch with a producer id, epoch, base sequence and new checksum."""
    view = memoryview(batch)
    middle: Buffer = view[ATTRIBUTES_OFFSET:STAMP_OFFSET]
    if last_ms is not None:
        attributes, last_offset, first, last = MIDDLE.unpack(middle)
        middle = MIDDLE.pack(attributes, last_offset, first + last_ms - last, last_ms)
    return _assembled(
        view[: LENGTH_OFFSET + 4],
        middle,
        stamp,
        view[COUNT_OFFSET:HEADER_SIZE],
        bytes(view[HEADER_SIZE:]),
    )


def batch_of(records: bytes, count: int, *, first_ms: int, last_ms: int) -> bytes:
    """Return a batch of encoded records, without a stamp."""
    return _assembled(
        FRONT.pack(0, HEADER_SIZE - NOT_IN_LENGTH + len(records)),
        MIDDLE.pack(0, count - 1, first_ms, last_ms),
        NO_STAMP,
        COUNT.pack(count),
        records,
    )


def times_of(batch: bytes | bytearray) -> tuple[int, int]:
    """Return the base of a batch's timestamps, and the newest timestamp."""
    _attributes, _last_offset, first_ms, last_ms = MIDDLE.unpack_from(batch, ATTRIBUTES_OFFSET)
    return first_ms, last_ms


def _assembled(front: Buffer, middle: Buffer, stamp: Stamp, count: Buffer, records: bytes) -> bytes:
    head = b"".join(
        (middle, STAMP.pack(stamp.producer_id, stamp.epoch, stamp.base_sequence), count)
    )
    checksum: int = google_crc32c.extend(google_crc32c.value(head), records)
    return b"".join((front, LEADER_AND_MAGIC, checksum.to_bytes(4, "big"), head, records))


def idempotent_batch(
    records: memoryview, count: int, *, base_ms: int, max_ms: int, stamp: Stamp
) -> bytes:
    """Return an idempotent producer's batch of encoded records, with LZ4 if that is smaller."""
    packed = lz4_frame(records)
    code = COMPRESSION_CODES["lz4"]
    if len(packed) >= len(records):
        packed, code = bytes(records), 0
    return _assembled(
        FRONT.pack(0, HEADER_SIZE - NOT_IN_LENGTH + len(packed)),
        MIDDLE.pack(code, count - 1, base_ms, max_ms),
        stamp,
        COUNT.pack(count),
        packed,
    )


def count_of(batch: bytes) -> int:
    (count,) = COUNT.unpack_from(batch, COUNT_OFFSET)
    return int(count)


def records_of(batch: bytes) -> list[StoredRecord]:
    return [
        StoredRecord(
            timestamp_ms=record.timestamp,
            key=_bytes_or_none(record.key),
            value=_bytes_or_none(record.value),
            headers=tuple((name, _bytes_or_none(value)) for name, value in record.headers),
        )
        for record in DefaultRecordBatch(batch)
    ]


def halved(batch: bytes, compression: Compression) -> tuple[bytes, bytes]:
    """Return the batch as two halves, for a broker that refused it as too large."""
    records = records_of(batch)
    assert len(records) > 1
    middle = len(records) // 2
    return _built(records[:middle], compression), _built(records[middle:], compression)


def _built(records: list[StoredRecord], compression: Compression) -> bytes:
    builder = new_builder(2**31 - 1)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    return seal(builder, compression)


def _bytes_or_none(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
