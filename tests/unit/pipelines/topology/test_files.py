"""Files of a step: tuples in exchange files, records in output files."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.timestamps import TimestampRule
from sequitur.consumer.topology.engine.plan import OutputRecord, Sent
from sequitur.consumer.topology.settling.root import Root
from sequitur.pipelines.rows.row_files import footer_of
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import Selection
from sequitur.pipelines.topology import files
from sequitur.pipelines.topology.files import ExchangeFile, tuples_in_order
from sequitur.pipelines.topology.output_files import OUTPUT_ORDER, OutputFiles

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.pipelines.store.storage import Location


_LARGE = 96


def _sent(time_ms: int, said: str) -> Sent:
    root = Root(time_ms + 1, (None, None, (), time_ms, "t", 0, time_ms, 0))
    return Sent(pickle.dumps(said), ("a", "default"), ((root, 1),), ("a",))


def _written(folder: Path, times_ms: list[int], name: str) -> tuple[Location, dict[str, Any]]:
    file = ExchangeFile(folder)
    for number, time_ms in enumerate(times_ms):
        file.send("b", 0, _sent(time_ms, f"{name}{number}"))
    file.close()
    return file.path, {"b": file.index["b", 0]}


@pytest.mark.promise("process-call-yields-end")
def test_large_tuples_do_not_wait_by_their_number(tmp_path: Path) -> None:
    """Neither to be written, of all readers together, nor to be given to their task."""
    file = ExchangeFile(tmp_path)
    tracemalloc.start()
    try:
        for number in range(_LARGE):
            file.send("b", number % 4, _sent(number, "x" * (1 << 20)))
        held, _ = tracemalloc.get_traced_memory()
        assert held < _LARGE << 19
        file.close()
        tracemalloc.reset_peak()
        found = 0
        for _ in tuples_in_order([(file.path, {"b": file.index["b", 0]})]):
            found += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == _LARGE // 4
    assert peak < 8 << 20


@pytest.mark.promise("process-later-stage-given")
def test_tuples_of_several_files_come_in_the_order_of_their_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one event as they were sent, file by file; of each stretch one frame is read."""
    monkeypatch.setattr(files, "_TUPLES_AT_ONCE", 8)
    monkeypatch.setattr(files, "_TUPLES_A_FRAME", 2)
    sources = [
        _written(tmp_path, [*range(32), 3, 3, 1], "x"),
        _written(tmp_path, [0, *range(0, 64, 2)], "y"),
    ]
    frames = 0
    load = pickle.load

    def counted(file: Any) -> Any:
        nonlocal frames
        frames += 1
        return load(file)

    monkeypatch.setattr(pickle, "load", counted)
    found = tuples_in_order(sources)
    first = next(found)
    stretches = sum(len(blobs["b"]) for _, blobs in sources)
    assert frames == stretches
    told = [(one.trees[0][0].order[0], pickle.loads(one.values)) for _, one in (first, *found)]
    assert [time_ms for time_ms, _ in told] == sorted(time_ms for time_ms, _ in told)
    assert len(told) == 35 + 33
    assert [said for time_ms, said in told if time_ms == 0] == ["x0", "y0", "y1"]
    assert [said for time_ms, said in told if time_ms == 3] == ["x3", "x32", "x33"]


@pytest.mark.promise("windows-times")
def test_tuples_with_times_of_their_own_come_by_these(tmp_path: Path) -> None:
    """Those of one time keep their order: a window's last result comes after its early ones."""
    file = ExchangeFile(tmp_path)
    times_ms = [(10, None), (20, 9), (30, 29), (25, 29), (28, None), (5, 60)]
    for time_ms, own_ms in times_ms:
        file.send("b", 0, _sent(time_ms, f"{time_ms}")._replace(own_time_ms=own_ms))
    file.close()
    found = tuples_in_order([(file.path, {"b": file.index["b", 0]})])
    assert [pickle.loads(one.values) for _, one in found] == ["20", "10", "28", "25", "30", "5"]


_PARTITIONS = 512
_RECORDS = 2_000
_LARGE_RECORD = 64
_RULE = TimestampRule(OutputTimestamp.EVENT_TIME, now_ms=_RECORDS, floor_ms=_RECORDS)


@pytest.mark.promise("process-call-yields-end")
def test_large_records_do_not_wait_by_their_number(tmp_path: Path) -> None:
    """What waits is bounded by its bytes, of all outputs together."""
    topics = {"large": ("a", 1), "small": ("b", 1)}
    for place in "ab":
        (tmp_path / place).mkdir()
    files = OutputFiles(tmp_path, topics, itertools.count())
    tracemalloc.start()
    try:
        for number in range(_LARGE_RECORD):
            files.write("large", _record(number, bytes(1 << 20)))
            files.write("small", _record(number, b"", (("h", bytes(1 << 18)),)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < _LARGE_RECORD << 19
    files.close()
    assert files.count == 2 * _LARGE_RECORD


def _record(number: int, value: bytes, headers: Any = ()) -> Any:
    event = (b"k", b"v", (), number, "t", 0, number, 5)
    return OutputRecord(Root(number + 1, event), b"%d" % number, value, headers)


def test_row_groups_do_not_grow_with_partitions(tmp_path: Path) -> None:
    """Few records of many output partitions share one; each goes where its key says."""
    (tmp_path / "topic").mkdir()
    files = OutputFiles(tmp_path, {"out": ("topic", _PARTITIONS)}, itertools.count())
    for number in range(_RECORDS):
        files.write("out", _record(number, b""))
    file = files.close()["topic"]
    assert file is not None
    assert len(footer_of(file).groups) == 1
    selection = Selection((Part((file,)),), order=OUTPUT_ORDER)
    found = {
        partition: sum(batch.rows for batch in batches(1 << 18))
        for partition, batches in selection.each(range(_PARTITIONS), _RULE)
    }
    assert sum(found.values()) == _RECORDS
    assert found == {
        partition: sum(batch.rows for batch in selection.batches(partition, 1 << 18, _RULE))
        for partition in found
    }
