"""The reorder job: a streaming query, ticks beside it, and an orderly end."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sequitur.consumer import FOLD_LIMITS
from sequitur.pipelines._errors import TopicError
from sequitur.pipelines.kafka.outages import Outages
from sequitur.pipelines.kafka.topics import KafkaTopics
from sequitur.pipelines.ordering.assembly import open_engine
from sequitur.pipelines.ordering.context import JobContext
from sequitur.pipelines.ordering.metrics import serve_metrics
from sequitur.pipelines.ordering.progress import counts, print_step, promised_and_achieved
from sequitur.pipelines.ordering.restarting_query import RestartingQuery
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.storage import open_spark_folder, open_storage
from sequitur.producer import BrokerError, FatalError
from sequitur.producer.kafka.reach import require_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from sequitur.consumer import (
        FoldLimits,
        LearnedDelays,
        ReorderSettings,
        StepDone,
        StepEntry,
        Totals,
    )
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.pipelines.ordering.stop import Stop
    from sequitur.producer import KafkaSettings


@dataclass(frozen=True, slots=True)
class ProcessStage:
    """A topology that is given the ordered events, and how it is run."""

    topology: Topology
    settings: ProcessSettings


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a run of the job did. Counts are since the checkpoint began.

    Attributes:
        totals: Counts of rows.
        frontier_ms: Event time up to which everything on time is out; -1 before any.
        steps: Batches, ticks and drains.
        seconds: How long this run took.
        records_per_s: Rows this run read a second.
        learned: What the delays were learned from; None with a fixed delay.
        processed: Counts of the topology behind; None without one.
        waits_for: What the rows that are held wait for; empty without any.
    """

    totals: Totals
    frontier_ms: int
    steps: int
    seconds: float
    records_per_s: float
    learned: LearnedDelays | None = None
    processed: Mapping[str, int] | None = None
    waits_for: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, for `json.dumps`."""
        return {
            **counts(self.totals),
            "frontier_ms": self.frontier_ms,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records_per_s, 1),
            **({"waits_for": self.waits_for} if self.waits_for else {}),
            **promised_and_achieved(self.learned),
            **({} if self.processed is None else {"processed": dict(self.processed)}),
        }


def run_reorder(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    stop: Stop,
    available_now: bool = False,
    drain: bool = False,
    on_step: Callable[[StepEntry, StepDone], None] = print_step,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    process: ProcessStage | None = None,
    reset_input: bool = False,
    fold_limits: FoldLimits = FOLD_LIMITS,
) -> JobReport:
    """Run the job until it is asked to stop, or has read what there is.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        stop: Ends the job, after the running batch.
        available_now: End when what was there at the start is read.
        drain: At the end release what is held, too; rows that come later may then be late.
        on_step: Told of each step once it is done.
        now_ms: The wall clock.
        process: A topology that is given the events, instead of the output topic.
        reset_input: Restart Spark's part of the checkpoint where the log has got to, and
            read recreated topics from their beginning.
        fold_limits: When runs are folded into what is known of keys.

    Raises:
        ReorderError: The job cannot go on; the message says why.
        ConservationError: A row is unaccounted for.
    """
    begun = time.monotonic()
    _check_login(kafka)
    storage = open_storage(spark, settings.checkpoint)
    checkpoint = Checkpoint(storage, open_spark_folder(spark, storage))
    outages = Outages(settings.patience.total_seconds(), settings.restarts, wait=stop.wait)
    with (
        serve_metrics(settings.metrics, outages) as measure,
        contextlib.closing(checkpoint),
        checkpoint.while_owned(),
    ):

        def tell(entry: StepEntry, done: StepDone) -> None:
            outages.step_is_done()
            measure(entry, done)
            on_step(entry, done)

        job = JobContext(
            spark=spark,
            kafka=kafka,
            settings=settings,
            topics=KafkaTopics(kafka, outages),
            checkpoint=checkpoint,
            outages=outages,
            now_ms=now_ms,
            on_step=tell,
            is_bounded=available_now,
            fold_limits=fold_limits,
        )
        engine = open_engine(job, process)
        read_before = engine.totals.read
        engine.recover()
        if not reset_input:
            engine.input.check()
        if not reset_input or engine.input.reset(stop.wait):
            RestartingQuery(job, engine, stop).run()
            if drain:
                engine.drain()
            if available_now or drain:
                engine.process_pending(stop.wait)
            engine.tidy()
    seconds = time.monotonic() - begun
    return JobReport(
        totals=engine.totals,
        frontier_ms=engine.frontier_ms,
        steps=engine.steps,
        seconds=seconds,
        records_per_s=(engine.totals.read - read_before) / seconds,
        learned=engine.learned,
        processed=engine.processed,
        waits_for=engine.waits_for,
    )


def _check_login(kafka: KafkaSettings) -> None:
    """Check that no broker rejects the connection: to wait would not help; for silence it may.

    Raises:
        TopicError: A broker answers, and authentication, TLS or its version fails.
    """
    try:
        require_broker(kafka)
    except FatalError as error:
        raise TopicError(f"the brokers refuse the job: {error}") from error
    except BrokerError:
        return  # told, and waited for, when the first question has no answer
