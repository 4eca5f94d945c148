"""How many row groups and files a task reads: what it wants, and little beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.lateness import LateJudge
from sequitur.consumer.reorder.reasons import LATE
from sequitur.consumer.reorder.timestamps import TimestampRule
from sequitur.kafka.partition import KeyPartitioner
from sequitur.kafka.record_format import RecordLimit
from sequitur.pipelines.ordering.key_tasks import JudgeTask
from sequitur.pipelines.rows import row_files
from sequitur.pipelines.rows.columns import READ_SCHEMA, RowLimits
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.rows.run_writer import RunWriter
from sequitur.pipelines.rows.selection import Selection, SideSelection
from sequitur.pipelines.store import part_files
from sequitur.pipelines.store.part_files import (
    KeptRows,
    KeptValues,
    footer_bytes,
    forget,
    newest_rows,
)
from tests.support.parquet_files import parquet_files
from tests.support.staged_rows import BASE_MS, BOUNDS, OUTPUTS, SPEC, Row, staged

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PARTITIONS = 256
_ROWS = 40_000
_LATE_MS = 10
_RULE = TimestampRule(OutputTimestamp.EVENT_TIME, now_ms=BASE_MS + 900, floor_ms=900)


class _Reads:
    """What was read of files.

    Attributes:
        footers: How many.
        groups: How many row groups, by call.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.footers = 0
        self.groups: list[int] = []
        read_metadata, read_row_groups = pq.read_metadata, pq.ParquetFile.read_row_groups

        def metadata(*given: Any) -> pq.FileMetaData:
            self.footers += 1
            return read_metadata(*given)

        def row_groups(file: pq.ParquetFile, groups: list[int], **more: Any) -> pa.Table:
            self.groups.append(len(groups))
            return read_row_groups(file, groups, **more)

        monkeypatch.setattr(pq, "read_metadata", metadata)
        monkeypatch.setattr(pq.ParquetFile, "read_row_groups", row_groups)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> _Reads:
    return _Reads(monkeypatch)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one file: some 160 rows in each output partition, few of them late."""
    numbers = range(_ROWS)
    times = [(number * 7_919) % 1_000 for number in numbers]
    columns = {
        "topic": ["t"] * _ROWS,
        "partition": [0] * _ROWS,
        "offset": [*numbers],
        "timestamp_ms": [0] * _ROWS,
        "key": [b"%d" % (number % 900) for number in numbers],
        "value": [b'{"at":%d}' % (BASE_MS + time) for time in times],
        "headers": [None] * _ROWS,
        "output_partition": [number % 900 % _PARTITIONS for number in numbers],
    }
    (tmp_path / "run").mkdir()
    batch = pa.RecordBatch.from_pydict(columns, READ_SCHEMA)
    writer = RunWriter(tmp_path / "run", SPEC, BASE_MS + _LATE_MS, BOUNDS)
    file = writer.write(iter([batch])).file
    assert file is not None
    return tmp_path / "run" / file


@pytest.mark.parametrize("keeps", [True, False])
def test_rows_that_are_kept_are_not_read(tmp_path: Path, reads: _Reads, *, keeps: bool) -> None:
    """In the process that has written them, as long as they are among the newest."""
    rows = [Row("t", 0, number, b"k", number) for number in range(30)]
    staged(tmp_path / "run", rows, 0, keeps=keeps, limits=RowLimits(row_group_rows=4))
    files = parquet_files(tmp_path / "run")
    found = RunRows((Part(files),), range(3), ("offset", "value"))
    assert sum(map(len, found.pieces())) == 30
    assert (not reads.groups, not reads.footers) == (keeps, keeps)
    newer = pa.table({"offset": [0]})
    for number in range(2):
        newest_rows.keep(tmp_path / str(number), [KeptRows(newer)], 64 << 20)
    assert sum(map(len, found.pieces())) == 30
    assert reads.groups


def test_rows_that_are_forgotten_are_read(tmp_path: Path, reads: _Reads) -> None:
    """Those of the other folders are still there."""
    rows = [Row("t", 0, number, b"k", number) for number in range(30)]
    for name in ("over", "needed"):
        staged(tmp_path / name, rows, 0, keeps=True)
    forget(tmp_path / "over")
    forget(tmp_path / "over")
    for name, is_read in (("needed", False), ("over", True)):
        found = RunRows((Part(parquet_files(tmp_path / name)),), range(3), ("offset",))
        assert sum(map(len, found.pieces())) == 30
        assert (bool(reads.groups), bool(reads.footers)) == (is_read, is_read)


def test_rows_that_are_judged_here_are_not_read(tmp_path: Path, reads: _Reads) -> None:
    """They go out in the same process, in the same step."""
    rows = [Row("t", 0, number, b"k", number) for number in range(30)]
    staged(tmp_path / "run", rows, 10, keeps=True)
    behind = Part(parquet_files(tmp_path / "run"), last_ms=BASE_MS + 9, reasons=(LATE,))
    judge = LateJudge(horizon_ms=BASE_MS)
    judged = JudgeTask(tmp_path, behind, (), judge, keeps=True)(range(3))
    found = RunRows((Part((tmp_path / str(judged.file),), reasons=()),), range(3), ("offset",))
    assert sum(map(len, found.pieces())) == judged.rows > 0
    assert (reads.groups, reads.footers) == ([], 0)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("many", [0, 16])
def test_rows_of_a_part_are_the_same_from_memory_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps: bool, many: int
) -> None:
    """Whether partitions are few or many, and whether some rows are late or have no time."""
    monkeypatch.setattr(part_files, "_MOST_STRETCHES", many)
    keys = [None if number % 11 == 0 else b"k%d" % (number % 500) for number in range(900)]
    times = [None if number % 50 == 0 else (number * 7_919) % 1_000 for number in range(900)]
    rows = [Row("t", 0, number, keys[number], times[number]) for number in range(900)]
    limits = RowLimits(row_group_rows=400)
    staged(tmp_path / "run", rows, 100, keeps=keeps, limits=limits)
    files = parquet_files(tmp_path / "run")
    for first, last in ((0, 99), (0, 999), (100, 999), (250, 600), (700, 700)):
        for partitions in (None, range(1), range(1, 3), range(OUTPUTS)):
            for reasons in (None, (), (LATE,)):
                part = Part(files, BASE_MS + first, BASE_MS + last, reasons=reasons)
                found = RunRows((part,), partitions, ("offset", "headers")).pieces()
                offsets = sorted(one for some in found for one in some["offset"].to_pylist())
                assert offsets == [
                    row.offset
                    for row in rows
                    if row.time is not None
                    and first <= row.time <= last
                    and (partitions is None or row.output in partitions)
                    and (reasons == () or (row.time <= 100) == (reasons is not None))
                ], (first, last, partitions, reasons)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("count", [0, 1, 400])
def test_rows_of_keys_are_those_of_files(tmp_path: Path, *, count: int, keeps: bool) -> None:
    """Few keys are looked for by their hashes first; every other one is in no row."""
    names = [None if number % 7 == 0 else b"k%d" % (number % 500) for number in range(1_000)]
    rows = [Row("t", 0, number, key, number) for number, key in enumerate(names)]
    staged(tmp_path / "run", rows, 0, keeps=keeps, limits=RowLimits(row_group_rows=400))
    part = Part(parquet_files(tmp_path / "run"), BASE_MS + 10, BASE_MS + 900)
    keys = [b"k%d" % (4 * number) for number in range(count)]
    wanted = pa.array(keys, pa.binary())
    found = RunRows((part,), None, ("offset", "key"), keys=wanted)
    offsets = sorted(offset for some in found.pieces() for offset in some["offset"].to_pylist())
    assert offsets == [one for one in range(10, 901) if names[one] in keys]
    assert bool(offsets) == bool(count)


def test_a_footer_is_read_once_in_a_process(run: Path, reads: _Reads) -> None:
    """However many tasks and output partitions read the file."""
    for first in range(0, _PARTITIONS, 8):
        RunRows((Part((run,)),), range(first, first + 8), ("offset",))
    assert reads.footers == 1


def test_what_is_remembered_of_footers_is_bounded(
    tmp_path: Path, run: Path, reads: _Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes = footer_bytes(pq.read_metadata(run))
    monkeypatch.setattr(row_files, "_known", KeptValues(3 * size_bytes))
    copies = [tmp_path / f"{number}.parquet" for number in range(20)]
    for copy in copies:
        copy.write_bytes(run.read_bytes())
    reads.footers = 0
    for path in (copies[0], *copies, copies[-1], copies[0]):
        row_files.footer_of(path)
    assert reads.footers == len(copies) + 1


def test_few_rows_of_many_partitions_share_a_row_group(run: Path) -> None:
    """One costs as much as some hundred rows."""
    groups = pq.read_metadata(run).num_row_groups
    assert groups < 2 * _ROWS / 2_500 + 2


def test_partitions_of_a_task_are_read_together(run: Path, reads: _Reads) -> None:
    """Each row group once, and as one piece, whatever number of partitions is in it."""
    selection = Selection((Part((run,), BASE_MS + _LATE_MS),))
    rows = {
        partition: sum(batch.rows for batch in batches(1 << 18))
        for partition, batches in selection.each(range(_PARTITIONS), _RULE)
    }
    assert (len(rows), sum(rows.values())) == (_PARTITIONS, _ROWS * (1_000 - _LATE_MS) // 1_000)
    assert len(reads.groups) == 1
    assert sum(reads.groups) < pq.read_metadata(run).num_row_groups


def test_late_rows_are_read_without_those_on_time(run: Path, tmp_path: Path, reads: _Reads) -> None:
    """They stand in row groups of their own, though each partition has some."""
    behind = Part((run,), last_ms=BASE_MS + _LATE_MS - 1, reasons=(LATE,))
    (tmp_path / "judged").mkdir()
    judge = JudgeTask(tmp_path / "judged", behind, (), LateJudge(horizon_ms=BASE_MS))
    assert judge(range(_PARTITIONS)).rows == _ROWS * _LATE_MS // 1_000
    assert reads.groups == [1, 1]


_OUTPUTS: Final = 64
_HOT: Final = b"3"
"""A key of which nearly all rows are."""


def _written(
    folder: Path, rows: Iterable[tuple[bytes, int]], frontier_ms: int, first: int = 0
) -> Path:
    """A run of one file: rows of these keys, and so large."""
    keys, sizes = zip(*rows, strict=True)
    columns = {
        "topic": ["t"] * len(keys),
        "partition": [0] * len(keys),
        "offset": [*range(first, first + len(keys))],
        "timestamp_ms": [0] * len(keys),
        "key": keys,
        "value": [b'{"at":%d,"%s":0}' % (BASE_MS, b"x" * size) for size in sizes],
        "headers": [None] * len(keys),
        "output_partition": KeyPartitioner(_OUTPUTS).each(keys),
    }
    folder.mkdir()
    batch = pa.RecordBatch.from_pydict(columns, READ_SCHEMA)
    file = RunWriter(folder, SPEC, frontier_ms, BOUNDS).write(iter([batch])).file
    assert file is not None
    return folder / file


@pytest.mark.promise("order-rows-large-900")
@pytest.mark.parametrize("judged", [False, True])
def test_large_rows_share_no_row_group(tmp_path: Path, *, judged: bool) -> None:
    """Who wants those of one partition reads no large ones of others."""
    large = [(b"%d" % (number % _OUTPUTS), 400_000) for number in range(_OUTPUTS)]
    small = [(b"%d" % (number % _OUTPUTS), 100) for number in range(10 * _OUTPUTS)]
    run = _written(tmp_path / "run", large + small, BASE_MS + judged)
    if judged:
        behind = Part((run,), last_ms=BASE_MS, reasons=(LATE,))
        file = JudgeTask(tmp_path, behind, (), LateJudge(horizon_ms=BASE_MS))(range(_OUTPUTS)).file
        run = tmp_path / str(file)
    groups = row_files.footer_of(run).groups
    assert sum(one.rows for one in groups) == 11 * _OUTPUTS
    shared = [one.size_bytes for one in groups if one.first_partition != one.last_partition]
    assert max(shared, default=0) < 1.2 * (1 << 20)


@pytest.mark.promise("order-rows-large-900")
def test_rows_of_a_hot_key_are_not_read_at_once(tmp_path: Path) -> None:
    """Footers do not say that nearly all rows of a row group are of one of its partitions."""
    cold = [(b"%d" % number, 10) for number in range(_OUTPUTS)]
    rows = [*cold, *[(_HOT, 1_000)] * 500]
    limits = RowLimits(slice_bytes=128 << 10)
    runs, late = (
        tuple(
            _written(tmp_path / f"{ahead_ms} {first}", rows, BASE_MS + ahead_ms, first)
            for first in range(0, 5_000, 1_000)
        )
        for ahead_ms in (0, 1)
    )
    behind = Part(late, reasons=(LATE,))
    aside = SideSelection(
        (behind,),
        flagged_ms=BASE_MS,
        limit=RecordLimit(),
        root=tmp_path,
        placed=_OUTPUTS,
        limits=limits,
    )
    due = Selection((Part(runs),), limits=limits)
    for selected, partitions in (
        (due, _OUTPUTS), (aside, _OUTPUTS), (aside.over(16), 16),
    ):  # fmt: skip
        before, most, found = pa.total_allocated_bytes(), 0, 0
        for _, batches in selected.each(range(partitions), _RULE):
            for batch in batches(1 << 18):
                most = max(most, pa.total_allocated_bytes() - before)
                found += batch.rows
        assert found == 5 * len(rows)
        assert most < 1 << 20
