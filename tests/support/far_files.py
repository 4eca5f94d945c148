"""Files of a checkpoint that is reached over the network alone, on S3 as in HDFS."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Final

import obstore
import pyarrow as pa
import pytest

from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.store.object_path import ObjectPath
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from sequitur.pipelines.store.hdfs_path import HdfsPath
    from sequitur.pipelines.store.storage import Location

SCHEMA: Final = pa.schema([("offset", pa.int64()), ("event_time_ms", pa.int64())])


def sizes_in(folder: ObjectPath | HdfsPath) -> dict[str, int]:
    """Return the sizes of all files in a folder, however deep, by their keys, as the store says."""
    if isinstance(folder, ObjectPath):
        listed = obstore.list(folder.store.objects(), f"{folder.key}/")
        found = {one["path"]: one["size"] for some in listed for one in some}
        found.pop(folder.key, None)  # the mark of a folder
        return found
    there = folder.store.client().list_status(f"/{folder.key}", True)
    return {one.path.lstrip("/"): one.length for one in there if not one.isdir}


def write_and_read(root: ObjectPath | HdfsPath) -> Location:
    """Check that rows are written by who is told a folder, and read by who is told a file: this."""
    folder: ObjectPath | HdfsPath = pickle.loads(pickle.dumps(root / "runs"))
    with PartFile(folder, SCHEMA, row_group_rows=10) as file:
        for offset in range(0, 1_000, 10):
            numbers = list(range(offset, offset + 10))
            file.write(pa.table([numbers, numbers], schema=SCHEMA))
    assert file.location is not None
    assert [*sizes_in(root).values()] == [file.size_bytes]
    part = Part((file.location,), first_ms=500, last_ms=519, reasons=())
    (rows,) = RunRows((part,), None, ("offset",)).slices()
    assert sorted(rows["offset"].to_pylist()) == [*range(500, 520)]
    with pytest.raises(FileNotFoundError):
        RunRows((Part((root / "runs" / "other.parquet",)),), None, ("offset",))
    return file.location
