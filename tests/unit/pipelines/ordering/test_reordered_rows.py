"""What the reorder job puts out; on Spark tests/spark/test_reorder_job.py shows it."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.copy_headers import (
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.consumer.reorder.awaited import awaited
from sequitur.consumer.reorder.reasons import (
    FRONTIER_HEADER,
    LATE,
    LATE_BY_HEADER,
    LIKELY_UNITS,
    MISSING,
    NEGATIVE,
    REASON_HEADER,
    TOO_FAR_FUTURE,
    UNPARSABLE,
)
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.errors import CheckpointError
from tests.support.deaths import dying_before
from tests.support.events import (
    T0,
    Event,
    Headers,
    assert_ordered,
    contents,
    event,
    shuffled,
    time_of,
)

if TYPE_CHECKING:
    from tests.support.list_job import ListJob

_HOUR_MS = 3_600_000


def test_rows_within_the_delay_are_held(job: ListJob) -> None:
    """Without a drain what is younger than the frontier waits, and the next run releases it."""
    job.produce([event(T0 + 10 * n, partition=p) for n in range(300) for p in range(4)])
    report = job.run()
    assert [time_of(r) for r in job.released() if r.value] != []
    assert max(time_of(r) for r in job.released()) == T0 + 2990 - 1000 == report.frontier_ms
    assert report.totals.held == 4 * 100
    job.produce([event(T0 + 9000, partition=p) for p in range(4)])
    again = job.run()
    assert again.totals.held == 4
    assert again.totals.released == 1200
    assert_ordered(job.released())


@pytest.mark.parametrize(("delay", "times", "released", "late"), [
    # The delay covers the disorder.
    ("4 ms", [1, 4, 3, 5, 6, 9, 7, 8, 10, 13], [1, 3, 4, 5, 6, 7, 8, 9], []),
    ("2 ms", [1, 2, 4, 3, 7, 7, 5, 8, 20, 9], [1, 2, 3, 4, 5, 7, 7, 8], [9]),
    ("10 ms", [100, 89], [], [89]),  # the frontier is 90: behind it
    ("10 ms", [100, 90], [90], []),  # at it: on time, and due at once
    ("10 ms", [100, 91], [], []),  # ahead of it: held
    ("10 ms", [90, 100, 90, 90, 101], [90, 90, 90], []),  # each once, before it and behind
])  # fmt: skip
def test_rows_one_by_one(
    job: ListJob, delay: str, times: list[int], released: list[int], late: list[int]
) -> None:
    job = job.anew(partitions=1, delay=delay, rescue=False)
    for time_ms in times:
        job.produce([event(T0 + time_ms)])
        job.run()
    assert [time_of(record) - T0 for record in job.released()] == released
    assert [time_of(record) - T0 for record in job.late()] == late
    job.run(drain=True)
    on_time = sorted(times)
    for one in late:
        on_time.remove(one)
    assert [time_of(record) - T0 for record in job.released()] == on_time


@pytest.mark.promise("order-event-time-missing")
def test_bad_times_are_quarantined_with_the_reason(job: ListJob) -> None:
    """A row without a usable event time goes aside with the reason; no other is affected."""
    good = [event(T0 + n, partition=n % 4) for n in range(40)]
    bad = {
        b'{"other":1}': MISSING,
        b'{"at":"soon"}': UNPARSABLE,
        b"not json": UNPARSABLE,
        b'{"at":-5}': NEGATIVE,
        b'{"at":32503680000000}': TOO_FAR_FUTURE,
        b'{"at":"3000-01-01T00:00:00Z"}': TOO_FAR_FUTURE,
    }
    headers: Headers = [("own", b"1")]
    sent = [Event(value=v, headers=headers, partition=2, timestamp_ms=T0) for v in bad]
    job.produce([*good[:20], *sent, *good[20:]])
    report = job.run(drain=True)
    assert contents(job.released()) == contents(good)
    found = {record.value: record for record in job.quarantined()}
    assert {v: (r.header(REASON_HEADER) or b"").decode() for v, r in found.items()} == bad
    record = found[b'{"other":1}']
    assert record.headers == (
        ("own", b"1"),
        (REASON_HEADER, MISSING.encode()),
        (FRONTIER_HEADER, b"-1"),
        (SOURCE_TOPIC_HEADER, job.topic.encode()),
        (SOURCE_PARTITION_HEADER, b"2"),
        (SOURCE_OFFSET_HEADER, b"5"),
        (SOURCE_TIMESTAMP_HEADER, str(T0).encode()),
    )
    assert report.as_json()["quarantined_by_reason"] == {
        MISSING: 1,
        UNPARSABLE: 2,
        NEGATIVE: 1,
        TOO_FAR_FUTURE: 2,
    }
    assert report.frontier_ms == T0 + 39
    assert job.late() == []


@pytest.mark.promise("order-nothing-released")
def test_bounded_run_does_without_empty_partitions(job: ListJob) -> None:
    """Two of four partitions have rows: these come out, and it is told what the rest waits for."""
    job.produce([event(T0 + 100 * n, partition=n % 2) for n in range(101)])
    report = job.run()
    assert report.frontier_ms == T0 + 9_900 - 1_000
    assert report.totals.released == 90
    entry, _done = job.steps[-1]
    assert [one.partition.partition for one in awaited(entry.clock)] == [1]
    name = f"partition 1 of {job.topic!r} stands at 2023-11-14 22:13:29Z, idle in "
    assert report.as_json()["waits_for"].startswith(name)
    assert "waits_for" not in job.run(drain=True).as_json()


@pytest.mark.promise("order-event-times-seconds")
def test_seconds_are_named_and_read(job: ListJob) -> None:
    """Taken for milliseconds they would be times of 1970: none is released, and no clock moves."""
    seconds = [T0 // 1000 + n for n in range(40)]
    job.produce([event(time, partition=n % 4) for n, time in enumerate(seconds)])
    report = job.run(drain=True)
    assert report.totals.quarantined == {LIKELY_UNITS["s"]: 40}
    assert (report.totals.released, report.frontier_ms) == (0, -1)
    assert {r.header(REASON_HEADER) for r in job.quarantined()} == {b"event-time-likely-seconds"}
    told = job.anew(event_time="json:at as auto")
    told.produce([event(time, partition=n % 4) for n, time in enumerate(seconds)])
    assert told.run(drain=True).totals.released == 40
    assert sorted(time_of(record) for record in told.released()) == seconds


@pytest.mark.promise("order-event-arrives-later-delay")
def test_late_rows_go_aside_with_what_they_missed(job: ListJob) -> None:
    """A row behind the frontier is in the late topic, and says by how much; one at it is not."""
    job = job.with_settings(rescue=False)
    job.produce([event(T0 + 5000, partition=p) for p in range(4)])
    job.run()
    job.produce([event(T0 + 3999, partition=1), event(T0 + 4000, partition=1)])
    report = job.run()
    (late,) = job.late()
    *why, source, event_time = late.headers
    assert source[0] == SOURCE_TIMESTAMP_HEADER
    assert event_time == (EVENT_TIME_HEADER, str(T0 + 3999).encode())
    assert why == [
        (REASON_HEADER, LATE.encode()),
        (LATE_BY_HEADER, b"1"),
        (FRONTIER_HEADER, str(T0 + 4000).encode()),
        (SOURCE_TOPIC_HEADER, job.topic.encode()),
        (SOURCE_PARTITION_HEADER, b"1"),
        (SOURCE_OFFSET_HEADER, b"1"),
    ]
    assert [time_of(record) for record in job.released()] == [T0 + 4000]
    assert (report.totals.late, report.totals.released, report.totals.held) == (1, 1, 4)


def test_restart_goes_on_where_it_was(job: ListJob) -> None:
    """A second life reads on, keeps what was held, and repeats nothing."""
    job = job.with_settings(rescue=False)  # rescued rows are in order by key only
    first, second = shuffled(200, seed=2), shuffled(200, seed=3, start_ms=T0 + 2000)
    job.produce(first)
    held = job.run().totals.held
    assert held > 0
    job.produce(second)
    report = job.run(drain=True)
    assert report.totals.read == 400
    assert report.totals.released + report.totals.late == 400
    assert contents([*job.released(), *job.late()]) == contents([*first, *second])
    assert_ordered(job.released())
    steps = [entry.step for entry, _ in job.steps]
    assert list(range(len(steps))) == steps


@pytest.mark.promise("order-job-dies-drain")
def test_drain_cut_short_is_finished_by_the_next_life(job: ListJob) -> None:
    """A drain that was logged and not carried out is carried out at the next start."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(40)])
    job.run()
    assert job.released() == []
    with dying_before("plans/"):
        job.run(drain=True)
    report = job.run()
    assert report.totals.released == 40
    assert len(job.released()) == 40


