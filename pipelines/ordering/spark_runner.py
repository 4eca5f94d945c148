"""Spark as what a job runs on: its session, and the machines it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.errors import TopicError
from sequitur.pipelines.ordering.source import KafkaSource
from sequitur.pipelines.ordering.spark_query import SparkQuery
from sequitur.pipelines.ordering.worker_look import WorkerLook
from sequitur.pipelines.spark.executors import watched_executors
from sequitur.pipelines.spark.tasks import SparkWorkers
from sequitur.pipelines.store.hadoop_folder import open_spark_folder, open_storage

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from threading import Event

    from pyspark.sql import SparkSession

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.store.storage import SparkFolder, Storage


class SparkRunner:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._look: WorkerLook | None = None
        self.workers = SparkWorkers(spark)

    def storage(self, location: str) -> Storage:
        """Return the folder, by the session's settings."""
        return open_storage(self._spark, location)

    def spark_folder(self, storage: Storage) -> SparkFolder:
        return open_spark_folder(self._spark, storage)

    def source(
        self, kafka: KafkaSettings, settings: ReorderSettings, outages: Outages
    ) -> KafkaSource:
        return KafkaSource(kafka, settings, self.workers, outages, self._matcher)

    def _matcher(self, pattern: str) -> Callable[[str], bool]:
        """Return a matcher by Java's rules, because Spark plans by these."""
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - the way to Java's patterns
        try:
            compiled = jvm.java.util.regex.Pattern.compile(pattern)
        except (Py4JError, PySparkException) as error:
            raise TopicError(
                f"input_pattern {pattern!r} is not a Java regular expression"
            ) from error
        return lambda topic: bool(compiled.matcher(topic).matches())

    def query(self, job: JobContext, engine: ReorderEngine, stop: Event) -> SparkQuery:
        return SparkQuery(self._spark, job, engine, stop)

    def unfit(self) -> Exception | None:
        return None if self._look is None else self._look.failure

    def watched(
        self, stop: Event, tell: Callable[[str], object]
    ) -> contextlib.AbstractContextManager[object]:
        return watched_executors(self._spark, stop, tell)

    def looked_at(self, storage: Storage) -> contextlib.AbstractContextManager[object]:
        self._look = WorkerLook.by_spark(self._spark, storage)
        return self._look.beside(self._spark)
