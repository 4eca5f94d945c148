"""Which batch a sink is given, and whether its turn has come.

Pure: who asks Spark, and who reads the checkpoint, stands elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.errors import CheckpointError, WrongBatchError
from sequitur.pipelines.store.documents import check_format
from sequitur.pipelines.store.hadoop_folder import HadoopFolder
from sequitur.pipelines.store.step_folder import StepFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a streaming query."""

    query: str  # the query's id, which its own checkpoint keeps
    batch_id: int
    # names what Spark has planned to read in it; None where that is not known
    plan: str | None = None
    # the run of the query that gives it, another one after each start; None where that is not
    # known. A run gives a batch once
    run: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"batch {self.batch_id}"

    def to_document(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {"query": self.query, "batch": self.batch_id, "plan": self.plan}


@dataclass(frozen=True, slots=True)
class NamedBatch:
    """A DataFrame that is written once, under a name."""

    name: str

    def __str__(self) -> str:
        return f"batch {self.name!r}"

    def to_document(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {"name": self.name}


BatchSource: TypeAlias = StreamBatch | NamedBatch


def source_of(document: Mapping[str, Any]) -> BatchSource:
    """Read `to_document` back."""
    if "name" in document:
        return NamedBatch(document["name"])
    return StreamBatch(document["query"], document["batch"], document["plan"])


def is_repeated(
    root: str, batch: BatchSource, newest: BatchSource | None, first_batch: int
) -> bool:
    """Tell whether a batch is the newest one that was staged, or follows it."""
    if newest is not None and type(newest) is not type(batch):
        has = "a stream's batches" if isinstance(newest, StreamBatch) else "DataFrames with names"
        raise WrongBatchError(
            f"{root} has {has}: a stream, and DataFrames with names, have a checkpoint each"
        )
    if isinstance(batch, NamedBatch):
        return batch == newest
    if newest is None:
        if batch.batch_id != first_batch:
            raise WrongBatchError(
                f"{root} is empty, and the stream has got to batch {batch.batch_id}: what it "
                "wrote before is not known here. Put the sink's checkpoint back. If it is "
                f"new, and earlier batches went elsewhere, use first_batch={batch.batch_id}"
            )
        return False
    assert isinstance(newest, StreamBatch)
    if batch.query != newest.query:
        raise WrongBatchError(
            f"{root} belongs to the query with the id {newest.query}, and this one is "
            f"{batch.query}: with a new checkpoint of Spark's (checkpointLocation) batches count "
            f"from 0 again, and would look written up to batch {newest.batch_id}. Put Spark's "
            "checkpoint back, or give the sink a new one, too"
        )
    if batch.batch_id == newest.batch_id:
        if None not in {batch.plan, newest.plan} and batch.plan != newest.plan:
            raise WrongBatchError(
                f"{root}: batch {batch.batch_id} was staged from other offsets than Spark has "
                "planned now: is its checkpoint (checkpointLocation) an older copy? Rows "
                "read since then would be left out. Put the newest copy back"
            )
        return True
    if batch.batch_id != newest.batch_id + 1:
        raise WrongBatchError(
            f"{root} has got to batch {newest.batch_id}, and this is batch {batch.batch_id}, "
            "neither the same one nor the next. Are Spark's checkpoint (checkpointLocation) "
            "and the sink's of one time? Put the newest copies of both back"
        )
    return False


# A batch that is staged: which files have its rows, and where in them those of a partition are.


RowGroup: TypeAlias = "tuple[tuple[int, int], ...]"
"""Of a row group: each partition that has rows in it, in order, and how many."""

_BATCH_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of staged rows."""

    name: str  # its name in the folder of its batch
    size_bytes: int
    # its row groups. All rows of a partition are in one file, in their order
    groups: tuple[RowGroup, ...]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """What a document in `staged/` says: from then on Spark's rows of the batch count no more."""

    step: int  # its number in the sink's checkpoint
    source: BatchSource
    partitions: int  # the topic's number of partitions, by which its keys were placed
    folder: str  # name of the folder with its files
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> Mapping[int, int]:
        """How many rows each partition has that has any."""
        found: Counter[int] = Counter()
        for file in self.files:
            for group in file.groups:
                found.update(dict(group))
        return found

    @property
    def size_bytes(self) -> int:
        """How large its files are."""
        return sum(file.size_bytes for file in self.files)

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "format": _BATCH_FORMAT,
            "step": self.step,
            "source": self.source.to_document(),
            "partitions": self.partitions,
            "folder": self.folder,
            "files": {file.name: [file.size_bytes, file.groups] for file in self.files},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        check_format(document, _BATCH_FORMAT)
        return cls(
            step=document["step"],
            source=source_of(document["source"]),
            partitions=document["partitions"],
            folder=document["folder"],
            files=tuple(
                StagedFile(name, size_bytes, tuple(_group(one) for one in groups))
                for name, (size_bytes, groups) in document["files"].items()
            ),
        )


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What a document in `done/` says."""

    step: int
    rows: int  # how many rows it has written
    sent: Mapping[str, Any] | None  # how far sequences have got; None before the first rows

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {"format": _BATCH_FORMAT, "step": self.step, "rows": self.rows, "sent": self.sent}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        check_format(document, _BATCH_FORMAT)
        return cls(document["step"], document["rows"], document["sent"])


NOTHING_DONE: Final = BatchDone(-1, 0, None)


def _group(pairs: Sequence[Sequence[int]]) -> RowGroup:
    return tuple((partition, rows) for partition, rows in pairs)


# The folder an exactly-once sink keeps its state in.
#
# ::
#
# format.json whose folder this is: the topic, and the sink's name in Kafka outputs.json the name
# and the Kafka cluster that the sink's producer id belongs to owners/, heartbeats/ which process
# has it: see `store.ownership` rows/<name>/ Parquet: a batch's rows, by output partition and in
# order staged/<step> JSON: which batch it is, and its files; from then on Spark's rows count no
# more plans/<step> JSON: under which sequences its rows go out, written before any does
# names/<hash> JSON: a DataFrame's name, and its step done/<step> JSON: written once all of it is
# acknowledged


_FOLDER_FORMAT: Final = 1
_KIND: Final = "sequitur-spark-sink"
_DOCUMENTS: Final = ("staged", "plans", "names", "done")
_ROWS: Final = "rows"


class SinkFolder(StepFolder[StagedBatch, BatchDone]):
    """The folder, and what stands in it."""

    _LOG = "staged"
    _BY_STEP = ("staged", "plans", "done")
    _PUT_BACK = "Put it back whole, from its newest copy"

    def claim(self, topic: str, app: str | None) -> str:
        """Make the folder a topic's sink's, or check that it is; then take it over."""
        found = self._made_by(
            {
                "format": _FOLDER_FORMAT,
                "kind": _KIND,
                "topic": topic,
                "app": app or f"spark.{topic}.{uuid4().hex}",
            }
        )
        if found.get("kind") != _KIND:
            raise CheckpointError(f"{self.root} is not an exactly-once sink's")
        if found.get("format") != _FOLDER_FORMAT:
            raise CheckpointError(
                f"{self.root} has format {found.get('format')}, this version reads {_FOLDER_FORMAT}"
            )
        if found.get("topic") != topic:
            raise CheckpointError(
                f"{self.root} belongs to a sink of topic {found.get('topic')!r}, not {topic!r}: "
                "each topic has a checkpoint of its own"
            )
        if app not in {None, found.get("app")}:
            raise CheckpointError(
                f"{self.root} belongs to a sink with app = {found.get('app')!r}, not {app!r}: its "
                "producer id belongs to that name"
            )
        self._take((*_DOCUMENTS, _ROWS), _DOCUMENTS)
        return str(found["app"])

    def latest(self) -> tuple[StagedBatch | None, BatchDone]:
        """Return the newest batch that is staged, and the newest that is done."""
        staged, done = self._newest_steps(
            StagedBatch.from_document, BatchDone.from_document, NOTHING_DONE
        )
        if staged is not None and done.step < staged.step - 1:
            raise self._torn(f"step {staged.step} is staged, but the last in done/ is {done.step}")
        return staged, done

    def check_rows(self, staged: StagedBatch) -> None:
        """Check that all files of a staged batch are there."""
        folder = f"{_ROWS}/{staged.folder}"
        if gone := self._gone(folder, [file.name for file in staged.files]):
            raise CheckpointError(
                f"{self.root}/{folder}/{gone[0]}, with rows of {staged.source} that are not all "
                "sent, is gone: put the folder back"
            )

    def write_entry(self, entry: StagedBatch) -> None:
        """Write which rows a batch has, once these outlast a power cut."""
        self._storage.sync(f"{_ROWS}/{entry.folder}")
        self._write_step("staged", entry)
        self._sweeper.keep(entry.step, {_ROWS: {entry.folder}})

    def step_of(self, batch: NamedBatch) -> int | None:
        """Return the step in which a DataFrame was written; None of a name that is new."""
        found = self.read_document(_name_document(batch), lambda one: (one["name"], one["step"]))
        return None if found is None else int(found[1])

    def write_name(self, staged: StagedBatch) -> None:
        """Write in which step a DataFrame was written, before that step is done."""
        if isinstance(staged.source, NamedBatch) and self.step_of(staged.source) is None:
            document = {"name": staged.source.name, "step": staged.step}
            self.write_document(_name_document(staged.source), document)

    def write_done(self, done: BatchDone) -> None:
        """Mark a batch as done, forget one that is long over, and let go of the rows."""
        super().write_done(done)
        self._sweeper.keep(done.step, {_ROWS: ()})


def _name_document(batch: NamedBatch) -> str:
    return f"names/{hashlib.sha256(batch.name.encode()).hexdigest()}"


# What a function of `foreachBatch` can learn of its query, which Spark does not tell it.


_QUERY_ID: Final = "sql.streaming.queryId"
"""A property of the thread in which a query runs (`StreamExecution.QUERY_ID_KEY`)."""
_FILES: Final = re.compile(r'\{"logOffset":(\d+)\}')
"""An offset of Spark's file source."""


def stream_batch(spark: SparkSession, batch_id: int) -> StreamBatch:
    """Return which batch of which query this is; to be called in `foreachBatch`."""
    query = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if query is None:
        raise WrongBatchError(
            "this is not a batch of a streaming query: give the sink to foreachBatch, or write "
            "a DataFrame once by write(rows, name=...). Spark tells a query only to the "
            "thread that it calls (PYSPARK_PIN_THREAD has to be true, which is the default)"
        )
    plan, run = _plan_and_run(spark, query, batch_id)
    return StreamBatch(query, batch_id, plan, run)


def _plan_and_run(spark: SparkSession, query: str, batch_id: int) -> tuple[str | None, str | None]:
    """Name what Spark has planned to read in a batch, and the run; None where it does not say."""
    run = None
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way to its plans
    java_session: Any = spark._jsparkSession  # noqa: SLF001
    try:
        running = java_session.sharedState().activeStreamingQueries()
        execution = running.get(jvm.java.util.UUID.fromString(query))
        run = str(execution.runId())
        offsets = execution.offsetLog().get(batch_id).get().offsets()
        several = [offsets.apply(number) for number in range(offsets.size())]
        plan = [str(one.get().json()) if one.isDefined() else "" for one in several]
        root = str(execution.resolvedCheckpointRoot())
        for source, end in enumerate(plan):
            if (files := _FILES.fullmatch(end)) is not None:
                plan[source] += _files_of(spark, f"{root}/sources/{source}", files[1])
    except (AttributeError, CheckpointError, Py4JError, PySparkException):
        return None, run
    return hashlib.sha256("\n".join(plan).encode()).hexdigest(), run


def _files_of(spark: SparkSession, folder: str, number: str) -> str:
    """Return the files of a batch of the file source, whose offset is but a number.

    Spark has listed them before the batch, and lists each of ten batches with all before.
    """
    log = HadoopFolder(spark, folder)
    return next((log.read(name) for name in (number, f"{number}.compact") if log.exists(name)), "")