@pytest.mark.promise("order-checkpoint-job-version")
@pytest.mark.parametrize(
    "changes",
    [{"input_topics": ["other"]}, {"event_time": "json:b"}, {"output_topic": "other"}],
    ids=lambda changes: next(iter(changes)),
)
def test_checkpoint_is_refused_to_another_job(job: ListJob, changes: dict[str, Any]) -> None:
    job = job.anew(input_topics=["other", job.topic]).with_settings(input_topics=[job.topic])
    job.run()
    with pytest.raises(CheckpointError, match=f"belongs to a job with {next(iter(changes))}"):
        job.with_settings(**changes).run()


@pytest.mark.promise("order-spark-part-checkpoint")
def test_lost_spark_checkpoint_is_noticed(job: ListJob) -> None:
    """A restart from offset 0 over logged batches would double everything: it is refused."""
    for number in range(2):
        job.produce([event(T0 + number)])
        job.run()
    shutil.rmtree(job.folder / "spark")
    with pytest.raises(CheckpointError, match="is spark/ gone"):
        job.run()


@pytest.mark.promise("order-events-arrive-order")
def test_several_topics_make_one_order(job: ListJob) -> None:
    """Rows of several topics are merged by event time; equal times by topic."""
    topics = ["second", "first"]
    job = job.anew(input_topics=topics, output_partitions=1)
    job.produce([event(T0 + n, source=0) for n in range(0, 100, 2)], topic=topics[0])
    job.produce([event(T0 + n, source=1) for n in range(0, 100, 3)], topic=topics[1])
    report = job.run(drain=True)
    order = sorted(range(2), key=lambda number: topics[number])
    expected = sorted(
        [(T0 + n, order.index(0)) for n in range(0, 100, 2)]
        + [(T0 + n, order.index(1)) for n in range(0, 100, 3)]
    )
    actual = [
        (time_of(record), order.index(json.loads(record.value or b"")["source"]))
        for record in job.released()
    ]
    assert expected == actual
    assert report.totals.read == len(expected)


