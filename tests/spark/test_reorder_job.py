"""The reorder job, from Kafka to Kafka: what it reads, puts out, and shows of itself."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.cli.topic_reader import read_topic
from sequitur.consumer import (
    EVENT_TIME_HEADER,
    FRONTIER_HEADER,
    LATE,
    LATE_BY_HEADER,
    LIKELY_UNITS,
    MISSING,
    NEGATIVE,
    REASON_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TIMESTAMP_HEADER,
    SOURCE_TOPIC_HEADER,
    TOO_FAR_FUTURE,
    UNPARSABLE,
    StepKind,
    awaited,
)
from sequitur.embedded import choose_free
from sequitur.errors import CheckpointError, TopicError
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.ordering.progress import counts
from sequitur.pipelines.spark.partition_blocks import blocks_of
from tests.spark.conftest import Job, wait_until
from tests.spark.kill_rounds import BY_DRIVER, BY_TASKS
from tests.support.events import Event, Headers, by_partition, event, time_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sequitur.cli.topic_reader import TopicRecord
    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job, StorageFolder

pytestmark = pytest.mark.spark


T0 = 1_700_000_000_000


def _shuffled(count: int, *, seed: int, start_ms: int = T0, disorder_ms: int = 900) -> list[Event]:
    """Events 10 ms apart in an order that is wrong by less than the job's delay."""
    rng = random.Random(seed)
    times = [start_ms + 10 * number for number in range(count)]
    times.sort(key=lambda time_ms: time_ms + rng.randrange(disorder_ms))
    return [event(time_ms, key=f"k{time_ms % 29}", n=n) for n, time_ms in enumerate(times)]


def _rows(records: Iterable[TopicRecord]) -> list[tuple[Any, Any]]:
    return sorted((record.key, record.value) for record in records)


def _sent(events: Iterable[Event]) -> list[tuple[Any, Any]]:
    return sorted((sent.key, sent.value) for sent in events)


def _assert_ordered(records: Iterable[TopicRecord]) -> None:
    for partition in by_partition(records).values():
        times = [time_of(record) for record in partition]
        assert sorted(times) == times


@pytest.mark.promise("order-events-arrive-order")
def test_order_is_restored(job: Job) -> None:
    """Every event comes out once, in event-time order, in the partition its key came from."""
    events = _shuffled(600, seed=1)
    job.produce(events)
    came_from = {record.key: record.partition for record in read_topic(job.kafka, job.topic)}
    job = job.with_settings(max_offsets_per_trigger=150)
    report = job.run(drain=True)
    released = job.released()
    assert _rows(released) == _sent(events)
    _assert_ordered(released)
    assert {record.key: record.partition for record in released} == came_from
    assert (report.totals.read, report.totals.released, report.totals.held) == (600, 600, 0)
    assert job.kinds()[-1] is StepKind.DRAIN
    assert len(job.steps) > 4
    assert job.late() == []


def test_rows_within_the_delay_are_held(job: Job) -> None:
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
    _assert_ordered(job.released())


@pytest.mark.promise("order-event-time-missing")
def test_bad_times_are_quarantined_with_the_reason(job: Job) -> None:
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
    assert _rows(job.released()) == _sent(good)
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


