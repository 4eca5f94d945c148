"""Latest mode: nothing is held, and no key goes back in time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer import (
    LAST_RELEASED_HEADER,
    LATE_BY_HEADER,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    STALE,
    FoldLimits,
    SourcePartition,
)
from sequitur.errors import CheckpointError, LateRowError
from tests.support.events import Event, by_partition, event, time_of
from tests.support.reorder_model import LatestModel, Row

if TYPE_CHECKING:
    from tests.spark.conftest import Job, StorageFolder

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000


def _identity(row: Row) -> tuple[bytes, bytes]:
    value = b'{"at":%d,"from":%d,"offset":%d}' % (
        row.event_time_ms,
        row.source.partition,
        row.offset,
    )
    return (value, (row.key or "").encode())


def _event_of(row: Row) -> Event:
    value, key = _identity(row)
    return Event(value=value, key=key or None, partition=row.source.partition)


@pytest.mark.promise("order-event-older-last")
def test_newest_of_each_key_passes_at_once(job: Job, storage: StorageFolder) -> None:
    """Over several lives and folds, the rows out and stale are the reference's, none is held."""
    job.fold_limits = FoldLimits(runs=2)
    job = job.with_settings(checkpoint=storage.uri, mode="latest")
    rng, model = random.Random(7), LatestModel()
    sources = [SourcePartition(job.topic, number) for number in range(4)]
    ends = dict.fromkeys(sources, 0)
    for life in range(5):
        batch = []
        for _ in range(rng.randrange(20, 50)):
            source, key = rng.choice(sources), rng.choice(["a", "b", "c", "d", None])
            # Few different times, so that many are equal.
            time_ms = T0 + 1000 * life + 100 * rng.randrange(-15, 10)
            batch.append(Row(time_ms, source, ends[source], key))
            ends[source] += 1
        job.produce(_event_of(row) for row in batch)
        job.run()
        model.batch(batch)
    assert all(done.totals.held == 0 for _, done in job.steps)
    expected = [_identity(row) for row in model.released]
    for partition in by_partition(job.released()).values():
        actual = [(record.value, record.key or b"") for record in partition]
        assert [row for row in expected if row in set(actual)] == actual
    assert job.report is not None
    totals = job.report.totals
    assert (totals.released, totals.late) == (len(model.released), len(model.stale))
    stale = sorted((record.value, record.key or b"") for record in job.late())
    assert sorted(_identity(row) for row in model.stale) == stale


@pytest.mark.promise("order-event-older-last")
def test_stale_rows_go_aside_with_what_they_missed(job: Job) -> None:
    """In the stale topic: the reason, what is out of the key, and how much older the row is."""
    job = job.with_settings(mode="latest")
    assert job.settings.late == f"{job.settings.output_topic}.stale"
    job.produce([event(T0 + 500, partition=1)])
    job.run()
    # Of equal times the row of the later place in the source is the newer one.
    job.produce([event(T0 + 500, partition=0), event(T0 + 500, partition=2)])
    job.run()
    job.produce([event(T0 + 499, partition=3), event(T0 + 500, partition=2)])
    report = job.run()
    assert [time_of(record) - T0 for record in job.released()] == [500, 500, 500]
    first, second = sorted(job.late(), key=time_of)
    assert (first.header(REASON_HEADER), first.header(LATE_BY_HEADER)) == (STALE.encode(), b"1")
    assert first.header(LAST_RELEASED_HEADER) == str(T0 + 500).encode()
    assert (second.header(LATE_BY_HEADER), second.header(SOURCE_OFFSET_HEADER)) == (b"0", b"0")
    assert (report.totals.read, report.totals.released, report.totals.late) == (5, 3, 2)


def test_latest_mode_keeps_to_the_late_policy(job: Job) -> None:
    """A stale row can end the job, and then goes aside under another policy."""
    strict = job.with_settings(mode="latest", late_policy="fail")
    job.produce([event(T0 + 500, partition=1)])
    strict.run()
    job.produce([event(T0 + 499, partition=1)])
    with pytest.raises(LateRowError, match=f"not newer than {T0 + 500}, the last released"):
        strict.run()
    assert job.with_settings(mode="latest", late_policy="drop").run().totals.late == 1


@pytest.mark.promise("order-event-older-last")
@pytest.mark.parametrize(
    "place",
    [
        "sequitur.pipelines.ordering.runs.KeyHistory.judge",
        "sequitur.pipelines.sink.sink.TopicSink.write",
        "sequitur.pipelines.store.checkpoint.Checkpoint.write_done",
    ],
)
def test_crash_in_latest_mode_is_recovered(
    job: Job, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A repeated batch is not compared with itself: the same rows pass, each once."""
    job = job.with_settings(mode="latest")
    job.produce([event(T0 + t, partition=1) for t in (3, 5)])
    job.run()
    job.produce([event(T0 + t, partition=1) for t in (4, 7, 6)])
    with monkeypatch.context() as patched:

        def crash(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        patched.setattr(place, crash)
        with pytest.raises(ZeroDivisionError):
            job.run()
    report = job.run()
    assert [time_of(record) - T0 for record in job.released()] == [3, 5, 6, 7]
    assert [time_of(record) - T0 for record in job.late()] == [4]
    assert (report.totals.released, report.totals.late) == (4, 1)


def test_checkpoint_keeps_to_its_mode(job: Job) -> None:
    """What one mode keeps says too little for the other."""
    job.run()
    with pytest.raises(CheckpointError, match="belongs to a job with mode = 'ordered'"):
        job.with_settings(mode="latest").run()
