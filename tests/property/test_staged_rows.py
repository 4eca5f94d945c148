"""Rows that a batch staged are sent as they were given: each partition's, all of them, in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sequitur.kafka.partition import KeyPartitioner
from sequitur.kafka.record_batch import NO_STAMP, StoredRecord, idempotent_batch, records_of
from sequitur.kafka.record_format import RecordLimit
from sequitur.pipelines.spark_sink.staged_rows import (
    STAGED_SCHEMA,
    RowRules,
    StagedRows,
    StagingLimits,
    StagingWriter,
)

if TYPE_CHECKING:
    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.pipelines.spark_sink.batch_documents import StagedFile

_NOW_MS = 1_700_000_000_000
_FLOOR_MS = 1_000
_PARTITIONS = 6
_Header = tuple[str, "bytes | None"]
_Row = tuple[int, "bytes | None", "bytes | None", "list[_Header] | None", "int | None"]
_DATA = st.none() | st.binary(max_size=30)
_ROWS = st.lists(
    st.tuples(
        st.integers(0, _PARTITIONS - 1),
        _DATA,
        _DATA,
        st.none() | st.lists(st.tuples(st.text(max_size=4), _DATA), max_size=2),
        st.none() | st.integers(_NOW_MS - 2 * _FLOOR_MS, _NOW_MS),
    ),
    max_size=60,
)
_LIMITS = st.builds(
    StagingLimits,
    group_rows=st.integers(1, 12),
    group_bytes=st.sampled_from([1, 300, 1 << 20]),
    packed_bytes=st.sampled_from([1, 100, 1 << 20]),
)


def _batches(rows: list[_Row], batch_rows: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    """As Spark hands them over: by partition, in order."""
    given = [
        {
            "output_partition": partition,
            "key": key,
            "value": value,
            "headers": None
            if headers is None
            else [{"key": name, "value": of} for name, of in headers],
            "timestamp_ms": time_ms,
        }
        for partition, key, value, headers, time_ms in sorted(rows, key=lambda row: row[0])
    ]
    return [
        pa.RecordBatch.from_pylist(given[at : at + batch_rows], schema)
        for at in range(0, len(given), batch_rows)
    ]


def _expected(row: _Row) -> StoredRecord:
    _partition, key, value, headers, time_ms = row
    timestamp_ms = max(_NOW_MS if time_ms is None else time_ms, _NOW_MS - _FLOOR_MS)
    return StoredRecord(timestamp_ms, key, value, tuple(headers or ()))


_LACKS = st.lists(st.sampled_from(["headers", "timestamp_ms"]), unique=True)
"""Columns that the rows of a batch do not have."""


@given(
    rows=_ROWS,
    limits=_LIMITS,
    batch_rows=st.integers(1, 20),
    middle=st.integers(0, _PARTITIONS),
    large=st.booleans(),
)
def test_each_partition_has_its_rows_in_order(
    rows: list[_Row], limits: StagingLimits, batch_rows: int, middle: int, *, large: bool
) -> None:
    """However files and row groups are cut, and whichever partitions a task has."""
    schema = STAGED_SCHEMA
    if large:
        schema = schema.set(1, pa.field("key", pa.large_binary()))
        schema = schema.set(2, pa.field("value", pa.large_binary()))
    rules = RowRules("topic", _PARTITIONS, RecordLimit(), None)
    with TemporaryDirectory() as folder:
        writer = StagingWriter(Path(folder), rules, limits)
        summary = writer.write(iter(_batches(rows, batch_rows, schema)))
        assert summary.refused is None
        assert (summary.file is None) == (not rows)
        files = () if summary.file is None else (summary.file,)
        staged = StagedRows(Path(folder), files, _NOW_MS, _NOW_MS - _FLOOR_MS)
        found: dict[int, list[StoredRecord]] = {}
        for block in (range(middle), range(middle, _PARTITIONS)):
            for partition, batches in staged.each(block):
                assert partition not in found
                found[partition] = [
                    one
                    for batch in batches(200)
                    for one in records_of(
                        idempotent_batch(
                            batch.records,
                            batch.rows,
                            base_ms=batch.base_ms,
                            max_ms=batch.max_ms,
                            stamp=NO_STAMP,
                        )
                    )
                ]
    wanted: dict[int, list[StoredRecord]] = {}
    for row in sorted(rows, key=lambda row: row[0]):
        wanted.setdefault(row[0], []).append(_expected(row))
    assert found == wanted


@given(tasks=st.lists(_ROWS, max_size=3), batch_rows=st.integers(1, 20), lacks=_LACKS)
def test_rows_of_several_tasks_follow_each_other_where_their_keys_belong(
    tasks: list[list[_Row]], batch_rows: int, lacks: list[str]
) -> None:
    """Rows that nobody has placed; without a key they have a partition of their own."""
    placed = KeyPartitioner(_PARTITIONS)
    rules = RowRules("topic", _PARTITIONS, RecordLimit(), None)
    wanted: dict[int, list[bytes | None]] = {}
    with TemporaryDirectory() as folder:
        files: list[StagedFile] = []
        for rows in tasks:
            given_rows = pa.table(
                {
                    "output_partition": [None if key is not None else at for at, key, *_ in rows],
                    "key": [key for _, key, *_ in rows],
                    "value": [value for _, _, value, *_ in rows],
                    "headers": [None] * len(rows),
                    "timestamp_ms": [None] * len(rows),
                },
                STAGED_SCHEMA,
            ).drop_columns(lacks)
            staged = StagingWriter(Path(folder), rules).write(
                iter(given_rows.to_batches(max_chunksize=batch_rows))
            )
            files += [] if staged.file is None else [staged.file]
            for at, key, value, *_ in rows:
                own = at if key is None else placed.partition(key)
                wanted.setdefault(own, []).append(value)
        sent = StagedRows(Path(folder), tuple(files), _NOW_MS, _NOW_MS - _FLOOR_MS)
        found = {
            partition: [one.value for batch in batches(200) for one in _records(batch)]
            for partition, batches in sent.each(range(_PARTITIONS))
        }
    assert found == wanted
    counted = sum((file.rows for file in files), Counter[int]())
    assert counted == {partition: len(values) for partition, values in wanted.items()}


def _records(batch: KafkaBatch) -> list[StoredRecord]:
    raw = idempotent_batch(
        batch.records, batch.rows, base_ms=batch.base_ms, max_ms=batch.max_ms, stamp=NO_STAMP
    )
    return list(records_of(raw))
