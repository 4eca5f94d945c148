"""Deletions of an ordered topic: tombstones that have the time of their record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sequitur import ReorderSettings
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.reasons import MISSING, TOO_EARLY
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.time_bounds import TimeBounds
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.pipelines.rows.columns import READ_SCHEMA, RowLimits
from sequitur.pipelines.rows.run_rows import HeldRows
from sequitur.pipelines.rows.run_writer import RunWriter
from sequitur.testing import ReorderTester
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.testing import ReorderedRecord

_T = 1_700_000_000_000
_BOUNDS = TimeBounds(earliest_ms=_T, latest_ms=_T + 100)


@dataclass(frozen=True)
class _Row:
    partition: int
    key: bytes | None
    time: int | None  # in the value; None: a tombstone
    stamp: int


_ROWS = st.lists(
    st.builds(
        _Row,
        st.integers(0, 1),
        st.sampled_from([b"a", b"b", b"", None]),
        st.none() | st.integers(-2, 103),
        st.integers(-2, 103),
    ),
    max_size=20,
)


_Newest = dict[tuple[int, bytes | None], int]


def _expected(rows: list[_Row], held: _Newest | None = None) -> list[int | None]:
    """Row by row, with a dict: the event time of each, None without a usable one."""
    newest = dict(held or {})
    found: list[int | None] = []
    for row in rows:
        time = row.time
        where = row.partition, row.key
        if time is None and row.key is not None:
            time = max(row.stamp, newest.get(where, row.stamp))
        if time is None or not 0 <= time <= 100:
            found.append(None)
            continue
        newest[where] = max(time, newest.get(where, time))
        found.append(time)
    return found


def _batches(rows: list[_Row], each: int) -> Iterator[pa.RecordBatch]:
    given = [
        {
            "topic": "t",
            "partition": row.partition,
            "offset": offset,
            "timestamp_ms": _T + row.stamp,
            "key": row.key,
            "value": None if row.time is None else json.dumps({"at": _T + row.time}).encode(),
            "headers": None,
            "output_partition": 0,
        }
        for offset, row in enumerate(rows)
    ]
    for at in range(0, len(given), each):
        yield pa.RecordBatch.from_pylist(given[at : at + each], READ_SCHEMA)


@pytest.mark.promise("order-tombstones")
@given(_ROWS, st.integers(1, 20))
@example([_Row(0, b"a", 50, 0), _Row(0, b"a", 20, 0), _Row(0, b"a", None, 30)], 1)
@example([_Row(0, b"a", 50, 0), _Row(1, b"a", None, 30)], 2)
@example([_Row(0, b"a", 103, 0), _Row(0, b"a", None, 30)], 2)
@example([_Row(0, b"a", None, 103), _Row(0, b"a", None, 30)], 1)
@example([_Row(0, None, 50, 0), _Row(0, b"", None, 30)], 1)
@example([_Row(0, b"a", 50, 0), _Row(0, b"a", None, -2)], 1)
def test_a_tombstone_is_not_before_what_stands_before_it(rows: list[_Row], each: int) -> None:
    """Within a batch, in whatever chunks a task reads it."""
    with TemporaryDirectory() as folder:
        writer = RunWriter(
            Path(folder),
            parse_event_time_spec("json:at"),
            frontier_ms=0,
            bounds=_BOUNDS,
            limits=RowLimits(chunk_bytes=1),
            dates_tombstones=True,
        )
        summary = writer.write(_batches(rows, each))
        assert (summary.file is None) == (not rows)
        if summary.file is None:
            return
        staged = pq.read_table(Path(folder) / summary.file, partitioning=None).to_pylist()
    times = {row["offset"]: row["event_time_ms"] for row in staged}
    found = [times[offset] for offset in range(len(rows))]
    assert found == [None if time is None else _T + time for time in _expected(rows)]


def _settings(**more: Any) -> ReorderSettings:
    given = {"event_time": "json:at", "delay": "0 s", "tombstones": "timestamp", **more}
    return ReorderSettings(input_topics=("t",), output_topic="o", checkpoint="none", **given)


def _value(time: int) -> str:
    return json.dumps({"at": _T + time})


def _row(key: str | None, time: int | None, stamp: int) -> dict[str, Any]:
    value = None if time is None else _value(time)
    return {"key": key, "value": value, "timestamp_ms": _T + stamp}


_CHANGES = [_row("a", 5, 1), _row("b", 6, 2), _row("a", None, 3), _row("b", 4, 4)]


@pytest.mark.promise("order-tombstones")
def test_deletions_stay_in_the_stream() -> None:
    """A compacted ordered topic forgets deleted keys; a record's timestamp is the event time."""
    with ReorderTester(_settings(), now_ms=_T + 1_000) as tester:
        tester.run([*_CHANGES, _row(None, None, 5)])
        tester.drain()
        of_a = [one.value for one in tester.released if one.key == b"a"]
        assert of_a == [_value(5).encode(), None]
        assert len(tester.released) == 4
        (bad,) = tester.quarantined
        assert (bad.key, bad.header("sequitur-reason")) == (None, MISSING.encode())
        (deletion,) = [one for one in tester.released if one.value is None]
        assert deletion.timestamp_ms == _T + 5