@pytest.mark.promise("order-keys-values-headers")
@pytest.mark.parametrize("way", [BY_DRIVER, BY_TASKS], ids=["driver", "tasks"])
def test_payloads_are_opaque(job: Job, way: dict[str, int]) -> None:
    """Key, value and headers come out byte for byte, in the output and in the side topics."""
    at = ("at", str(T0).encode())
    events = [
        Event(value=b"\xff\x00\xfe", key=b"\x80k", headers=[at]),
        Event(value=b"", key=b"", headers=[at]),
        Event(value=None, key=b"tombstone", headers=[at]),
        Event(value=b"v", key=None, headers=[at], partition=3),
        Event(
            value=b"v",
            key=b"h",
            headers=[("a", b"1"), ("a", None), ("", b""), ("\u00e9", b"\xff"), at],
        ),
        Event(value=b"quarantined", key=b"q", headers=[("a", None), ("at", b"x"), ("a", b"")]),
        Event(value=None, key=None, headers=[], partition=1),
    ]
    job = job.with_settings(event_time="header:at", **way)
    job.produce(events)
    job.run(drain=True)

    def payloads(records: Iterable[Any], own: int | None = None) -> list[str]:
        return sorted(repr((r.key, r.value, tuple(r.headers)[:own])) for r in records)

    released = job.released()
    assert payloads(events[:5]) == payloads(released, own=-1)
    assert {record.headers[-1] for record in released} == {(EVENT_TIME_HEADER, at[1])}
    aside = [
        (r.key, r.value, r.headers[: [name for name, _ in r.headers].index(REASON_HEADER)])
        for r in job.quarantined()
    ]
    assert sorted(map(repr, aside)) == sorted(
        repr((e.key, e.value, tuple(e.headers))) for e in events[5:]
    )


