"""Parquet files that Spark's tasks write into a folder, each under a name of its own."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.pipelines.store.durable import naming
from sequitur.pipelines.store.storage import is_remote, new_file, sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

_T = TypeVar("_T")


class KeptValues(Generic[_T]):
    """Values by file; the oldest go first, and the newest one is always kept."""

    every: ClassVar[WeakSet[KeptValues[Any]]] = WeakSet()

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        # By text: two paths that are the same are slow to compare, and a step looks at hundreds.
        self._kept: dict[str, tuple[_T, int, str]] = {}
        self._by_folder: dict[str, list[str]] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()
        self.every.add(self)

    def get(self, path: Location) -> _T | None:
        """Return a file's value; None if it is not kept."""
        found = self._kept.get(str(path))
        return None if found is None else found[0]

    def keep(self, path: Location, value: _T, size_bytes: int) -> None:
        """Keep a file's value, unless another thread has done so."""
        name, folder = str(path), str(path.parent)
        with self._lock:
            if name in self._kept:
                return
            self._kept[name] = value, size_bytes, folder
            self._by_folder.setdefault(folder, []).append(name)
            self._size_bytes += size_bytes
            while self._size_bytes > self._most_bytes and len(self._kept) > 1:
                oldest, (_, _, own) = next(iter(self._kept.items()))
                self._forget(oldest)
                self._by_folder[own].remove(oldest)
                if not self._by_folder[own]:
                    del self._by_folder[own]

    def forget(self, folder: Location) -> None:
        with self._lock:
            for name in self._by_folder.pop(str(folder), ()):
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._size_bytes -= self._kept.pop(name)[1]


def forget(folder: Location) -> None:
    for kept in KeptValues.every:
        kept.forget(folder)


_HASHED_ROWS: Final = 8_000
_MOST_STRETCHES: Final = 16
"""Of so many partitions it is cheaper to copy rows by their stretches than one by one."""
_NOTHING: Final = np.empty(0, np.int64)
_STAGED_BY: Final = ("output_partition", "event_time_ms", "reason")
_ARRAY_BYTES: Final = 40
"""A row takes so much in what rows are chosen by, at most about."""


def hashes_of(texts: pa.BinaryArray) -> Longs:
    """Return this process's hashes of texts and of nulls."""
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts))


class KeptRows:
    """A row group in memory, with the arrays by which rows are chosen."""

    def __init__(self, rows: pa.Table) -> None:
        several = rows.to_batches()
        (self.rows,) = several if len(several) == 1 else rows.combine_chunks().to_batches()
        self.names = frozenset(rows.column_names)
        self.row_bytes = rows.nbytes / max(1, len(rows))
        self._columns: dict[Sequence[str], pa.RecordBatch] = {}
        self._numbers: dict[str, Longs] = {}
        self._reach: dict[str, tuple[int, int]] = {}
        self._are_null: dict[str, Bools] = {}
        self._by_hash: tuple[Longs, Longs] | None = None
        self._stretches: list[tuple[int, int, int]] | None = None
        self._times: memoryview | None = None

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        arrays: int = _ARRAY_BYTES * self.rows.num_rows
        return int(self.rows.nbytes) + arrays

    def columns(self, names: Sequence[str]) -> pa.RecordBatch:
        """Return some columns; one that is missing is null."""
        if (found := self._columns.get(names)) is None:
            nothing = pa.nulls(self.rows.num_rows, pa.int64())
            arrays = [self.rows.column(one) if one in self.names else nothing for one in names]
            found = self._columns[names] = pa.RecordBatch.from_arrays(arrays, list(names))
        return found

    def numbers(self, name: str) -> Longs:
        """Return a column of numbers; missing ones are 0."""
        if (found := self._numbers.get(name)) is None:
            found = self._numbers[name] = self.rows.column(name).fill_null(0).to_numpy()
        return found

    def reach(self, name: str) -> tuple[int, int]:
        """Return the smallest and the greatest number of a column."""
        if (found := self._reach.get(name)) is None:
            numbers = self.numbers(name)
            found = self._reach[name] = int(numbers.min()), int(numbers.max())
        return found

    def stretches(
        self, first_ms: int, last_ms: int, partitions: range | None
    ) -> list[tuple[int, int]] | None:
        """Return where rows of some event times and output partitions begin and end.

        None where some rows have a reason or no event time, where they are not in the order of
        staged rows, or where there are many partitions: then rows are looked at one by one.
        """
        if self._stretches is None:
            self._stretches = self._found_stretches()
        times = self._times
        if times is None:
            return None
        found = []
        for partition, begin, end in self._stretches:
            if partitions is None or partition in partitions:
                first = bisect_left(times, first_ms, begin, end)
                stop = bisect_right(times, last_ms, first, end)
                if first < stop:
                    found.append((first, stop))
        return found

    def _found_stretches(self) -> list[tuple[int, int, int]]:
        """Return partitions, each with the place of its first row and the place behind its last."""
        if not self.names.issuperset(_STAGED_BY) or not len(self.rows):
            return []
        if self.are_null("event_time_ms").any() or not self.are_null("reason").all():
            return []
        outputs, times = (self.numbers(name) for name in ("output_partition", "event_time_ms"))
        steps = np.diff(outputs)
        begins = [0, *(np.flatnonzero(steps) + 1).tolist()]
        is_sorted = bool(((steps > 0) | ((steps == 0) & (np.diff(times) >= 0))).all())
        if not is_sorted or len(begins) > _MOST_STRETCHES:
            return []
        self._times = memoryview(times)  # type: ignore[arg-type]  # numpy names no Buffer before 3.12
        ends = [*begins[1:], len(outputs)]
        return [(int(outputs[first]), first, end) for first, end in zip(begins, ends, strict=True)]

    def places_of(self, hashes: Longs) -> Longs | None:
        """Return the places of rows whose keys have one of these hashes, in order.

        None for many rows: to look through the rows themselves is as fast.
        """
        if self.rows.num_rows > _HASHED_ROWS:
            return None
        if self._by_hash is None:
            own = hashes_of(self.rows.column("key"))
            order = np.argsort(own)
            self._by_hash = own[order], order
        own, order = self._by_hash
        firsts = own.searchsorted(hashes)
        if not (own.take(firsts, mode="clip") == hashes).any():
            return _NOTHING  # as in most files
        stops = own.searchsorted(hashes, "right")
        found = [
            order[first:stop]
            for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True)
            if first < stop
        ]
        return np.sort(np.concatenate(found)) if found else _NOTHING

    def are_null(self, name: str) -> Bools:
        if (found := self._are_null.get(name)) is None:
            column = self.rows.column(name)
            found = self._are_null[name] = column.is_null().to_numpy(zero_copy_only=False)
        return found