@pytest.mark.parametrize("event_time", ["json:at", "header:at", "json:/at as s"])
def test_deletions_are_quarantined_by_default(event_time: str) -> None:
    default = ReorderSettings.model_fields["tombstones"].default
    with ReorderTester(_settings(event_time=event_time, tombstones=default)) as tester:
        tester.run([_row("a", None, 3)])
        tester.drain()
        assert tester.released == []
        assert [one.header("sequitur-reason") for one in tester.quarantined] == [MISSING.encode()]


def test_deletions_are_late_and_disbelieved_as_any_row_is() -> None:
    """Behind the frontier, and older than what is out of their key."""
    with ReorderTester(_settings(), now_ms=_T + 100_000, available_now=True) as tester:
        tester.run([_row("a", 50_000, 0), _row("x", 60_000, 0)])
        tester.run([_row("a", None, 10), {**_row("b", None, 0), "timestamp_ms": 5}])
        tester.drain()
        assert [one.key for one in tester.released] == [b"a", b"x"]
        assert [(one.key, one.value) for one in tester.late] == [(b"a", None)]
        assert [one.header("sequitur-reason") for one in tester.quarantined] == [TOO_EARLY.encode()]


def test_a_header_of_its_own_is_a_tombstones_event_time() -> None:
    settings = _settings(event_time="header:at")
    with ReorderTester(settings, now_ms=_T + 1_000) as tester:
        header = [("at", str(_T + 9).encode())]
        tester.run([{**_row("a", None, 3), "headers": header}, _row("b", None, 4)])
        tester.drain()
        assert [(one.key, one.timestamp_ms - _T) for one in tester.released] == [
            (b"b", 4),
            (b"a", 9),
        ]


@pytest.mark.promise("order-tombstones")
@pytest.mark.parametrize(("tombstones", "is_last"), [("timestamp", False), ("key", True)])
@pytest.mark.parametrize("small_batch_rows", [0, 50_000])
def test_a_row_that_an_earlier_batch_holds_comes_out_first_with_key(
    tombstones: str, *, is_last: bool, small_batch_rows: int
) -> None:
    """Whether tasks stage the batches or the driver does."""
    settings = _settings(delay="1 h", tombstones=tombstones, small_batch_rows=small_batch_rows)
    with ReorderTester(settings, now_ms=_T + 1_000) as tester:
        tester.run([_row("a", 50, 0), _row("b", 60, 0)])
        tester.run([_row("a", None, 10)])
        tester.drain()
        expected = [_value(50).encode(), None] if is_last else [None, _value(50).encode()]
        assert [one.value for one in tester.released if one.key == b"a"] == expected


@dataclass(frozen=True)
class _Batch:
    rows: list[_Row]
    restarts: bool = False  # the job, after it; and Spark gives the batch again


