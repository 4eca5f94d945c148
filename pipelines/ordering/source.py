"""The rows of a job, by our own reader: small batches in the driver, large ones in tasks.

Who plans a batch says which offsets it has. These ranges go to tasks as data. A task reads its own
from the brokers, by the settings that the driver has, and writes a part of the run. So a runner
plans, logs and commits a batch. Spark never runs its DataFrame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import any_of
from sequitur.errors import LogRangeError, TopicError, UnansweredError
from sequitur.kafka.reader import Reader
from sequitur.pipelines.ordering.small_batches import PATIENCE_S, KafkaRanges, SmallBatches

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.rows.run_writer import RunWriter, Summary
    from sequitur.pipelines.workers import Workers

_GRACE_S: Final = 3.0
"""So long tasks may read once the job is to stop; the next start reads what they did not stage."""
_LEAST_OFFSETS: Final = 5_000
"""Of a task, where there are more tasks than partitions: each writes a file of its own."""

_packed: Final[dict[KafkaSettings, dict[str, tuple[float, int]]]] = {}
"""What tasks of this process have learnt of how topics are packed; see `Reader`."""


class BatchSource(ABC):
    """Reads a batch in the driver if it is small enough, else in tasks."""

    _small: SmallBatches

    def read_ahead(self, spans: Spans, partitions: int) -> Spans | None:
        return self._small.read_ahead(spans, partitions)

    def read_into(
        self, writer: RunWriter, *, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        here = self._small.read_into(writer, spans, partitions)
        found = [here] if here is not None else self._by_tasks(writer, step, spans, partitions)
        self._small.learn(found)
        return found

    @abstractmethod
    def _by_tasks(
        self, writer: RunWriter, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        """Have tasks read ranges, and write their rows as parts of a run."""


class KafkaSource(BatchSource):
    """The input topics.

    Args:
        kafka: How to reach the brokers.
        settings: The job's settings.
        workers: Where large batches are read.
        outages: How long brokers are waited for.
        compiled: Returns what tells whether a topic's name matches a pattern.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        workers: Workers,
        outages: Outages,
        compiled: Callable[[str], Callable[[str], bool]],
    ) -> None:
        self._kafka = kafka
        self._workers = workers
        self._outages = outages
        self._compiled = compiled
        # A step checks that topics are those it read before, whatever rows are kept of them.
        reader = Reader(
            kafka=kafka, patience_s=PATIENCE_S, is_stopping=self._is_stopping, behind={}
        )
        self._small = SmallBatches(
            KafkaRanges(reader),
            settings,
            outages.tell,
            is_stopping=self._is_stopping,
        )

    def matcher(self, pattern: str) -> Callable[[str], bool]:
        return self._compiled(pattern)

    def _is_stopping(self) -> bool:
        return self._outages.is_over

    def _by_tasks(
        self, writer: RunWriter, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        # A row's lateness and a tombstone's time depend on the rows before it.
        is_whole = writer.clock is not None or writer.dates_tombstones
        parts = parts_of(spans, self._workers.parallelism, is_whole=is_whole)
        tasks = [_Reading(self._kafka, part, partitions, writer) for part in parts]
        title = f"step {step} reads {_in_words(spans)}"

        def run() -> list[Summary]:
            answers = self._workers.run(tasks, title=title)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return [answer for answer in answers if not isinstance(answer, Exception)]

        with self._workers.ended_at(self._is_stopping, _GRACE_S):
            # No document names the files of a failed attempt.
            return self._outages.outlast(run, any_of(UnansweredError))


@dataclass(frozen=True, slots=True)
class _Reading:
    """A task: reads ranges, and writes their rows as a part of a run.

    An error that brokers or logs cause is its answer. The driver needs the error's class, and may
    get only the text of an error that a task raises.
    """

    kafka: KafkaSettings
    spans: Spans
    partitions: int
    writer: RunWriter

    def __call__(self) -> Summary | LogRangeError | TopicError:
        packed = _packed.setdefault(self.kafka, {})
        ranges = KafkaRanges(Reader(kafka=self.kafka, packed=packed))
        try:
            return self.writer.write(ranges.each(self.spans, self.partitions))
        except (LogRangeError, TopicError) as error:
            return error


def _in_words(spans: Spans) -> str:
    rows = [stop - first for first, stop in spans.values() if first < stop]
    topics = ", ".join(sorted({where.topic for where in spans}))
    return f"{sum(rows)} offsets in {len(rows)} ranges of {topics}"


def parts_of(spans: Spans, tasks: int, *, is_whole: bool) -> list[Spans]:
    """Share ranges among tasks, so that each reads about as many offsets.

    Args:
        spans: The ranges.
        tasks: How many tasks there are at most.
        is_whole: Whether a partition's rows are all read by one task.
    """
    rows = {where: stop - first for where, (first, stop) in spans.items() if first < stop}
    tasks = max(1, min(tasks, max(len(rows), sum(rows.values()) // _LEAST_OFFSETS)))
    parts: list[dict[SourcePartition, tuple[int, int]]] = [{} for _ in range(tasks)]
    if is_whole:
        load = [0] * tasks
        for where in sorted(rows, key=lambda one: (-rows[one], one)):
            least = load.index(min(load))
            parts[least][where] = spans[where]
            load[least] += rows[where]
    else:
        share = -(-sum(rows.values()) // tasks)
        reached = 0
        for where in sorted(rows):
            place, stop = spans[where]
            while place < stop:
                part, had = divmod(reached, share)
                end = min(stop, place + share - had)
                parts[part][where] = (place, end)
                reached += end - place
                place = end
    return [part for part in parts if part]
