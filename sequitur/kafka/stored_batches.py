"""Batches as brokers send them: which records of them a consumer sees, in rows or in columns.

Rows are aiokafka's, since its decoder is compiled: by way of columns they cost five times as much.
In columns, batches of version 2 are decoded together by numpy: of all their records first where
they begin, and then each part of them at once. Those of brokers before 0.11 (versions 0 and 1) are
always decoded by rows. What stands where: `kafka.record_format`.

A consumer of committed records does not see the records of aborted transactions. Which these are
says the broker beside the batches: of each aborted transaction the producer and the first offset.
It ends where the log has its marker, a control batch, which no consumer sees (KIP-98).

An answer may end within a batch, since the broker cuts at the size that was asked for.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import cramjam
import google_crc32c
import numpy as np
from aiokafka import errors as kafka_errors
from aiokafka.record.memory_records import MemoryRecords

from sequitur.errors import ReadTooLargeError, RetriableError
from sequitur.kafka.record_format import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_CODES,
    CONTINUED,
    HEADER_SIZE,
    LENGTH,
    LENGTH_OFFSET,
    MAGIC,
    NOT_IN_LENGTH,
    VARINT_BITS,
    read_varint,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Buffer: TypeAlias = bytes | bytearray | memoryview
    Longs: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_HEADER: Final = struct.Struct(">qi4xbIhiqqqhii")
"""Base offset, length, magic, CRC, attributes, last offset delta, first and max timestamp, producer
id, epoch, base sequence and count; the leader's epoch is left out."""
_MAGIC_OFFSET: Final = 16
_LEGACY_OVERHEAD: Final = 26
"""The bytes of the smallest batch of version 0."""
_LEGACY_ATTRIBUTES_OFFSET: Final = 17
_CODEC: Final = 0x07
_BY_THE_BROKER: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_ABORT: Final = 0
"""The value in a marker's key, behind two bytes for the version."""
_PADDING: Final = bytes(16)
"""With it, a number can be read whole from any offset."""
_MOST_VARINT: Final = 10
_HEADERS_AT_ONCE: Final = 32
"""If a record has more headers, they are read one by one."""
MOST_BYTES: Final = 2**31 - 1 - len(_PADDING)
"""Arrow counts a column's bytes with 32 bits."""
_FIRST_ROOM: Final = 4 << 10
_GROWTH: Final = 8
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_GZIP: Final = 31
_SURROGATES: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACED: Final = "\ufffd".encode()
NO_TIME: Final = -1
CREATE_TIME: Final = 0


