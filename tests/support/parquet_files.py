"""The Parquet files that a test has left in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.pipelines.store.part_files import is_rows_file

if TYPE_CHECKING:
    from pathlib import Path


def parquet_files(folder: Path) -> tuple[Path, ...]:
    """Where they are; a job would be told by its log."""
    return tuple(sorted(path for path in folder.iterdir() if is_rows_file(path.name)))
