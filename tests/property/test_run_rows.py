"""Rows that are staged in files and selected again are those of a plain list."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer import (
    LATE,
    MISSING,
    TOO_FAR_FUTURE,
    SourcePartition,
    lateness_bin,
    parse_event_time_spec,
)
from pipelines import _run_rows, _run_writer
from pipelines._key_tasks import FoldTask, JudgeTask
from pipelines._run_rows import Part, RunRows
from pipelines._run_writer import RUN_ARROW_SCHEMA, Clocks, RunWriter, Summary, show
from pipelines._selection import Selection, SideSelection
from producer._batch import Stamp, records_of, transactional_batch
from producer._partitioner import KeyPartitioner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from producer._batch import Record

_OUTPUTS = 3
_BASE_MS = 1_700_000_000_000
_LATEST_MS = _BASE_MS + 1_000
_STAMP = Stamp(producer_id=7, epoch=3, base_sequence=11)
_SPEC = parse_event_time_spec("json:at")
_SLOW = settings(
    deadline=None,  # a loaded machine is no failure
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class _Row:
    """A record as it is read: with an event time, or without one."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    time: int | None

    @property
    def value(self) -> bytes:
        """What it says of itself."""
        at = "" if self.time is None else f'"at":{_BASE_MS + self.time},'
        return f'{{{at}"of":"{self.topic}/{self.partition}/{self.offset}"}}'.encode()

    @property
    def order(self) -> tuple[int, bytes, int, int]:
        """Where it goes out."""
        assert self.time is not None
        return self.time, self.topic.encode(), self.partition, self.offset

    @property
    def output(self) -> int:
        """Where its key goes to."""
        if self.key is None:
            return self.partition % _OUTPUTS
        return KeyPartitioner(_OUTPUTS).partition(self.key)

    def as_arrow(self) -> dict[str, Any]:
        """As Spark hands it over."""
        headers = [{"key": "h", "value": b"1"}] if self.offset % 2 else None
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": 5,
            "key": self.key,
            "value": self.value,
            "headers": headers,
            "output_partition": self.output,
        }


_TIMES = st.integers(0, 30) | st.just(2_000) | st.none()
_KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d", b"e"])
_SOURCES = st.tuples(st.sampled_from(["t", "\u00e9", "\U0001f600"]), st.integers(0, 2))


@st.composite
def _rows(draw: st.DrawFn) -> list[_Row]:
    drawn = draw(st.lists(st.tuples(_SOURCES, _KEYS, _TIMES), max_size=40))
    return [
        _Row(topic, partition, offset, key, time)
        for offset, ((topic, partition), key, time) in enumerate(drawn)
    ]