class Record(Protocol):
    """A record as a consumer gets it."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""

    @property
    def timestamp(self) -> int:
        """Epoch milliseconds; -1 without one."""

    @property
    def timestamp_type(self) -> int:
        """0 if the producer sets timestamps, 1 if the broker does; -1 without one."""

    @property
    def key(self) -> bytes | None:
        """Its key."""

    @property
    def value(self) -> bytes | None:
        """Its value; None for a tombstone."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Name and value of each header. For names that are not UTF-8 see `java_text`."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    base_offset: int  # offset of its first record; before version 2, of its last
    last_offset: int
    magic: int
    attributes: int
    first_ms: int  # the base of its timestamps
    max_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    raw: memoryview  # all of it

    @property
    def data(self) -> memoryview:
        """Its records, still compressed; before version 2 the whole batch."""
        return self.raw[HEADER_SIZE:] if self.magic >= MAGIC else self.raw

    @property
    def hides_its_size(self) -> bool:
        """Whether it is older than version 2 and compressed, so it can only be unpacked to rows."""
        return self.magic < MAGIC and bool(self.raw[_LEGACY_ATTRIBUTES_OFFSET] & _CODEC)

    @property
    def is_control(self) -> bool:
        """Whether it is a transaction's marker, or one of Kafka's own markers."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    def is_abort(self) -> bool:
        for record in self.rows() if self.is_control else ():
            return int.from_bytes((record.key or b"")[2:4], "big") == _ABORT
        return False  # compaction leaves some batches empty

    def rows(self) -> Iterator[Record]:
        last = -1
        try:
            batch = MemoryRecords(bytes(self.raw)).next_batch()
            if self.magic < MAGIC:
                yield from _legacy_rows(batch)
                return
            for record in batch:
                yield record
                last = record.offset
        except UnicodeDecodeError:
            yield from columns_of([self]).between(last + 1, self.last_offset + 1).rows()
        except kafka_errors.KafkaError as error:
            raise RetriableError(f"the batch at offset {self.base_offset}: {error}") from error


def batches_in(data: bytes) -> Iterator[StoredBatch]:
    """Yield the batches that are complete in a part of a log."""
    view, at = memoryview(data), 0
    while len(data) - at > _MAGIC_OFFSET:
        (length,) = LENGTH.unpack_from(data, at + LENGTH_OFFSET)
        end, magic = at + NOT_IN_LENGTH + length, data[at + _MAGIC_OFFSET]
        smallest = _LEGACY_OVERHEAD if magic < MAGIC else HEADER_SIZE
        if length < smallest - NOT_IN_LENGTH or magic > MAGIC:
            raise RetriableError(
                f"a batch in the log cannot be read: {length} bytes in format version {magic}"
            )
        if end > len(data):
            return
        yield _legacy(view[at:end], magic) if magic < MAGIC else _batch(view[at:end])
        at = end


def _batch(view: memoryview) -> StoredBatch:
    base, _length, magic, crc, attributes, last, *more = _HEADER.unpack_from(view)
    if google_crc32c.value(bytes(view[ATTRIBUTES_OFFSET:])) != crc:
        raise RetriableError(f"the batch at offset {base} does not match its checksum")
    first_ms, max_ms, producer_id, epoch, sequence, count = more
    return StoredBatch(
        base_offset=base,
        last_offset=base + last,
        magic=magic,
        attributes=attributes,
        first_ms=first_ms,
        max_ms=max_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
        raw=view,
    )


def _legacy(view: memoryview, magic: int) -> StoredBatch:
    (offset,) = struct.unpack_from(">q", view)
    return StoredBatch(offset, offset, magic, 0, -1, -1, -1, -1, -1, 1, view)


def _legacy_rows(batch: Any) -> Iterator[Record]:
    if not batch.validate_crc():
        raise kafka_errors.CorruptRecordException("it does not match its checksum")
    for one in batch:
        ms = NO_TIME if one.timestamp is None else one.timestamp
        kind = NO_TIME if one.timestamp_type is None else one.timestamp_type
        yield LogRecord(one.offset, ms, one.key, one.value, (), kind)


def seen(
    batches: Iterable[StoredBatch], aborted: Iterable[tuple[int, int]]
) -> Iterator[StoredBatch]:
    """Yield the batches that a consumer sees; without those of aborted transactions.

    `aborted` has the producer id and the first offset of each transaction that was aborted; of none
    where all records are to be seen.
    """
    begins = [(first, producer_id) for producer_id, first in aborted]
    heapify(begins)
    aborting: set[int] = set()
    for batch in batches:
        while begins and begins[0][0] <= batch.last_offset:
            aborting.add(heappop(begins)[1])
        if batch.is_control:
            if batch.producer_id in aborting and batch.is_abort():
                aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            yield batch


class LogRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int = CREATE_TIME


@dataclass(frozen=True, slots=True)
class Places:
    """Where byte strings stand in `data`, in that order."""

    data: bytes
    starts: Longs
    lengths: Longs  # -1 for null

    def each(self) -> list[bytes | None]:
        data = self.data
        return [
            None if length < 0 else data[start : start + length]
            for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        ]

    def part(self, which: slice) -> Places:
        return Places(self.data, self.starts[which], self.lengths[which])


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records in columns, in the order of their offsets."""

    offsets: Longs
    timestamps_ms: Longs
    timestamp_types: Longs
    keys: Places
    values: Places
    header_counts: Longs
    header_names: Places  # of all records, one after the other
    header_values: Places

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        """The bytes of keys, values and headers."""
        parts = (self.keys, self.values, self.header_names, self.header_values)
        return sum(int(np.maximum(part.lengths, 0).sum()) for part in parts)

    def between(self, first: int, stop: int) -> RecordColumns:
        """Return the records from `first` to before `stop`."""
        begin, end = (int(one) for one in np.searchsorted(self.offsets, (first, stop)))
        return self.part(begin, end)

    def part(self, begin: int, end: int) -> RecordColumns:
        """Return the records from a place to before another."""
        if (begin, end) == (0, len(self)):
            return self
        which = slice(begin, end)
        before = int(self.header_counts[:begin].sum())
        of_headers = slice(before, before + int(self.header_counts[which].sum()))
        return RecordColumns(
            self.offsets[which],
            self.timestamps_ms[which],
            self.timestamp_types[which],
            self.keys.part(which),
            self.values.part(which),
            self.header_counts[which],
            self.header_names.part(of_headers),
            self.header_values.part(of_headers),
        )

    def rows(self) -> Iterator[LogRecord]:
        headers = iter(self._headers())
        for offset, ms, key, value, count, kind in zip(
            self.offsets.tolist(),
            self.timestamps_ms.tolist(),
            self.keys.each(),
            self.values.each(),
            self.header_counts.tolist(),
            self.timestamp_types.tolist(),
            strict=True,
        ):
            own = tuple(next(headers) for _ in range(count)) if count else ()
            yield LogRecord(offset, ms, key, value, own, kind)

    def _headers(self) -> Iterable[tuple[str, bytes | None]]:
        names, values = self.header_names.each(), self.header_values.each()
        return ((java_text(name or b""), value) for name, value in zip(names, values, strict=True))


