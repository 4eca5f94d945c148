"""What all parts of a running job share, and what it needs of what it runs on.

A job runs on Spark and Kafka, or within this process (`sequitur.testing.ReorderTester`). The steps
reach these only through:

- **A runner**, which plans batches and commits them. As Spark does, it writes down what it does in
  a folder of the checkpoint. It hands each batch to `ReorderEngine.run_batch`.
- **`Source`**, which reads the rows of a batch.
- **`Workers`**, which run the tasks of a step.
- **`Sink`**, which writes what goes out.
- **`Topics`**, which answers what brokers know.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.key_state import FoldLimits
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry
    from sequitur.kafka.admin import TopicTimestamps
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.job_subscription import JobSubscription
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.rows.run_writer import RunWriter, Summary
    from sequitur.pipelines.sink.sink import Outgoing, OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.workers import Workers

    Spans = Mapping[SourcePartition, tuple[int, int]]
    """First offset of each partition, and the one behind the last."""


class Source(Protocol):
    """What reads the rows of batches: see `KafkaSource`."""

    def read_ahead(self, spans: Spans, partitions: int) -> Spans | None:
        """Read ranges that are not planned yet, and keep their rows until they are staged.

        Returns what was read, which is less where a leader does not answer. None where nothing was:
        they are read once they are planned.
        """

    def read_into(
        self, writer: RunWriter, *, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        """Read ranges, and write their rows as parts of a run, for so many output partitions.

        Returns what was seen of each part.
        """

    def matcher(self, pattern: str) -> Callable[[str], bool]:
        """Return a function that tells whether a topic's name matches."""


class Sink(Protocol):
    @property
    def sent(self) -> Mapping[str, Any] | None:
        """Return how far sequences have got, for the done mark; None before the first rows."""

    def open(
        self, topics: Iterable[OutputTopic], *, newest: int, done: StepDone, takes_over: bool
    ) -> None:
        """Compare what the topics hold with the checkpoint, before anything is written."""

    def write(
        self, outgoing: Sequence[Outgoing], step: int, now_ms: int, clock_ms: int
    ) -> list[int]:
        """Write a step's rows exactly once, also if the step is repeated; return their counts."""


class Topics(Protocol):
    def require(self, topic: str) -> int:
        """Return how many partitions a topic has."""

    def matching(
        self, pattern: str, matches: Callable[[str], bool], written: Iterable[str]
    ) -> dict[str, int]:
        """Return the topics of a pattern, and how many partitions each has."""

    def ensure(self, topic: str, *, partitions: int, replication_factor: int) -> int:
        """Create a topic if it is missing; return how many partitions it has."""

    def check_partitions(self, topic: str, found: int | None, wanted: int | None) -> None:
        """Check that a topic has as many partitions as were asked for."""

    def require_keyless(self, topic: str) -> None:
        """Check that a topic takes rows without a key."""

    def timestamps(self, topic: str) -> TopicTimestamps:
        """Return the topic's rule for timestamps of records."""

    def record_limit(self, topic: str) -> RecordLimit:
        """Return the topic's limits on one record."""

    def producer_expiry_ms(self) -> int:
        """Return how long brokers remember a producer."""

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics."""

    def high_watermarks(
        self, partitions: Iterable[SourcePartition], *, of_some: bool = False
    ) -> dict[SourcePartition, int]:
        """Return where partitions end; with `of_some`, one answer is enough."""

    def low_watermarks(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        """Return where partitions begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    kafka: KafkaSettings = field(repr=False)  # how to reach the brokers
    settings: ReorderSettings
    topics: Topics
    source: Source
    workers: Workers
    sink: Sink
    checkpoint: Checkpoint
    outages: Outages  # how long an outage may last, and the job's log
    now_ms: Callable[[], int]  # the wall clock
    on_done: Callable[[StepEntry, StepDone], None]  # called with each step once it is done
    is_bounded: bool  # whether the run ends when it has read what is there
    fold_limits: FoldLimits  # when runs are folded into what is known of keys
    # a function of the user's that gets what steps release; None without one
    on_step: StepFunction | None = None
    subscription: JobSubscription | None = None  # what its steps are acked in; None without one
    steady_s: Callable[[], float] = time.monotonic  # a clock that cannot be set
    # why tasks cannot do the job's work at all, once that is known; until then None
    unfit: Callable[[], Exception | None] = lambda: None
