"""A batch that the driver stages is the batch that tasks stage, but for its files."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.reorder.clock import EventClock, PartitionClock
from sequitur.consumer.reorder.reasons import LATE, QUARANTINE_REASONS
from sequitur.kafka.log_reading import Fetched, together
from sequitur.kafka.partition import SourcePartition, murmur2
from sequitur.kafka.record_format import RecordLimit
from sequitur.kafka.stored_batches import batches_in, seen
from sequitur.pipelines.ordering.runs import SortedRuns
from sequitur.pipelines.ordering.small_batches import KafkaRanges, SmallBatches
from sequitur.pipelines.rows.columns import READ_SCHEMA, RUN_ARROW_SCHEMA
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.rows.selection import Selection
from tests.support.examples import examples
from tests.support.partition_logs import PartitionLog, partition_logs
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sequitur.kafka.stored_batches import RecordColumns
    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.rows.run_writer import RunWriter, Summary

_BASE_MS: Final = 1_700_000_000_000
_SETTINGS: Final = ReorderSettings.model_validate(
    {
        "input_topics": ["a", "b"],
        "output_topic": "out",
        "checkpoint": "none",
        "event_time": "json:at",
    }
)
_PLACES: Final = tuple(SourcePartition(topic, number) for topic in "ab" for number in range(2))
_VALUES = st.one_of(
    st.integers(0, 20).map(lambda ms: b'{"at":%d}' % (_BASE_MS + ms)),
    st.sampled_from([None, b"", b"{", b"{}", b'{"at":"2023-11-14T22:13:20.005Z"}', b'{"at":9}']),
)
_RECORDS = st.tuples(
    st.sampled_from([-1, 0, _BASE_MS, _BASE_MS + 7, 2**62]),
    st.sampled_from([None, b"", b"k", b"kk", b"key", b"\xff of another length"]),
    _VALUES,
    st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=2),
)
_REASONS: Final = (LATE, *QUARANTINE_REASONS)
_SHARES = st.floats(0, 1)
_LOGS = st.fixed_dictionaries({where: partition_logs(_RECORDS) for where in _PLACES})


@dataclass
class _Brokers:
    """Read ranges of logs, a few batches at a time."""

    logs: Mapping[SourcePartition, PartitionLog]
    at_once: int
    piece_bytes: int

    def together(
        self, spans: Spans, most_bytes: int, _reached: dict[SourcePartition, int] | None = None
    ) -> Iterator[tuple[list[tuple[SourcePartition, int]], RecordColumns]]:
        answers = []
        for where, (first, stop) in spans.items():
            log = self.logs[where]
            batches = list(seen(batches_in(b"".join(log.batches)), log.aborted))
            for at in range(0, len(batches), self.at_once):
                some = batches[at : at + self.at_once]
                answers.append(Fetched(where, first, stop, some, stop, stop))
        return together(answers, most_bytes, self.piece_bytes)


@dataclass
class _ByTheDriver:
    brokers: _Brokers
    told: list[str] = field(default_factory=list)

    def read_into(
        self, writer: RunWriter, *, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        del step
        reader: Any = self.brokers
        batches = SmallBatches(KafkaRanges(reader), _SETTINGS, self.told.append)
        found = batches.read_into(writer, spans, partitions)
        assert found is not None, self.told
        return [found]


@dataclass
class _ByTasks:
    """One for each partition, which is given its rows some at a time."""

    logs: Mapping[SourcePartition, PartitionLog]
    batch_rows: int

    def read_into(
        self, writer: RunWriter, *, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        del step
        found = []
        for where, (first, stop) in spans.items():
            rows = [
                _as_it_is_read(where, offset, record, partitions)
                for offset, record in self.logs[where].rows.items()
                if first <= offset < stop
            ]
            some = (rows[at : at + self.batch_rows] for at in range(0, len(rows), self.batch_rows))
            found.append(writer.write(pa.RecordBatch.from_pylist(p, READ_SCHEMA) for p in some))
        return found


def _as_it_is_read(
    where: SourcePartition, offset: int, record: Any, partitions: int
) -> dict[str, Any]:
    timestamp_ms, key, value, headers = record
    output = where.partition if key is None else murmur2(key) & 0x7FFFFFFF
    return {
        **where._asdict(),
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "key": key,
        "value": value,
        "headers": [{"key": name, "value": data} for name, data in headers] or None,
        "output_partition": output % partitions,
    }


def _staged(  # noqa: PLR0917 - what a step is staged by
    folder: Path,
    source: Any,
    spans: Spans,
    partitions: int,
    frontier: int,
    acked: set[int],
) -> tuple[Any, ...]:
    """Return what a way of staging gives: what it saw, and all rows."""

    def new_folder(name: str) -> Path:
        (folder / name).mkdir(parents=True)
        return folder / name

    topics = SimpleNamespace(record_limit=lambda _topic: RecordLimit(max_bytes=40))
    job: Any = SimpleNamespace(
        settings=_SETTINGS,
        checkpoint=SimpleNamespace(new_folder=new_folder),
        topics=topics,
        source=source,
        now_ms=lambda: _BASE_MS + 1_000,
    )
    outputs: Any = SimpleNamespace(released=SimpleNamespace(name="out"))
    clocks = {where: PartitionClock(_BASE_MS + 9, 0, 0, 0) for where in spans}
    offsets = np.array(sorted(acked), np.int64)
    found = SortedRuns(job, outputs, partitions, releases=True).write_run(
        3,
        spans,
        name="run",
        clock=EventClock(_BASE_MS + frontier, clocks),
        learns=True,
        acked={_PLACES[0]: (offsets, offsets + 1)} if acked else {},
        holding=(),
    )
    files = tuple(folder / "runs/run" / name for name in found.run.files)
    released = Selection((Part(files),))
    in_order = [
        some.to_pylist()
        for partition in range(partitions)
        for some in released.tables(partition, RUN_ARROW_SCHEMA.names)
    ]
    aside = [
        row
        for some in RunRows((Part(files, reasons=_REASONS),), None, RUN_ARROW_SCHEMA.names).pieces()
        for row in some.to_pylist()
    ]
    aside.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
    told = {one.name: getattr(found, one.name) for one in fields(found)}
    # The driver syncs its rows with the document that names them.
    assert told.pop("is_synced") is isinstance(source, _ByTasks) or not files
    run = told["run"] = replace(found.run, files={}, size_bytes=0)
    assert found.run.size_bytes > run.size_bytes or not files
    rows_of_files = sum(found.run.files.values())
    return told, rows_of_files, list(itertools.chain(*in_order)), aside


@pytest.mark.promise("order-small-batches")
@settings(max_examples=examples(1))
@given(
    logs=_LOGS,
    shares=st.fixed_dictionaries({where: st.tuples(_SHARES, _SHARES) for where in _PLACES}),
    partitions=st.sampled_from([1, 3, 5]),
    frontier=st.integers(-1, 21),
    acked=st.sets(st.integers(0, 30)),
    sizes=st.tuples(st.integers(1, 3), st.sampled_from([1, 60, 1 << 20]), st.integers(1, 5)),
)
def test_the_driver_stages_what_tasks_stage(  # noqa: PLR0917 - Hypothesis names them all
    logs: Mapping[SourcePartition, PartitionLog],
    shares: Mapping[SourcePartition, tuple[float, float]],
    partitions: int,
    frontier: int,
    acked: set[int],
    sizes: tuple[int, int, int],
) -> None:
    """All that is known of the batch, and all columns of its rows, in the order of the run."""
    spans = {}
    for where, log in logs.items():
        first, stop = sorted(round(share * log.end) for share in shares[where])
        spans[where] = first, stop
    with tempfile.TemporaryDirectory() as folder:
        ways = [_ByTasks(logs, sizes[2]), _ByTheDriver(_Brokers(logs, *sizes[:2]))]
        by_tasks, by_driver = (
            _staged(Path(folder) / str(number), way, spans, partitions, frontier, acked)
            for number, way in enumerate(ways)
        )
    assert by_driver == by_tasks