def java_text(raw: bytes) -> str:
    """Return a header's name as Java's client reads it: what is no UTF-8 is U+FFFD.

    Python has one for each byte of a surrogate, and Java one for all three.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _SURROGATES.sub(_REPLACED, raw).decode(errors="replace")


def columns_of(batches: Sequence[StoredBatch], most_bytes: int | None = None) -> RecordColumns:
    """Return the records of batches in columns; of at most so many bytes once unpacked.

    Raises:
        ReadTooLargeError: There are more; or one of before version 2, which does not say its size,
            is compressed, and there is a limit.
        RetriableError: What the broker has sent is damaged.
    """
    return next(columns_in_pieces(batches, most_bytes, MOST_BYTES))


def columns_in_pieces(
    batches: Sequence[StoredBatch], most_bytes: int | None, piece_bytes: int
) -> Iterator[RecordColumns]:
    """Yield the records of batches in columns, some batches at once; see `columns_of`.

    A piece ends with the batch by which it has so many bytes. The batches behind it are not
    unpacked before the next piece is asked for. Without batches there is one piece, and it is
    empty.
    """
    some: list[StoredBatch] = []
    unpacked: list[Buffer] = []
    left, size = most_bytes, 0
    for batch in batches:
        if left is not None and batch.hides_its_size:
            raise ReadTooLargeError(left)
        some.append(batch)
        unpacked.append(unpacked_records(batch, MOST_BYTES - size if left is None else left))
        size += len(unpacked[-1])
        if left is not None:
            left -= len(unpacked[-1])
        if size >= piece_bytes:
            yield _of_batches(some, unpacked)
            some, unpacked, size = [], [], 0
    if some or not batches:
        yield _of_batches(some, unpacked)


def _of_batches(batches: Sequence[StoredBatch], unpacked: Sequence[Buffer]) -> RecordColumns:
    if any(batch.magic < MAGIC for batch in batches):
        return _of_rows([row for batch in batches for row in batch.rows()])
    try:
        return _columns(b"".join((*unpacked, _PADDING)), batches, unpacked)
    except (IndexError, ValueError, OverflowError) as error:
        first, last = batches[0].base_offset, batches[-1].last_offset
        raise RetriableError(f"records from {first} to {last}: {error}") from error


def unpacked_records(batch: StoredBatch, most_bytes: int = MOST_BYTES) -> Buffer:
    """Return a batch's records, unpacked into at most so many bytes."""
    data = batch.data
    try:
        match batch.attributes & _CODEC:
            case 0:
                found: Buffer = data
            case 1:
                found = _gunzipped(data, most_bytes)
            case 2:
                found = _unsnapped(data, most_bytes)
            case 3:
                found = _grown(cramjam.lz4.decompress_into, data, most_bytes)
            case 4:
                found = _grown(cramjam.zstd.decompress_into, data, most_bytes)
            case other:
                raise RetriableError(
                    f"the batch at offset {batch.base_offset} has the unknown compression code "
                    f"{other}: known codes are {COMPRESSION_CODES}"
                )
    except (cramjam.DecompressionError, zlib.error, struct.error) as error:
        raise RetriableError(
            f"the batch at offset {batch.base_offset} cannot be unpacked: {error}"
        ) from error
    if len(found) > most_bytes:
        raise ReadTooLargeError(most_bytes)
    return found


