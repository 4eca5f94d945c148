"""Rows as Spark hands them to a task, staged in files as a step does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from sequitur.consumer.reorder import TimeUnit, parse_event_time_spec
from sequitur.consumer.reorder.time_bounds import TimeBounds
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.rows.columns import READ_SCHEMA, ROW_LIMITS, RowLimits
from sequitur.pipelines.rows.run_writer import RunWriter, Summary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.consumer.reorder.clock import EventClock


OUTPUTS: Final = 3
BASE_MS: Final = 1_700_000_000_000
LATEST_MS: Final = BASE_MS + 1_000
BOUNDS: Final = TimeBounds(latest_ms=LATEST_MS, unit=TimeUnit.MS)
SPEC: Final = parse_event_time_spec("json:at")


@dataclass(frozen=True)
class Row:
    """A record as it is read: with an event time, or without one."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    time: int | None

    @property
    def value(self) -> bytes:
        at = "" if self.time is None else f'"at":{BASE_MS + self.time},'
        return f'{{{at}"of":"{self.topic}/{self.partition}/{self.offset}"}}'.encode()

    @property
    def order(self) -> tuple[int, bytes, int, int]:
        assert self.time is not None
        return self.time, *self.source_order

    @property
    def source_order(self) -> tuple[bytes, int, int]:
        return self.topic.encode(), self.partition, self.offset

    def output_of(self, partitions: int) -> int:
        """Where its key goes to in a topic of so many partitions."""
        if self.key is None:
            return self.partition % partitions
        return KeyPartitioner(partitions).partition(self.key)

    @property
    def output(self) -> int:
        return self.output_of(OUTPUTS)

    def as_arrow(self) -> dict[str, Any]:
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
_FEW_TIMES = st.sampled_from([8, 8, 8, 9, 2_000, None])
"""As of events that know but their day."""
_KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d", b"e"])
_SOURCES = st.tuples(st.sampled_from(["t", "\u00e9", "\U0001f600"]), st.integers(0, 2))


@st.composite
def rows_of_sources(draw: st.DrawFn) -> list[Row]:
    times = draw(st.sampled_from([_TIMES, _FEW_TIMES]))
    drawn = draw(st.lists(st.tuples(_SOURCES, _KEYS, times), max_size=40))
    return [
        Row(topic, partition, offset, key, time)
        for offset, ((topic, partition), key, time) in enumerate(drawn)
    ]


def as_batches(rows: Sequence[Row], batch_rows: int) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pylist(
            [row.as_arrow() for row in rows[at : at + batch_rows]], READ_SCHEMA
        )
        for at in range(0, len(rows), batch_rows)
    ]


def staged(
    folder: Path,
    rows: Sequence[Row],
    frontier: int,
    clock: EventClock | None = None,
    batch_rows: int = 5,
    *,
    limits: RowLimits = ROW_LIMITS,
    keeps: bool = False,
) -> Summary:
    """Write rows as a run of one task, held against a frontier that is so much after the base."""
    folder.mkdir(parents=True)
    writer = RunWriter(
        folder,
        SPEC,
        BASE_MS + frontier,
        BOUNDS,
        clock,
        limits=limits,
        keeps=keeps,
    )
    return writer.write(iter(as_batches(rows, batch_rows)))


def is_usable(row: Row) -> bool:
    """Whether it has an event time, and not one of a wrong clock."""
    return row.time is not None and BASE_MS + row.time <= LATEST_MS
