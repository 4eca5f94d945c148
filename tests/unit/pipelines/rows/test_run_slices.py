"""However many rows are due, and at however few event times, few are in memory at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from sequitur.consumer.reorder.lateness import LateJudge
from sequitur.consumer.reorder.reasons import LATE
from sequitur.pipelines.ordering.key_tasks import JudgeTask
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA, RowLimits
from sequitur.pipelines.rows.run_rows import Part, RunRows
from tests.support.parquet_files import parquet_files
from tests.support.staged_rows import BASE_MS, Row, staged

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

_COLUMNS = ("event_time_ms", "topic", "partition", "offset")
_RECORDS = RUN_ARROW_SCHEMA.names
_LIMITS = RowLimits(chunk_bytes=100_000, slice_bytes=20_000, row_group_rows=50)
"""Small row groups, slices of about 200 rows."""
_MOST_ROWS = 600
"""Three slices, and a row group for each file."""


@pytest.fixture(autouse=True)
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many row groups were read at once."""
    found: list[int] = []
    read_row_groups = pq.ParquetFile.read_row_groups

    def counted(file: pq.ParquetFile, groups: list[int], **more: object) -> pa.Table:
        found.append(len(groups))
        return read_row_groups(file, groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    return found


def _staged(folder: Path, times: Iterable[int], *, topics: int = 2) -> Part:
    """A run in which each source partition has rows of these times, in files of their own."""
    rows = [
        Row(f"t{topic}", partition, offset, b"%d" % offset, time)
        for topic in range(topics)
        for partition in range(2)
        for offset, time in enumerate(times)
    ]
    for number, (_, own) in enumerate(itertools.groupby(rows, lambda row: row.source_order[:2])):
        staged(folder / str(number), list(own), 0, limits=_LIMITS)
    files = (parquet_files(one) for one in sorted(folder.iterdir()))
    return Part(tuple(itertools.chain(*files)))


def _places(slices: Iterable[pa.Table]) -> list[list[tuple[int, str, int, int]]]:
    return [
        sorted(zip(*(one[name].to_pylist() for name in _COLUMNS), strict=True)) for one in slices
    ]


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([5] * 1_000, id="one time"),
        pytest.param([5] * 500 + [6] * 500, id="two times"),
        pytest.param([*range(100), *[40] * 900], id="most at one time"),
        pytest.param([number * 37 % 1_000 for number in range(1_000)], id="spread"),
        pytest.param([7, *[0] * 998, 900], id="all at the begin"),
    ],
)
def test_slices_are_small_and_follow_each_other(tmp_path: Path, times: list[int]) -> None:
    """In the order of release, whatever the event times are."""
    part = _staged(tmp_path, times)
    places = _places(RunRows((part,), None, _COLUMNS, _LIMITS).slices())
    assert sum(map(len, places)) == 4_000
    assert max(map(len, places)) < _MOST_ROWS
    assert all(one[-1] < other[0] for one, other in itertools.pairwise(places))


def test_side_rows_come_in_small_pieces(tmp_path: Path) -> None:
    """Of all event times, in source order."""
    part = _staged(tmp_path, [number * 37 % 1_000 for number in range(1_000)])
    slices = RunRows((part,), None, _COLUMNS, _LIMITS).in_source_order()
    places = [[place[1:] for place in one] for one in _places(slices)]
    assert sum(map(len, places)) == 4_000
    assert max(map(len, places)) < _MOST_ROWS
    assert all(max(one) < min(other) for one, other in itertools.pairwise(places))


def test_row_groups_of_other_sources_are_not_read(tmp_path: Path, read: list[int]) -> None:
    """What a file says of topics, partitions and offsets suffices to pass over it."""
    part = _staged(tmp_path, [5] * 1_000)
    read.clear()
    slices = list(RunRows((part,), None, _COLUMNS, _LIMITS).slices())
    assert len(slices) > 10
    # Once to count the rows, once to read them, and again where two slices share a row group: three
    # at most, as there are three output partitions. Without that, each slice would read all 90.
    assert sum(read) <= 2 * 90 + 3 * len(slices)


def test_many_rows_behind_the_frontier_are_judged_piece_by_piece(tmp_path: Path) -> None:
    early = [number % 90 for number in range(1_000)]
    rows = [Row("t", 0, offset, b"%d" % offset, time) for offset, time in enumerate(early)]
    staged(tmp_path / "run", rows, 100, limits=_LIMITS)
    behind = Part(parquet_files(tmp_path / "run"), last_ms=BASE_MS + 99, reasons=(LATE,))
    pieces = [len(one) for one in RunRows((behind,), None, _RECORDS, _LIMITS).pieces()]
    assert len(pieces) > 2
    assert max(pieces) < _MOST_ROWS
    (tmp_path / "behind").mkdir()
    judge = LateJudge(horizon_ms=BASE_MS + 45)
    task = JudgeTask(tmp_path / "behind", behind, (), judge, limits=_LIMITS)
    written = [task(range(n, n + 1)) for n in range(3)]
    assert sum(one.rows for one in written) == 1_000
    assert sum(one.late for one in written) == sum(time < 45 for time in early)
    rescued = Part(parquet_files(tmp_path / "behind"))
    (*found,) = RunRows((rescued,), None, ("offset",), _LIMITS).slices()
    offsets = sorted(offset for one in found for offset in one["offset"].to_pylist())
    assert offsets == [offset for offset, time in enumerate(early) if time >= 45]
