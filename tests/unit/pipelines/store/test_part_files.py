"""Files of tasks: all that is told is read, and nothing else."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.store import part_files, storage
from sequitur.pipelines.store.part_files import PartFile, is_rows_file
from sequitur.pipelines.topology.files import write_acks

if TYPE_CHECKING:
    from collections.abc import Callable

_SCHEMA = pa.schema([("offset", pa.int64()), ("event_time_ms", pa.int64())])


def _written(folder: Path, *offsets: int) -> PartFile:
    with PartFile(folder, _SCHEMA) as file:
        for offset in offsets:
            file.write(pa.table([[offset], [offset]], schema=_SCHEMA))
    return file


def test_file_is_read_by_whoever_is_told_its_name(tmp_path: Path) -> None:
    file, other = _written(tmp_path, 1, 2), _written(tmp_path, 1, 2)
    assert file.location is not None
    assert file.location != other.location
    (rows,) = RunRows((Part((file.location,), reasons=()),), None, ("offset",)).pieces()
    assert rows["offset"].to_pylist() == [1, 2]
    assert file.size_bytes == Path(str(file.location)).stat().st_size
    assert file.rows == 2


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    file = _written(tmp_path)
    assert (file.name, file.size_bytes, list(tmp_path.iterdir())) == (None, 0, [])


@pytest.mark.promise("order-batch-fit-checkpoint")
def test_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while it writes nor at the end of its file: the disk may be full by that."""
    with pytest.raises(OverflowError):
        _written(tmp_path, 1, 1 << 64)
    assert list(tmp_path.iterdir()) == []
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("sequitur.pipelines.store.part_files.sync", Mock(side_effect=full))
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/part-"):
        _written(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("order-batch-fit-checkpoint")
@pytest.mark.parametrize("write", [
    lambda folder: _written(folder, 1),
    lambda folder: storage.write_new(folder / "new", b"content"),
    lambda folder: write_acks(folder, np.zeros(1, np.uint64), np.zeros(1), np.zeros(1), 1),
])  # fmt: skip
def test_a_disk_without_room_is_told_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]
) -> None:
    """Also where not even the first bytes of a file have room."""
    for module in (part_files, storage):
        monkeypatch.setattr(module, "new_file", lambda _: pa.OSFile("/dev/full", "wb"))
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/"):
        write(tmp_path)


def test_checksums_and_marks_of_spark_are_no_files_of_rows() -> None:
    names = ("_SUCCESS", ".part-0.parquet.crc", ".hidden.parquet", "part-0.parquet")
    assert [name for name in names if is_rows_file(name)] == ["part-0.parquet"]


@pytest.mark.promise("order-file-rows-held")
def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A machine that does not see a file yet must not go on without its rows."""
    part = Part((tmp_path / "part-0.parquet",))
    with pytest.raises(FileNotFoundError):
        RunRows((part,), None, ("offset",))


@pytest.mark.promise("order-power-cut-checkpoint")
def test_file_of_a_task_is_synced_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine that wrote it: another one may not be able to."""
    synced: dict[str, int] = {}
    monkeypatch.setattr(
        "sequitur.pipelines.store.durable.sync",
        lambda path: synced.update({path.name: path.stat().st_size}),
    )
    file = _written(tmp_path, 1, 2)
    assert synced == {file.name: file.size_bytes}
