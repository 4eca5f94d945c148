"""A user's DataFrame as rows for a topic: checked, placed in partitions, and put in order.

Without a jar of Kafka's, and without a change to the session: what needs Kafka's hash is done in
Python.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql import types as T  # noqa: N812 - likewise
from pyspark.sql.pandas.functions import arrow_udf

from sequitur.errors import ColumnsError, RowRefusedError, SinkError, TopicError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import KeyPartitioner, OutputPartition
from sequitur.pipelines.rows.layout import Headers, open_rows, record_batches
from sequitur.pipelines.rows.stage import not_taken, payload_sizes, tables_up_to
from sequitur.pipelines.sink.sink import TRUSTED_MS, BlockWriter, errors_of_sending
from sequitur.pipelines.sink.step_plans import SequenceEnds, StepPlanner
from sequitur.pipelines.spark.partition_blocks import blocks_of, packed, stretches
from sequitur.pipelines.spark.tasks import SparkWorkers, parallelism
from sequitur.pipelines.spark_sink.sink_folder import (
    BatchDone,
    RowGroup,
    StagedBatch,
    StagedFile,
)
from sequitur.pipelines.store.part_files import ROW_GROUP_ROWS, PartFile
from sequitur.pipelines.store.step_folder import LogEnd
from sequitur.pipelines.workers import all_of, blocks_for, is_small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sequitur.kafka.record_format import RecordLimit
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.rows.layout import KafkaBatch
    from sequitur.pipelines.rows.release import Batches
    from sequitur.pipelines.sink.step_plans import Planned
    from sequitur.pipelines.spark_sink.sink_folder import BatchSource, NamedBatch, SinkFolder
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


OrderBy: TypeAlias = "str | Column | Sequence[str | Column]"

_PARTITION: Final = "_sequitur_partition"
_PLACE: Final = "_sequitur_place"
_TEXT: Final = ("string", "binary")
_TYPES: Final = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""As Spark's own sink for Kafka has them, and the timestamp."""


def columns_in_order(order_by: OrderBy) -> tuple[str | Column, ...]:
    """Return what rows are sorted by."""
    several = [order_by] if isinstance(order_by, str | Column) else [*order_by]
    for one in several:
        if not isinstance(one, str | Column):
            raise ColumnsError(f"order_by: expected columns or their names, not {one!r}")
    return tuple(several)


def check_columns(rows: DataFrame) -> None:
    """Check that a DataFrame has the columns that records are made of, in types that they need.

    Others are passed over, as Spark's own sink does.
    """
    found = {field.name: field.dataType for field in rows.schema.fields}
    twice = [name for name, count in Counter(rows.columns).items() if count > 1 and name in _TYPES]
    if twice:
        raise ColumnsError(f"there are two columns {twice[0]!r}: which one records are made of?")
    if "value" not in found:
        raise ColumnsError(
            f"there is no column 'value', which records are made of, among {sorted(found)}: name "
            "one so, such as to_json(struct('*')).alias('value')"
        )
    wrong = [
        f"column {name!r} is {found[name].simpleString()}, expected {' or '.join(expected)}"
        for name, expected in _TYPES.items()
        if name in found and _is_wrong(found[name], expected)
    ]
    if wrong:
        raise ColumnsError("; ".join(wrong))


def rows_in_order(rows: DataFrame, partitions: int, order_by: Sequence[str | Column]) -> DataFrame:
    """Return the rows for each partition of a topic, in their order, those of one in one task.

    Keys go where Kafka's own clients send them. A row without a key goes where a checksum of its
    value says, which is the same on a repeat. Rows that `order_by` does not tell apart are in the
    order in which Spark has them: by input partition, and within it as they were read.
    """
    has = {*rows.columns}
    blocks = blocks_of(partitions, parallelism(rows.sparkSession))
    placed = rows.withColumns({_PARTITION: _partition(has, partitions), _PLACE: _place()})
    block = (F.col(_PARTITION) / F.lit(len(blocks[0]))).cast("int")
    try:
        sorted_rows = placed.repartitionById(len(blocks), block).sortWithinPartitions(
            _PARTITION, *order_by, _PLACE
        )
    except AnalysisException as error:
        told = str(error).partition("\n")[0]
        raise ColumnsError(f"order_by: the rows cannot be sorted so: {told}") from error
    return sorted_rows.select(
        F.col(_PARTITION).alias("output_partition"),
        _or_null(has, "key", "binary"),
        _or_null(has, "value", "binary"),
        _or_null(has, "headers", _TYPES["headers"][0]),
        (F.unix_millis("timestamp") if "timestamp" in has else F.lit(None).cast("long")).alias(
            "timestamp_ms"
        ),
    )


