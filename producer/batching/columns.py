"""Many events at once: checked, spread over partitions and laid out a column at a time.

A loop over records costs about a microsecond each, most of it the interpreter's. Here Arrow does
the work: the keys and values of a chunk become two arrays, sorted by partition, and an element-wise
join of columns lays out all records of the chunk at once; each batch gets its slice of that. The
bytes are the same as the builder's of single records; a test holds the two together.

It runs in the loop's thread: in another each of its two dozen calls would wait for the
interpreter's lock, which took three times as long as the work.

Only records that are alike are taken: see `columns_of`. All others are added one by one, which also
says of each invalid record what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.kafka.record_format import (
    BUILT_HEADER,
    HEADER_SIZE,
    NOT_IN_LENGTH,
    NULL,
    RECORD_ATTRIBUTES,
    RECORD_OVERHEAD,
    varint,
)
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.kafka.varint_arrays import TABLE_SIZE, VARINTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.kafka.partition import KeyPartitioner
    from sequitur.kafka.record_batch import Header
    from sequitur.producer._record import Record

_TWO_BYTES: Final = TABLE_SIZE
"""No number in such a batch needs more than two bytes as a varint."""
_ONE_BYTE: Final = 1 << 6
_SHORT: Final = 1 << 15
_KEY_KINDS: Final = ({bytes}, {type(None)})


@dataclass(frozen=True, slots=True)
class Columns:
    """A chunk of events that are alike, sorted by partition."""

    # the partitions that have events, ascending; None is the sticky one
    partitions: Sequence[int | None]
    ends: Sequence[int]  # where the events of each of these end
    order: np.ndarray[Any, np.dtype[np.int64]]  # for each event its place in the chunk
    keys: Any  # arrow array of their keys; None if none has one
    values: Any  # arrow array of their values
    sizes: np.ndarray[Any, np.dtype[np.int64]]  # bytes of each event, at most
    headers: bytes


def columns_of(
    records: Sequence[Record], partitioner: KeyPartitioner, id_prefix: bytes, first_event: int
) -> Columns | None:
    """Return the records as columns; None if they are not alike enough.

    Records are alike if their values are bytes, their keys all bytes or all None, they share one
    `headers`, name no partition and no timestamp, are small, and their event numbers have the same
    number of digits.
    """
    digits = len(str(first_event))
    raw_keys = [record.key for record in records]
    raw_values = [record.value for record in records]
    if (
        set(map(type, raw_values)) != {bytes}
        or set(map(type, raw_keys)) not in _KEY_KINDS
        or not _are_alike(records)
        or len(str(first_event + len(records) - 1)) != digits
    ):
        return None
    headers = _encoded_headers(records[0].headers, id_prefix, len(id_prefix) + digits)
    if headers is None:
        return None
    values = pa.array(raw_values, pa.binary())
    sizes = pc.binary_length(values).to_numpy() + np.int64(RECORD_OVERHEAD + len(headers) + digits)
    keyed = raw_keys[0] is not None
    if keyed:
        keys = pa.array(raw_keys, pa.binary())
        sizes += pc.binary_length(keys).to_numpy()
    if sizes.max() >= _TWO_BYTES:
        return None
    if not keyed:
        everywhere = np.arange(len(records))
        return Columns([None], [len(records)], everywhere, None, values, sizes, headers)
    places = partitioner.each(raw_keys)  # type: ignore[arg-type]  # all are bytes
    if partitioner.partitions <= _SHORT:
        places = places.astype(np.int16)  # which numpy sorts by radix
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places)
    partitions = np.flatnonzero(counts)
    return Columns(
        partitions.tolist(),
        np.cumsum(counts)[partitions].tolist(),
        order,
        keys.take(pa.array(order)),
        values.take(pa.array(order)),
        sizes[order],
        headers,
    )


def _are_alike(records: Sequence[Record]) -> bool:
    """Return whether they agree in all that is no column."""
    headers = records[0].headers
    # A list, since a generator would cost twice as much, and few lists have an odd one.
    return not [
        record
        for record in records
        if record.headers is not headers
        or record.partition is not None
        or record.timestamp_ms is not None
    ]


def _encoded_headers(headers: Sequence[Header], id_prefix: bytes, id_length: int) -> bytes | None:
    """Return the headers on the wire up to the event id's digits; None if one is invalid."""
    parts = [varint(len(headers) + 1)]
    try:
        for name, value in (*headers, (EVENT_ID_HEADER, id_prefix)):
            raw = name.encode()
            parts += [varint(len(raw)), raw, NULL if value is None else varint(len(value))]
            if value is not None:
                if type(value) is not bytes:
                    return None
                parts.append(value)
    except (TypeError, ValueError, AttributeError):
        return None
    parts[-2] = varint(id_length)
    return b"".join(parts)


