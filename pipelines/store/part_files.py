"""Parquet files that Spark's tasks write into a folder, each under a name of its own."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.pipelines.store.durable import naming
from sequitur.pipelines.store.storage import new_file, sync

if TYPE_CHECKING:
    from sequitur.pipelines.store.storage import Location

_T = TypeVar("_T")


class KeptValues(Generic[_T]):
    """Values by file, the oldest of which go first; the newest one is always kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[Location, tuple[_T, int]] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, path: Location) -> _T | None:
        """Return a file's value; None where it is not kept."""
        found = self._kept.get(path)
        return None if found is None else found[0]

    def keep(self, path: Location, value: _T, size_bytes: int) -> None:
        """Keep a file's value, unless another thread has done so."""
        with self._lock:
            if path in self._kept:
                return
            self._kept[path] = value, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > self._most_bytes and len(self._kept) > 1:
                self._size_bytes -= self._kept.pop(next(iter(self._kept)))[1]


_NEWEST_BYTES: Final = 64 << 20
newest_rows: Final = KeptValues[list[pa.Table]](_NEWEST_BYTES)
"""Rows of the newest files that this process has written to be read soon, by row group.

A file's rows never change. What is not here any more, or was written by another process, is read.
"""

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
        self._groups: list[pa.Table] | None = [] if keeps else None
        self._writer: pq.ParquetWriter | None = None
        self._file: pa.NativeFile | None = None

    @property
    def location(self) -> Location | None:
        """Where the file is; None as long as there are no rows."""
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
        """Write the file to its end, so that it outlasts a power cut of the machine it is on."""
        if self._writer is not None and self._file is not None and self.name is not None:
            with naming(self.location):
                self._writer.close()
                self.rows = self._writer.writer.metadata.num_rows
                self.size_bytes = self._file.tell()
                self._file.close()
                sync(self._folder / self.name)
            if self._groups is not None:
                size = sum(group.nbytes for group in self._groups)
                newest_rows.keep(self._folder / self.name, self._groups, size)

    def _discard(self) -> None:
        """Delete what a task that fails has written: perhaps it fails since the disk is full."""
        if self._writer is not None and self._file is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            with contextlib.suppress(OSError, pa.ArrowException):
                self._file.close()
        if isinstance(self.location, Path):
            self.location.unlink(missing_ok=True)

    def write(self, rows: pa.Table) -> None:
        """Write rows behind those written so far, in row groups of their own."""
        if not len(rows):
            return
        if self._writer is None:
            self.name = f"part-{uuid4().hex}{_SUFFIX}"
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
        rows, most = rows.cast(self._schema), self._row_group_rows
        with naming(self.location):
            self._writer.write_table(rows, row_group_size=most)
        if self._groups is not None:
            self._groups += [rows.slice(at, most) for at in range(0, len(rows), most)]


def is_rows_file(name: str) -> bool:
    """Tell whether a file of this name holds rows, and is none of Spark's marks and checksums."""
    return name.endswith(_SUFFIX) and not name.startswith(_HIDDEN)