def _partition(has: set[str], partitions: int) -> Column:
    """Return the partition of a row: as it says, else by key, else by value."""
    spread = F.crc32(F.col("value").cast("binary")) % F.lit(partitions)
    choices = [F.coalesce(spread, F.lit(0)).cast("int")]
    if "key" in has:
        choices.insert(0, _by_key(partitions)(F.col("key").cast("binary")))
    if "partition" in has:
        choices.insert(0, F.col("partition"))
    return F.coalesce(*choices)


def _place() -> Column:
    """Return a number that grows from row to row of an input partition, and over these."""
    return F.monotonically_increasing_id()


def _by_key(partitions: int) -> Any:
    partitioner = KeyPartitioner(partitions)

    def placed(keys: pa.Array) -> pa.Array:
        """Place keys as Kafka's own clients do; null without a key."""
        given = keys.to_pylist()
        found = iter(partitioner.each([key for key in given if key is not None]).tolist())
        return pa.array([None if key is None else next(found) for key in given], pa.int32())

    made: Any = arrow_udf  # its stub leaves this form out
    return made(placed, T.IntegerType())


def _or_null(has: set[str], name: str, kind: str) -> Column:
    return (F.col(name) if name in has else F.lit(None)).cast(kind).alias(name)


def _is_wrong(found: T.DataType, expected: tuple[str, ...]) -> bool:
    # Whether something in it may be null is no matter.
    return found.simpleString() not in expected


# Staging a batch in Spark's tasks: rows come in their order, and are checked and kept in files.
#
# What a topic does not take is told before anything of its batch is out.


STAGED_SCHEMA: Final = pa.schema(
    [
        ("output_partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_ms", pa.int64()),
    ]
)
SUMMARY_SCHEMA: Final = "summary binary"
_SHOWN_KEY_BYTES: Final = 60


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """How much of the rows is written together."""

    group_rows: int = ROW_GROUP_ROWS
    group_bytes: int = 8 << 20  # about so many bytes of one
    # so much may stand in a row group with several partitions: whoever wants one of them reads the
    # others, too
    packed_bytes: int = 1 << 20


STAGING_LIMITS: Final = StagingLimits()


@dataclass(frozen=True, slots=True)
class RowRules:
    """What a topic takes."""

    topic: str
    partitions: int
    limit: RecordLimit  # what it takes of one row by size and key
    times_ms: tuple[int, int] | None  # timestamps between these are taken; None: whatever they are

    def refused(self, rows: pa.Table) -> tuple[int, str] | None:
        """Return the place of the first row that the topic does not take, and why not."""
        found = [one for one in self._refusals(rows) if one is not None]
        return min(found, default=None)

    def _refusals(self, rows: pa.Table) -> Iterator[tuple[int, str] | None]:
        outputs = rows["output_partition"].to_numpy()
        yield _first(
            (outputs < 0) | (outputs >= self.partitions),
            f"its partition is not one of the {self.partitions} of the topic",
        )
        if self.limit.needs_key:
            yield _first(
                rows["key"].is_null().to_numpy(),
                "it has no key, and the topic is compacted (cleanup.policy)",
            )
        headers = rows["headers"].combine_chunks()
        if headers.null_count < len(headers):
            # A null for a header has a null name, too.
            nameless = pc.list_parent_indices(headers).filter(
                pc.is_null(pc.struct_field(headers.flatten(), 0))
            )
            if len(nameless):
                yield nameless[0].as_py(), "a header of it has no name"
        if large := not_taken(rows, payload_sizes(rows), self.limit):
            told = f"it is larger than the topic takes (max.message.bytes = {self.limit.max_bytes})"
            yield large[0], told
        if self.times_ms is not None:
            first, last = self.times_ms
            times = rows["timestamp_ms"].fill_null(last).to_numpy()
            told = (
                "its timestamp is not within what the topic takes and keeps, and what brokers "
                f"remember: from {first} to {last} (epoch ms). Leave the column 'timestamp' out, "
                "and it is the time of sending"
            )
            yield _first((times < first) | (times > last), told)


@dataclass(slots=True)
class StagedTask:
    """What a task has written."""

    file: StagedFile | None = None  # its file; None without rows
    refused: str | None = None  # why a row of it is refused; None where none is


