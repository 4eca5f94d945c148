"""Rows that are large: few are in memory at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.pipelines.rows.run_writer import RunWriter, Summary
from tests.support.broker_job import BY_TASKS
from tests.support.events import T0, Event, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


_PIECE_BYTES = 16 << 20
_ROW_BYTES = 900_000
_ROWS = 24


def _large(number: int) -> Event:
    at = T0 + 10 * number
    value = json.dumps({"n": number, "at": at}).encode().ljust(_ROW_BYTES)
    return Event(value=value, key=b"large", partition=0)


def _with_large_headers(number: int) -> Event:
    value = json.dumps({"n": number, "at": T0 + 10 * number}).encode()
    headers: list[Any] = [("a", None), ("large", b"x" * _ROW_BYTES)]
    return Event(value=value, key=b"headers", headers=headers, partition=1)


def _looked_at(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch; complains of more than may be unpacked at once."""
    if batch.nbytes > _PIECE_BYTES + 2 * _ROW_BYTES:
        raise RuntimeError(f"{batch.nbytes} bytes at once")
    return batch


class _WatchedRuns(RunWriter):
    __slots__ = ()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Summary:
        return super().write(map(_looked_at, batches))


@pytest.mark.test_all
@pytest.mark.promise("order-rows-large-900")
@pytest.mark.parametrize("make", [_large, _with_large_headers])
def test_few_large_rows_are_in_memory_at_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """Whatever of them is large: all of them come out."""
    monkeypatch.setattr("sequitur.pipelines.ordering.runs.RunWriter", _WatchedRuns)
    sent = []
    for life in range(2):
        numbers = range(life * _ROWS, (life + 1) * _ROWS)
        sent += [make(number) for number in numbers]
        sent += [event(T0 + 10 * number, n=number) for number in numbers]
        job.produce(sent[-2 * _ROWS :])
        report = job.with_settings(max_offsets_per_trigger=_ROWS, **BY_TASKS).run(drain=True)
    assert (report.totals.read, report.totals.held) == (4 * _ROWS, 0)
    found = sorted((record.key, record.value, record.headers) for record in job.released())
    assert sorted(map(_released, sent)) == found


def _released(sent: Event) -> tuple[Any, ...]:
    """Too old for the output topic's retention: a header says when it happened."""
    at = str(json.loads(sent.value or b"")["at"]).encode()
    return sent.key, sent.value, (*sent.headers, (EVENT_TIME_HEADER, at))
