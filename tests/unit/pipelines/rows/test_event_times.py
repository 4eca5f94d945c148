"""The event times that staging reads are those of the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.event_time import EventTime, read_event_time
from sequitur.consumer.reorder.reasons import TOO_FAR_FUTURE
from sequitur.consumer.reorder.time_bounds import TimeBounds
from sequitur.pipelines.rows.columns import READ_SCHEMA
from sequitur.pipelines.rows.run_writer import RunWriter
from tests.support.event_time_cases import (
    FORMAT_CASES,
    HEADER_CASES,
    JSON_CASES,
    LATEST_MS,
    TIMESTAMP_CASES,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    from tests.support.event_time_cases import Headers

    Records: TypeAlias = "list[tuple[bytes | None, Headers | None, int]]"
    Read: TypeAlias = Callable[[str, Records], list[EventTime]]

_EARLIEST_MS = 946_684_800_000


@pytest.fixture
def staged(tmp_path: Path) -> Read:
    """Stages records; the event time or the reason that each of them has then."""

    def read(spec: str, records: Records) -> list[EventTime]:
        rows = [
            {
                "topic": "t",
                "partition": 0,
                "offset": offset,
                "timestamp_ms": timestamp_ms,
                "value": value,
                "headers": None
                if headers is None
                else [{"key": name, "value": data} for name, data in headers],
                "output_partition": 0,
            }
            for offset, (value, headers, timestamp_ms) in enumerate(records)
        ]
        writer = RunWriter(tmp_path, parse_event_time_spec(spec), -1, _bounds(spec))
        summary = writer.write(iter([pa.RecordBatch.from_pylist(rows, READ_SCHEMA)]))
        found = pq.read_table(tmp_path / str(summary.file)).sort_by("offset").to_pylist()
        return [EventTime(row["event_time_ms"], row["reason"]) for row in found]

    return read


def _bounds(spec: str) -> TimeBounds:
    # The tables have times of 1970 for their smallness.
    earliest_ms = _EARLIEST_MS if spec.startswith("json:at") else 0
    unit = parse_event_time_spec(spec).format.unit
    return TimeBounds(earliest_ms=earliest_ms, latest_ms=LATEST_MS, unit=unit)


def _reference(spec: str, records: Records) -> list[EventTime]:
    return [
        read_event_time(
            parse_event_time_spec(spec),
            value=value,
            headers=headers,
            kafka_timestamp_ms=timestamp_ms,
            bounds=_bounds(spec),
        )
        for value, headers, timestamp_ms in records
    ]


def test_times_in_json_are_the_references(staged: Read) -> None:
    """Every value of the table gives the same time or the same reason."""
    records: Records = [(value, None, -1) for value, _ in JSON_CASES]
    expected = _reference("json:occurred_at", records)
    actual = staged("json:occurred_at", records)
    differing = [
        (record[0], e, a) for record, e, a in zip(records, expected, actual, strict=True) if e != a
    ]
    assert differing == []


def test_times_in_nested_json_are_the_references(staged: Read) -> None:
    """A dotted path goes down into objects."""
    values = [
        b'{"a b":{"c":5}}',
        b'{"c":5}',
        b'{"a b":5}',
        b'{"a b":[{"c":5}]}',
        b'{"a b":{},"a b":{"c":6}}',
        b'{"a b":{"c":null}}',
        b'{"a b":{"c":1700000000123,"d":{}},"e":[1,{}]}',
        b'{"a b":{"c":1700000000123},"a b":{"c":1700000000124}}',
        b'{"a b":{"d":"c","c":1700000000123}}',
        b'{"x":{"a b":{"c":1700000000124}},"a b":{"c":1700000000123}}',
        b'{"a b":{"c":1700000000123,}}',
    ]
    records: Records = [(v, None, -1) for v in values]
    assert _reference("json:a b.c", records) == staged("json:a b.c", records)


def test_times_in_headers_are_the_references(staged: Read) -> None:
    records: Records = [(None, headers, -1) for headers, _ in HEADER_CASES]
    assert _reference("header:at", records) == staged("header:at", records)


def test_timestamps_are_the_references(staged: Read) -> None:
    records: Records = [(None, None, timestamp_ms) for timestamp_ms, _ in TIMESTAMP_CASES]
    actual = staged("kafka-timestamp", records)
    assert _reference("kafka-timestamp", records) == actual
    assert actual[-1] == EventTime(reason=TOO_FAR_FUTURE)


@pytest.mark.promise("order-event-times-seconds")
@pytest.mark.parametrize("written", sorted({written for written, _, _ in FORMAT_CASES}))
def test_units_and_forms_are_the_references(staged: Read, written: str) -> None:
    texts = [text for one, text, _ in FORMAT_CASES if one == written]
    records: Records = [(None, [("at", text.encode())], -1) for text in texts]
    spec = f"header:at as {written}"
    found = dict(zip(texts, staged(spec, records), strict=True))
    assert found == dict(zip(texts, _reference(spec, records), strict=True))


@pytest.mark.promise("order-event-times-seconds")
@pytest.mark.parametrize("unit", ["ms", "s", "ns"])
def test_times_that_are_not_believed_are_the_references(staged: Read, unit: str) -> None:
    """Numbers around each bound, and of each likely unit."""
    edges = [_EARLIEST_MS, LATEST_MS, 1_000]
    numbers = {
        edge * 1_000**power // 1_000**3 + more
        for edge in edges
        for power in range(6)
        for more in (-1, 0, 1)
    }
    records: Records = [(b'{"at":%d}' % number, None, -1) for number in sorted(numbers)]
    spec = f"json:at as {unit}"
    found = dict(zip(sorted(numbers), staged(spec, records), strict=True))
    assert found == dict(zip(sorted(numbers), _reference(spec, records), strict=True))
    assert len({one.reason for one in found.values()}) >= 5


def test_kafka_timestamps_in_seconds(staged: Read) -> None:
    """A producer that sets seconds is understood, too."""
    records: Records = [(None, None, number) for number in (-1, 0, 1_700_000_000, 2**62)]
    for unit in ("s", "us", "ns", "auto"):
        spec = f"kafka-timestamp as {unit}"
        assert _reference(spec, records) == staged(spec, records)