_NEWEST_BYTES: Final = 64 << 20
newest_rows: Final = KeptValues[list[KeptRows]](_NEWEST_BYTES)
"""Rows of the newest files that this process has written to be read soon, by row group.

A file's rows never change. What is not here any more, or was written by another process, is read.
"""
FOOTERS_BYTES: Final = 32 << 20
"""Of footers that a process remembers, as they are in memory."""
_COLUMN_BYTES: Final = 1_400
newest_footers: Final = KeptValues[pq.FileMetaData](FOOTERS_BYTES)
"""Footers of the newest files that this process has written: a reader need not ask for them."""


def footer_bytes(footer: pq.FileMetaData) -> int:
    """Return about how much memory a footer takes, some twenty times its size in the file."""
    return int(_COLUMN_BYTES * footer.num_columns * footer.num_row_groups)


_SUFFIX: Final = ".parquet"
_HIDDEN: Final = (".", "_")

ROW_GROUP_ROWS: Final = 20_000
"""Small row groups let a reader skip what it does not want."""
_SKIPPED_BY: Final = (
    "event_time_ms", "output_partition", "topic", "partition", "offset", "reason",
)  # fmt: skip
"""Columns by which it does."""


class PartFile:
    """A task's file, to be written table after table and closed by `with`.

    Nobody else has its name, and nobody reads it who is not told that name: the file of a task that
    was given up, or comes too late, counts for nothing and goes with its folder.

    With `keeps` the driver writes it, and keeps its rows in memory, too. Then it is synced with the
    document that names it, and not as it is closed.
    """

    def __init__(
        self,
        folder: Location,
        schema: pa.Schema,
        row_group_rows: int = ROW_GROUP_ROWS,
        *,
        keeps: bool = False,
    ) -> None:
        self.name: str | None = None
        self.rows = 0
        self.size_bytes = 0
        self._folder = folder
        self._schema = schema
        self._row_group_rows = row_group_rows
        self._groups: list[KeptRows] | None = [] if keeps else None
        self._writer: pq.ParquetWriter | None = None
        self._file: pa.NativeFile | None = None

    @property
    def location(self) -> Location | None:
        """Location of the file; None as long as there are no rows."""
        return None if self.name is None else self._folder / self.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self.close()
        except BaseException:
            self._discard()
            raise

    def close(self) -> None:
        """Finish the file; that of a task outlasts a power cut of its machine then."""
        if self._writer is not None and self._file is not None and self.name is not None:
            with naming(self.location):
                self._writer.close()
                footer = self._writer.writer.metadata
                self.rows = footer.num_rows
                self.size_bytes = self._file.tell()
                self._file.close()
                if self._groups is None:
                    sync(self._folder / self.name)
            if self._groups is not None:
                size = sum(group.size_bytes for group in self._groups)
                if is_remote(self._folder):
                    size //= 2  # reading it again costs more, so twice as much is kept
                newest_rows.keep(self._folder / self.name, self._groups, size)
                newest_footers.keep(self._folder / self.name, footer, footer_bytes(footer))

    def _discard(self) -> None:
        """Delete what a failed task has written: it may have failed because the disk is full."""
        if self._writer is not None and self._file is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            with contextlib.suppress(OSError, pa.ArrowException):
                self._file.close()
        if isinstance(self.location, Path):
            self.location.unlink(missing_ok=True)

    def write(self, rows: pa.Table) -> None:
        """Write rows behind those before, in row groups of their own."""
        if not len(rows):
            return
        if self._writer is None:
            self.name = f"part-{uuid4().hex}{_SUFFIX}"
            with naming(self.location):  # a file begins with some bytes
                self._file = new_file(self._folder / self.name)
                self._writer = pq.ParquetWriter(
                    self._file,
                    self._schema,
                    compression="none",
                    # Keys and values hardly repeat within a page; a topic does.
                    use_dictionary=["topic"],
                    write_statistics=list(_SKIPPED_BY),
                    store_schema=False,
                )
        if not rows.schema.equals(self._schema):
            rows = rows.cast(self._schema)
        most = self._row_group_rows
        with naming(self.location):
            self._writer.write_table(rows, row_group_size=most)
        if self._groups is not None:
            self._groups += [KeptRows(rows.slice(at, most)) for at in range(0, len(rows), most)]


def is_rows_file(name: str) -> bool:
    """Tell whether a file of this name holds rows, and is not Spark's mark or checksum."""
    return name.endswith(_SUFFIX) and not name.startswith(_HIDDEN)
