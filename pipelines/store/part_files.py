"""Parquet files that Spark's tasks write into a folder: none is visible before all are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.pipelines.store import durable

if TYPE_CHECKING:
    from collections.abc import Iterable

_SUFFIX: Final = ".parquet"
_HIDDEN_PREFIX: Final = "_"
_HIDDEN_SUFFIX: Final = ".tmp"
"""What the name of a file is put between while no reader is to see it: Spark goes by the one, and
whoever lists Parquet files by the other."""

ROW_GROUP_ROWS: Final = 20_000
"""Small row groups let a reader skip what it does not want."""
_SKIPPED_BY: Final = ("event_time_ms", "output_partition", "topic", "partition", "offset")
"""Columns by which it does."""


class PartFile:
    """A task's file, to be written table after table and closed by `with`.

    It has a name of its own, hidden: that of a task that was given up, or comes too late, stays so.

    Args:
        folder: Where it is written to; the folder is there.
        schema: What tables are cast to.
        row_group_rows: Rows of a row group.

    Attributes:
        name: The file's name; None as long as there are no rows.
        rows: How many rows it has, once it is closed, by what the file says of itself.
        size_bytes: Its size, likewise.
    """

    def __init__(
        self, folder: str, schema: pa.Schema, row_group_rows: int = ROW_GROUP_ROWS
    ) -> None:
        self.name: str | None = None
        self.rows = 0
        self.size_bytes = 0
        self._folder = Path(folder)
        self._schema = schema
        self._row_group_rows = row_group_rows
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the file to its end, so that it outlasts a power cut of the machine it is on."""
        if self._writer is not None and self.name is not None:
            self._writer.close()
            self.rows = self._writer.writer.metadata.num_rows
            durable.sync(self._folder / self.name)
            self.size_bytes = (self._folder / self.name).stat().st_size

    def write(self, rows: pa.Table) -> None:
        """Write rows behind those written so far, in row groups of their own."""
        if not len(rows):
            return
        if self._writer is None:
            self.name = f"{_HIDDEN_PREFIX}part-{uuid4().hex}{_HIDDEN_SUFFIX}"
            self._writer = pq.ParquetWriter(
                self._folder / self.name,
                self._schema,
                compression="none",
                # Keys and values hardly repeat within a page; a topic does.
                use_dictionary=["topic"],
                write_statistics=list(_SKIPPED_BY),
                store_schema=False,
            )
        self._writer.write_table(rows.cast(self._schema), row_group_size=self._row_group_rows)


def publish(folder: Path, names: Iterable[str | None]) -> list[str]:
    """Rename files that tasks wrote into a folder to names that readers look for; their paths.

    Args:
        folder: The folder.
        names: Names of `PartFile`s; None of one without rows.
    """
    return [str(folder / name) for name in publish_with_rows(folder, ((name, 0) for name in names))]


def publish_with_rows(folder: Path, files: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    """Rename files as `publish` does; the new names, with the rows of each.

    Args:
        folder: The folder.
        files: Names of `PartFile`s, None of one without rows, and how many rows each has.
    """
    shown = {}
    for hidden, rows in files:
        if hidden is not None:
            name = hidden.removeprefix(_HIDDEN_PREFIX).removesuffix(_HIDDEN_SUFFIX) + _SUFFIX
            (folder / hidden).rename(folder / name)
            shown[name] = rows
    return shown


def is_published(name: str) -> bool:
    """Tell whether a file of this name is one to be read."""
    return name.endswith(_SUFFIX) and not name.startswith((".", _HIDDEN_PREFIX))


def published_files(folder: Path) -> tuple[str, ...]:
    """Return the files in a folder that are to be read, as paths; for the driver.

    Tasks are told the files and do not list them: where machines share a file system, a listing of
    another machine may be old, and a file that it lacks would be passed over without a word.
    """
    return tuple(str(path) for path in sorted(folder.iterdir()) if is_published(path.name))