@dataclass(frozen=True, slots=True)
class StagingWriter:
    """Writes the rows of a task, which come by partition and in order; for `mapInArrow`."""

    folder: Location
    rules: RowRules  # what the topic takes
    limits: StagingLimits = STAGING_LIMITS  # how much is written together

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches; give one row with the `StagedTask`."""
        yield pa.RecordBatch.from_pydict({"summary": [pickle.dumps(self.write(batches))]})

    def write(self, batches: Iterator[pa.RecordBatch]) -> StagedTask:
        """Write batches into one file, and say what is in it.

        The document names it: one of a task that was given up, or comes too late, is never read.
        """
        groups: list[RowGroup] = []
        counted: Counter[int] = Counter()
        with PartFile(self.folder, STAGED_SCHEMA, self.limits.group_rows) as file:
            for given in tables_up_to(batches, self.limits.group_bytes):
                # A session may have 64-bit offsets (spark.sql.execution.arrow.useLargeVarTypes).
                rows = given.cast(STAGED_SCHEMA)
                refused = self.rules.refused(rows)
                if refused is not None:
                    return StagedTask(refused=self._named(rows, *refused, counted))
                for group in self._groups(rows):
                    file.write(group)
                    outputs = group["output_partition"].to_numpy()
                    found = tuple(
                        (number, own.stop - own.start) for number, own in stretches(outputs)
                    )
                    groups.append(found)
                    counted.update(dict(found))
        if file.name is None:
            return StagedTask()
        return StagedTask(StagedFile(file.name, file.size_bytes, tuple(groups)))

    def _groups(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Cut the rows as they stand in the file, in row groups."""
        outputs = rows["output_partition"].to_numpy()
        limits = self.limits
        most_rows = max(1, limits.group_rows // 4)
        for block in packed(outputs, payload_sizes(rows), most_rows, limits.packed_bytes):
            for begin in range(block.start, block.stop, limits.group_rows):
                yield rows.slice(begin, min(limits.group_rows, block.stop - begin))

    def _named(self, rows: pa.Table, place: int, why: str, counted: Counter[int]) -> str:
        """Say which row is refused: by partition, place there, and key."""
        outputs = rows["output_partition"].to_numpy()
        partition = int(outputs[place])
        number = counted[partition] + int(np.count_nonzero(outputs[:place] == partition))
        key = rows["key"][place].as_py()
        shown = "without a key" if key is None else f"with the key {key[:_SHOWN_KEY_BYTES]!r}"
        return (
            f"topic {self.rules.topic!r} does not take the row {shown} that is number {number} of "
            f"those for partition {partition}: {why}. Nothing of its batch is out"
        )


def _first(is_refused: Any, why: str) -> tuple[int, str] | None:
    places = np.flatnonzero(is_refused)
    return (int(places[0]), why) if len(places) else None


# Staged rows on their way out, in Spark's tasks: the same rows in the same order, each time.


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of some partitions."""

    folder: Location
    files: tuple[StagedFile, ...]
    now_ms: int  # the timestamp of rows without one; epoch ms
    # no timestamp is older: a batch that is sent long after it was staged keeps to what brokers
    # remember
    earliest_ms: int

    def each(self, partitions: range) -> Iterator[Batches]:
        """Return the records of partitions, one after the other, without empty ones.

        What gives a partition's is to be used up before the next one's is taken.
        """
        for file in self.files:
            with (
                open_rows(self.folder / file.name) as opened,
                pq.ParquetFile(opened) as parquet,
            ):
                read = functools.lru_cache(1)(functools.partial(_group, parquet))
                for partition in _partitions_of(file, partitions):
                    yield partition, functools.partial(self._laid_out, file, read, partition)

    def _laid_out(
        self, file: StagedFile, read: Callable[[int], pa.Table], partition: int, limit: int
    ) -> Iterator[KafkaBatch]:
        for number, group in enumerate(file.groups):
            if partition not in dict(group):
                continue
            rows = read(number)
            if len(group) > 1:
                rows = rows.filter(pa.array(rows["output_partition"].to_numpy() == partition))
            times = rows["timestamp_ms"].fill_null(self.now_ms).to_numpy()
            headers = Headers.of(rows["headers"].combine_chunks())
            times = np.maximum(times, self.earliest_ms)
            yield from record_batches(rows["key"], rows["value"], headers, times, limit)


@dataclass(frozen=True, slots=True)
class SendStaged:
    """Sends the staged rows of some partitions, in a task."""

    writer: BlockWriter
    rows: StagedRows
    partitions: range

    def __call__(self) -> dict[int, int]:
        """Send them; how many each partition has."""
        return self.writer.write(self.rows.each(self.partitions))


def _group(parquet: pq.ParquetFile, number: int) -> pa.Table:
    return parquet.read_row_group(number, use_threads=False)


def _partitions_of(file: StagedFile, partitions: range) -> list[int]:
    found = {number for group in file.groups for number, _rows in group}
    return sorted(found & {*partitions})


# The steps of an exactly-once sink: a batch is staged, planned, sent, and marked as done.
#
# Each of these is a document that is created once. Whatever dies in between, the next call goes on
# from the last of them: what was staged is sent, and Spark's rows of that batch count no more.


_AHEAD_MS: Final = 30 * 60_000
"""Where the topic does not say: half of what brokers take by default."""


class SinkSteps:
    """The steps of a checkpoint. What this process knows of them it looks up after each failure."""

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
        """The checkpoint as a URI."""
        return self._folder.root

    @property
    def newest(self) -> BatchSource | None:
        """The newest batch that was staged; None before the first."""
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
        """Tell whether a DataFrame of this name was written, or is about to be."""
        return self._folder.step_of(batch) is not None

    def close(self) -> None:
        """Let go of the checkpoint."""
        self._folder.close()

    @contextlib.contextmanager
    def at_work(self, spark: SparkSession) -> Iterator[None]:
        """Run a block that writes, once all is finished that was begun."""
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
        """Write a batch that was never staged; how many rows it has."""
        self._log.write(self._staged(rows, batch, order_by))
        self._finish(rows.sparkSession, self._log)
        return self.rows_done

    def _recovered(self, spark: SparkSession) -> LogEnd[StagedBatch, BatchDone]:
        """Read how far the checkpoint has got, compare the topic with it, finish what was begun."""
        self._floor_ms = self._newest_floor_ms()
        log = LogEnd(self._folder)
        entry, done = log.entry, log.done
        newest = -1 if entry is None else entry.step
        sent = None if done.sent is None else SequenceEnds.from_document(done.sent)
        topics = {self._topic: self._partitions()}
        self._plans.open(topics, newest=newest, done=done.step, sent=sent)
        if entry is not None and not log.is_entry_done:
            self._folder.check_rows(entry)
            self._finish(spark, log)
            self.resumed = entry.source
        return log

    def _newest_floor_ms(self) -> int:
        """Return how far behind now a timestamp may be: brokers forget a producer by it."""
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
        ordered = rows_in_order(rows, partitions, order_by)
        name = self._folder.new_name(step)
        writer = StagingWriter(self._folder.new_folder(f"rows/{name}"), rules)
        try:
            answers = ordered.mapInArrow(writer, SUMMARY_SCHEMA).collect()
            files = _files_of([pickle.loads(one["summary"]) for one in answers], batch)  # noqa: S301 - our own tasks' answers
        except BaseException:
            self._folder.drop_attempt(f"rows/{name}")
            raise
        return StagedBatch(step, batch, partitions, name, files)

    def _times_ms(self) -> tuple[int, int]:
        """Return between which timestamps of rows are taken."""
        topic, now_ms = self._topics.timestamps(self._topic), _now_ms()
        behind_ms = min(self._floor_ms, topic.oldest_ms or self._floor_ms)
        ahead_ms = _AHEAD_MS if topic.newest_ms is None else topic.newest_ms
        return now_ms - behind_ms, now_ms + ahead_ms

    def _finish(self, spark: SparkSession, log: LogEnd[StagedBatch, BatchDone]) -> None:
        """Send the batch that is staged, and mark it as done."""
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
        sent_so_far = None if reached is None else reached.to_document()
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


def _files_of(summaries: Sequence[StagedTask], batch: BatchSource) -> tuple[StagedFile, ...]:
    """Return the files that tasks have written."""
    for one in summaries:
        if one.refused is not None:
            raise RowRefusedError(f"{batch}: {one.refused}")
    files = tuple(one.file for one in summaries if one.file is not None)
    found = [{number for group in file.groups for number, _ in group} for file in files]
    if sum(map(len, found)) != len(set().union(*found)):
        # Each file has an order, and two have none between them.
        raise SinkError("Spark has given the rows of a partition to several tasks")
    return files


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