def test_tick_that_moves_nothing_is_no_step(job: ListJob) -> None:
    job.produce([event(T0 + t, partition=p) for t in (0, 500, 2000) for p in range(4)])
    job.run()
    for _ in range(2):
        job.tester.advance(1)
    assert StepKind.TICK not in job.kinds()
    assert job.steps[-1][1].totals.held > 0


@pytest.fixture
def one(job: ListJob) -> ListJob:
    """The job with all output in one partition, and no rescue: its order is that of everything."""
    return job.with_settings(output_partitions=1, rescue=False)


def test_equal_times_across_keys_come_out_by_source(one: ListJob) -> None:
    """Rows of one moment keep their source's order, whatever their keys; none replaces another."""
    events = [event(T0 + n // 8, key=f"k{n % 5}", partition=n % 4, n=n) for n in range(40)]
    one.produce(events)
    report = one.run(drain=True)
    assert report.totals.released == 40
    order = sorted(range(40), key=lambda n: (T0 + n // 8, n % 4, n))
    assert [events[n].value for n in order] == [record.value for record in one.released()]


def test_single_event_key_comes_out_in_its_place(one: ListJob) -> None:
    """A key with one event is neither forgotten nor first nor last: it is where its time is."""
    one.produce([event(T0 + 10 * n, key="busy", partition=0) for n in range(100)])
    one.produce([event(T0 + 505, key="lone", partition=1)])
    one.run(drain=True)
    released = one.released()
    assert [record.key for record in released].index(b"lone") == 51
    assert sorted(time_of(record) for record in released) == [time_of(r) for r in released]


def test_far_future_row_moves_no_clock(one: ListJob) -> None:
    """One clock in the far future goes aside alone: nothing after it is late, nothing early."""
    one.produce([event(T0 + n, partition=n % 4) for n in range(100)])
    one.produce([event(int(time.time() * 1000) + _HOUR_MS, key="wrong", partition=0)])
    first = one.run()
    assert first.frontier_ms == T0 + 96 - 1000
    one.produce([event(T0 + 100 + n, partition=n % 4) for n in range(100)])
    report = one.run(drain=True)
    assert (report.totals.released, report.totals.late) == (200, 0)
    (aside,) = one.quarantined()
    assert (aside.key, aside.header(REASON_HEADER)) == (b"wrong", TOO_FAR_FUTURE.encode())


@pytest.mark.parametrize("rescue", [True, False])
def test_key_with_a_clock_an_hour_slow(one: ListJob, rescue: bool) -> None:
    """Its rows keep their own order under rescue, else are late; no other key is held up by it."""
    one = one.with_settings(rescue=rescue, max_offsets_per_trigger=100)
    times = [T0 + 100 * n for n in range(100)]
    for part in range(4):
        rows = times[25 * part : 25 * (part + 1)]
        one.produce([event(t, key="right", partition=n % 4) for n, t in enumerate(rows)])
        one.produce([event(t - _HOUR_MS, key="slow", partition=0) for t in rows])
        one.run()
    report = one.run(drain=True)
    released = one.released()
    right = [time_of(record) for record in released if record.key == b"right"]
    slow = [time_of(record) for record in released if record.key == b"slow"]
    assert times == right
    # Those of the first batch were there before the frontier was.
    assert slow == [t - _HOUR_MS for t in (times if rescue else times[:25])]
    late = one.late()
    assert report.totals.late == len(late) == (0 if rescue else 75)
    assert {record.key for record in late} <= {b"slow"}
    assert {record.header(REASON_HEADER) for record in late} <= {LATE.encode()}