def _gunzipped(data: memoryview, most_bytes: int) -> bytes:
    found, rest = bytearray(), bytes(data)
    while rest:
        one = zlib.decompressobj(_GZIP)
        found += one.decompress(rest, most_bytes + 1 - len(found))
        if len(found) > most_bytes:
            raise ReadTooLargeError(most_bytes)
        if not one.eof:
            raise zlib.error("it ends within the data")
        rest = one.unused_data
    return bytes(found)


def _unsnapped(data: memoryview, most_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        blocks = [data]
    else:
        blocks, at = [], _XERIAL_HEADER
        while at < len(data):
            (length,) = LENGTH.unpack_from(data, at)
            blocks.append(data[at + 4 : at + 4 + length])
            at += 4 + max(length, 0)
    if sum(cramjam.snappy.decompress_raw_len(bytes(block)) for block in blocks) > most_bytes:
        raise ReadTooLargeError(most_bytes)
    return b"".join(bytes(cramjam.snappy.decompress_raw(bytes(block))) for block in blocks)


def _grown(decompress_into: Any, data: memoryview, most_bytes: int) -> memoryview:
    """Unpack into growing room up to a limit: the size in the data is not trusted."""
    packed, room = bytes(data), max(_FIRST_ROOM, _GROWTH * len(data))
    while True:
        found = bytearray(min(room, most_bytes))
        try:
            return memoryview(found)[: decompress_into(packed, found)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if room >= most_bytes:
                raise ReadTooLargeError(most_bytes) from error
        room *= _GROWTH


def _of_rows(rows: Sequence[Record]) -> RecordColumns:
    headers = [header for row in rows for header in row.headers]
    return RecordColumns(
        np.array([row.offset for row in rows], np.int64),
        np.array([row.timestamp for row in rows], np.int64),
        np.array([row.timestamp_type for row in rows], np.int64),
        _placed([row.key for row in rows]),
        _placed([row.value for row in rows]),
        np.array([len(row.headers) for row in rows], np.int64),
        _placed([name.encode() for name, _ in headers]),
        _placed([value for _, value in headers]),
    )


def _placed(parts: Sequence[bytes | None]) -> Places:
    lengths = np.array([-1 if part is None else len(part) for part in parts], np.int64)
    taken = np.maximum(lengths, 0)
    return Places(b"".join(part for part in parts if part), np.cumsum(taken) - taken, lengths)


def _columns(
    data: bytes, batches: Sequence[StoredBatch], unpacked: Sequence[Buffer]
) -> RecordColumns:
    counts = [batch.count for batch in batches]
    starts, ends = _extents(data, counts, [len(one) for one in unpacked])
    raw = np.frombuffer(data, np.uint8)
    deltas_ms, at = _varints(raw, starts + 1)  # skip the attributes, which are unused
    deltas, at = _varints(raw, at)
    keys, at = _bytes_at(data, raw, at)
    values, at = _bytes_at(data, raw, at)
    header_counts, at = _varints(raw, at)
    names, header_values, at = _headers(data, raw, at, header_counts, ends)
    if not np.array_equal(at, ends):
        raise ValueError("a record does not end where it should")

    def each(numbers: Iterable[int]) -> Longs:
        return np.repeat(np.array([*numbers], np.int64), counts)

    by_broker = each(batch.attributes & _BY_THE_BROKER for batch in batches) > 0
    own_ms = each(batch.first_ms for batch in batches) + deltas_ms
    times_ms = np.where(by_broker, each(batch.max_ms for batch in batches), own_ms)
    offsets = each(batch.base_offset for batch in batches) + deltas
    return RecordColumns(
        offsets,
        times_ms,
        by_broker.astype(np.int64),
        keys,
        values,
        header_counts,
        names,
        header_values,
    )


def _extents(data: bytes, counts: Sequence[int], sizes: Sequence[int]) -> tuple[Longs, Longs]:
    """Return where records begin, behind their lengths, and where they end."""
    starts: list[int] = []
    ends: list[int] = []
    at = stop = 0
    for count, size in zip(counts, sizes, strict=True):
        stop += size
        for _ in range(count):
            length, second = data[at], data[at + 1]
            if length < CONTINUED:
                length, at = length >> 1 ^ -(length & 1), at + 1
            elif second < CONTINUED:  # most records have 64 to 8,191 bytes
                length += (second << VARINT_BITS) - CONTINUED
                length, at = length >> 1 ^ -(length & 1), at + 2
            else:
                length, at = _varint(data, at)
            starts.append(at)
            at += length
            if length < 1 or at > stop:
                raise ValueError(f"a record of {length} bytes")
            ends.append(at)
        if at != stop:
            raise ValueError(f"{stop - at} bytes after the last record")
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number, end = read_varint(memoryview(data[at : at + _MOST_VARINT]), 0)
    return number, at + end


def _varints(raw: Any, at: Longs) -> tuple[Longs, Longs]:
    """Return the numbers in zigzag varints, and the position behind each."""
    first = raw[at]
    found = (first & (CONTINUED - 1)).astype(np.uint64)
    ends = at + 1
    more = np.flatnonzero(first >= CONTINUED)
    for place in range(1, _MOST_VARINT):
        if not len(more):
            break
        following = raw[ends[more]]
        ends[more] += 1
        group = (following & (CONTINUED - 1)).astype(np.uint64)
        found[more] |= group << np.uint64(VARINT_BITS * place)
        more = more[following >= CONTINUED]
    if len(more):
        raise ValueError("a number of more than 64 bits")
    one = np.uint64(1)
    return ((found >> one) ^ (np.uint64(0) - (found & one))).view(np.int64), ends


def _bytes_at(data: bytes, raw: Any, at: Longs) -> tuple[Places, Longs]:
    """Return the byte strings that begin with their lengths, and where they end."""
    lengths, starts = _varints(raw, at)
    ends = starts + np.maximum(lengths, 0)
    if len(ends) and (int(lengths.min()) < -1 or int(ends.max()) > len(data) - len(_PADDING)):
        raise ValueError("a key, value or header of an impossible length")
    return Places(data, starts, lengths), ends


def _headers(
    data: bytes, raw: Any, at: Longs, counts: Longs, ends: Longs
) -> tuple[Places, Places, Longs]:
    """Return all headers' names and values, and where each record's headers end."""
    if (counts < 0).any() or (counts > ends - at).any():
        raise ValueError("an impossible number of headers")
    total, first = int(counts.sum()), np.cumsum(counts) - counts
    starts, lengths = np.zeros((2, 2, total), np.int64)
    at = at.copy()
    for number in range(min(int(counts.max(initial=0)), _HEADERS_AT_ONCE)):
        own = np.flatnonzero(counts > number)
        place, here = first[own] + number, at[own]
        for part in (0, 1):
            found, here = _bytes_at(data, raw, here)
            starts[part, place], lengths[part, place] = found.starts, found.lengths
        at[own] = here
    for record in np.flatnonzero(counts > _HEADERS_AT_ONCE).tolist():
        here_at, stop = int(at[record]), int(ends[record])
        begin, behind = int(first[record]), int(first[record] + counts[record])
        for header in range(begin + _HEADERS_AT_ONCE, behind):
            for part in (0, 1):
                length, here_at = _varint(data, here_at)
                starts[part, header], lengths[part, header] = here_at, length
                here_at += max(length, 0)
                if length < -1 or here_at > stop:
                    raise ValueError("a header of an impossible length")
        at[record] = here_at
    return Places(data, starts[0], lengths[0]), Places(data, starts[1], lengths[1]), at
