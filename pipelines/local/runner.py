"""This machine alone as what a job runs on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sequitur.kafka.log_watch import LogWatch
from sequitur.pipelines.local.query import LocalQuery
from sequitur.pipelines.local.refusals import matcher_of
from sequitur.pipelines.ordering.source import KafkaSource
from sequitur.pipelines.store.storage import storage_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from threading import Event

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.store.storage import SparkFolder, Storage
    from sequitur.pipelines.workers import Workers


class LocalRunner:
    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def storage(self, location: str) -> Storage:
        """Return the folder; stores take endpoint and credentials from the environment."""
        return storage_at(location)

    def spark_folder(self, storage: Storage) -> SparkFolder:
        return storage

    def source(
        self, kafka: KafkaSettings, settings: ReorderSettings, outages: Outages
    ) -> KafkaSource:
        return KafkaSource(kafka, settings, self.workers, outages, matcher_of)

    def query(self, job: JobContext, engine: ReorderEngine, stop: Event) -> LocalQuery:
        watch = LogWatch(job.kafka, is_stopping=stop.is_set)
        return LocalQuery(job, engine, stop, lambda: contextlib.closing(watch))

    def unfit(self) -> Exception | None:
        return None

    def watched(self, stop: Event, tell: Callable[[str], object]) -> AbstractContextManager[object]:
        del stop, tell
        return contextlib.nullcontext()

    def looked_at(self, storage: Storage) -> AbstractContextManager[object]:
        """Check nothing: a worker on this machine has what the driver has."""
        del storage
        return contextlib.nullcontext()