def _staged(folder: Path, rows: list[_Row], frontier: int, clocks: Clocks | None = None) -> Summary:
    folder.mkdir(parents=True)
    schema = pa.schema(list(RUN_ARROW_SCHEMA)[:-2])
    batches = [
        pa.RecordBatch.from_pylist([row.as_arrow() for row in rows[at : at + 5]], schema)
        for at in range(0, len(rows), 5)
    ]
    writer = RunWriter(str(folder), _SPEC, _BASE_MS + frontier, _LATEST_MS, clocks)
    summary = writer.write(iter(batches))
    show(folder, [summary.file] if summary.file else [])
    return summary


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, row groups and slices of a few rows."""
    monkeypatch.setattr(_run_writer, "_CHUNK_BYTES", 2_000)
    monkeypatch.setattr(_run_writer, "_ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(_run_rows, "_SLICE_BYTES", 500)


def _records(batches: Iterator[tuple[memoryview, int]]) -> list[Record]:
    return [
        record
        for records, count in batches
        for record in records_of(transactional_batch(records, count, timestamp_ms=0, stamp=_STAMP))
    ]


def _is_usable(row: _Row) -> bool:
    return row.time is not None and _BASE_MS + row.time <= _LATEST_MS


@pytest.mark.usefixtures("small_pieces")
@_SLOW
@given(
    runs=st.lists(_rows(), min_size=1, max_size=3),
    frontier=st.integers(-1, 32),
    after=st.integers(0, 32),
)
def test_what_is_due_comes_out_in_order(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[_Row]], frontier: int, after: int
) -> None:
    """By event time, then topic, partition and offset; each output partition has its own rows."""
    root = tmp_path_factory.mktemp("runs")
    for number, rows in enumerate(runs):
        _staged(root / str(number), rows, frontier)
    folders = tuple(str(root / str(number)) for number in range(len(runs)))
    first, last = _BASE_MS + frontier, _BASE_MS + after
    selection = Selection((Part(folders[:1], first, last), Part(folders[1:], first + 1, last)))
    for output in range(_OUTPUTS):
        due = [
            row
            for number, rows in enumerate(runs)
            for row in rows
            if _is_usable(row) and row.output == output
            if frontier + (number > 0) <= (row.time or 0) <= after
        ]
        found = _records(selection.batches(output, 300))
        due.sort(key=lambda row: row.order)
        assert [(r.key, r.value) for r in found] == [(row.key, row.value) for row in due]
        assert [len(r.headers) for r in found] == [row.offset % 2 for row in due]


@pytest.mark.usefixtures("small_pieces")
@_SLOW
@given(rows=_rows(), frontier=st.integers(0, 32), left_out=st.sets(st.integers(0, 40)))
def test_side_rows_come_out_in_source_order(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[_Row],
    frontier: int,
    left_out: set[int],
) -> None:
    """Late and quarantined rows, with the reason; repeats are left out."""
    root = tmp_path_factory.mktemp("runs")
    summary = _staged(root / "run", rows, frontier)
    (root / "repeats").mkdir()
    repeats = pa.Table.from_pylist(
        [row.as_arrow() for row in rows if row.offset in left_out],
        pa.schema([RUN_ARROW_SCHEMA.field(name) for name in ("topic", "partition", "offset")]),
    )
    pq.write_table(repeats, root / "repeats" / "part-0.parquet")
    late = [row for row in rows if _is_usable(row) and (row.time or 0) < frontier]
    bad = [row for row in rows if not _is_usable(row)]
    assert summary.read == len(rows)
    assert summary.reasons.get(LATE, 0) == len(late)
    assert summary.reasons.get(MISSING, 0) == sum(row.time is None for row in rows)
    assert summary.reasons.get(TOO_FAR_FUTURE, 0) == sum(row.time == 2_000 for row in rows)
    run = (str(root / "run"),)
    cases = (
        (Part(run, last_ms=_BASE_MS + frontier - 1, reasons=(LATE,)), late),
        (Part(run, reasons=(MISSING, TOO_FAR_FUTURE), untimed=True), bad),
    )
    for part, expected in cases:
        side = SideSelection(
            part, _BASE_MS + frontier, is_judged=False, partitions=2, repeats=str(root / "repeats")
        )
        found = [record for output in range(2) for record in _records(side.batches(output, 300))]
        kept = [row for row in expected if row.offset not in left_out]
        assert sorted(r.value or b"" for r in found) == sorted(row.value for row in kept)
        for record in found:
            assert dict(record.headers)["sequitur-frontier"] == b"%d" % (_BASE_MS + frontier)


@_SLOW
@given(rows=_rows(), frontier=st.integers(0, 32))
def test_what_was_seen_is_told(
    tmp_path_factory: pytest.TempPathFactory, rows: list[_Row], frontier: int
) -> None:
    """Reaches, the maximum of each source partition, and how late its rows were."""
    seen = SourcePartition("t", 0)
    clocks = Clocks({seen: _BASE_MS + 20}, _BASE_MS + frontier)
    summary = _staged(tmp_path_factory.mktemp("runs") / "run", rows, frontier, clocks)
    times = [row.time for row in rows if _is_usable(row) and row.time is not None]
    for found, expected in (
        (summary.on_time_ms, [time for time in times if time >= frontier]),
        (summary.behind_ms, [time for time in times if time < frontier]),
    ):
        reach = (min(expected) + _BASE_MS, max(expected) + _BASE_MS) if expected else None
        assert found == reach
    usable: dict[SourcePartition, list[int]] = {}
    for row in rows:
        if _is_usable(row) and row.time is not None:
            usable.setdefault(SourcePartition(row.topic, row.partition), []).append(row.time)
    assert summary.maxima == {source: max(some) + _BASE_MS for source, some in usable.items()}
    own = usable.get(seen, [])
    numbers = [lateness_bin(20 - time) for time in own]
    bins = {number: numbers.count(number) for number in set(numbers) if number}
    late = sum(time < frontier for time in own)
    assert summary.lateness == ({seen: (len(own), late, bins)} if own else {})


@pytest.mark.usefixtures("small_pieces")
@_SLOW
@given(released=_rows(), behind=_rows(), frontier=st.integers(5, 25), horizon=st.integers(-1, 15))
def test_rows_are_judged_by_the_last_of_their_key(
    tmp_path_factory: pytest.TempPathFactory,
    released: list[_Row],
    behind: list[_Row],
    frontier: int,
    horizon: int,
) -> None:
    """By runs or by a fold alike: not older than the last released, nor than the horizon."""
    root = tmp_path_factory.mktemp("runs")
    _staged(root / "old", released, 0)
    _staged(root / "new", behind, frontier)
    last: dict[bytes, int] = {}
    for row in released:
        if row.key is not None and row.time is not None and horizon <= row.time <= frontier:
            last[row.key] = max(row.time, last.get(row.key, -1))
    rescued: set[bytes] = set()
    late: set[bytes] = set()
    for row in behind:
        if _is_usable(row) and row.time is not None and row.time < frontier:
            passes = row.key is not None and row.time >= max(horizon, last.get(row.key, -1))
            (rescued if passes else late).add(row.value)
    old = Part((str(root / "old"),), _BASE_MS + horizon, _BASE_MS + frontier, reasons=())
    (root / "fold").mkdir()
    for output in range(_OUTPUTS):
        fold = FoldTask(str(root / "fold"), (old,))(output)
        show(root / "fold", [fold.file] if fold.file else [])
    folded = Part((str(root / "fold"),), _BASE_MS + horizon, _BASE_MS + frontier, reasons=())
    own = Part((str(root / "new"),), last_ms=_BASE_MS + frontier - 1, reasons=(LATE,))
    for name, source in (("by-runs", old), ("by-fold", folded)):
        (root / name).mkdir()
        task = JudgeTask(str(root / name), own, (source,), _BASE_MS + horizon, None)
        written = [task(output) for output in range(_OUTPUTS)]
        show(root / name, [one.file for one in written if one.file])
        columns = ("value", "reason", "last_released_ms", "key")
        judged = RunRows((Part((str(root / name),), reasons=()),), None, columns).all()
        found = [] if judged is None else judged.to_pylist()
        assert {row["value"] for row in found if row["reason"] is None} == rescued
        assert {row["value"] for row in found if row["reason"] == LATE} == late
        assert sum(one.late for one in written) == len(late)
        assert sum(one.rows for one in written) == len(rescued) + len(late)
        for row in found:
            key_ms = last.get(row["key"]) if row["key"] is not None else None
            if row["last_released_ms"] is not None:
                assert row["last_released_ms"] == _BASE_MS + (key_ms or 0)


def test_files_that_are_not_shown_are_not_read(tmp_path: Path) -> None:
    """What a task that was given up leaves behind counts for nothing."""
    rows = [_Row("t", 0, number, b"a", number) for number in range(5)]
    _staged(tmp_path / "run", rows, 0)
    schema = pa.schema(list(RUN_ARROW_SCHEMA)[:-2])
    batch = pa.RecordBatch.from_pylist([row.as_arrow() for row in rows], schema)
    writer = RunWriter(str(tmp_path / "run"), _SPEC, _BASE_MS, _LATEST_MS)
    writer.write(iter([batch]))
    found = RunRows((Part((str(tmp_path / "run"),)),), None, ("offset",)).all()
    assert found is not None
    assert found["offset"].to_pylist() == [0, 1, 2, 3, 4]


def test_slices_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is due, little of it is in memory at a time."""
    monkeypatch.setattr(_run_writer, "_ROW_GROUP_ROWS", 50)
    monkeypatch.setattr(_run_rows, "_SLICE_BYTES", 20_000)
    rows = [_Row("t", 0, number, None, number * 37 % 1_000) for number in range(2_000)]
    _staged(tmp_path / "run", rows, 0)
    slices = list(RunRows((Part((str(tmp_path / "run"),)),), 0, ("event_time_ms",)).slices())
    reaches = [(min(s), max(s)) for s in (one["event_time_ms"].to_pylist() for one in slices)]
    assert len(slices) > 5
    assert max(map(len, slices)) < 600
    assert all(one[1] < other[0] for one, other in itertools.pairwise(reaches))
    assert sum(map(len, slices)) == 2_000
