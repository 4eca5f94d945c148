"""What becomes of rows behind the frontier: late policies, and the rescue of those in order."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer import (
    EVENT_TIME_HEADER,
    FRONTIER_HEADER,
    LAST_RELEASED_HEADER,
    LATE,
    LATE_BY_HEADER,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
    FoldLimits,
    SourcePartition,
)
from sequitur.pipelines.store.storage import files_in
from sequitur.producer import EVENT_ID_HEADER
from tests.support.events import Event, Headers, by_partition, event, time_of
from tests.support.reorder_model import ReorderModel, Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.cli.topic_reader import TopicRecord
    from tests.spark.conftest import Job, StorageFolder

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000


def _times(records: Iterable[TopicRecord], key: str) -> list[int]:
    return [time_of(record) - T0 for record in records if record.key == key.encode()]


def _named(records: Iterable[TopicRecord]) -> list[tuple[str, int]]:
    return [((record.key or b"").decode(), time_of(record) - T0) for record in records]


def _at_frontier_4000(job: Job) -> None:
    job.produce([event(T0 + t, key="a", partition=0) for t in (1000, 3000, 4500)])
    job.produce([event(T0 + 4000, key="c", partition=1)])
    job.produce([event(T0 + 5000, key="other", partition=p) for p in range(4)])
    report = job.run()
    assert report.frontier_ms == T0 + 4000
    assert _times(job.released(), "a") == [1000, 3000]


@pytest.mark.promise("order-event-arrives-later")
def test_rows_that_keep_their_keys_order_are_rescued(job: Job) -> None:
    """Behind the frontier, but not older than its key's last released: released, in order."""
    _at_frontier_4000(job)
    job.produce(
        [
            event(T0 + 3500, key="a", partition=2),
            event(T0 + 3000, key="a", partition=2),  # as old as the last one: no disorder
            event(T0 + 2999, key="a", partition=2),  # true disorder
            event(T0 + 3999, key="c", partition=2),
            event(T0 + 10, key="b", partition=2),  # nothing of its key is out
            Event(value=b'{"at":%d}' % (T0 + 3500), partition=2),  # no key, no order of its own
        ]
    )
    report = job.run()
    assert _times(job.released(), "a") == [1000, 3000, 3000, 3500]
    assert _times(job.released(), "b") == [10]
    late = {(record.key, time_of(record) - T0): record for record in job.late()}
    assert set(late) == {(b"a", 2999), (b"c", 3999), (None, 3500)}
    *why, source, event_time = late[b"a", 2999].headers
    assert why == [
        (REASON_HEADER, LATE.encode()),
        (LATE_BY_HEADER, b"1001"),
        (FRONTIER_HEADER, str(T0 + 4000).encode()),
        (LAST_RELEASED_HEADER, str(T0 + 3000).encode()),
        (SOURCE_TOPIC_HEADER, job.topic.encode()),
        (SOURCE_PARTITION_HEADER, b"2"),
        (SOURCE_OFFSET_HEADER, b"3"),
    ]
    assert source[0] == SOURCE_TIMESTAMP_HEADER
    assert event_time == (EVENT_TIME_HEADER, str(T0 + 2999).encode())
    assert late[None, 3500].header(LAST_RELEASED_HEADER) is None
    assert (report.totals.late, report.totals.held) == (3, 5)
    # What was rescued counts as released from now on.
    job.produce([event(T0 + 9, key="b", partition=2), event(T0 + 3499, key="a", partition=2)])
    assert job.run(drain=True).totals.late == 5
    assert _times(job.released(), "a") == [1000, 3000, 3000, 3500, 4500]


@pytest.mark.promise("order-event-arrives-later-delay")
def test_emitted_late_rows_are_flagged_in_place(job: Job, storage: StorageFolder) -> None:
    """Late rows go to the output, sorted before what the step releases, and headers tell them."""
    job = job.with_settings(checkpoint=storage.uri, late_policy="emit", rescue=False)
    _at_frontier_4000(job)
    job.produce([event(T0 + t, key="a", partition=2) for t in (3998, 3999, 4000)])
    report = job.run()
    (partition,) = [p for p in by_partition(job.released()).values() if p[-1].key == b"a"]
    last = [(time_of(r) - T0, r.header(REASON_HEADER)) for r in partition][-3:]
    assert last == [(3998, LATE.encode()), (3999, LATE.encode()), (4000, None)]
    assert (report.totals.late, report.totals.held) == (2, 5)
    assert job.late() == []


class _Crash(Exception):  # noqa: N818 - it stands for a kill
    """The process dies here."""


def _crash(*_: object, **__: object) -> None:
    raise _Crash


