"""`ReorderTester` whose batches are planned and committed by the local runner."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sequitur.pipelines.local.query import LocalQuery
from sequitur.pipelines.local.tester import _validated
from sequitur.pipelines.ordering.batch_size import BatchSize
from sequitur.pipelines.ordering.restarts import Begin
from sequitur.testing import ReorderTester
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.workers import Workers


class ListEnds:
    """Where the tester's lists end; the job is to stop once nothing more is there."""

    def __init__(self, ends: Mapping[SourcePartition, list[Any]], stop: threading.Event) -> None:
        self._lists = ends
        self._stop = stop

    def ends(self, places: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        return {where: len(self._lists[where]) for where in places}

    def later(
        self, places: Mapping[SourcePartition, int], _wait_s: float
    ) -> dict[SourcePartition, int]:
        found = {where: end for where, end in self.ends(places).items() if end > places[where]}
        if not found:
            self._stop.set()
        return found


class LocalTester(ReorderTester):
    """Each `run` is a life of the query; `runs_here` says whether it is the local runner's.

    Its steps follow each other without a pause, if the settings do not say otherwise.
    """

    runs_here = True

    def __init__(
        self,
        settings: ReorderSettings | Mapping[str, Any],
        *arguments: Any,
        workers: Workers | None = None,
        **options: Any,
    ) -> None:
        self._job: JobContext
        self._workers = workers
        self.stop = threading.Event()
        found = _validated(settings)
        if found.trigger_interval is None:
            found = found.model_copy(update={"trigger_interval": timedelta()})
        super().__init__(found, *arguments, **options)

    @contextlib.contextmanager
    def another(self, *arguments: Any, **options: Any) -> Iterator[LocalTester]:
        """Another driver on the same topics and the same checkpoint."""
        with LocalTester(*arguments, **options) as other:
            other.folder, other._topics, other._storage = self.folder, self._topics, self._storage
            yield other

    def _context(self, checkpoint: Checkpoint) -> JobContext:
        job = super()._context(checkpoint)
        self._job = job if self._workers is None else replace(job, workers=self._workers)
        return self._job

    def run(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        if not self.runs_here:
            super().run(rows)
            return
        self.produce(rows)
        engine = self._opened()
        source = self._source_of(engine)
        before = self._numbers(source, "commits")
        error = self._live(engine)
        if error is not None:
            raise error
        engine.reopen()
        if self._numbers(source, "commits") == before:
            engine.tick()

    def _live(self, engine: ReorderEngine) -> Exception | None:
        stop = self.stop = threading.Event()
        begin = Begin(self._topics.counts, engine.input.begins(self._topics.counts))
        engine.input.forget_unfinished()

        @contextlib.contextmanager
        def watch() -> Iterator[ListEnds]:
            yield ListEnds(self._topics.rows, stop)

        most_rows = self._settings.max_offsets_per_trigger
        size = None if most_rows is None else BatchSize(most_rows, 0.0)
        return LocalQuery(self._job, engine, stop, watch).live(begin, size)
