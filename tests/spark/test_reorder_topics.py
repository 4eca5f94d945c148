"""What the reorder job reads: topics by pattern, and partitions that are added while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
)
from pyspark.sql.streaming.listener import StreamingQueryListener

from sequitur.errors import CheckpointError, TopicError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.spark import tasks
from tests.support.broker_job import BY_DRIVER, BY_TASKS
from tests.support.events import T0, event, time_of
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def _read(job: Job) -> int:
    return job.steps[-1][1].totals.read if job.steps else 0


@pytest.mark.test_all
@pytest.mark.promise("order-partitions-added-job")
def test_partition_added_while_running_joins(job: Job) -> None:
    """A new partition holds the frontier back until it is idle; its rows come out in place."""
    job = job.with_settings(idle_timeout="2 s")
    job.produce([event(T0 + n, partition=n % 4) for n in range(0, 8000, 100)])
    with job.running():
        wait_until(lambda: _read(job) == 80)
        admin = AdminClient(job.kafka.librdkafka())
        admin.create_partitions([NewPartitions(job.topic, 5)])[job.topic].result(PATIENCE_S)
        added = SourcePartition(job.topic, 4)
        # Nothing arrives, yet Spark plans a batch for it: it has a clock before it has a row.
        wait_until(lambda: added in job.steps[-1][0].clock.partitions)
        joined = next(entry for entry, _ in job.steps if added in entry.clock.partitions)
        assert joined.clock.partitions[added].max_event_time_ms is None
        wait_until(lambda: job.steps[-1][1].totals.held == 0)
        job.produce([event(T0 + 8000 + n, partition=4) for n in range(0, 2000, 100)])
        wait_until(lambda: _read(job) == 100)
    report = job.run(drain=True)
    assert (report.totals.released, report.totals.late) == (100, 0)
    times = [time_of(record) for record in job.released()]
    assert sorted(times) == list(range(T0, T0 + 10_000, 100))
    # Before it was idle, the empty partition kept what the delay alone would have let go.
    held_back = [entry for entry, _ in job.steps if entry.step >= joined.step]
    assert held_back[0].frontier_ms == held_back[0].previous_frontier_ms


@pytest.mark.promise("order-partitions-added-job", "order-topic-name-contains")
def test_topics_of_a_pattern_are_read_also_those_created_later(
    job: Job, make_topic: MakeTopic
) -> None:
    """All topics whose whole name matches make one order, and a new one joins while we run."""
    stem, _, excluded = job.topic.rpartition("-")
    pattern = f"{stem}-(?!{excluded})[0-9a-f]{{8}}"
    first = make_topic(partitions=1)
    job = job.with_settings(
        input_topics=(),
        input_pattern=pattern,
        # Its name has a match in it, and is no match.
        output_topic=f"{first}.ordered",
        output_partitions=1,
        idle_timeout="1 h",  # a silence of all would make what the second holds late
    )
    job.produce([event(T0 + n, source=1) for n in range(0, 100, 2)], topic=first)
    job.produce([event(T0, source=9)], topic=f"{stem}-{excluded}")
    with job.running():
        wait_until(lambda: _read(job) == 50)
        second = make_topic(partitions=2)
        job.produce([event(T0 + n, source=2, partition=n % 2) for n in range(100)], topic=second)
        wait_until(lambda: _read(job) == 150)
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.late) == (150, 150, 0)
    times = [time_of(record) for record in job.released()]
    assert sorted([*range(T0, T0 + 100, 2), *range(T0, T0 + 100)]) == times
    with pytest.raises(CheckpointError, match="belongs to a job with input_pattern"):
        job.with_settings(input_pattern=f"{stem}-[0-9a-f]{{8}}").run()


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("no-such-topic-[0-9]", "matches no topic"),
        ("[", "is not a Java regular expression"),
        ("{topic}.*", "which the job writes"),
    ],
)
def test_pattern_that_cannot_work_is_refused(job: Job, pattern: str, message: str) -> None:
    """A pattern that matches nothing, or what the job writes itself, is an error at the start."""
    wrong = job.with_settings(input_topics=(), input_pattern=pattern.replace("{topic}", job.topic))
    with pytest.raises(TopicError, match=message):
        wrong.run()


class _Progress(StreamingQueryListener):
    """What Spark itself tells of a query's batches."""

    def __init__(self) -> None:
        self.event_times: list[dict[str, str]] = []
        self.input_rows = 0
        self.ended = False

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to remember."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress: Any = event.progress
        self.event_times.append(dict(progress.eventTime))
        self.input_rows += progress.numInputRows

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802
        self.ended = True


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Spark's pages show beside the jobs of our tasks."""
    found: list[str] = []
    each = tasks.each_partition

    def noting(spark: SparkSession, *given: Any) -> Any:
        title: Any = spark.sparkContext.getLocalProperty("spark.job.description")
        found.append(title)
        return each(spark, *given)

    monkeypatch.setattr(tasks, "each_partition", noting)
    return found


@pytest.mark.promise("order-sparks-own-progress")
def test_spark_plans_and_reads_no_rows(job: Job, spark: SparkSession, titles: list[str]) -> None:
    """It counts none, and has no watermark. Tasks and the driver read; the tasks' jobs say what."""
    ahead = [event(T0 + 60_000 + n, partition=0) for n in range(50)]
    behind = [event(T0 + 10 * n, partition=1) for n in range(300)]
    other = [event(T0 + 60_000, partition=p) for p in (2, 3)]
    job.produce([*ahead, *other, *behind])
    for most, way, read in ((80, BY_TASKS, 352), (10_000, BY_DRIVER, 354)):
        progress = _Progress()
        spark.streams.addListener(progress)
        try:
            report = job.with_settings(max_offsets_per_trigger=most, **way).run(drain=True)
            wait_until(lambda shown=progress: shown.ended)  # type: ignore[misc]
        finally:
            spark.streams.removeListener(progress)
        assert progress.event_times
        assert not any("watermark" in shown for shown in progress.event_times)
        assert progress.input_rows == 0
        assert (report.totals.read, report.totals.released) == (read, 352)
        job.produce(other)
    assert any(f"offsets in 4 ranges of {job.topic}" in str(shown) for shown in titles)
    released = sorted(time_of(record) for record in job.released())
    assert released[:300] == [T0 + 10 * n for n in range(300)]
