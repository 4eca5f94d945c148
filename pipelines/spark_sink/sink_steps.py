"""The steps of an exactly-once sink: a batch is staged, planned, sent, and marked as done.

Each of these is a document (`store.step_folder`). If the process dies, the next call goes on from
the last of them: what was staged is sent, and Spark's rows of that batch count no more.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from sequitur.base.stored import dump, load
from sequitur.errors import RowRefusedError, SinkError, TopicError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import OutputPartition
from sequitur.pipelines.sink.block_writer import BlockWriter
from sequitur.pipelines.sink.partition_sender import TRUSTED_MS
from sequitur.pipelines.sink.send_errors import errors_of_sending
from sequitur.pipelines.sink.step_planner import StepPlanner
from sequitur.pipelines.sink.step_plans import SequenceEnds
from sequitur.pipelines.spark.tasks import SparkWorkers
from sequitur.pipelines.spark_sink.batch_documents import BatchDone, StagedBatch, StagedFile
from sequitur.pipelines.spark_sink.placed_rows import check_columns, rows_to_stage
from sequitur.pipelines.spark_sink.staged_rows import (
    SUMMARY_SCHEMA,
    RowRules,
    SendStaged,
    StagedRows,
    StagedTask,
    StagingWriter,
)
from sequitur.pipelines.store.step_folder import LogEnd
from sequitur.pipelines.workers import all_of, blocks_for, is_small

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.sink.step_planner import Planned
    from sequitur.pipelines.spark_sink.batch_source import BatchSource, NamedBatch
    from sequitur.pipelines.spark_sink.sink_folder import SinkFolder


_AHEAD_MS: Final = 30 * 60_000
"""Where the topic does not say: half of what brokers take by default."""


class SinkSteps:
    """The steps of a checkpoint; after each failure this process reads their state again."""

    def __init__(self, kafka: KafkaSettings, topic: str, app: str, folder: SinkFolder) -> None:
        self._kafka = kafka
        self._topic = topic
        self._folder = folder
        self._topics = KafkaTopics(kafka)
        self._plans = StepPlanner(kafka, app=app, documents=folder)
        self._floor_ms = 0
        self._known: LogEnd[StagedBatch, BatchDone] | None = None
        self.resumed: BatchSource | None = None

    @property
    def root(self) -> str:
        return self._folder.root

    @property
    def newest(self) -> BatchSource | None:
        """The newest staged batch; None before the first."""
        entry = self._log.entry
        return None if entry is None else entry.source

    @property
    def rows_done(self) -> int:
        """How many rows the newest batch has written."""
        return self._log.done.rows

    @property
    def _log(self) -> LogEnd[StagedBatch, BatchDone]:
        assert self._known is not None
        return self._known

    def is_written(self, batch: NamedBatch) -> bool:
        """Tell whether a DataFrame of this name is written, or is about to be."""
        return self._folder.step_of(batch) is not None

    def close(self) -> None:
        self._folder.close()

    @contextlib.contextmanager
    def at_work(self, spark: SparkSession) -> Iterator[None]:
        """Finish all that was begun, and run a block that writes."""
        self.resumed = None
        with self._folder.while_owned():
            self._folder.check_owner()
            try:
                if self._known is None:
                    self._known = self._recovered(spark)
                yield
            except BaseException:
                self._known = None
                raise

    def write(self, rows: DataFrame, batch: BatchSource, order_by: Sequence[str | Column]) -> int:
        """Write a batch that was never staged; return how many rows it has."""
        self._log.write(self._staged(rows, batch, order_by))
        self._finish(rows.sparkSession, self._log)
        return self.rows_done

    def _recovered(self, spark: SparkSession) -> LogEnd[StagedBatch, BatchDone]:
        """Read the checkpoint's state, compare the topic with it, and finish what was begun."""
        self._floor_ms = self._newest_floor_ms()
        log = LogEnd(self._folder)
        entry, done = log.entry, log.done
        newest = -1 if entry is None else entry.step
        sent = None if done.sent is None else load(SequenceEnds, done.sent)
        topics = {self._topic: self._partitions()}
        self._plans.open(topics, newest=newest, done=done.step, sent=sent)
        if entry is not None and not log.is_entry_done:
            self._folder.check_rows(entry)
            self._finish(spark, log)
            self.resumed = entry.source
        return log

    def _newest_floor_ms(self) -> int:
        """Return how old a timestamp may be: brokers forget a producer by its newest one."""
        expiry_ms = self._topics.producer_expiry_ms()
        if expiry_ms < 2 * TRUSTED_MS:
            raise TopicError(
                f"brokers forget a producer {expiry_ms / 1000:g} s after its newest record "
                "(producer.id.expiration.ms). Set at least two hours there, or brokers may "
                "miss rows that are written twice"
            )
        return expiry_ms // 2

    def _partitions(self) -> int:
        found = self._topics.partitions(self._topic)
        if found is None:
            raise TopicError(f"topic {self._topic!r} does not exist")
        return found

    def _staged(
        self, rows: DataFrame, batch: BatchSource, order_by: Sequence[str | Column]
    ) -> StagedBatch:
        check_columns(rows)
        partitions, step = self._partitions(), self._log.done.step + 1
        rules = RowRules(
            topic=self._topic,
            partitions=partitions,
            limit=self._topics.record_limit(self._topic),
            times_ms=self._times_ms() if "timestamp" in rows.columns else None,
        )
        given = rows_to_stage(rows, partitions, order_by)
        name = self._folder.new_name(step)
        writer = StagingWriter(self._folder.new_folder(f"rows/{name}"), rules)
        try:
            answers = given.mapInArrow(writer, SUMMARY_SCHEMA).collect()
            staged = [pickle.loads(one["summary"]) for one in answers]  # noqa: S301 - our own tasks' answers
            _check_taken(staged, batch, self._topic)
            files = tuple(one.file for one in staged if one.file is not None)
            if order_by:
                _check_in_order(files)
        except BaseException:
            self._folder.drop_attempt(f"rows/{name}")
            raise
        return StagedBatch(step, batch, partitions, name, files)

    def _times_ms(self) -> tuple[int, int]:
        """Return the oldest and the newest timestamp that a row may have."""
        topic, now_ms = self._topics.timestamps(self._topic), _now_ms()
        behind_ms = min(self._floor_ms, topic.oldest_ms or self._floor_ms)
        ahead_ms = _AHEAD_MS if topic.newest_ms is None else topic.newest_ms
        return now_ms - behind_ms, now_ms + ahead_ms

    def _finish(self, spark: SparkSession, log: LogEnd[StagedBatch, BatchDone]) -> None:
        staged = log.entry
        assert staged is not None
        rows = staged.rows
        if rows:
            planned = self._plans.of_step(staged.step, {self._topic: staged.partitions})
            sent = self._sent(spark, staged, planned)
            if sent != rows:
                raise SinkError(
                    f"{staged.source} has {rows} rows by partition, and {sent} were written"
                )
            self._plans.written(
                staged.step,
                {OutputPartition(self._topic, number): count for number, count in rows.items()},
            )
        reached = self._plans.sent
        sent_so_far = None if reached is None else dump(reached)
        self._folder.write_name(staged)
        log.mark_done(BatchDone(staged.step, sum(rows.values()), sent_so_far))

    def _sent(
        self, spark: SparkSession, staged: StagedBatch, planned: Planned
    ) -> Mapping[int, int]:
        now_ms = _now_ms()
        out = StagedRows(
            folder=self._folder.location(f"rows/{staged.folder}"),
            files=staged.files,
            now_ms=now_ms,
            earliest_ms=now_ms - self._floor_ms,
        )
        writer = BlockWriter.of(self._kafka, self._topic, planned)
        is_here, workers = is_small(staged.size_bytes), SparkWorkers(spark)
        sends = [
            SendStaged(writer, out, block)
            for block in blocks_for(workers, staged.partitions, is_here=is_here)
            if any(number in block for number in staged.rows)
        ]
        written: dict[int, int] = {}
        with errors_of_sending(workers, staged.step, [self._topic]):
            for found in all_of(workers, sends, is_here=is_here):
                written |= found
        return written


def _check_taken(staged: Sequence[StagedTask], batch: BatchSource, topic: str) -> None:
    """Check that the topic takes all rows; the first that it refuses is named by its place."""
    before: Counter[int] = Counter()
    for one in staged:
        if (row := one.refused) is not None:
            raise RowRefusedError(
                f"{batch}: topic {topic!r} does not take the row {row.shown_key} that is number "
                f"{before[row.partition] + row.place} of those for partition {row.partition}: "
                f"{row.why}. Nothing of its batch is out"
            )
        if one.file is not None:
            before.update(one.file.rows)


def _check_in_order(files: Sequence[StagedFile]) -> None:
    found = [{*file.rows} for file in files]
    if sum(map(len, found)) != len(set().union(*found)):
        # The rows of a task are in order; between two tasks there is no order.
        raise SinkError("Spark has given the rows of a partition to several tasks")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