_BATCHES = st.lists(st.builds(_Batch, _ROWS, st.booleans()), max_size=4)
_HELD = _Batch([_Row(0, b"a", 50, 0), _Row(0, b"b", 60, 0), _Row(1, b"a", 90, 0)], restarts=True)


@pytest.mark.promise("order-tombstones")
@settings(max_examples=examples(0.5))
@given(_BATCHES, st.integers(0, 60), st.sampled_from([0, 50_000]))
@example([_HELD, _Batch([_Row(0, b"a", None, 10)])], 60, 0)
@example([_HELD, _Batch([_Row(0, b"a", 40, 0), _Row(0, b"a", None, -2)])], 60, 50_000)
@example([_HELD, _Batch([_Row(1, b"b", None, 10), _Row(0, b"b", None, 103)])], 60, 0)
@example([_HELD, _Batch([_Row(0, b"a", None, 10)])], 0, 0)
def test_no_deletion_comes_out_before_a_row_of_its_key(
    batches: list[_Batch], delay: int, small_batch_rows: int
) -> None:
    """Of its partition, whatever its timestamp, in its batch or held of earlier ones."""
    given_settings = _settings(
        delay=f"{delay} ms",
        tombstones="key",
        small_batch_rows=small_batch_rows,
        min_event_time=datetime.fromtimestamp(_T / 1000, UTC),
        max_future_skew="0 ms",
    )
    read: list[_Row] = []
    times: list[int | None] = []
    with ReorderTester(given_settings, partitions=2, now_ms=_T + 100) as tester:
        for batch in batches:
            out_ms = tester.report().frontier_ms - _T
            times += _expected(batch.rows, _held(read, times, out_ms))
            tester.run(_numbered(number, row) for number, row in enumerate(batch.rows, len(read)))
            read += batch.rows
            if batch.restarts:
                tester.restart(repeats=True)
                tester.run()
        tester.drain()
        released = {_number(one): one for one in tester.released}
        aside = {_number(one): one for one in [*tester.late, *tester.quarantined]}
        found = {number: one.timestamp_ms for number, one in released.items()}
        for number, one in aside.items():
            found[number] = int(one.header(EVENT_TIME_HEADER) or -1)
    assert len(released) + len(aside) == len(read)
    for number, time in enumerate(times):
        if time is not None:
            assert found[number] == _T + time
        else:
            assert number in aside
    places = {number: place for place, number in enumerate(released)}
    for number in released:
        if read[number].time is None:
            before = [
                places[other]
                for other in range(number)
                if other in released
                and (read[other].partition, read[other].key)
                == (read[number].partition, read[number].key)
            ]
            assert max(before, default=-1) < places[number]


def _held(read: list[_Row], times: list[int | None], out_ms: int) -> _Newest:
    held: _Newest = {}
    for row, time in zip(read, times, strict=True):
        where = row.partition, row.key
        if time is not None and time > out_ms:
            held[where] = max(time, held.get(where, time))
    return held


def _numbered(number: int, row: _Row) -> dict[str, Any]:
    named = {"key": row.key, "partition": row.partition, "headers": [("number", str(number))]}
    return {**_row("", row.time, row.stamp), **named}


def _number(found: ReorderedRecord) -> int:
    return int(found.header("number") or b"")


def test_runs_without_rows_later_than_a_deletion_are_not_opened(tmp_path: Path) -> None:
    """The usual case: a deletion has been written after the rows of its key."""
    run = Run(0, 1, min_event_time_ms=_T, max_event_time_ms=_T + 9, name="gone", files={"f": 1})
    keys = pa.array([b"a"], pa.binary())
    assert list(HeldRows(tmp_path, (run,), _T + 3).of_keys(keys, after_ms=_T + 9)) == []
    assert list(HeldRows(tmp_path, (run,), _T + 9).of_keys(keys, after_ms=0)) == []
    with pytest.raises(FileNotFoundError):
        list(HeldRows(tmp_path, (run,), _T + 3).of_keys(keys, after_ms=_T + 8))