@pytest.mark.promise("order-job-dies-writes")
@pytest.mark.parametrize(
    ("place", "storage"),
    [
        ("sequitur.pipelines.ordering.runs.KeyHistory.fold", "local"),
        ("sequitur.pipelines.ordering.runs.SortedRuns.stage", "s3"),  # behind the fold
        ("sequitur.pipelines.ordering.runs.KeyHistory.judge", "local"),
        ("sequitur.pipelines.store.checkpoint.Checkpoint.write_entry", "s3"),
        ("sequitur.pipelines.store.checkpoint.Checkpoint.write_entry", "local"),
        ("sequitur.pipelines.sink.sink.TopicSink.write", "local"),
        ("sequitur.pipelines.store.checkpoint.Checkpoint.write_done", "local"),
    ],
    indirect=["storage"],
)
def test_crash_changes_no_verdict(
    job: Job, monkeypatch: pytest.MonkeyPatch, storage: StorageFolder, place: str
) -> None:
    """Wherever it dies, the step rescues and refuses the same rows, each of them once."""
    job.fold_limits = FoldLimits(runs=1)
    job = job.with_settings(checkpoint=storage.uri)
    _at_frontier_4000(job)
    job.produce([event(T0 + 6000, key="other", partition=p) for p in range(4)])
    job.run()  # the first run is through: the next step folds it
    before = Counter(_named(job.released()))
    job.produce([event(T0 + t, key="a", partition=2, n=n) for n, t in enumerate((4600, 4400))])
    job.produce([event(T0 + t, key="c", partition=2) for t in (3999, 4700)])
    with monkeypatch.context() as patched:
        patched.setattr(place, _crash)
        with pytest.raises(_Crash):
            job.run()
    # Even if the settings change meanwhile: what is logged stays as it was decided.
    logged = "TopicSink" in place or "write_done" in place
    report = (job.with_settings(late_policy="drop") if logged else job).run()
    rescued, late = [("a", 4600), ("c", 4700)], [("a", 4400), ("c", 3999)]
    assert Counter(rescued) == Counter(_named(job.released())) - before
    assert Counter(late) == Counter(_named(job.late()))
    assert {r.header(LAST_RELEASED_HEADER) for r in job.late()} == {
        str(T0 + 4500).encode(),
        str(T0 + 4000).encode(),
    }
    assert (report.totals.late, report.totals.held) == (2, 4)
    job.run(drain=True)
    assert len(files_in(storage.location / "keys")) == 1
    assert files_in(storage.location / "behind") == []


@pytest.mark.promise("order-event-arrives-later", "order-producer-sends-event")
@pytest.mark.parametrize(
    ("duplicates", "storage"), [("keep", "local"), ("event-id", "s3")], indirect=["storage"]
)
def test_output_is_the_references_row_for_row(
    job: Job, storage: StorageFolder, duplicates: str
) -> None:
    """Random disorder and repeats over several lives, with folds: what comes out is the model's."""
    job.fold_limits = FoldLimits(runs=2)
    drops = duplicates != "keep"
    job = job.with_settings(checkpoint=storage.uri)
    job = job.with_settings(key_ttl="6 s", duplicates=duplicates, duplicate_window="2 s")
    rng = random.Random(len(duplicates))
    sources = [SourcePartition(job.topic, number) for number in range(4)]
    model = ReorderModel(
        delay_ms=1000,
        idle_timeout_ms=1 << 40,
        ends=dict.fromkeys(sources, 0),
        rescue=True,
        key_ttl_ms=6000,
        duplicate_window_ms=2000 if drops else None,
        is_bounded=True,
    )
    events: list[tuple[int, str | None, str | None]] = []
    for life in range(6):
        batch: list[Row] = []
        for number in range(rng.randrange(20, 60)):
            time_ms = T0 + 1500 * life + rng.randrange(1500) - rng.choice([0, 900, 4000, 9000])
            key = rng.choice(["a", "b", "c", "d", "e", "f", None])
            new = (time_ms, key, rng.choice([None, f"producer:{life * 100 + number}"]))
            sent = new if rng.random() < 0.7 or not events else rng.choice(events[-40:])
            events.append(sent)
            source = rng.choice(sources)
            batch.append(Row(sent[0], source, model.ends[source], sent[1], sent[2]))
            model.ends[source] += 1
        job.produce(_event_of(row) for row in batch)
        job.run()
        model.batch(batch, now_ms=0)
    report = job.run(drain=True)
    model.drain()
    assert model.late != []
    assert bool(model.repeats) == drops
    totals = report.totals
    assert (totals.released, totals.late) == (len(model.released), len(model.late))
    assert (totals.duplicates, totals.held) == (len(model.repeats), 0)
    expected = [_identity(_event_of(row)) for row in model.released]
    for partition in by_partition(job.released()).values():
        actual = [_identity(record) for record in partition]
        assert [row for row in expected if row in set(actual)] == actual
    assert sorted(_identity(_event_of(row)) for row in model.late) == sorted(
        _identity(record) for record in job.late()
    )


def _event_of(row: Row) -> Event:
    key = None if row.key is None else row.key.encode()
    place = (row.event_time_ms, row.source.partition, row.offset)
    headers: Headers = [] if row.event_id is None else [(EVENT_ID_HEADER, row.event_id.encode())]
    value = b'{"at":%d,"from":%d,"offset":%d}' % place
    return Event(value=value, key=key, partition=row.source.partition, headers=headers)


def _identity(record: Any) -> tuple[bytes, bytes]:
    return (record.value, record.key or b"")