@pytest.mark.promise("order-nothing-released")
def test_bounded_run_does_without_empty_partitions(job: Job) -> None:
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
def test_seconds_are_named_and_read(job: Job, tmp_path: Path) -> None:
    """Taken for milliseconds they would be times of 1970: none is released, and no clock moves."""
    seconds = [T0 // 1000 + n for n in range(40)]
    job.produce([event(time, partition=n % 4) for n, time in enumerate(seconds)])
    report = job.run(drain=True)
    assert report.totals.quarantined == {LIKELY_UNITS["s"]: 40}
    assert (report.totals.released, report.frontier_ms) == (0, -1)
    assert {r.header(REASON_HEADER) for r in job.quarantined()} == {b"event-time-likely-seconds"}
    told = job.with_settings(
        event_time="json:at as auto",
        checkpoint=str(tmp_path / "told"),
        output_topic=f"{job.topic}.told",
    )
    assert told.run(drain=True).totals.released == 40
    assert sorted(time_of(record) for record in told.released()) == seconds


@pytest.mark.promise("order-event-arrives-later-delay")
def test_late_rows_go_aside_with_what_they_missed(job: Job) -> None:
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


@pytest.mark.promise("order-partitions-read-different")
def test_slow_partition_is_not_called_late(job: Job) -> None:
    """In a backlog, a partition with many rows is as punctual as those with few."""
    many = [event(T0 + 10 * n, partition=0) for n in range(400)]
    few = [event(T0 + 4000, partition=p) for p in (1, 2, 3)]
    job.produce([*few, *many])
    job = job.with_settings(max_offsets_per_trigger=100)
    report = job.run(drain=True)
    assert (report.totals.late, report.totals.released) == (0, 403)
    _assert_ordered(job.released())


def test_restart_goes_on_where_it_was(job: Job, storage: StorageFolder) -> None:
    """A second life reads on, keeps what was held, and repeats nothing."""
    job = job.with_settings(checkpoint=storage.uri)
    job = job.with_settings(rescue=False)  # rescued rows are in order by key only
    first, second = _shuffled(200, seed=2), _shuffled(200, seed=3, start_ms=T0 + 2000)
    job.produce(first)
    held = job.run().totals.held
    assert held > 0
    job.produce(second)
    report = job.run(drain=True)
    assert report.totals.read == 400
    assert report.totals.released + report.totals.late == 400
    assert _rows([*job.released(), *job.late()]) == _sent([*first, *second])
    _assert_ordered(job.released())
    steps = [entry.step for entry, _ in job.steps]
    assert list(range(len(steps))) == steps


class _Crash(Exception):  # noqa: N818 - it stands for a kill
    """The process dies here."""


def _crash(*_: object, **__: object) -> None:
    raise _Crash


@pytest.mark.promise("order-job-dies-batch")
@pytest.mark.parametrize("ways", [(BY_DRIVER, BY_TASKS), (BY_TASKS, BY_DRIVER)], ids=["a", "b"])
@pytest.mark.parametrize(
    "place",
    [
        # the rows are staged, and nothing is logged
        "sequitur.pipelines.store.checkpoint.Checkpoint.write_staged",
        # before the log
        "sequitur.pipelines.store.checkpoint.Checkpoint.write_entry",
        # between the log and the outputs
        "sequitur.pipelines.sink.sink.TopicSink.write",
        # the plan of the outputs is written, and nothing is out
        "sequitur.pipelines.sink.sink.TopicSink._writer",
        # the outputs are out, unmarked
        "sequitur.pipelines.store.checkpoint.Checkpoint.write_done",
    ],
)
def test_crash_in_a_batch_is_recovered(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    ways: tuple[dict[str, int], dict[str, int]],
) -> None:
    """After a crash the batch is repeated, and staged the other way: none is lost or doubled."""
    events = _shuffled(300, seed=4)
    job.produce(events)
    with monkeypatch.context() as patched:
        patched.setattr(place, _crash)
        with pytest.raises(_Crash):
            job.with_settings(**ways[0]).run()
    job = job.with_settings(**ways[1])
    job.run()
    for partition in by_partition(job.released()).values():
        _assert_ordered(partition)
    report = job.run(drain=True)
    assert report.totals.released == report.totals.read == 300
    assert sorted(_rows(job.released())) == sorted(_sent(events))


@pytest.mark.promise("order-job-dies-drain")
def test_drain_cut_short_is_finished_by_the_next_life(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain that was logged and not carried out is carried out at the next start."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(40)])
    job.run()
    assert job.released() == []
    with monkeypatch.context() as patched:
        patched.setattr("sequitur.pipelines.sink.sink.TopicSink.write", _crash)
        with pytest.raises(_Crash):
            job.run(drain=True)
    report = job.run()
    assert report.totals.released == 40
    assert len(job.released()) == 40


@pytest.mark.promise("order-checkpoint-job-version")
def test_checkpoint_is_refused_to_another_job(job: Job, make_topic: MakeTopic) -> None:
    """A job with other topics, another event time or another output does not take it over."""
    job.run()
    other = make_topic()
    for changes, named in (
        ({"input_topics": [other]}, "input_topics"),
        ({"event_time": "json:b"}, "event_time"),
        ({"output_topic": other}, "output_topic"),
    ):
        with pytest.raises(CheckpointError, match=f"belongs to a job with {named}"):
            job.with_settings(**changes).run()


@pytest.mark.promise("order-checkpoint-job-version", "order-sequitur-reorder-inspect")
def test_foreign_or_newer_checkpoint_is_refused(job: Job, tmp_path: Path) -> None:
    """A folder of something else, or of a newer version, is left alone."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="holds something else"):
        job.with_settings(checkpoint=str(folder)).run()
    job.run()
    marker = tmp_path / "checkpoint" / "format.json"
    document = json.loads(marker.read_text())
    marker.unlink()
    marker.write_text(json.dumps({**document, "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99; this version reads"):
        job.run()


@pytest.mark.promise("order-spark-part-checkpoint")
def test_lost_spark_checkpoint_is_noticed(job: Job, tmp_path: Path) -> None:
    """A restart from offset 0 over logged batches would double everything: it is refused."""
    job.produce([event(T0 + n) for n in range(10)])
    job.with_settings(max_offsets_per_trigger=6).run()
    (tmp_path / "checkpoint" / "spark").rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="is its own part of the folder gone"):
        job.run()


def test_missing_input_topic_is_refused_by_name(job: Job) -> None:
    """A misspelt topic is an error at the start, and is not created."""
    wrong = job.with_settings(input_topics=["no-such-topic"], output_topic="no-such-output")
    with pytest.raises(TopicError, match="'no-such-topic' does not exist"):
        wrong.run()


def test_partitions_other_than_asked_for_are_refused(job: Job) -> None:
    """A topic that is there with another number of partitions is not written to by mistake."""
    job.run()
    with pytest.raises(TopicError, match="has 4 partitions, not output_partitions = 3"):
        job.with_settings(output_partitions=3).run()


@pytest.mark.promise("order-events-arrive-order")
def test_several_topics_make_one_order(job: Job, make_topic: MakeTopic) -> None:
    """Rows of several topics are merged by event time; equal times by topic."""
    other = make_topic(partitions=1)
    topics = [job.topic, other]
    job = job.with_settings(input_topics=topics, output_partitions=1)
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


@pytest.mark.promise("order-partition-fall-silent")
def test_silence_releases_what_is_held(job: Job) -> None:
    """When the whole topic falls silent, ticks release what is held after the idle time-out."""
    job = job.with_settings(idle_timeout="500 ms")
    events = [event(T0 + 10 * n, partition=n % 3) for n in range(90)]
    job.produce(events)
    with job.running() as running:
        wait_until(lambda: sum(done.totals.held == 0 for _, done in job.steps) > 0)
        assert running.running()
    assert job.report is not None
    assert (job.report.totals.released, job.report.totals.held) == (90, 0)
    assert StepKind.TICK in job.kinds()
    assert StepKind.DRAIN not in job.kinds()
    assert _rows(job.released()) == _sent(events)
    _assert_ordered(job.released())


@pytest.mark.promise("order-input-partitions-rows")
def test_batch_of_many_partitions_has_few_files(job: Job, make_topic: MakeTopic) -> None:
    """A task reads several of them, in turn; its rows are in one file, and in order."""
    topic = make_topic(partitions=40)
    names = {"input_topics": [topic], "output_topic": f"{topic}.ordered", "output_partitions": 2}
    job = job.with_settings(**names, **BY_TASKS, delay="1 h")
    events = [event(T0 + (n ^ 7), key=f"k{n % 29}", partition=n % 40, n=n) for n in range(400)]
    job.produce(events)
    job.run()
    (entry, _), *_ = job.steps
    (run,) = entry.runs
    assert sum(run.files.values()) == 400
    assert len(run.files) == len(blocks_of(40, job.spark.sparkContext.defaultParallelism)) < 40
    job.run(drain=True)
    assert _rows(job.released()) == _sent(events)
    _assert_ordered(job.released())


def test_tick_that_moves_nothing_is_no_step(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows are held and nothing becomes due, ticks write nothing."""
    ticks: list[bool] = []
    tick = ReorderEngine.tick
    monkeypatch.setattr(ReorderEngine, "tick", lambda engine: ticks.append(tick(engine)))
    job.produce([event(T0 + t, partition=p) for t in (0, 500, 2000) for p in range(4)])
    with job.running():
        wait_until(lambda: bool(job.steps))
        before = len(ticks)
        wait_until(lambda: len(ticks) >= before + 2)
        assert not any(ticks[: before + 2])
        assert StepKind.TICK not in job.kinds()
        assert job.steps[-1][1].totals.held > 0


@pytest.mark.promise("order-ctrl-sigterm-job")
def test_stop_ends_the_job_between_two_batches(job: Job, tmp_path: Path) -> None:
    """Asked to stop in the middle, the job commits the running batch; the next life goes on."""
    events = _shuffled(400, seed=5)
    job.produce(events)
    job = job.with_settings(max_offsets_per_trigger=40)
    with job.running():
        wait_until(lambda: len(job.steps) >= 2)
    last = job.steps[-1][0]
    assert (tmp_path / "checkpoint" / "spark" / "commits" / str(last.batch_id)).exists()
    rest = job.with_settings(max_offsets_per_trigger=10_000)
    report = rest.run(drain=True)
    assert rest.steps[0][0].step == last.step + 1
    assert report.totals.released == report.totals.read == 400
    assert _rows(job.released()) == _sent(events)
    _assert_ordered(job.released())


def _read(job: Job) -> list[int]:
    return [entry.staged.read for entry, _ in job.steps if entry.staged.read]


@pytest.mark.parametrize("available_now", [True, False])
def test_batches_of_a_query_grow(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, available_now: bool
) -> None:
    """Spark is told of it between two batches, whatever starts them."""
    monkeypatch.setattr("sequitur.pipelines.ordering.query._FIRST_ROWS", 40)
    job.produce([event(T0 + n, key=f"k{n}", partition=n % 4) for n in range(1_000)])
    if available_now:
        report = job.run(drain=True)
    else:
        with job.running() as life:
            wait_until(lambda: life.done() or sum(_read(job)) == 1_000)
        report = life.result()
    assert _read(job) == [40, 160, 640, 160]
    assert report.totals.read == 1_000


@pytest.mark.promise("order-row-unaccounted")
def test_metrics_and_state_on_disk_tell_what_the_job_did(job: Job, tmp_path: Path) -> None:
    """A scrape and a look at the folder of a running job both show its newest step."""
    address = f"127.0.0.1:{choose_free()}"
    job = job.with_settings(metrics=address)
    job.produce([event(T0 + 10 * n, partition=n % 4) for n in range(400)])
    job.produce([event("soon", partition=0)])
    with job.running():
        wait_until(lambda: bool(job.steps) and job.steps[-1][1].totals.read == 401)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            scraped = answer.read().decode()
        report = inspect_checkpoint(str(tmp_path / "checkpoint"))
    entry, done = job.steps[-1]
    held = done.totals.held
    assert held > 0
    for line in (
        "sequitur_reorder_rows_read_total 401.0",
        f"sequitur_reorder_rows_released_total {400 - held}.0",
        f"sequitur_reorder_rows_held {held}.0",
        'sequitur_reorder_rows_quarantined_total{reason="event-time-unparsable"} 1.0',
    ):
        assert line in scraped
    assert report.frontier_ms == entry.frontier_ms == T0 + 3960 - 1000
    assert counts(report.done.totals) == counts(done.totals)
    # What the runs hold, counted row by row, is what the job says it holds.
    assert sum(run.held for run in report.runs) == held
    assert report.entry is not None
    assert report.entry.clock == entry.clock
    assert report.steps[-1][1] == done
    assert done.seconds > 0


_HOUR_MS = 3_600_000


@pytest.fixture
def one(job: Job) -> Job:
    """The job with all output in one partition, and no rescue: its order is that of everything."""
    return job.with_settings(output_partitions=1, rescue=False)


def test_equal_times_across_keys_come_out_by_source(one: Job) -> None:
    """Rows of one moment keep their source's order, whatever their keys; none replaces another."""
    events = [event(T0 + n // 8, key=f"k{n % 5}", partition=n % 4, n=n) for n in range(40)]
    one.produce(events)
    report = one.run(drain=True)
    assert report.totals.released == 40
    order = sorted(range(40), key=lambda n: (T0 + n // 8, n % 4, n))
    assert [events[n].value for n in order] == [record.value for record in one.released()]


def test_single_event_key_comes_out_in_its_place(one: Job) -> None:
    """A key with one event is neither forgotten nor first nor last: it is where its time is."""
    one.produce([event(T0 + 10 * n, key="busy", partition=0) for n in range(100)])
    one.produce([event(T0 + 505, key="lone", partition=1)])
    one.run(drain=True)
    released = one.released()
    assert [record.key for record in released].index(b"lone") == 51
    assert sorted(time_of(record) for record in released) == [time_of(r) for r in released]


def test_far_future_row_moves_no_clock(one: Job) -> None:
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
def test_key_with_a_clock_an_hour_slow(one: Job, rescue: bool) -> None:
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


def test_partitions_read_at_very_different_speeds_are_not_late(one: Job) -> None:
    """A backlog of 1,200 rows beside ones of a few: a merged reader would call none late."""
    one = one.with_settings(max_offsets_per_trigger=120)
    one.produce([event(T0 + 10 * n, partition=0) for n in range(1200)])
    one.produce([event(T0 + 1000 * n, partition=1) for n in range(12)])
    one.produce([event(T0 + 12_000, partition=p) for p in (2, 3)])
    report = one.run(drain=True)
    assert (report.totals.released, report.totals.late) == (1214, 0)
    times = [time_of(record) for record in one.released()]
    assert sorted(times) == times
    assert len(one.steps) > 8
