"""Sorted tables of keys, a file each: blocks that are read when asked for, and an index of them.

::

    blocks of keys    Arrow record batches of `KEY_SCHEMA`, by key; no key twice
    blocks of timers  Arrow record batches of `TIMER_SCHEMA`, by time, then by key
    checksums         of a table of changes: those of its keys, sorted
    index             an Arrow stream of `_INDEX_SCHEMA`: one row a block, and the table's step
    tail              where the index is, its checksum, the format, and a mark

Each part has a checksum, by which a reader sees damage. It finds a key by the first keys of blocks,
and reads one block. It reads none of changes that have no key with the checksum.
"""

from __future__ import annotations

import itertools
import struct
import tempfile
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.base.portions import portions
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.documents import DRAIN_FIRST, damaged
from sequitur.pipelines.store.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


KEY_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("entry", pa.binary()), ("timer_ms", pa.int64())]
)
"""A key with its entry, null of one that is gone, and its earliest timer, null without one."""
TIMER_SCHEMA: Final = pa.schema([("timer_ms", pa.int64()), ("key", pa.binary())])
_INDEX_SCHEMA: Final = pa.schema(
    [
        ("part", pa.uint8()),  # one of the parts below
        ("first_key", pa.binary()),
        ("first_ms", pa.int64()),  # null where it is not of timers
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("checksum", pa.uint32()),
        ("rows", pa.int64()),
    ]
)
_KEYS, _TIMERS, _CHECKSUMS = range(3)
_STEP: Final = b"step"
KEYS_FORMAT: Final = 1
_MARK: Final = b"SeqKeys\n"
_TAIL: Final = struct.Struct(">QQII8s")  # of the index: offset, length, checksum; format, mark
_TAIL_BYTES_AT_ONCE: Final = 256 << 10
"""A table's end is read at once: the index of a million keys is smaller."""
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """About how many bytes are handled at once."""

    block_bytes: int = 64 << 10
    blocks_bytes: int = 2 << 20  # blocks that are read, or written, together
    timers_bytes: int = 16 << 20  # timers that wait to be sorted; more go to a temporary file


KEY_LIMITS: Final = KeyLimits()


class _Block(NamedTuple):
    offset: int
    length: int
    checksum: int
    rows: int