class BulkBuilder:
    """Build a batch of slices of columns, as aiokafka's builder does of records."""

    __slots__ = ("_batch_bytes", "_first_ms", "_last_ms", "_parts", "_size", "count")

    def __init__(self, batch_bytes: int, timestamp_ms: int) -> None:
        self.count = 0
        self._batch_bytes = batch_bytes
        self._first_ms = self._last_ms = timestamp_ms
        self._size = HEADER_SIZE
        self._parts: list[Any] = []

    def append(self, *_record: object) -> None:
        """Take no single record: they go to a batch of their own."""

    def reserve(self, columns: Columns, start: int, end: int, timestamp_ms: int) -> Piece | None:
        """Take in as many of the events from `start` to before `end` as fit; None if none does.

        Call `fill` with their bytes before anything else.
        """
        delta_ms = timestamp_ms - self._first_ms
        if not 0 <= delta_ms < _TWO_BYTES:
            return None
        reached = np.cumsum(columns.sizes[start:end])
        fit = int(np.searchsorted(reached, self._batch_bytes - self._size, side="right"))
        fit = min(fit, _TWO_BYTES - self.count)
        if not fit:
            return None
        piece = Piece(self, start, start + fit, self.count, varint(delta_ms))
        self._last_ms = max(self._last_ms, timestamp_ms)
        self._size += int(reached[fit - 1])
        self.count += fit
        return piece

    def fill(self, records: Any) -> None:
        """Add the bytes of the events that `reserve` took in last."""
        self._parts.append(records)

    def size(self) -> int:
        """Return the size so far with the header, at most."""
        return self._size

    def build(self) -> bytes:
        """Return the batch, uncompressed; may be called in any thread."""
        length = HEADER_SIZE - NOT_IN_LENGTH + sum(map(len, self._parts))
        head = BUILT_HEADER.pack(
            0, length, 0, self.count - 1, self._first_ms, self._last_ms, self.count
        )
        return b"".join((head, *self._parts))


@dataclass(frozen=True, slots=True)
class Piece:
    """Events of a chunk that go into one batch, one after the other."""

    builder: BulkBuilder
    start: int  # the first of them in the columns
    end: int  # the index after the last of them
    first_offset: int  # the place of the first in the batch
    delta: bytes  # their timestamp delta on the wire


def fill(columns: Columns, pieces: Sequence[Piece], first_event: int) -> None:
    """Lay out the events and add them to their batches."""
    values, keys = columns.values, columns.keys
    counts = [piece.end - piece.start for piece in pieces]
    ids = pa.array(columns.order + first_event).cast(pa.string()).cast(pa.binary())
    offsets = np.concatenate(
        [np.arange(p.first_offset, p.first_offset + n) for p, n in zip(pieces, counts, strict=True)]
    )
    deltas, delta_widths = _spread([piece.delta for piece in pieces], counts)
    value_lengths = pc.binary_length(values).to_numpy()
    lengths = value_lengths + pc.binary_length(ids).to_numpy()
    # Attributes, and of offset delta, key length and value length one byte at least.
    lengths += len(columns.headers) + 4
    lengths += offsets >= _ONE_BYTE
    lengths += value_lengths >= _ONE_BYTE
    lengths += delta_widths
    key: tuple[Any, ...] = (NULL,)
    if keys is not None:
        key_lengths = pc.binary_length(keys).to_numpy()
        lengths += key_lengths
        lengths += key_lengths >= _ONE_BYTE
        key = (VARINTS.take(pa.array(key_lengths)), keys)
    laid_out = pc.binary_join_element_wise(
        VARINTS.take(pa.array(lengths)),
        RECORD_ATTRIBUTES,
        deltas,
        VARINTS.take(pa.array(offsets)),
        *key,
        VARINTS.take(pa.array(value_lengths)),
        values,
        columns.headers,
        ids,
        b"",
    )
    _, ends, records = laid_out.buffers()
    place = np.frombuffer(ends, np.int32, len(laid_out) + 1)
    view = memoryview(records)
    for piece in pieces:
        piece.builder.fill(view[place[piece.start] : place[piece.end]])


def _spread(of_pieces: list[bytes], counts: list[int]) -> tuple[Any, Any]:
    """Return its piece's bytes for each event, and their lengths: one value if all are equal."""
    if len(set(of_pieces)) == 1:
        return of_pieces[0], len(of_pieces[0])
    places = np.repeat(np.arange(len(counts)), counts)
    spread = pa.array(of_pieces, pa.binary()).take(pa.array(places))
    return spread, pc.binary_length(spread).to_numpy()
