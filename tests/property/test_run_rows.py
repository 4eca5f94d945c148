"""Rows that are staged in files and selected again are those of a plain list."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequitur.base.copy_headers import SOURCE_OFFSET_HEADER
from sequitur.consumer.reorder import OutputTimestamp, ReorderMode
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.lateness import LateJudge
from sequitur.consumer.reorder.learned_delay import lateness_bin
from sequitur.consumer.reorder.reasons import (
    LAST_RELEASED_HEADER,
    LATE,
    LATE_BY_HEADER,
    MISSING,
    REASON_HEADER,
    STALE,
    TOO_FAR_FUTURE,
)
from sequitur.consumer.reorder.timestamps import TimestampRule
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.record_batch import Stamp, idempotent_batch, records_of
from sequitur.kafka.record_format import RecordLimit
from sequitur.pipelines.ordering.key_tasks import FoldTask, JudgeTask
from sequitur.pipelines.rows.columns import ROW_LIMITS, RUN_ARROW_SCHEMA, RowLimits
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.rows.run_writer import RunWriter
from sequitur.pipelines.rows.selection import Selection, SideSelection
from sequitur.pipelines.spark.partition_blocks import blocks_of
from tests.support.examples import examples
from tests.support.parquet_files import parquet_files
from tests.support.staged_rows import (
    BASE_MS,
    BOUNDS,
    OUTPUTS,
    SPEC,
    Row,
    as_batches,
    is_usable,
    rows_of_sources,
    staged,
)
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.pipelines.rows.record_layout import KafkaBatch

_NOW = TimestampRule(OutputTimestamp.NOW, now_ms=BASE_MS + 100_000, floor_ms=100_000)
_SMALL = RowLimits(chunk_bytes=2_000, slice_bytes=500, row_group_rows=4)
"""Chunks, row groups and slices of a few rows."""
_RULE = replace(_NOW, taken_from=OutputTimestamp.EVENT_TIME)
_BLOCKS = blocks_of(OUTPUTS, 1)
_STAMP = Stamp(producer_id=7, epoch=3, base_sequence=11)
_SLOW = settings(
    max_examples=examples(0.6),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _records(batches: Iterator[KafkaBatch]) -> list[StoredRecord]:
    return [
        record
        for records, count, base_ms, max_ms in batches
        for record in records_of(
            idempotent_batch(records, count, base_ms=base_ms, max_ms=max_ms, stamp=_STAMP)
        )
    ]


def _of_each(
    rows: Selection | SideSelection, partitions: int, rule: TimestampRule
) -> dict[int, list[StoredRecord]]:
    return {
        partition: _records(batches(300))
        for partition, batches in rows.each(range(partitions), rule)
    }


@_SLOW
@given(
    runs=st.lists(rows_of_sources(), min_size=1, max_size=3),
    frontier=st.integers(-1, 32),
    after=st.integers(0, 32),
    limits=st.sampled_from([_SMALL, ROW_LIMITS]),
    keeps=st.booleans(),
)
def test_what_is_due_comes_out_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[list[Row]],
    frontier: int,
    after: int,
    limits: RowLimits,
    *,
    keeps: bool,
) -> None:
    """By event time, then topic, partition and offset; each output partition has its own rows.

    Those of several partitions that are read at once are the same, and so are those in memory.
    """
    root = tmp_path_factory.mktemp("runs")
    for number, rows in enumerate(runs):
        staged(root / str(number), rows, frontier, limits=_SMALL, keeps=keeps and number != 1)
    files = [parquet_files(root / str(number)) for number in range(len(runs))]
    own, earlier = files[0], tuple(itertools.chain(*files[1:]))
    first, last = BASE_MS + frontier, BASE_MS + after
    parts = (Part(own, first, last), Part(earlier, first + 1, last))
    selection = Selection(parts, limits=limits)
    together = _of_each(selection, OUTPUTS, _RULE)
    for output in range(OUTPUTS):
        due = [
            row
            for number, rows in enumerate(runs)
            for row in rows
            if is_usable(row) and row.output == output
            if frontier + (number > 0) <= (row.time or 0) <= after
        ]
        found = _records(selection.batches(output, 300, _RULE))
        due.sort(key=lambda row: row.order)
        assert together.get(output, []) == found
        assert [(r.key, r.value) for r in found] == [(row.key, row.value) for row in due]
        assert [len(r.headers) for r in found] == [row.offset % 2 for row in due]


@_SLOW
@given(rows=rows_of_sources(), sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_the_same_rows_staged_again_go_out_as_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], sizes: tuple[int, int]
) -> None:
    """However Spark puts them into batches for the task, and whether they are in memory."""
    root = tmp_path_factory.mktemp("runs")
    for number, size in enumerate(sizes):
        staged(root / str(number), rows, 0, batch_rows=size, keeps=number == 0)
    once, again = (Selection((Part(parquet_files(root / str(number))),)) for number in range(2))
    for output in range(OUTPUTS):
        batches, repeated = (
            [(bytes(batch.records), *batch[1:]) for batch in one.batches(output, 300, _RULE)]
            for one in (once, again)
        )
        assert batches == repeated


@_SLOW
@given(
    rows=rows_of_sources(),
    frontier=st.integers(0, 32),
    left_out=st.sets(st.integers(0, 40)),
    partitions=st.sampled_from([2, OUTPUTS]),
    limits=st.sampled_from([_SMALL, ROW_LIMITS]),
    keeps=st.booleans(),
)
def test_side_rows_come_out_in_source_order(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    frontier: int,
    left_out: set[int],
    *,
    partitions: int,
    limits: RowLimits,
    keeps: bool,
) -> None:
    """Late and quarantined rows, with the reason; repeats are left out.

    Whether the side topic has as many partitions as the output topic or not.
    """
    root = tmp_path_factory.mktemp("runs")
    summary = staged(root / "run", rows, frontier, limits=_SMALL, keeps=keeps)
    (root / "repeats").mkdir()
    repeats = pa.Table.from_pylist(
        [row.as_arrow() for row in rows if row.offset in left_out],
        pa.schema([RUN_ARROW_SCHEMA.field(name) for name in ("topic", "partition", "offset")]),
    )
    pq.write_table(repeats, root / "repeats" / "part-0.parquet")
    late = [row for row in rows if is_usable(row) and (row.time or 0) < frontier]
    bad = [row for row in rows if not is_usable(row)]
    assert summary.read == len(rows)
    assert summary.reasons.get(LATE, 0) == len(late)
    assert summary.reasons.get(MISSING, 0) == sum(row.time is None for row in rows)
    assert summary.reasons.get(TOO_FAR_FUTURE, 0) == sum(row.time == 2_000 for row in rows)
    run = parquet_files(root / "run")
    cases = (
        (Part(run, last_ms=BASE_MS + frontier - 1, reasons=(LATE,)), late),
        (Part(run, reasons=(MISSING, TOO_FAR_FUTURE), untimed=True), bad),
    )
    for part, expected in cases:
        side = SideSelection(
            (part,),
            parquet_files(root / "repeats"),
            flagged_ms=BASE_MS + frontier,
            limit=RecordLimit(),
            root=root,
            placed=OUTPUTS,
            limits=limits,
        ).over(partitions)
        kept = [row for row in expected if row.offset not in left_out]
        kept.sort(key=lambda row: row.source_order)
        together = _of_each(side, partitions, _NOW)
        for output in range(partitions):
            found = _records(side.batches(output, 300, _NOW))
            assert together.get(output, []) == found
            own = [row.value for row in kept if row.output_of(partitions) == output]
            assert [record.value for record in found] == own
            for record in found:
                assert dict(record.headers)["sequitur-frontier"] == b"%d" % (BASE_MS + frontier)


@_SLOW
@given(rows=rows_of_sources(), frontier=st.integers(0, 32), judges=st.booleans())
def test_late_rows_that_are_emitted_are_flagged_in_place(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], frontier: int, *, judges: bool
) -> None:
    """Judged or not, they stand where their time puts them, with the headers of a late row."""
    root = tmp_path_factory.mktemp("runs")
    staged(root / "run", rows, frontier, limits=_SMALL)
    run, first = parquet_files(root / "run"), BASE_MS + frontier
    late = Part(run, last_ms=first - 1, reasons=(LATE,))
    if judges:
        (root / "judged").mkdir()
        judge = JudgeTask(root / "judged", late, (), LateJudge(horizon_ms=first), limits=_SMALL)
        for block in _BLOCKS:
            judge(block)
        late = Part(parquet_files(root / "judged"), reasons=(LATE,))
    selection = Selection((Part(run, first), late), flagged_ms=first, limits=_SMALL)
    for output in range(OUTPUTS):
        own = [row for row in rows if is_usable(row) and row.output == output]
        own.sort(key=lambda row: row.order)
        found = _records(selection.batches(output, 300, _RULE))
        assert [record.value for record in found] == [row.value for row in own]
        for row, record in zip(own, found, strict=True):
            headers = dict(record.headers)
            assert headers.pop("h", None) == (b"1" if row.offset % 2 else None)
            late_by = frontier - (row.time or 0)
            if late_by <= 0:
                assert headers == {}
                continue
            assert headers[REASON_HEADER] == LATE.encode()
            assert headers[LATE_BY_HEADER] == b"%d" % late_by
            assert headers[SOURCE_OFFSET_HEADER] == b"%d" % row.offset
            assert LAST_RELEASED_HEADER not in headers


@_SLOW
@given(rows=rows_of_sources(), frontier=st.integers(0, 32))
def test_what_was_seen_is_told(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], frontier: int
) -> None:
    """Reaches, the maximum of each source partition, and how late its rows were."""
    seen = SourcePartition("t", 0)
    clock = EventClock(BASE_MS + frontier).observe(
        seen, max_event_time_ms=BASE_MS + 20, position=1, high_watermark=1, now_ms=0
    )
    summary = staged(tmp_path_factory.mktemp("runs") / "run", rows, frontier, clock)
    times = [row.time for row in rows if is_usable(row) and row.time is not None]
    for found, expected in (
        (summary.on_time_ms, [time for time in times if time >= frontier]),
        (summary.behind_ms, [time for time in times if time < frontier]),
    ):
        reach = (min(expected) + BASE_MS, max(expected) + BASE_MS) if expected else None
        assert found == reach
    usable: dict[SourcePartition, list[int]] = {}
    for row in rows:
        if is_usable(row) and row.time is not None:
            usable.setdefault(SourcePartition(row.topic, row.partition), []).append(row.time)
    assert summary.maxima == {source: max(some) + BASE_MS for source, some in usable.items()}
    own = usable.get(seen, [])
    numbers = [lateness_bin(20 - time) for time in own]
    bins = {number: numbers.count(number) for number in set(numbers) if number}
    late = sum(time < frontier for time in own)
    assert summary.lateness == ({seen: (len(own), late, bins)} if own else {})


@_SLOW
@given(
    released=rows_of_sources(),
    behind=rows_of_sources(),
    frontier=st.integers(5, 25),
    horizon=st.integers(-1, 15),
)
def test_rows_are_judged_by_the_last_of_their_key(
    tmp_path_factory: pytest.TempPathFactory,
    released: list[Row],
    behind: list[Row],
    frontier: int,
    horizon: int,
) -> None:
    """By runs or by a fold alike: not older than the last released, nor than the horizon."""
    root = tmp_path_factory.mktemp("runs")
    staged(root / "old", released, 0, limits=_SMALL, keeps=True)
    staged(root / "new", behind, frontier, limits=_SMALL)
    last: dict[bytes, int] = {}
    for row in released:
        if row.key is not None and row.time is not None and horizon <= row.time <= frontier:
            last[row.key] = max(row.time, last.get(row.key, -1))
    rescued: set[bytes] = set()
    late: set[bytes] = set()
    for row in behind:
        if is_usable(row) and row.time is not None and row.time < frontier:
            passes = row.key is not None and row.time >= max(horizon, last.get(row.key, -1))
            (rescued if passes else late).add(row.value)
    old = Part(parquet_files(root / "old"), BASE_MS + horizon, BASE_MS + frontier, reasons=())
    (root / "fold").mkdir()
    for block in _BLOCKS:
        FoldTask(root / "fold", (old,), limits=_SMALL)(block)
    folded = Part(parquet_files(root / "fold"), BASE_MS + horizon, BASE_MS + frontier, reasons=())
    own = Part(parquet_files(root / "new"), last_ms=BASE_MS + frontier - 1, reasons=(LATE,))
    for name, source in (("by-runs", old), ("by-fold", folded)):
        (root / name).mkdir()
        judge = LateJudge(horizon_ms=BASE_MS + horizon)
        task = JudgeTask(root / name, own, (source,), judge, limits=_SMALL)
        written = [task(block) for block in _BLOCKS]
        columns = ("value", "reason", "last_released_ms", "key")
        judged = RunRows(
            (Part(parquet_files(root / name), reasons=()),), None, columns, _SMALL
        ).pieces()
        found = [row for piece in judged for row in piece.to_pylist()]
        assert {row["value"] for row in found if row["reason"] is None} == rescued
        assert {row["value"] for row in found if row["reason"] == LATE} == late
        assert sum(one.late for one in written) == len(late)
        assert sum(one.rows for one in written) == len(rescued) + len(late)
        for row in found:
            key_ms = last.get(row["key"]) if row["key"] is not None else None
            if row["last_released_ms"] is not None:
                assert row["last_released_ms"] == BASE_MS + (key_ms or 0)


@_SLOW
@given(
    released=rows_of_sources(),
    behind=rows_of_sources(),
    horizon=st.integers(-1, 15),
)
def test_newer_rows_of_a_key_pass_in_latest_mode(
    tmp_path_factory: pytest.TempPathFactory,
    released: list[Row],
    behind: list[Row],
    horizon: int,
) -> None:
    """Those behind the last of their key, by runs or by a fold; of equal times places decide."""
    root = tmp_path_factory.mktemp("runs")
    staged(root / "old", released, 3_000, limits=_SMALL)
    staged(root / "new", behind, 3_000, limits=_SMALL)
    last: dict[bytes, Row] = {}
    for row in sorted(filter(is_usable, released), key=lambda row: row.order):
        if row.key is not None and (row.time or 0) >= horizon:
            last[row.key] = row
    passing: set[bytes] = set()
    stale: dict[bytes, int | None] = {}
    for row in filter(is_usable, behind):
        before = None if row.key is None else last.get(row.key)
        is_newer = before is None or row.order > before.order
        if row.key is None or ((row.time or 0) >= horizon and is_newer):
            passing.add(row.value)
        else:
            stale[row.value] = None if before is None else BASE_MS + (before.time or 0)
    old = Part(parquet_files(root / "old"), BASE_MS + horizon, reasons=())
    (root / "fold").mkdir()
    for block in _BLOCKS:
        FoldTask(root / "fold", (old,), ReorderMode.LATEST, _SMALL)(block)
    folded = Part(parquet_files(root / "fold"), BASE_MS + horizon, reasons=())
    own = Part(parquet_files(root / "new"), reasons=(LATE,))
    judge = LateJudge(ReorderMode.LATEST, BASE_MS + horizon)
    for name, source in (("by-runs", old), ("by-fold", folded)):
        (root / name).mkdir()
        task = JudgeTask(root / name, own, (source,), judge, limits=_SMALL)
        written = [task(block) for block in _BLOCKS]
        columns = ("value", "reason", "last_released_ms")
        judged = RunRows(
            (Part(parquet_files(root / name), reasons=()),), None, columns, _SMALL
        ).pieces()
        found = [row for piece in judged for row in piece.to_pylist()]
        assert sorted(row["value"] for row in found if row["reason"] is None) == sorted(passing)
        told = {row["value"]: row["last_released_ms"] for row in found if row["reason"] == STALE}
        assert told.keys() == stale.keys()
        # Of what is behind the horizon anyway, it need not be known.
        assert all(told[value] in {stale[value], None} for value in stale)
        assert all(
            told[row.value] == stale[row.value]
            for row in behind
            if (row.time or 0) >= horizon and row.value in stale
        )
        assert (sum(one.rows for one in written), sum(one.late for one in written)) == (
            len(passing) + len(stale),
            len(stale),
        )


@pytest.mark.promise("order-task-dies-written")
def test_files_that_are_not_named_are_not_read(tmp_path: Path) -> None:
    """What a task that was given up leaves behind counts for nothing."""
    rows = [Row("t", 0, number, b"a", number) for number in range(5)]
    named = staged(tmp_path / "run", rows, 0).file
    assert named is not None
    writer = RunWriter(tmp_path / "run", SPEC, BASE_MS, BOUNDS)
    writer.write(iter(as_batches(rows, 5)))
    assert len(parquet_files(tmp_path / "run")) == 2
    (found,) = RunRows((Part((tmp_path / "run" / named,)),), None, ("offset",)).pieces()
    assert found["offset"].to_pylist() == [0, 1, 2, 3, 4]


def test_slices_follow_each_other(tmp_path: Path) -> None:
    """However much is due, little of it is in memory at a time."""
    limits = RowLimits(slice_bytes=20_000, row_group_rows=50)
    rows = [Row("t", 0, number, None, number * 37 % 1_000) for number in range(2_000)]
    staged(tmp_path / "run", rows, 0, limits=limits)
    slices = list(
        RunRows(
            (Part(parquet_files(tmp_path / "run")),), range(1), ("event_time_ms",), limits
        ).slices()
    )
    reaches = [(min(s), max(s)) for s in (one["event_time_ms"].to_pylist() for one in slices)]
    assert len(slices) > 5
    assert max(map(len, slices)) < 600
    assert all(one[1] < other[0] for one, other in itertools.pairwise(reaches))
    assert sum(map(len, slices)) == 2_000
