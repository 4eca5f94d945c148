"""The files of records that outputs of a topology write."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer import OutputTimestamp, TimestampRule
from sequitur.consumer.topology import OutputRecord
from sequitur.consumer.topology.settling.root import Root
from sequitur.pipelines.rows.footers import footer_of
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import Selection
from sequitur.pipelines.topology.files import OUTPUT_ORDER, OutputFiles

if TYPE_CHECKING:
    from pathlib import Path

_PARTITIONS = 512
_RECORDS = 2_000
_LARGE = 64
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
        for number in range(_LARGE):
            files.write("large", _record(number, bytes(1 << 20)))
            files.write("small", _record(number, b"", (("h", bytes(1 << 18)),)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < _LARGE << 19
    files.close()
    assert files.count == 2 * _LARGE


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
    assert len(footer_of(file).rows) == 1
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
