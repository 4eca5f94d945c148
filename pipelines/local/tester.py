"""`sequitur.testing.ReorderTester`: a reorder job on lists, without brokers and without Spark.

It is the job but for its ends: the engine, its steps and their documents, the files of rows, the
topology behind. Topics are lists, and tasks run here, one after the other, from their pickles. A
batch takes all that is there; it is planned and committed in the files that both runners write.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa

from sequitur.base import stored
from sequitur.base.extras import load
from sequitur.base.retry import Outages
from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.reorder.key_state import FOLD_LIMITS
from sequitur.errors import ReadTooLargeError, ReorderError, TopicError
from sequitur.kafka.admin import TopicTimestamps
from sequitur.kafka.identity import Identity
from sequitur.kafka.partition import KeyPartitioner, SourcePartition
from sequitur.kafka.record_batch import batch_of, records_of
from sequitur.kafka.record_format import RecordLimit
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.pipelines.ordering.context import JobContext
from sequitur.pipelines.ordering.opening import ProcessStage, open_engine
from sequitur.pipelines.ordering.small_batches import RowsRead, SmallBatches
from sequitur.pipelines.ordering.source import BatchSource
from sequitur.pipelines.rows.columns import READ_SCHEMA, spread
from sequitur.pipelines.sink.sink import timestamp_rule
from sequitur.pipelines.sink.step_plans import SequenceEnds, StepPlan, TopicPlan
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.owned_folder import step_name
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER
from sequitur.pipelines.store.storage import LocalStorage
from sequitur.pipelines.workers import ThisProcess, blocks_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from sequitur.consumer.reorder.step_log import StepDone, Totals
    from sequitur.consumer.reorder.timestamps import TimestampRule
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.pipelines.local.plan_log import Plan
    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.rows.run_writer import RunWriter, Summary
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.sink.sink import Outgoing, OutputTopic

# Arrow looks for pandas once, which takes a second: here, and not in the first test.
_NOTHING: Final = pa.array([None])
_CLUSTER: Final = "lists"
_IDENTITY: Final = Identity(0, 0)
_BATCH_BYTES: Final = 1 << 20
_EXPIRY_MS: Final = 7 * 24 * 3_600_000


class ReorderedRecord(NamedTuple):
    """A record that a reorder job has written.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        offset: Its place there, from 0.
        key: Its key.
        value: Its value.
        headers: Its headers, as names and values.
        timestamp_ms: Its timestamp, epoch ms.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header with a name, or None."""
        return dict(self.headers).get(name)


class ReorderTester:
    """Runs a reorder job on plain lists, with a topology after it or without.

    Each `run` is a batch of the job::

        settings = {
            "input_topics": ["readings"],
            "output_topic": "ordered",
            "event_time": "json:at",
            "delay": "10 s",
        }
        with ReorderTester(settings) as tester:
            tester.run([{"value": '{"at": 1700000002000}'}, {"value": '{"at": 1700000001000}'}])
            tester.drain()
            assert [one.value for one in tester.released] == [
                b'{"at": 1700000001000}',
                b'{"at": 1700000002000}',
            ]

    The tester stages, judges, holds, releases and sends rows as the job does, and runs tasks from
    their pickles. It leaves out brokers and runners, and what depends on them: a process that dies,
    and a batch that is read in parts. It ignores the checkpoint of the settings. The job's state is
    in a temporary folder, which `close` deletes.

    Args:
        settings: The job's settings, or the section `[reorder]` of its file as a mapping.
            `checkpoint` may be missing.
        topology: Topology that gets the ordered rows, or None.
        process: How the topology is run.
        partitions: How many partitions each input topic and each topic that is made has.
        on_step: Called with each step that released rows, as in `sequitur.spark.reorder`.
        now_ms: Start of the wall clock, epoch ms, which only `advance` moves. By default this
            machine's time.
        available_now: Whether the job ends when all rows are read. Then the frontier waits for no
            partition that is read to its end.
    """

    def __init__(
        self,
        settings: ReorderSettings | Mapping[str, Any],
        topology: Topology | None = None,
        *,
        process: ProcessSettings | None = None,
        partitions: int = 1,
        on_step: StepFunction | None = None,
        now_ms: int | None = None,
        available_now: bool = False,
    ) -> None:
        self.now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._settings = _validated(settings)
        self._stage: ProcessStage | None = None
        if topology is not None:
            self._stage = ProcessStage(topology, process or _default_process())
        self._on_step = on_step
        self._is_bounded = available_now
        self._held = contextlib.ExitStack()
        self.folder = Path(self._held.enter_context(tempfile.TemporaryDirectory("-reorder")))
        self._topics = _ListTopics(dict.fromkeys(self._settings.input_topics, partitions))
        self._life = contextlib.ExitStack()
        self._engine: ReorderEngine | None = None
        self._checkpoint: Checkpoint
        self._storage = LocalStorage(self.folder)

    def produce(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Put rows into the input topics, without reading them yet.

        Args:
            rows: Each with `value`, and if wanted with `key`, `headers` (names and values),
                `topic`, `partition` and `timestamp_ms`. Text is taken as UTF-8. The topic is by
                default the first of the settings, the partition the one of the key or else 0, the
                timestamp the wall clock's.
        """
        for row in rows:
            self._topics.append(row, self._settings.input_topics, self.now_ms)

    def run(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Put rows into the input topics, and run a batch of all unread rows.

        Without any it is a tick: what has become due is released.

        Args:
            rows: See `produce`.
        """
        self.produce(rows)
        self._run_batch()

    def advance(self, seconds: float) -> None:
        """Move the clock, and release the rows that have become due."""
        self.now_ms += round(1000 * seconds)
        self.run()

    def wait(self, seconds: float) -> None:
        """Let time pass as for a job that runs: it looks at its input each second.

        Without rows partitions become idle, and event time then goes on with the clock. At once,
        by `advance`, it does not: nobody has looked meanwhile.
        """
        end_ms = self.now_ms + round(1000 * seconds)
        while self.now_ms < end_ms:
            self.advance(min(1.0, (end_ms - self.now_ms) / 1000))

    def drain(self) -> None:
        """Read all rows, release all held ones and close all windows, as a job with `drain` ends.

        Events that fail are tried again until none waits, before windows close and after it. The
        clock moves to when they are due.
        """
        while self._run_batch():
            pass
        engine = self._opened()
        engine.drain()
        engine.process_pending(self._let_pass)
        engine.close_windows(self._let_pass)

    def _run_batch(self) -> bool:
        """Run a batch of what is unread, or else a tick; return whether there was any."""
        engine = self._opened()
        plans = PlanLog.of(self._checkpoint, engine.input.plans_folder)
        plan = self._plan(engine, plans)
        if plan is None:
            engine.tick()
        else:
            engine.run_batch(plan.batch_id)
            plans.commit()
        engine.wait_until_done()
        return plan is not None

    def _let_pass(self, seconds: float) -> bool:
        self.now_ms += math.ceil(1_000 * seconds)
        return False

    def restart(
        self,
        *,
        settings: ReorderSettings | Mapping[str, Any] | None = None,
        repeats: bool = False,
    ) -> None:
        """End the job, and start it again from its checkpoint.

        Args:
            settings: Its settings from now on; None for those it had.
            repeats: Whether the job repeats the last batch, as where it ended before it had taken
                note that the batch was through.
        """
        self._end()
        sources = [one for one in self._storage.names("") if one.startswith(FIRST_SPARK_FOLDER)]
        if repeats and sources:
            for batch_id in self._numbers(max(sources), "commits")[-1:]:
                self._storage.delete(f"{max(sources)}/commits/{batch_id}")
        self._settings = self._settings if settings is None else _validated(settings)
        self._opened()

    def records(self, topic: str) -> list[ReorderedRecord]:
        """Return the records of a topic, partition by partition."""
        return [one for several in self._topics.written.get(topic, []) for one in several]

    @property
    def released(self) -> list[ReorderedRecord]:
        """Records of the output topic, partition by partition."""
        return self.records(self._settings.output_topic)

    @property
    def late(self) -> list[ReorderedRecord]:
        """Records of the late topic."""
        return self.records(self._settings.late)

    @property
    def quarantined(self) -> list[ReorderedRecord]:
        """Records of the quarantine topic."""
        return self.records(self._settings.quarantine)

    @property
    def totals(self) -> Totals:
        """Counts of all steps."""
        return self._opened().totals

    def report(self) -> JobReport:
        """Return the report that the job would print at its end."""
        return self._opened().report(0, 1.0)

    def close(self) -> None:
        """End the job, and delete its state."""
        self._end()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> ReorderEngine:
        """Return the engine of the job; open a new one if the last one has failed."""
        if self._engine is not None and self._engine.failure is None:
            return self._engine
        self._end()
        with contextlib.ExitStack() as opened:
            checkpoint = opened.enter_context(contextlib.closing(Checkpoint(self._storage)))
            job = self._context(checkpoint)
            engine = open_engine(job, self._stage)
            opened.callback(engine.close)
            opened.enter_context(checkpoint.while_owned())
            engine.recover()
            engine.input.check()
            self._life = opened.pop_all()
        self._engine, self._checkpoint = engine, checkpoint
        return engine

    def _context(self, checkpoint: Checkpoint) -> JobContext:
        settings, workers = self._settings, ThisProcess(_copied)
        return JobContext(
            kafka=KafkaSettings(bootstrap_servers="localhost:1"),
            settings=settings,
            topics=self._topics,
            source=_ListSource(self._topics, workers, settings),
            workers=workers,
            sink=_ListSink(self._topics, workers, settings, checkpoint),
            checkpoint=checkpoint,
            outages=Outages(0.0, 0, wait=lambda _: False, tell=lambda _: None),
            now_ms=lambda: self.now_ms,
            steady_s=lambda: self.now_ms / 1000,
            on_done=lambda *_: None,
            is_bounded=self._is_bounded,
            fold_limits=FOLD_LIMITS,
            on_step=self._on_step,
        )

    def _end(self) -> None:
        self._engine = None
        self._life.close()

    def _source_of(self, engine: ReorderEngine) -> str:
        return engine.input.spark_folder.removeprefix(f"{self._storage.root}/")

    def _numbers(self, source: str, folder: str) -> list[int]:
        return sorted(map(int, self._storage.names(f"{source}/{folder}")))

    def _plan(self, engine: ReorderEngine, plans: PlanLog) -> Plan | None:
        """Plan the next batch, or return the one that is not committed; None without new rows."""
        newest, ends = plans.newest, self._topics.ends()
        if newest is not None and not newest.is_committed:
            return newest
        begins = plans.begin(self._begins(engine)) if newest is None else newest.ends
        return None if begins == ends else plans.plan(ends)

    def _begins(self, engine: ReorderEngine) -> dict[SourcePartition, int]:
        begins = engine.input.begins(self._topics.counts) or {}
        return {where: max(0, begins.get(where, 0)) for where in self._topics.ends()}


def _validated(settings: ReorderSettings | Mapping[str, Any]) -> ReorderSettings:
    if isinstance(settings, ReorderSettings):
        return settings
    return ReorderSettings.model_validate({"checkpoint": "not used", **settings})


def _default_process() -> ProcessSettings:
    from sequitur.consumer.topology import ProcessSettings  # noqa: PLC0415 - only with a topology

    return ProcessSettings()


def _copied(task: Any) -> Any:
    """Return a task as another process gets it; no runner can run a task that does not pickle."""
    try:
        return pickle.loads(pickle.dumps(task))  # noqa: S301 - our own
    except (AttributeError, TypeError, pickle.PicklingError):
        # Functions that have no name in a module, which runners pickle whole.
        name = "cloudpickle" if find_spec("cloudpickle") else "pyspark.cloudpickle"
        whole = load(name, "a task of no module")
        return pickle.loads(whole.dumps(task))  # noqa: S301 - our own


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class _ListTopics:
    def __init__(self, read: Mapping[str, int]) -> None:
        self.counts = dict(read)
        self.rows: dict[SourcePartition, list[dict[str, Any]]] = {
            SourcePartition(topic, number): []
            for topic, partitions in read.items()
            for number in range(partitions)
        }
        self.written: dict[str, list[list[ReorderedRecord]]] = {}

    def append(self, row: Mapping[str, Any], topics: Sequence[str], now_ms: int) -> None:
        topic = row.get("topic") or topics[0]
        key = _bytes(row.get("key"))
        partition = row.get("partition")
        if partition is None:
            partition = 0 if key is None else KeyPartitioner(self.require(topic)).each([key])[0]
        where = SourcePartition(topic, int(partition))
        if where not in self.rows:
            raise TopicError(f"topic {topic!r} has no partition {partition}")
        headers = [{"key": name, "value": _bytes(one)} for name, one in row.get("headers") or ()]
        self.rows[where].append(
            {
                "topic": where.topic,
                "partition": where.partition,
                "offset": len(self.rows[where]),
                "timestamp_ms": row.get("timestamp_ms", now_ms),
                "key": key,
                "value": _bytes(row.get("value")),
                "headers": headers or None,
                "output_partition": 0,
            }
        )

    def ends(self) -> dict[SourcePartition, int]:
        return {where: len(rows) for where, rows in self.rows.items()}

    def require(self, topic: str) -> int:
        if topic not in self.counts:
            raise TopicError(f"topic {topic!r} is none of the tester's: {sorted(self.counts)}")
        return self.counts[topic]

    def matching(
        self, pattern: str, matches: Callable[[str], bool], written: Iterable[str]
    ) -> dict[str, int]:
        del pattern
        left_out = {*written}
        return {
            name: count
            for name, count in self.counts.items()
            if matches(name) and name not in left_out
        }

    def ensure(self, topic: str, *, partitions: int, replication_factor: int) -> int:
        del replication_factor
        return len(self.written.setdefault(topic, [[] for _ in range(partitions)]))

    def check_partitions(self, topic: str, found: int | None, wanted: int | None) -> None:
        if wanted is not None and found != wanted:
            raise TopicError(f"topic {topic!r} has {found} partitions, not {wanted}")

    def require_keyless(self, topic: str) -> None: ...

    def timestamps(self, topic: str) -> TopicTimestamps:
        del topic
        return TopicTimestamps(are_kept=True, oldest_ms=None)

    def record_limit(self, topic: str) -> RecordLimit:
        del topic
        return RecordLimit()

    def producer_expiry_ms(self) -> int:
        return _EXPIRY_MS

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: topic for topic in topics}

    def high_watermarks(
        self, partitions: Iterable[SourcePartition], *, of_some: bool = False
    ) -> dict[SourcePartition, int]:
        del of_some
        return {where: len(self.rows[where]) for where in partitions}

    def low_watermarks(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        return dict.fromkeys(partitions, 0)


class _ListSource(BatchSource):
    def __init__(
        self, topics: _ListTopics, workers: ThisProcess, settings: ReorderSettings
    ) -> None:
        self._topics = topics
        self._workers = workers
        self._small = SmallBatches(self, settings, _refuse)

    def read(self, spans: Spans, partitions: int, most_bytes: int) -> RowsRead:
        tables = self._tables(spans, partitions)
        if sum(table.nbytes for table in tables) > most_bytes:
            raise ReadTooLargeError(most_bytes)
        return RowsRead([some for table in tables for some in table.to_batches()], spans)

    def _by_tasks(
        self, writer: RunWriter, step: int, spans: Spans, partitions: int
    ) -> list[Summary]:
        del step
        return self._workers.run(
            [_Staging(writer, table) for table in self._tables(spans, partitions)]
        )

    def _tables(self, spans: Spans, partitions: int) -> list[pa.Table]:
        return [
            spread(pa.Table.from_pylist(some, schema=READ_SCHEMA), partitions).cast(READ_SCHEMA)
            for where, (first, stop) in spans.items()
            if (some := self._topics.rows[where][first:stop])
        ]

    def matcher(self, pattern: str) -> Callable[[str], bool]:
        raise ReorderError(f"input_pattern {pattern!r}: give the tester input_topics")


def _refuse(line: str) -> None:
    raise ReorderError(line)  # a list can always be read


@dataclass(frozen=True, slots=True)
class _Staging:
    writer: RunWriter
    rows: pa.Table

    def __call__(self) -> Summary:
        return self.writer.write(iter(self.rows.to_batches()))


@dataclass(frozen=True, slots=True)
class _Send:
    topic: str
    rows: Selection
    partitions: range
    rule: TimestampRule
    records: dict[int, list[ReorderedRecord]] = field(default_factory=dict)

    def __call__(self) -> dict[int, list[ReorderedRecord]]:
        for partition, batches in self.rows.each(self.partitions, self.rule):
            for one in batches(_BATCH_BYTES):
                whole = batch_of(
                    bytes(one.records), one.rows, first_ms=one.base_ms, last_ms=one.max_ms
                )
                self.records.setdefault(partition, []).extend(
                    ReorderedRecord(
                        self.topic, partition, 0, got.key, got.value, got.headers, got.timestamp_ms
                    )
                    for got in records_of(whole)
                )
        return self.records


class _ListSink:
    """Writes rows to lists, each once; see `Sink`.

    A row's sequence is its offset: nobody else writes to the lists.
    """

    def __init__(
        self,
        topics: _ListTopics,
        workers: ThisProcess,
        settings: ReorderSettings,
        checkpoint: Checkpoint,
    ) -> None:
        self._topics = topics
        self._workers = workers
        self._settings = settings
        self._checkpoint = checkpoint
        self._begun: set[str] = set()  # topics that a step has written to

    @property
    def sent(self) -> Mapping[str, Any] | None:
        if not self._begun:
            return None
        written = self._topics.written
        ends = {name: (name, tuple(map(len, written[name]))) for name in self._begun}
        return stored.dump(SequenceEnds(_CLUSTER, _IDENTITY, ends))

    def open(
        self, topics: Iterable[OutputTopic], *, newest: int, done: StepDone, takes_over: bool
    ) -> None:
        del topics, newest, takes_over
        self._begun = set() if done.sent is None else {*done.sent["topics"]}

    def write(
        self, outgoing: Sequence[Outgoing], step: int, now_ms: int, clock_ms: int
    ) -> list[int]:
        firsts = self._plan(step, {out.topic.name for out in outgoing})
        written = []
        for out in outgoing:
            name = out.topic.name
            rule = timestamp_rule(self._settings, out, now_ms, clock_ms)
            count = len(firsts[name])
            sends = [
                _Send(name, out.rows.over(count), block, rule)
                for block in blocks_for(self._workers, count, is_here=False)
            ]
            rows = {where: some for one in self._workers.run(sends) for where, some in one.items()}
            for partition, some in rows.items():
                log = self._topics.written[name][partition]
                for offset, record in enumerate(some, firsts[name][partition]):
                    if offset >= len(log):
                        log.append(record._replace(offset=offset))
            written.append(sum(map(len, rows.values())))
        self._begun.update(firsts)
        return written

    def _plan(self, step: int, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return where a step's rows begin, by topic and partition; it is recorded once."""
        name = f"plans/{step_name(step)}"
        plan = self._checkpoint.read_document(name, partial(stored.load, StepPlan))
        if plan is None:
            plans = {}
            for topic in topics:
                ends = tuple(map(len, self._topics.written[topic]))
                plans[topic] = TopicPlan(topic, ends, ends, _BATCH_BYTES)
            plan = StepPlan(step, _CLUSTER, _IDENTITY, plans)
            self._checkpoint.write_document(name, stored.dump(plan))
        return {topic: one.firsts for topic, one in plan.topics.items()}
