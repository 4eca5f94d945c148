"""What becomes of late rows, by policy; on Spark tests/spark/test_late_rows.py shows it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.copy_headers import (
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.consumer.reorder.key_state import FoldLimits
from sequitur.consumer.reorder.reasons import (
    FRONTIER_HEADER,
    LAST_RELEASED_HEADER,
    LATE,
    LATE_BY_HEADER,
    REASON_HEADER,
)
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.errors import LateRowError
from sequitur.producer import EVENT_ID_HEADER
from tests.support.deaths import DOCUMENTS, at_frontier_4000, check_verdicts_stay, times_of
from tests.support.events import T0, Event, Headers, by_partition, event, time_of
from tests.support.reorder_reference import Record, Reference

if TYPE_CHECKING:
    from tests.support.list_job import ListJob


@pytest.mark.promise("order-key-silent-longer")
def test_rows_beyond_the_horizon_are_late_whatever_their_key(job: ListJob) -> None:
    """Older than the TTL, a row is late: its key may have been forgotten."""
    job = job.with_settings(key_ttl="2 s")
    at_frontier_4000(job)
    job.produce([event(T0 + t, key="b", partition=2) for t in (1999, 2000)])
    job.run()
    assert times_of(job.released(), "b") == [2000]
    assert times_of(job.late(), "b") == [1999]


def test_rescue_that_is_switched_on_late_knows_nothing_of_the_past(job: ListJob) -> None:
    """What went out before is not known by key: older rows are late, as they were without."""
    at_frontier_4000(job.with_settings(rescue=False))
    job.produce([event(T0 + 3500, key="b", partition=2)])
    assert job.run().totals.late == 1
    job.produce([event(T0 + 8000, key="other", partition=p) for p in range(4)])
    assert job.run().frontier_ms == T0 + 7000
    job.produce([event(T0 + 6999, key="b", partition=2)])
    assert job.run().totals.late == 1
    assert times_of(job.released(), "b") == [6999]


@pytest.mark.promise("order-event-arrives-later-delay")
def test_dropped_late_rows_are_counted(job: ListJob) -> None:
    """Under drop a late row is in no topic, and in the report."""
    job = job.with_settings(late_policy="drop", rescue=False)
    at_frontier_4000(job)
    job.produce([event(T0 + 3999, key="a", partition=2)])
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.late) == (9, 8, 1)
    assert len(job.released()) == 8
    assert job.late() == []


@pytest.mark.promise("order-event-arrives-later-delay")
def test_late_row_fails_the_job_if_that_is_wanted(job: ListJob) -> None:
    """The error names the row and how late it is; nothing of its step is out; it can go on."""
    strict = job.with_settings(late_policy="fail")
    at_frontier_4000(strict)
    released = len(job.released())
    job.produce([event(T0 + 9000, key="a", partition=p) for p in range(4)])
    job.produce([event(T0 + 3999, key="c", partition=2)])
    message = (
        f"topic '{job.topic}', partition 2, offset 2, key b'c': event time {T0 + 3999} is "
        f"1 ms before the frontier, {T0 + 4000}; late rows in this batch: 1"
    )
    for _ in range(2):
        with pytest.raises(LateRowError, match=message):
            strict.run()
    assert len(job.released()) == released
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.late) == (13, 12, 1)


@pytest.mark.promise("order-event-arrives-later")
def test_rows_that_keep_their_keys_order_are_rescued(job: ListJob) -> None:
    """Behind the frontier, but not older than its key's last released: released, in order."""
    at_frontier_4000(job)
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
    assert times_of(job.released(), "a") == [1000, 3000, 3000, 3500]
    assert times_of(job.released(), "b") == [10]
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
    assert times_of(job.released(), "a") == [1000, 3000, 3000, 3500, 4500]


@pytest.mark.promise("order-event-arrives-later-delay")
def test_emitted_late_rows_are_flagged_in_place(job: ListJob) -> None:
    """Late rows go to the output, sorted before what the step releases, and headers tell them."""
    job = job.with_settings(late_policy="emit", rescue=False)
    at_frontier_4000(job)
    job.produce([event(T0 + t, key="a", partition=2) for t in (3998, 3999, 4000)])
    report = job.run()
    (partition,) = [p for p in by_partition(job.released()).values() if p[-1].key == b"a"]
    last = [(time_of(r) - T0, r.header(REASON_HEADER)) for r in partition][-3:]
    assert last == [(3998, LATE.encode()), (3999, LATE.encode()), (4000, None)]
    assert (report.totals.late, report.totals.held) == (2, 5)
    assert job.late() == []


@pytest.mark.promise("order-event-arrives-later", "order-producer-sends-event")
@pytest.mark.parametrize("duplicates", ["keep", "event-id"])
def test_output_is_the_references_row_for_row(job: ListJob, duplicates: str) -> None:
    """Random disorder and repeats over several lives, with folds: what comes out is the model's."""
    job.fold_limits = FoldLimits(runs=2)
    drops = duplicates != "keep"
    job = job.with_settings(key_ttl="6 s", duplicates=duplicates, duplicate_window="2 s")
    rng = random.Random(len(duplicates))
    ends = [0, 0, 0, 0]
    model = Reference(
        delay_ms=1000,
        idle_timeout_ms=1 << 40,
        max_future_skew_ms=0,
        rescue=True,
        key_ttl_ms=6000,
        duplicate_window_ms=2000 if drops else None,
        is_bounded=True,
    )
    events: list[tuple[int, str | None, str | None]] = []
    for life in range(6):
        batch: list[Record] = []
        for number in range(rng.randrange(20, 60)):
            time_ms = T0 + 1500 * life + rng.randrange(1500) - rng.choice([0, 900, 4000, 9000])
            key = rng.choice(["a", "b", "c", "d", "e", "f", None])
            new = (time_ms, key, rng.choice([None, f"producer:{life * 100 + number}"]))
            sent = new if rng.random() < 0.7 or not events else rng.choice(events[-40:])
            events.append(sent)
            place = rng.randrange(4)
            value = b'{"at":%d,"from":%d,"offset":%d}' % (sent[0], place, ends[place])
            batch.append(Record(job.topic, place, ends[place], sent[1], value, sent[2]))
            ends[place] += 1
        job.produce(_event_of(row) for row in batch)
        job.run()
        model.step(batch, [(job.topic, n) for n in range(4)], now_ms=job.tester.now_ms)
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


def _event_of(row: Record) -> Event:
    key = None if row.key is None else row.key.encode()
    headers: Headers = [] if row.event_id is None else [(EVENT_ID_HEADER, row.event_id.encode())]
    return Event(value=row.value, key=key, partition=row.partition, headers=headers)


def _identity(record: Any) -> tuple[bytes, bytes]:
    return (record.value, record.key or b"")


@pytest.mark.promise("order-job-dies-writes")
@pytest.mark.parametrize("place", DOCUMENTS)
def test_crash_changes_no_verdict(job: ListJob, place: str) -> None:
    check_verdicts_stay(job, place)
    assert len(list((job.folder / "keys").iterdir())) == 1
    assert list((job.folder / "behind").iterdir()) == []