class KeyTable:
    """Reads a table. Errors are `CheckpointError` and name the file."""

    def __init__(self, source: Location | bytes) -> None:
        self.source = source
        with self._open() as file:
            self.size_bytes = file.size()
            index = self._index(file)
        self.step = int(index.schema.metadata[_STEP])
        """The newest step whose changes are in it."""
        parts = index.column("part").to_numpy().searchsorted([_TIMERS, _CHECKSUMS]).tolist()
        keys, timers, checksums = (
            index.slice(begin, end - begin)
            for begin, end in itertools.pairwise([0, *parts, index.num_rows])
        )
        self.first_keys: list[bytes] = keys.column("first_key").to_pylist()
        self.first_timers_ms: list[int] = timers.column("first_ms").to_pylist()
        self._key_blocks, self._timer_blocks = _blocks(keys), _blocks(timers)
        # Checksums of all keys; None of a base, most of whose keys are asked for.
        self._checksums: memoryview | None = None
        for content in self._read(_blocks(checksums)):
            self._checksums = memoryview(content).cast("I")

    def __str__(self) -> str:
        return (
            "changes in a step's document" if isinstance(self.source, bytes) else f"{self.source}"
        )

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self._key_blocks)

    def may_have(self, key: bytes) -> bool:
        if self._checksums is None:
            return True
        checksum = zlib.crc32(key)
        place = bisect_left(self._checksums, checksum)
        return place < len(self._checksums) and self._checksums[place] == checksum

    def likely(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """Return the keys that it may have: all of its own, and few others."""
        if self._checksums is None or not keys:
            return keys
        known = np.asarray(self._checksums)
        asked = np.fromiter(map(zlib.crc32, keys), np.uint32, len(keys))
        places = np.minimum(known.searchsorted(asked), len(known) - 1)
        return [*itertools.compress(keys, (known[places] == asked).tolist())]

    def rows_of(self, keys: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], pa.RecordBatch]]:
        """Yield stretches of keys, which are in order, and the rows in which they are, if anywhere.

        Blocks that follow each other are read at once.
        """
        asked: list[tuple[int, Sequence[bytes]]] = []  # by block
        at = 0
        while at < len(keys):
            number = self.block_of(keys[at])
            end = len(keys)
            if number + 1 < len(self.first_keys):
                end = bisect_left(keys, self.first_keys[number + 1], at)
            if number >= 0:
                asked.append((number, keys[at:end]))
            at = end
        neighbours = portions(
            asked,
            lambda one: self._key_blocks[one[0]].length,
            KEY_LIMITS.blocks_bytes,
            is_beside=lambda last, one: last[0] + 1 == one[0],
        )
        for some in neighbours:
            blocks = self._read([self._key_blocks[number] for number, _ in some])
            for (_, own), block in zip(some, blocks, strict=True):
                yield own, pa.ipc.read_record_batch(block, KEY_SCHEMA)

    def block_of(self, key: bytes) -> int:
        """Return the number of the block in which a key is if it is anywhere; -1: in none."""
        return bisect_right(self.first_keys, key) - 1

    def keys(self, number: int) -> pa.RecordBatch:
        """Read a block of keys."""
        return self._read_rows([self._key_blocks[number]], KEY_SCHEMA)

    def timers(self, number: int) -> pa.RecordBatch:
        """Read a block of timers."""
        return self._read_rows([self._timer_blocks[number]], TIMER_SCHEMA)

    def batches(self, most_bytes: int = KEY_LIMITS.blocks_bytes) -> Iterator[pa.RecordBatch]:
        """Yield all keys in order, several blocks at once."""
        for some in portions(self._key_blocks, lambda block: block.length, most_bytes):
            yield self._read_rows(some, KEY_SCHEMA)

    def _open(self) -> pa.NativeFile:
        if isinstance(self.source, bytes):
            return pa.BufferReader(self.source)
        return open_file(self.source)

    def _index(self, file: pa.NativeFile) -> pa.RecordBatch:
        begin = max(0, self.size_bytes - _TAIL_BYTES_AT_ONCE)
        end = file.read_at(self.size_bytes - begin, begin)
        if len(end) < _TAIL.size or not end.endswith(_MARK):
            raise damaged(str(self), "it does not end as a table of keys does")
        offset, length, checksum, version, _ = _TAIL.unpack(end[-_TAIL.size :])
        if version != KEYS_FORMAT:
            raise CheckpointError(
                f"{self} cannot be read: it has format {version}, this version reads "
                f"{KEYS_FORMAT}: {DRAIN_FIRST}"
            )
        if offset + length + _TAIL.size != self.size_bytes:
            raise damaged(str(self), "a part of it is missing")
        if offset < begin:
            end = file.read_at(begin - offset, offset) + end
            begin = offset
        index = end[offset - begin : offset - begin + length]
        if zlib.crc32(index) != checksum:
            raise damaged(str(self), "the checksum of its index is wrong")
        return pa.ipc.open_stream(index).read_next_batch()

    def _read_rows(self, blocks: Sequence[_Block], schema: pa.Schema) -> pa.RecordBatch:
        several = [pa.ipc.read_record_batch(one, schema) for one in self._read(blocks)]
        return several[0] if len(several) == 1 else pa.concat_batches(several)

    def _read(self, blocks: Sequence[_Block]) -> Iterator[pa.Buffer]:
        """Read blocks that follow each other, at once."""
        if not blocks:
            return
        begin, last = blocks[0].offset, blocks[-1]
        with self._open() as file:
            file.seek(begin)
            content = file.read_buffer(last.offset + last.length - begin)
        for block in blocks:
            own = content.slice(min(block.offset - begin, content.size), block.length)
            if zlib.crc32(own) != block.checksum:
                raise damaged(str(self), f"the checksum of its bytes from {block.offset} is wrong")
            yield own


def _blocks(index: pa.RecordBatch) -> list[_Block]:
    columns = (index.column(name).to_pylist() for name in _Block._fields)
    return [_Block(*values) for values in zip(*columns, strict=True)]


