"""Files of tasks: all that is told is read, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.store.part_files import PartFile, publish, published_files

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMA = pa.schema([("offset", pa.int64()), ("event_time_ms", pa.int64())])


def _written(folder: Path, *offsets: int) -> PartFile:
    with PartFile(str(folder), _SCHEMA) as file:
        for offset in offsets:
            file.write(pa.table([[offset], [offset]], schema=_SCHEMA))
    return file


def test_file_is_seen_once_it_is_shown(tmp_path: Path) -> None:
    """Until then it has a name that no reader goes by."""
    file = _written(tmp_path, 1, 2)
    assert published_files(tmp_path) == ()
    publish(tmp_path, [file.name, None])
    (path,) = published_files(tmp_path)
    (rows,) = RunRows((Part((path,), reasons=()),), None, ("offset",)).pieces()
    assert rows["offset"].to_pylist() == [1, 2]
    assert file.size_bytes == tmp_path.joinpath(path).stat().st_size


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    """There is nothing to show, then."""
    file = _written(tmp_path)
    assert (file.name, file.size_bytes, list(tmp_path.iterdir())) == (None, 0, [])


def test_checksums_and_marks_of_spark_are_no_files_of_rows(tmp_path: Path) -> None:
    """Spark writes them beside what it writes."""
    for name in ("_SUCCESS", ".part-0.parquet.crc", ".hidden.parquet", "part-0.parquet"):
        (tmp_path / name).touch()
    assert published_files(tmp_path) == (str(tmp_path / "part-0.parquet"),)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A machine that does not see a file yet must not go on without its rows."""
    part = Part((str(tmp_path / "part-0.parquet"),))
    with pytest.raises(FileNotFoundError):
        RunRows((part,), None, ("offset",))


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
