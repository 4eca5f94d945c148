"""Rows that the subscription has acked are counted while a batch is staged, and not written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.rows.columns import ROW_LIMITS, RowLimits, in_ranges
from sequitur.pipelines.rows.run_writer import RunWriter
from tests.support.examples import examples
from tests.support.staged_rows import BASE_MS, BOUNDS, SPEC, Row, as_batches, rows_of_sources

_SMALL = RowLimits(chunk_bytes=2_000, slice_bytes=500, row_group_rows=4)
_RANGES = st.lists(st.integers(0, 45), min_size=2, max_size=8, unique=True).map(sorted)


def _ranges(edges: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Ranges in order that neither overlap nor touch, from edges in order."""
    even = edges[: len(edges) // 2 * 2]
    return np.array(even[0::2], np.int64), np.array(even[1::2], np.int64)


def _offsets(edges: list[int]) -> set[int]:
    firsts, stops = _ranges(edges)
    return {one for first, stop in zip(firsts, stops, strict=True) for one in range(first, stop)}


@settings(max_examples=examples(1.0))
@given(edges=_RANGES, asked=st.lists(st.integers(0, 50)))
def test_an_offset_is_in_a_range_or_not(edges: list[int], asked: list[int]) -> None:
    """The first offset of a range is in it, its stop is not; in any order, and twice."""
    found = in_ranges(np.array(asked, np.int64), *_ranges(edges))
    assert found.tolist() == [one in _offsets(edges) for one in asked]


@settings(max_examples=examples(0.5))
@given(
    rows=rows_of_sources(),
    acked=st.lists(_RANGES, max_size=4),
    limits=st.sampled_from([_SMALL, ROW_LIMITS]),
    data=st.data(),
)
def test_acked_rows_are_left_out_and_counted(
    rows: list[Row], acked: list[list[int]], limits: RowLimits, data: st.DataObject
) -> None:
    """Those of their own partition only; all rows are read, and all bytes counted."""
    sources = sorted({SourcePartition(row.topic, row.partition) for row in rows})
    of_source = {
        data.draw(st.sampled_from([*sources, SourcePartition("other", 0)])): edges
        for edges in acked
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranges = {where: _ranges(edges) for where, edges in of_source.items()}
        writer = RunWriter(folder, SPEC, BASE_MS, BOUNDS, limits=limits, acked=ranges)
        summary = writer.write(iter(as_batches(rows, 5)))
        written = [] if summary.file is None else pq.read_table(folder / summary.file).to_pylist()
    kept = [
        row
        for row in rows
        if row.offset not in _offsets(of_source.get(SourcePartition(row.topic, row.partition), []))
    ]
    assert {(one["topic"], one["partition"], one["offset"]) for one in written} == {
        (row.topic, row.partition, row.offset) for row in kept
    }
    assert (len(written), summary.skipped) == (len(kept), len(rows) - len(kept))
    assert summary.read == len(rows)
    assert {where: count for where, (count, _) in summary.counted.items()} == {
        where: sum((row.topic, row.partition) == where for row in rows) for where in sources
    }
    sizes = {where: size for where, (_, size) in summary.counted.items()}
    assert all(
        sizes[where] >= sum(len(row.value) for row in rows if (row.topic, row.partition) == where)
        for where in sources
    )
