"""Tasks that work on local files: what Spark does to them, and what they do with any batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import TaskContext

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.reasons import UNPARSABLE
from sequitur.consumer.reorder.timestamps import TimestampRule
from sequitur.pipelines.attempts import attempt_number
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.run_writer import RunWriter, Summary
from sequitur.pipelines.rows.selection import Selection
from sequitur.pipelines.sink.block_writer import BlockWriter
from sequitur.pipelines.sink.sink import _Send
from sequitur.pipelines.sink.step_planner import StepPlanner
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.spark.tasks import SparkWorkers, each_partition
from sequitur.producer import KafkaSettings
from tests.support.broker_job import BY_TASKS
from tests.support.document_folder import DocumentFolder
from tests.support.events import T0, Event, assert_ordered, contents, event, time_of
from tests.support.output_reading import read_output
from tests.support.parquet_files import parquet_files
from tests.support.staged_rows import BASE_MS, OUTPUTS, Row, staged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from sequitur.kafka.connections import GivesWay
    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job
    from tests.support.brokers import Broker

pytestmark = pytest.mark.spark


def _die_at_first() -> None:
    """In the first attempt of a task, as the kernel does it when memory runs out."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        os._exit(9)


class _DyingBefore(BlockWriter):
    """The first attempt has sent rows, and dies before all are acknowledged."""

    __slots__ = ()

    def write(self, rows: Any, gives_way: GivesWay | None = None) -> dict[int, int]:
        def until_death() -> Any:
            yield from rows
            _die_at_first()

        return super().write(until_death(), gives_way)


class _DyingAfter(BlockWriter):
    """The first attempt has written all, and dies before it can tell."""

    __slots__ = ()

    def write(self, rows: Any, gives_way: GivesWay | None = None) -> dict[int, int]:
        told = super().write(rows, gives_way)
        _die_at_first()
        # Else it would trust a young plan, and not ask what the attempt before it has sent.
        assert attempt_number() == TaskContext.get().attemptNumber()  # type: ignore[union-attr]
        return told


@pytest.mark.promise("order-task-dies-sends", "order-task-python-process")
@pytest.mark.parametrize(
    "writer_class", [pytest.param(_DyingBefore, marks=pytest.mark.test_all), _DyingAfter]
)
def test_killed_task_sends_its_rows_once(
    spark: SparkSession,
    broker: Broker,
    make_topic: MakeTopic,
    tmp_path: Path,
    writer_class: type[BlockWriter],
) -> None:
    """Spark runs it anew: its rows are in their partition once, in order, and counted."""
    topic = make_topic(partitions=OUTPUTS)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    plans = StepPlanner(kafka, app=f"app-{topic}", documents=DocumentFolder())
    plans.open({topic: OUTPUTS}, newest=-1, done=-1, sent=None)
    planned = plans.of_step(0, {topic: OUTPUTS})
    rows = [Row("t", 0, number, b"%d" % number, number) for number in range(600)]
    staged(tmp_path / "run", rows, 0)
    writer = writer_class(
        kafka=kafka,
        topic=topic,
        plan=planned.plan.topics[topic],
        identity=planned.plan.identity,
        begun_s=planned.begun_s,
    )
    rule = TimestampRule(OutputTimestamp.EVENT_TIME, now_ms=BASE_MS + 600, floor_ms=600)
    rows_wanted = Selection((Part(parquet_files(tmp_path / "run")),))
    sends = [_Send(0, writer, rows_wanted, block, rule) for block in blocks_of(OUTPUTS, 1)]
    assert sum(sum(counts.values()) for counts in SparkWorkers(spark).run(sends)) == 600
    records = read_output(kafka, topic)
    for output in range(OUTPUTS):
        found = [record.value for record in records if record.partition == output]
        assert found == [row.value for row in rows if row.output == output]


class _DyingWriter(RunWriter):
    """The first attempt has written its file, and dies before it can tell."""

    __slots__ = ()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Summary:
        told = super().write(batches)
        _die_at_first()
        return told


@pytest.mark.test_all
@pytest.mark.promise("order-task-dies-written")
def test_killed_task_leaves_nothing_that_is_read(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a task wrote twice one file is named, and each row goes out once."""
    monkeypatch.setattr("sequitur.pipelines.ordering.runs.RunWriter", _DyingWriter)
    job = job.with_settings(**BY_TASKS)
    job.produce([event(T0 + n, key=f"k{n}", partition=n % 4) for n in range(400)])
    job.run()
    (run,) = (tmp_path / "checkpoint" / "runs").iterdir()
    cores = job.spark.sparkContext.defaultParallelism
    assert len(parquet_files(run)) == 2 * cores
    assert len(job.steps[0][0].runs[0].files) == cores
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released) == (400, 400)
    assert sorted(time_of(record) for record in job.released()) == [T0 + n for n in range(400)]


def _daemons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()] * len(batch)})


@pytest.mark.test_all
def test_queries_and_other_tasks_are_forked_by_one_daemon(spark: SparkSession) -> None:
    """What they import is in memory once, and they use each other's processes."""
    of_tasks = each_partition(spark, lambda _: os.getppid(), 2)
    rows = spark.range(0, 2, 1, 2).mapInArrow(_daemons, "daemon long").collect()
    assert len({*of_tasks, *(row.daemon for row in rows)}) == 1


@pytest.mark.test_all
def test_tasks_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Spark's archive of it holds no bytecode, and each start of a daemon would compile it."""

    def found(_: int) -> str:
        return str(pyspark.__file__)

    assert each_partition(spark, found, 2) == [pyspark.__file__] * 2


@pytest.mark.test_all
def test_rows_are_judged_alike_whatever_else_is_read(job: Job) -> None:
    """Spark's parser takes single quotes. Many such rows do not make JSON of those that follow."""
    values = [b"{'at':%d}" % (T0 + n) for n in range(60)]
    job.produce([Event(value=value, partition=0) for value in values])
    report = job.with_settings(max_offsets_per_trigger=20, **BY_TASKS).run(drain=True)
    assert report.totals.quarantined == {UNPARSABLE: 60}


@pytest.mark.test_all
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
    assert len(run.files) == job.spark.sparkContext.defaultParallelism < 40
    job.run(drain=True)
    assert contents(job.released()) == contents(events)
    assert_ordered(job.released())


@pytest.mark.promise("keyed-memory")
def test_on_one_machine_all_cores_have_a_process_each(spark: SparkSession) -> None:
    """So memory for keys is divided among so many."""
    workers = SparkWorkers(spark)
    assert workers.processes_a_host == workers.parallelism
