"""The reorder job, from Kafka to Kafka: what it reads, puts out, and shows of itself."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewTopic,
)

from sequitur.base.ports import choose_free
from sequitur.base.stored import dump
from sequitur.cli.topic_reader import read_topic
from sequitur.consumer.reorder.reasons import REASON_HEADER
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.errors import CheckpointError, TopicError
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.ordering.job_report import counts
from tests.support.broker_job import BY_DRIVER, BY_TASKS
from tests.support.deaths import dying_before, dying_behind
from tests.support.events import (
    T0,
    Event,
    assert_ordered,
    contents,
    event,
    shuffled,
    time_of,
)
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.broker_job import BrokerJob


@pytest.mark.promise("order-events-arrive-order")
def test_order_is_restored(job: BrokerJob) -> None:
    """Every event comes out once, in event-time order, in the partition its key came from."""
    events = shuffled(600, seed=1)
    job.produce(events)
    came_from = {record.key: record.partition for record in read_topic(job.kafka, job.topic)}
    job = job.with_settings(max_offsets_per_trigger=150)
    report = job.run(drain=True)
    released = job.released()
    assert contents(released) == contents(events)
    assert_ordered(released)
    assert {record.key: record.partition for record in released} == came_from
    assert (report.totals.read, report.totals.released, report.totals.held) == (600, 600, 0)
    assert job.kinds()[-1] is StepKind.DRAIN
    assert len(job.steps) > 4
    assert job.late() == []


@pytest.mark.test_all
@pytest.mark.promise("order-keys-values-headers", "order-event-time-missing")
@pytest.mark.parametrize("way", [BY_DRIVER, BY_TASKS], ids=["driver", "tasks"])
def test_payloads_are_opaque(job: BrokerJob, way: dict[str, int]) -> None:
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


@pytest.mark.promise("order-job-dies-batch")
@pytest.mark.parametrize(
    "ways",
    [(BY_DRIVER, BY_TASKS), pytest.param((BY_TASKS, BY_DRIVER), marks=pytest.mark.test_all)],
    ids=["a", "b"],
)
def test_batch_whose_rows_are_staged_again_may_go_the_other_way(
    job: BrokerJob, ways: tuple[dict[str, int], dict[str, int]]
) -> None:
    """The job dies as the rows are staged, and nothing is logged."""
    events = shuffled(300, seed=4)
    job.produce(events)
    with dying_before("staged/"):
        job.with_settings(**ways[0]).run()
    job = job.with_settings(**ways[1])
    job.run()
    assert_ordered(job.released())
    report = job.run(drain=True)
    assert report.totals.released == report.totals.read == 300
    assert contents(job.released()) == contents(events)


@pytest.mark.promise("order-job-dies-batch", "order-job-dies-drain")
@pytest.mark.parametrize(
    ("dying", "place"),
    [
        # nothing is decided
        pytest.param(dying_before, "frontier/", marks=pytest.mark.test_all),
        (dying_behind, "plans/"),  # the plan of the outputs is written, and nothing is out
        pytest.param(
            dying_before, "done/", marks=pytest.mark.test_all
        ),  # the outputs are out, unmarked
    ],
)
def test_crash_in_a_batch_is_recovered(
    job: BrokerJob, dying: Callable[[str], AbstractContextManager[None]], place: str
) -> None:
    """After a crash the batch is repeated: none is lost, and none doubled."""
    events = shuffled(300, seed=4)
    job.produce(events)
    with dying(place):
        job.run()
    job.run()
    assert_ordered(job.released())
    with dying(place):
        job.run(drain=True)
    report = job.run(drain=True)
    assert report.totals.released == report.totals.read == 300
    assert contents(job.released()) == contents(events)


@pytest.mark.test_all
@pytest.mark.promise("order-checkpoint-job-version", "order-sequitur-reorder-inspect")
def test_foreign_or_newer_checkpoint_is_refused(job: BrokerJob, tmp_path: Path) -> None:
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
    with pytest.raises(CheckpointError, match="has format 99, this version reads"):
        job.run()


@pytest.mark.test_all
def test_missing_input_topic_is_refused_by_name(job: BrokerJob) -> None:
    """A misspelt topic is an error at the start, and is not created."""
    wrong = job.with_settings(input_topics=["no-such-topic"], output_topic="no-such-output")
    with pytest.raises(TopicError, match="'no-such-topic' does not exist"):
        wrong.run()


@pytest.mark.promise("order-partition-fall-silent")
def test_silence_releases_what_is_held(job: BrokerJob) -> None:
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
    assert contents(job.released()) == contents(events)
    assert_ordered(job.released())


@pytest.mark.promise("order-ctrl-sigterm-job")
def test_stop_ends_the_job_between_two_batches(job: BrokerJob, tmp_path: Path) -> None:
    """Asked to stop in the middle, the job commits the running batch; the next life goes on."""
    events = shuffled(400, seed=5)
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
    assert contents(job.released()) == contents(events)
    assert_ordered(job.released())


def _read(job: BrokerJob) -> list[int]:
    return [entry.counts.read for entry, _ in job.steps if entry.counts.read]


@pytest.mark.test_all
@pytest.mark.parametrize("available_now", [True, False])
def test_batches_of_a_query_grow(
    job: BrokerJob, monkeypatch: pytest.MonkeyPatch, *, available_now: bool
) -> None:
    """Spark is told of it between two batches, whatever starts them."""
    monkeypatch.setattr("sequitur.pipelines.ordering.batch_size._FIRST_ROWS", 40)
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
def test_metrics_and_state_on_disk_tell_what_the_job_did(job: BrokerJob, tmp_path: Path) -> None:
    """A scrape and a look at the folder of a running job both show its newest step."""
    address = f"127.0.0.1:{choose_free()}"
    job = job.with_settings(metrics=address)
    job.produce([event(T0 + 10 * n, partition=n % 4) for n in range(400)])
    job.produce([event("soon", partition=0)])
    with job.running():
        wait_until(lambda: bool(job.steps) and job.steps[-1][1].totals.read == 401)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
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
    assert json.dumps(dump(report.steps[-1][1])) == json.dumps(dump(done))
    assert done.seconds > 0


@pytest.mark.promise("order-partitions-read-different")
def test_partitions_read_at_very_different_speeds_are_not_late(job: BrokerJob) -> None:
    """A backlog of 1,200 rows beside ones of a few: a merged reader would call none late."""
    one = job.with_settings(output_partitions=1, rescue=False, max_offsets_per_trigger=120)
    one.produce([event(T0 + 10 * n, partition=0) for n in range(1200)])
    one.produce([event(T0 + 1000 * n, partition=1) for n in range(12)])
    one.produce([event(T0 + 12_000, partition=p) for p in (2, 3)])
    report = one.run(drain=True)
    assert (report.totals.released, report.totals.late) == (1214, 0)
    times = [time_of(record) for record in one.released()]
    assert sorted(times) == times
    assert len(one.steps) > 8


@pytest.mark.test_all
def test_partitions_other_than_asked_for_are_refused(job: BrokerJob) -> None:
    """A topic that is there with another number of partitions is not written to by mistake."""
    job.run()
    with pytest.raises(TopicError, match="has 4 partitions, not output_partitions = 3"):
        job.with_settings(output_partitions=3).run()


@pytest.mark.promise("order-partitions-added-job", "order-topic-name-contains")
def test_topics_whose_whole_name_matches_are_read(job: BrokerJob) -> None:
    """Also one that is created later; not the output, whose name has a match in it."""
    first, later = job.topic, f"{job.topic}-later"
    pattern = f"{first}(-later)?"
    job = job.with_settings(
        input_topics=(),
        input_pattern=pattern,
        output_topic=f"{first}.ordered",
        idle_timeout="1 h",  # a silence of all would make what the second holds late
    )
    job.produce([event(T0 + n, partition=n % 4) for n in range(100)], topic=first)
    with job.running() as life:
        wait_until(lambda: life.done() or sum(_read(job)) == 100)
        admin = AdminClient(job.kafka.librdkafka())
        admin.create_topics([NewTopic(later, 1, 1)])[later].result(PATIENCE_S)
        job.produce([event(T0 + n, partition=0) for n in range(50)], topic=later)
        wait_until(lambda: life.done() or sum(_read(job)) == 150)
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.late) == (150, 150, 0)
    times = sorted(time_of(record) - T0 for record in job.released())
    assert times == sorted([*range(100), *range(50)])
    with pytest.raises(CheckpointError, match="belongs to a job with input_pattern"):
        job.with_settings(input_pattern=f"{pattern}(-never)?").run()


@pytest.mark.promise("order-tick-fails")
def test_error_of_a_tick_ends_the_job(job: BrokerJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: ReorderEngine) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(ReorderEngine, "tick", fail)
    job.produce([event(T0)])
    with pytest.raises(ZeroDivisionError), job.running() as life:
        wait_until(life.done)