class KeyTableWriter:
    """Writes a table; `close` ends it.

    Some MiB are in memory at once, and four bytes a key of changes.
    """

    def __init__(
        self, file: pa.NativeFile, step: int, *, is_base: bool, limits: KeyLimits = KEY_LIMITS
    ) -> None:
        self._file = file
        self._step = step
        self._limits = limits
        self._checksums: list[np.ndarray[Any, np.dtype[np.uint32]]] | None = None if is_base else []
        self._at = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._last_key: bytes | None = None
        self._timers = _SortedTimers(limits)
        self._index: list[tuple[Any, ...]] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Write keys of `KEY_SCHEMA`, all of them after those before.

        Raises:
            ValueError: The keys are not in order, or one comes twice.
        """
        if not rows.num_rows:
            return
        keys = rows.column("key")
        is_after = self._last_key is None or keys[0].as_py() > self._last_key
        if not is_after or not pc.all(pc.less(keys[:-1], keys[1:]), min_count=0).as_py():
            raise ValueError("keys of a table are in order, each once")
        self._last_key = keys[-1].as_py()
        if self._checksums is not None:
            checksums = map(zlib.crc32, keys.to_pylist())
            self._checksums.append(np.fromiter(checksums, np.uint32, len(keys)))
        self._timers.add(rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._limits.blocks_bytes // 2:
            self._write_waiting()

    def close(self) -> None:
        self._write_waiting()
        for rows in self._timers.batches():
            for block in _in_blocks(rows, self._limits.block_bytes):
                self._write_block(_TIMERS, block)
        if self._checksums:
            checksums = np.sort(np.concatenate(self._checksums))
            self._write(pa.py_buffer(checksums), _CHECKSUMS, None, None, len(checksums))
        columns = zip(*self._index, strict=True) if self._index else [()] * len(_INDEX_SCHEMA)
        schema = _INDEX_SCHEMA.with_metadata({_STEP: str(self._step)})
        arrays = [pa.array(one, of) for one, of in zip(columns, schema.types, strict=True)]
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema=schema))
        index = stream.getvalue()
        self._file.write(index)
        tail = self._at, index.size, zlib.crc32(index), KEYS_FORMAT, _MARK
        self._file.write(_TAIL.pack(*tail))

    def _write_waiting(self) -> None:
        if self._waiting:
            several = self._waiting
            rows = several[0] if len(several) == 1 else pa.concat_batches(several)
            for block in _in_blocks(rows, self._limits.block_bytes):
                self._write_block(_KEYS, block)
            self._waiting, self._waiting_bytes = [], 0

    def _write_block(self, part: int, rows: pa.RecordBatch) -> None:
        first_ms = rows.column("timer_ms")[0].as_py() if part == _TIMERS else None
        first_key = rows.column("key")[0].as_py()
        self._write(rows.serialize(), part, first_key, first_ms, rows.num_rows)

    def _write(
        self,
        content: pa.Buffer,
        part: int,
        first_key: bytes | None,
        first_ms: int | None,
        rows: int,
    ) -> None:
        self._file.write(content)
        where = self._at, content.size, zlib.crc32(content), rows
        self._index.append((part, first_key, first_ms, *where))
        self._at += content.size


def _in_blocks(rows: pa.RecordBatch, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield stretches of about so many bytes; a large entry has one of its own."""
    sizes = np.full(rows.num_rows, _NUMBER_BYTES, np.int64)
    for column in rows.columns:
        if pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    ends = np.cumsum(sizes)
    count = max(1, round(ends[-1] / block_bytes))
    marks = ends[-1] * np.arange(1, count) // count
    cuts = [0, *np.unique(ends.searchsorted(marks, "right")).tolist(), rows.num_rows]
    for begin, end in itertools.pairwise(cuts):
        if begin < end:
            yield rows.slice(begin, end - begin)


class _SortedTimers:
    """Sorts the timers of keys that come in order, in bounded memory."""

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._runs: list[Any] = []

    def add(self, rows: pa.RecordBatch) -> None:
        timers = rows.select(TIMER_SCHEMA.names)
        if timers.column("timer_ms").null_count:
            timers = timers.filter(timers.column("timer_ms").is_valid())
        if timers.num_rows:
            self._waiting.append(timers)
            self._waiting_bytes += timers.nbytes
        if self._waiting_bytes >= self._limits.timers_bytes:
            self._runs.append(_temporary(_by_time(self._waiting), self._limits.block_bytes))
            self._waiting, self._waiting_bytes = [], 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all timers by time, then by key."""
        sources = [_read_temporary(run) for run in self._runs]
        if self._waiting:
            sources.append(iter([_by_time(self._waiting)]))
        for window in windows(sources, ("timer_ms", "key")):
            # Each run has greater keys than the one before it, so a stable sort keeps their order.
            yield window[0] if len(window) == 1 else _by_time(window)


def _by_time(several: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    rows = pa.concat_batches(several)
    return rows.take(pa.array(_stable_order(rows.column("timer_ms").to_numpy())))


def _stable_order(times: Longs) -> Longs:
    count, first = len(times), int(times.min())
    if int(times.max()) - first >= (1 << 63) // count - 1:
        return np.argsort(times, kind="stable")
    # Several times as fast: each number has its place in it, so none comes twice.
    return np.sort((times - first) * count + np.arange(count)) % count


def _temporary(rows: pa.RecordBatch, block_bytes: int) -> Any:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - its reader closes it
    with pa.ipc.new_stream(file, TIMER_SCHEMA) as writer:
        for block in _in_blocks(rows, block_bytes):
            writer.write_batch(block)
    file.seek(0)
    return file


def _read_temporary(file: Any) -> Iterator[pa.RecordBatch]:
    with file, pa.ipc.open_stream(file) as stream:
        yield from stream


def windows(
    sources: Sequence[Iterator[pa.RecordBatch]], by: Sequence[str]
) -> Iterator[list[pa.RecordBatch]]:
    """Yield what sorted sources have of one stretch of the order after the other.

    A window keeps the order of the sources. One batch of each source is in memory.
    """
    heads = [next(source, None) for source in sources]
    while several := [head for head in heads if head is not None]:
        end = min(_place(head, head.num_rows - 1, by) for head in several)
        window = []
        for number, head in enumerate(heads):
            if head is None:
                continue
            count = _rows_up_to(end, head, by)
            if count:
                window.append(head.slice(0, count))
            heads[number] = (
                head.slice(count) if count < head.num_rows else next(sources[number], None)
            )
        yield window


def _rows_up_to(end: tuple[Any, ...], rows: pa.RecordBatch, by: Sequence[str]) -> int:
    return bisect_right(range(rows.num_rows), end, key=lambda row: _place(rows, row, by))


def _place(rows: pa.RecordBatch, row: int, by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(rows.column(name)[row].as_py() for name in by)
