"""The job's sink: rows into topics, in order and exactly once, each under a sequence of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.stored import dump, load
from sequitur.base.units import milliseconds
from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.timestamps import TimestampRule
from sequitur.errors import (
    BrokerError,
    SinkUnansweredError,
)
from sequitur.kafka.admin import TopicTimestamps
from sequitur.kafka.connections import GivesWay, kept_connections
from sequitur.kafka.partition import OutputPartition
from sequitur.pipelines.sink.block_writer import BlockWriter
from sequitur.pipelines.sink.send_errors import errors_of_sending
from sequitur.pipelines.sink.step_planner import StepPlanner, partitions_of
from sequitur.pipelines.sink.step_plans import SequenceEnds
from sequitur.pipelines.workers import blocks_for, is_small

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.step_log import StepDone
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.workers import Workers


_ANY_TIMESTAMPS: Final = TopicTimestamps(are_kept=True, oldest_ms=None)


@dataclass(frozen=True, slots=True)
class OutputTopic:
    name: str
    partitions: int
    timestamps: TopicTimestamps = _ANY_TIMESTAMPS  # what it does with the timestamps of records


@dataclass(frozen=True, slots=True)
class Outputs:
    released: OutputTopic
    late: OutputTopic
    quarantine: OutputTopic


@dataclass(frozen=True, slots=True)
class Outgoing:
    rows: Selection  # the rows, as tasks will find them in files, in their order
    topic: OutputTopic
    timestamps: OutputTimestamp = OutputTimestamp.NOW  # what the records' timestamps are taken from
    # whether a record whose timestamp is not its event time carries it in a header
    tells_event_time: bool = True
    reads: int | None = None  # how many bytes of files are read for it; None if that is not known


class TopicSink:
    def __init__(
        self,
        workers: Workers,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        checkpoint: Checkpoint,
        outages: Outages,
    ) -> None:
        self._workers = workers
        self._kafka = kafka
        self._settings = settings
        self._outages = outages
        self._plans = StepPlanner(
            kafka, app=settings.app_name, documents=checkpoint, outages=outages
        )

    @property
    def sent(self) -> Mapping[str, Any] | None:
        """How far sequences have got, for the done mark; None before the first rows."""
        sent = self._plans.sent
        return None if sent is None else dump(sent)

    def open(
        self,
        topics: Iterable[OutputTopic],
        *,
        newest: int,
        done: StepDone,
        takes_over: bool = False,
    ) -> None:
        """Compare the topics with the checkpoint before anything is written."""
        partitions = {topic.name: topic.partitions for topic in topics}
        sent = None if done.sent is None else load(SequenceEnds, done.sent)
        self._plans.open(
            partitions, newest=newest, done=done.step, sent=sent, takes_over=takes_over
        )

    def write(
        self, outgoing: Sequence[Outgoing], step: int, now_ms: int, clock_ms: int
    ) -> list[int]:
        """Write a step's rows, each partition of a topic in order; how many each topic has.

        Returns once the brokers have acknowledged all of it. A step writes once: repeated, what is
        there already is left out, and counted.
        """
        rules = [timestamp_rule(self._settings, out, now_ms, clock_ms) for out in outgoing]
        topics = {out.topic.name: out.topic.partitions for out in outgoing}
        planned = self._plans.of_step(step, topics)
        begun_s = planned.begun_s
        # A topic may have more partitions now: the step's rows go where they were planned to.
        counts_of = [len(planned.plan.topics[out.topic.name].firsts) for out in outgoing]
        is_here = _are_small(outgoing)

        def attempt() -> list[tuple[_Send, dict[int, int]]]:
            nonlocal begun_s
            now = replace(planned, begun_s=begun_s)
            begun_s = None
            sends = [
                _Send(
                    place,
                    BlockWriter.of(self._kafka, out.topic.name, now),
                    out.rows.over(count),
                    block,
                    rule,
                )
                for place, (out, rule, count) in enumerate(
                    zip(outgoing, rules, counts_of, strict=True)
                )
                for block in blocks_for(self._workers, count, is_here=is_here)
            ]
            with errors_of_sending(self._workers, step, topics):
                written = self._here(sends) if is_here else self._by_tasks(sends, topics)
            return [*zip(sends, written, strict=True)]

        # Rows that an earlier attempt has written are counted but not sent, as in a repeated step.
        found = self._outages.outlast(attempt, _passes)
        counts = [0] * len(outgoing)
        rows: dict[OutputPartition, int] = {}
        for send, written in found:
            counts[send.place] += sum(written.values())
            for partition, count in written.items():
                rows[OutputPartition(send.writer.topic, partition)] = count
        self._plans.written(step, rows)
        return counts

    def _here(self, sends: Sequence[_Send]) -> list[dict[int, int]]:
        return [send(GivesWay(lambda: self._outages.is_over)) for send in sends]

    def _by_tasks(self, sends: Sequence[_Send], topics: Mapping[str, int]) -> list[dict[int, int]]:
        # A broker that hangs holds a task for two minutes.
        with self._workers.ended_at(lambda: self._waits_in_vain(topics), 0):
            return self._workers.run(sends)

    def _waits_in_vain(self, topics: Mapping[str, int]) -> bool:
        """Whether the job is to stop while a leader of its topics does not answer."""
        if not self._outages.is_over:
            return False
        gives_way = GivesWay(lambda: True)
        where = partitions_of(topics)
        try:
            connections = kept_connections(self._kafka, gives_way.bound)
            connections.run(connections.leaders.refresh(topics), gives_way.bound)
            told = connections.run(connections.leaders.ends(where), gives_way.bound)
        except BrokerError:
            return True
        return len(told) < len(where)


def timestamp_rule(
    settings: ReorderSettings, out: Outgoing, now_ms: int, clock_ms: int
) -> TimestampRule:
    topic = out.topic.timestamps
    if topic.newest_ms is not None:
        now_ms = min(now_ms, clock_ms + topic.newest_ms)
    floor_ms, oldest_ms = milliseconds(settings.timestamp_floor), topic.oldest_ms
    return TimestampRule(
        taken_from=out.timestamps,
        now_ms=now_ms,
        floor_ms=floor_ms if oldest_ms is None else min(floor_ms, oldest_ms),
        is_kept=topic.are_kept,
        tells_event_time=out.tells_event_time,
    )


@dataclass(frozen=True, slots=True)
class _Send:
    """Sends selected rows of files to some output partitions, in a task, or in the driver."""

    place: int  # which of the step's topics it is
    writer: BlockWriter
    rows: Selection
    partitions: range
    rule: TimestampRule

    def __call__(self, gives_way: GivesWay | None = None) -> dict[int, int]:
        return self.writer.write(self.rows.each(self.partitions, self.rule), gives_way)


def _are_small(outgoing: Sequence[Outgoing]) -> bool:
    """Whether the rows are so few that the driver sends them itself."""
    reads = [out.reads for out in outgoing]
    return None not in reads and is_small(sum(one or 0 for one in reads))


def _passes(error: Exception) -> str | None:
    return str(error) if isinstance(error, SinkUnansweredError) else None
