"""What a task of a keyed bolt keeps, in files: a base, and changes of later steps.

A file is a `key_table`, and never changes. The newest one that has a key says what the key is. A
step writes its changes into a file. Beside the steps, files are merged: changes with each other, or
all of them into a new base, which has no keys that are gone. No document names a merged file before
it is whole, so a merge that was interrupted begins again.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.pipelines.store.storage import Location, sync, written
from sequitur.pipelines.topology.key_table import (
    KEY_LIMITS,
    KEY_SCHEMA,
    KeyTable,
    KeyTableWriter,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sequitur.consumer.topology.engine.key_store import KeyChange
    from sequitur.pipelines.topology.key_table import KeyLimits


Source: TypeAlias = Location | bytes
"""Where a file is, or what is in it: a step's document holds a small one itself."""
_MEMORY_BYTES: Final = 64 << 20
_KEPT_BYTES: Final = 250
"""A key and its entry take so much more in a dict than their bytes."""
_FIRST_TIMERS: Final = 16
_NO_STEP: Final = -1
_END_OF_TIME_MS: Final = (1 << 63) - 1
_K = TypeVar("_K")
_V = TypeVar("_V")


class KeyFiles:
    """The keys of one task, a `KeyStore`. One thread at a time uses it.

    All that it has in memory is in files, too. So what was not used for a while is forgotten, and
    read again.
    """

    def __init__(
        self,
        base: Source | None,
        changes: Sequence[Source],
        *,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        """Open the files that a document names.

        Args:
            base: The file that `merge` wrote last; None before the first.
            changes: Those of later steps, the oldest first.
            memory_bytes: About how much the keys and blocks that are kept may take. Indexes are
                not in it: they take about 1/500 of the files.

        Raises:
            CheckpointError: A file is damaged, or has another format. So do all other methods.
        """
        self._tables: list[KeyTable] = []  # the newest first
        self._kept: _Recent[bytes, _Kept] = _Recent(_kept_bytes)
        self._blocks: _Recent[tuple[KeyTable, bool, int], _Block] = _Recent(
            lambda _, block: block.size_bytes
        )
        self.memory_bytes = memory_bytes
        self.run = ""  # the run of a step that had it last
        # First timers of tables that are passed over for good: a number of a block, and of a row.
        self._passed: dict[KeyTable, tuple[int, int]] = {}
        self.follow(base, changes)

    @property
    def memory_bytes(self) -> int:
        return self._kept.most_bytes + self._blocks.most_bytes

    @memory_bytes.setter
    def memory_bytes(self, most: int) -> None:
        """Keep less or more in memory from now on."""
        # Most keys are read in columns, which leave no blocks.
        self._blocks.most_bytes = most // 4
        self._kept.most_bytes = most - most // 4

    def follow(self, base: Source | None, changes: Sequence[Source]) -> None:
        """Catch up with the files that the document of a later step names."""
        opened = {table.source: table for table in self._tables}
        step = self.step
        sources = [*reversed(changes), *([] if base is None else [base])]
        self._tables = [opened.get(one) or KeyTable(one) for one in sources]
        self._passed = {one: self._passed[one] for one in self._tables if one in self._passed}
        missed = [table for table in self._tables if table.step > step]
        # A base does not say which keys have changed since. The first files are not read through.
        is_base_ahead = base is not None and self._tables[-1] in missed
        if not opened or is_base_ahead or self.step < step:
            self._kept.clear()
            self._passed.clear()
        else:
            for table in reversed(missed):
                self._catch_up(table)

    @property
    def step(self) -> int:
        """The newest step whose changes are here; -1 before the first."""
        return max((table.step for table in self._tables), default=_NO_STEP)

    def get(self, key: bytes) -> bytes | None:
        found = self._kept.get(key)
        if found is None:
            found = self._read(key, self._tables) or _NOTHING
            self._kept.put(key, found)
        return found.entry

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        kept = [self._kept.get(key) for key in keys]
        unread = [key for key, one in zip(keys, kept, strict=True) if one is None]
        found = self._read_all(unread)
        for key in unread:
            self._kept.put(key, found.get(key, _NOTHING))
        return [
            (found.get(key, _NOTHING) if one is None else one).entry
            for key, one in zip(keys, kept, strict=True)
        ]

    def range(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        last = None
        sources = (self._rows(age, low, high) for age in range(len(self._tables)))
        for key, _, entry in heapq.merge(*sources):
            if key != last and entry is not None:
                yield key, entry
            last = key

    def due(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        last = None
        sources = (self._timers(age, until_ms) for age in range(len(self._tables)))
        for timer in heapq.merge(*sources):
            if timer != last:  # a key's later change may have the same timer
                yield timer
            last = timer

    def next_timer_ms(self) -> int | None:
        firsts = (
            next(self._timers(age, _END_OF_TIME_MS), None) for age in range(len(self._tables))
        )
        return min((first[0] for first in firsts if first is not None), default=None)

    def _catch_up(self, table: KeyTable) -> None:
        for rows in table.batches():
            for key, *kept in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                self._kept.put(key, _Kept(*kept))

    def _read(self, key: bytes, tables: Sequence[KeyTable]) -> _Kept | None:
        for table in tables:
            number = table.block_of(key) if table.may_have(key) else -1
            if number >= 0:
                block = self._block(table, number)
                row = block.row_of(key)
                if row < len(block) and block.key(row) == key:
                    return _Kept(block.value("entry", row), block.value("timer_ms", row))
        return None

    def _read_all(self, keys: Sequence[bytes]) -> dict[bytes, _Kept]:
        """Read keys, which are in order: by table in columns."""
        found: dict[bytes, _Kept] = {}
        for table in self._tables:
            for some, rows in table.rows_of(table.likely(keys)):
                places = pc.index_in(pa.array(some, pa.binary()), value_set=rows.column("key"))
                is_here = places.is_valid()
                here = pc.filter(places, is_here)
                entries, times = (
                    rows.column(name).take(here).to_pylist() for name in ("entry", "timer_ms")
                )
                own = itertools.compress(some, is_here.to_pylist())
                found.update(zip(own, map(_Kept, entries, times), strict=True))
            keys = [key for key in keys if key not in found]
        return found

    def _rows(
        self, age: int, low: bytes, high: bytes | None
    ) -> Iterator[tuple[bytes, int, bytes | None]]:
        table = self._tables[age]
        for number in range(max(0, table.block_of(low)), len(table.first_keys)):
            if high is not None and table.first_keys[number] >= high:
                return
            block = self._block(table, number)
            end = len(block) if high is None else block.row_of(high)
            for row in range(block.row_of(low), end):
                yield block.key(row), age, block.value("entry", row)

    def _timers(self, age: int, until_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield a table's timers that newer tables do not replace."""
        table = self._tables[age]
        begin, row = self._passed.get(table, (0, 0))
        are_replaced = True
        for number in range(begin, len(table.first_timers_ms)):
            if table.first_timers_ms[number] > until_ms:
                return
            block = self._block(table, number, are_timers=True)
            for timers in block.timers(row):
                for timer, is_replaced in zip(timers, self._are_replaced(timers, age), strict=True):
                    if timer[0] > until_ms:
                        return
                    row += 1
                    if not is_replaced:
                        are_replaced = False
                        yield timer
                    elif are_replaced:
                        self._passed[table] = number, row
            row = 0
            if are_replaced:
                self._passed[table] = number + 1, 0

    def _are_replaced(self, timers: Sequence[tuple[int, bytes]], age: int) -> Iterator[bool]:
        keys, newer = [key for _, key in timers], self._tables[:age]
        likely = {key for table in newer for key in table.likely(keys)}
        for timer_ms, key in timers:
            kept = self._kept.get(key) if age else None
            if kept is None:
                yield key in likely and self._read(key, newer) is not None
            else:
                yield kept.timer_ms != timer_ms

    def _block(self, table: KeyTable, number: int, *, are_timers: bool = False) -> _Block:
        place = table, are_timers, number
        block = self._blocks.get(place)
        if block is None:
            block = _Block(table.timers(number) if are_timers else table.keys(number))
            self._blocks.put(place, block)
        return block


class _Kept(NamedTuple):
    entry: bytes | None
    timer_ms: int | None


_NOTHING: Final = _Kept(None, None)


def _kept_bytes(key: bytes, kept: _Kept) -> int:
    return _KEPT_BYTES + len(key) + len(kept.entry or b"")


class _Block:
    """A block in memory; values are made one by one."""

    __slots__ = ("_columns", "_ends", "_keys", "size_bytes")

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        keys = self._columns["key"]
        _, ends, content = keys.buffers()
        self._ends = memoryview(ends).cast("i")[keys.offset : keys.offset + len(keys) + 1]
        self._keys = memoryview(content or b"")
        self.size_bytes = rows.get_total_buffer_size()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def key(self, row: int) -> bytes:
        return self._keys[self._ends[row] : self._ends[row + 1]].tobytes()

    def row_of(self, key: bytes) -> int:
        """Return the place of the first row whose key is not less."""
        return bisect_left(range(len(self)), key, key=self.key)

    def timers(self, row: int) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the timers from a row on, ever more at once: few are needed most often."""
        count = _FIRST_TIMERS
        while row < len(self):
            times = self._columns["timer_ms"].slice(row, count).to_pylist()
            keys = self._columns["key"].slice(row, count).to_pylist()
            yield [*zip(times, keys, strict=True)]
            row, count = row + count, 4 * count

    def value(self, name: str, row: int) -> Any:
        return self._columns[name][row].as_py()


class _Recent(Generic[_K, _V]):
    """The values that were used last: one that is not used while half the bytes come is gone."""

    def __init__(self, size_of: Callable[[_K, _V], int]) -> None:
        self.most_bytes = 0
        self._size_of = size_of
        self.clear()

    def clear(self) -> None:
        self._new: dict[_K, _V] = {}
        self._old: dict[_K, _V] = {}
        self._new_bytes = 0

    def get(self, key: _K) -> _V | None:
        found = self._new.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: _K, value: _V) -> None:
        if (before := self._new.get(key)) is not None:
            self._new_bytes -= self._size_of(key, before)
        self._new[key] = value
        self._new_bytes += self._size_of(key, value)
        if 2 * self._new_bytes > self.most_bytes:
            self._old, self._new, self._new_bytes = self._new, {}, 0


def write_changes(changes: Sequence[KeyChange], step: int, limits: KeyLimits = KEY_LIMITS) -> bytes:
    """Return the file of a step's changes, which are in the order of their keys.

    Raises:
        ValueError: They are not in order, or a key comes twice.
    """
    stream = pa.BufferOutputStream()
    writer = KeyTableWriter(stream, step, is_base=False, limits=limits)
    if changes:
        columns = zip(zip(*changes, strict=True), KEY_SCHEMA.types, strict=True)
        rows = pa.table([pa.array(column, of) for column, of in columns], schema=KEY_SCHEMA)
        for some in rows.to_batches():
            writer.write(some)
    writer.close()
    content: bytes = stream.getvalue().to_pybytes()
    return content


def merge(
    base: Source | None,
    changes: Sequence[Source],
    folder: Location,
    limits: KeyLimits = KEY_LIMITS,
) -> Location:
    """Write a new base: the last one, with changes, the oldest first, and without gone keys."""
    sources = [*reversed(changes), *([] if base is None else [base])]
    return _merge(sources, folder, limits, is_base=True)


def join(changes: Sequence[Source], folder: Location, limits: KeyLimits = KEY_LIMITS) -> Location:
    """Write one file of changes for several that follow each other, the oldest first."""
    return _merge([*reversed(changes)], folder, limits, is_base=False)


def divide(
    parts: Sequence[tuple[Source | None, Sequence[Source]]],
    groups: range,
    folder: Location,
    limits: KeyLimits = KEY_LIMITS,
) -> Location:
    """Write a base of the keys of some groups, out of the bases and changes of several tasks."""
    sources = [
        source
        for base, changes in parts
        for source in (*reversed(changes), *([] if base is None else [base]))
    ]
    return _merge(sources, folder, limits, is_base=True, groups=groups)


def _merge(
    sources: Sequence[Source],
    folder: Location,
    limits: KeyLimits,
    *,
    is_base: bool,
    groups: range | None = None,
) -> Location:
    """Merge files, the newest first, in columns: of each some blocks are in memory at once."""
    tables = [KeyTable(one) for one in sources]
    path = folder / f"keys-{uuid4().hex}"
    try:
        with written(path) as file:
            step = max(table.step for table in tables)
            writer = KeyTableWriter(file, step, is_base=is_base, limits=limits)
            batches = [table.batches(limits.blocks_bytes) for table in tables]
            for window in windows(batches, ("key",)):
                rows = _newest(window, keeps_gone=not is_base)
                if groups is not None:
                    rows = _of_groups(rows, groups)
                if rows.num_rows:
                    writer.write(rows)
            writer.close()
        sync(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _newest(window: Sequence[pa.RecordBatch], *, keeps_gone: bool) -> pa.RecordBatch:
    """Return each key's row of the first batch that has the key, by key."""
    rows, order = window[0], None
    if len(window) > 1:
        rows = pa.concat_batches(window)
        order = pc.sort_indices(rows.column("key"))  # stable: a key's newest row comes first
        keys = rows.column("key").take(order)
        is_first = np.ones(len(keys), np.bool_)
        is_first[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        order = order.filter(pa.array(is_first))
    entries = rows.column("entry")
    if entries.null_count and not keeps_gone:
        order = pa.array(np.arange(len(entries))) if order is None else order
        order = order.filter(entries.is_valid().take(order))
    return rows if order is None else rows.take(order)


def _of_groups(rows: pa.RecordBatch, groups: range) -> pa.RecordBatch:
    """Return the rows of some groups: the first byte of a key says its group."""
    keys = rows.column("key")
    if not len(keys):
        return rows
    _, ends, values = keys.buffers()
    begins = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + len(keys)]
    first = np.frombuffer(values, np.uint8)[begins]
    return rows.filter(pa.array((first >= groups.start) & (first < groups.stop)))


class Merging(NamedTuple):
    """Files that are worth a merge: those of changes from a place on."""

    begin: int
    into_base: bool  # all of them, by `merge`; otherwise by `join`


_MOST_CHANGES: Final = 16
"""So many files of changes are read for a key that none of them has."""
_JOINED_AT_LEAST: Final = _MOST_CHANGES // 2
_INTO_BASE_BYTES: Final = 1 << 20
_BASES_CHANGES: Final = 4
"""A base is written again once changes have this part of its size: each byte about as often."""


def worth_merging(base_bytes: int, changes_bytes: Sequence[int]) -> Merging | None:
    """Return which files are to be merged, by their sizes, the oldest first; None if none are."""
    if sum(changes_bytes) >= max(_INTO_BASE_BYTES, base_bytes // _BASES_CHANGES):
        return Merging(0, into_base=True)
    if len(changes_bytes) < _MOST_CHANGES:
        return None
    begin, size = len(changes_bytes), 0
    # Not a large file with a few small ones: it would be written at each of these.
    while begin and (
        len(changes_bytes) - begin < _JOINED_AT_LEAST or changes_bytes[begin - 1] <= 2 * size
    ):
        begin -= 1
        size += changes_bytes[begin]
    return Merging(begin, into_base=False)
