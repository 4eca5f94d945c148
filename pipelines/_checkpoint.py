"""The folder a reorder job keeps its state in, on any file system that Spark can write.

::

    format.json      whose folder this is: the job, its topics, the format's version
    delivery.json    exactly-once delivery: the id that stands in this job's commit tokens
    delivery-established.json    each output partition has had a token since
    spark/           Spark's own checkpoint
    runs/<step>/     Parquet: the rows a batch staged, by output partition and event time
    behind/<step>/   Parquet: those of them that were behind the frontier, judged
    repeats/<step>/  Parquet: places in the source of rows that the step drops as repeats
    keys/<step>/     Parquet: one row a key, how far it has been released (a fold of runs)
    topology/<step>/ what a topology left of a step: outputs, events that wait, what bolts keep
    processed/<step> JSON: what became of a step's events, written before their outputs go out
    replays/         Parquet: dead letters that somebody wants processed again
    frontier/<step>  JSON: what the step decided, written before anything of it goes out
    done/<step>      JSON: what went out, written once all of it is acknowledged

Documents are written whole or not at all, and never over one that is there, so of two jobs on one
folder the second one fails instead of mixing in: by a link on a local file system, on others by
Spark's own checkpoint file manager.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from consumer import (
    NOTHING_DONE,
    SourcePartition,
    StateFormatError,
    StepDone,
    StepEntry,
)
from pipelines._errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import SparkSession

CHECKPOINT_FORMAT: Final = 3
_KIND: Final = "sequitur-reorder"
_LOCAL_SCHEME: Final = "file"
_KEPT_STEPS: Final = 100
_OFFSETS_HEAD_LINES: Final = 2  # Spark's version and metadata, then one line a source


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """What must stay the same for as long as a checkpoint lives.

    Attributes:
        input_topics: The topics read, empty with a pattern.
        input_pattern: The pattern of the topics read, if it is one.
        event_time: Where the event time stands.
        output_topic: The ordered topic.
        output_partitions: Its partitions: another number would send keys elsewhere.
        mode: Whether rows are held, and what is kept of their keys.
        topology: Name of the topology that runs behind it, if one does.
    """

    input_topics: tuple[str, ...]
    input_pattern: str | None
    event_time: str
    output_topic: str
    output_partitions: int
    mode: str
    topology: str | None = None


def check_format(root: str, found: Mapping[str, Any]) -> None:
    """Check that a folder's `format.json` is one that this version reads.

    Raises:
        CheckpointError: It belongs to something else, or to a newer version.
    """
    if found.get("kind") != _KIND:
        raise CheckpointError(f"{root} is not a reorder job's")
    if found.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{root} has format {found.get('format')}; this version reads {CHECKPOINT_FORMAT}"
        )


class Checkpoint:
    """The folder, and what stands in it.

    Args:
        spark: The session; it knows the file systems.
        root: The folder, as a path or URI.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the way to Hadoop's file systems
        java_session: Any = spark._jsparkSession  # noqa: SLF001
        conf = java_session.sessionState().newHadoopConf()
        self._jvm = jvm
        self._conf = conf
        path = jvm.org.apache.hadoop.fs.Path(root)
        self._root = path.getFileSystem(conf).makeQualified(path)
        streaming = jvm.org.apache.spark.sql.execution.streaming
        self._files = streaming.checkpointing.CheckpointFileManager.create(self._root, conf)

    @property
    def root(self) -> str:
        """The folder as a URI."""
        return str(self._root.toString())

    def local(self, folder: str) -> Path | None:
        """Where a folder of these is for programs; None on a file system that only Hadoop reaches.

        On a cluster a local folder is one that all machines share: Spark itself needs that, too.
        """
        uri = self._jvm.org.apache.hadoop.fs.Path(folder).toUri()
        return Path(uri.getPath()) if uri.getScheme() == _LOCAL_SCHEME else None

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own checkpoint."""
        return f"{self.root}/spark"

    def run_folder(self, step: int) -> str:
        """Where the run of a step stands."""
        return f"{self.root}/runs/{_name(step)}"

    def behind_folder(self, step: int) -> str:
        """Where the rows of a step stand that were behind the frontier."""
        return f"{self.root}/behind/{_name(step)}"

    def repeats_folder(self, step: int) -> str:
        """Where it stands which rows a step drops as repeats."""
        return f"{self.root}/repeats/{_name(step)}"

    def keys_folder(self, step: int) -> str:
        """Where the fold stands that a step wrote."""
        return f"{self.root}/keys/{_name(step)}"

    def topology_folder(self, step: int) -> str:
        """Where it stands what a topology left of a step."""
        return f"{self.root}/topology/{_name(step)}"

    @property
    def replays_folder(self) -> str:
        """Where requests to replay dead letters stand."""
        return f"{self.root}/replays"

    def size_bytes(self, folder: str) -> int:
        """Size of what stands in one of these folders."""
        path = self._jvm.org.apache.hadoop.fs.Path(folder)
        return int(path.getFileSystem(self._conf).getContentSummary(path).getLength())

    def claim(self, identity: JobIdentity) -> None:
        """Make the folder this job's, or check that it is.

        Raises:
            CheckpointError: It belongs to another job, to a newer version, or to something else.
        """
        document = {"format": CHECKPOINT_FORMAT, "kind": _KIND, **asdict(identity)}
        document["input_topics"] = sorted(identity.input_topics)
        if self._exists("format.json"):
            self._compare(self._read("format.json"), document)
            return
        if self._exists() and self._names():
            raise CheckpointError(f"{self.root} holds something else: give a folder of its own")
        folders = ["runs", "behind", "repeats", "keys", "frontier", "done"]
        if identity.topology is not None:
            folders += ["topology", "processed", "replays"]
        for folder in folders:
            self._files.mkdirs(self._path(folder))
        self._write("format.json", document)

    def latest(self) -> tuple[StepEntry | None, StepDone]:
        """The newest step, and the newest that is done.

        Raises:
            CheckpointError: They cannot be read, or do not fit together.
        """
        try:
            entries, done = self._names("frontier"), self._names("done")
            entry = (
                StepEntry.from_document(self._read("frontier", max(entries))) if entries else None
            )
            last = StepDone.from_document(self._read("done", max(done))) if done else NOTHING_DONE
        except (StateFormatError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.root}: a step cannot be read: {error}") from error
        step = -1 if entry is None else entry.step
        if last.step not in (step, step - 1):
            raise CheckpointError(f"{self.root}: step {last.step} is done, but the last is {step}")
        return entry, last

    def write_entry(self, entry: StepEntry) -> None:
        """Log what a step decided; fails when another job has logged that step.

        Raises:
            CheckpointError: The step is logged already.
        """
        self._write(f"frontier/{_name(entry.step)}", entry.to_document())

    def write_done(self, done: StepDone) -> None:
        """Mark a step as done, and forget one that is long over.

        Raises:
            CheckpointError: The step is marked already.
        """
        self._write(f"done/{_name(done.step)}", done.to_document())
        over = done.step - _KEPT_STEPS
        if over >= 0:
            self._files.delete(self._path("frontier", _name(over)))
            self._files.delete(self._path("done", _name(over)))

    def keep(self, *, runs: Collection[int], keys: Collection[int]) -> None:
        """Delete all runs and folds but those of these steps, and what is judged of old steps."""
        for folder, steps in (("runs", runs), ("keys", keys), ("behind", ()), ("repeats", ())):
            kept = {_name(step) for step in steps}
            for name in self._names(folder):
                if name not in kept:
                    self._files.delete(self._path(folder, name))

    def processed(self, step: int) -> dict[str, Any] | None:
        """What became of a step's events; None as long as it is not known."""
        return self.read_document(f"processed/{_name(step)}")

    def write_processed(self, step: int, document: Mapping[str, Any]) -> None:
        """Write what became of a step's events, and forget that of one that is long over.

        Raises:
            CheckpointError: It is written already.
        """
        self._write(f"processed/{_name(step)}", document)
        if step >= _KEPT_STEPS:
            self._files.delete(self._path("processed", _name(step - _KEPT_STEPS)))

    def keep_topology(self, steps: Collection[int]) -> None:
        """Delete what a topology left, but of these steps."""
        kept = {_name(step) for step in steps}
        for name in self._names("topology"):
            if name not in kept:
                self._files.delete(self._path("topology", name))

    def planned_offsets(self, batch_id: int) -> dict[SourcePartition, int]:
        """Where a batch ends in each source partition, as Spark planned it.

        Raises:
            CheckpointError: Spark's plan of the batch cannot be read.
        """
        text = self._read_text("spark", "offsets", str(batch_id))
        sources = text.splitlines()[_OFFSETS_HEAD_LINES:]
        if len(sources) != 1:
            raise CheckpointError(f"{self.root}: offsets of batch {batch_id} are not understood")
        return {
            SourcePartition(topic, int(partition)): int(offset)
            for topic, partitions in json.loads(sources[0]).items()
            for partition, offset in partitions.items()
        }

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark will never run this batch again."""
        return self._exists("spark", "commits", str(batch_id))

    def read_document(self, name: str) -> dict[str, Any] | None:
        """A document at the folder's top; None when there is none."""
        return self._read(name) if self._exists(name) else None

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a document at the folder's top, whole or not at all.

        Raises:
            CheckpointError: It is there already.
        """
        self._write(name, document)

    def _compare(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        check_format(self.root, found)
        for name, value in wanted.items():
            if found.get(name) == value:
                continue
            if name == "output_partitions":
                raise CheckpointError(
                    f"{self.root}: topic {wanted['output_topic']!r} had {found.get(name)} "
                    f"partitions and has {value} now, so keys would go elsewhere and lose their "
                    "order: give the job another output topic, and a checkpoint of its own"
                )
            raise CheckpointError(
                f"{self.root} belongs to a job with {name} = {found.get(name)!r}, "
                f"not {value!r}: give the job a checkpoint of its own, or set it back"
            )

    def _path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join((self.root, *parts)))

    def _exists(self, *parts: str) -> bool:
        return bool(self._files.exists(self._path(*parts)))

    def _names(self, *parts: str) -> list[str]:
        """Names in a folder, without temporary files."""
        names = (str(status.getPath().getName()) for status in self._files.list(self._path(*parts)))
        return sorted(name for name in names if not name.startswith("."))

    def _read_text(self, *parts: str) -> str:
        stream = self._files.open(self._path(*parts))
        try:
            raw = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return bytes(raw).decode()

    def _read(self, *parts: str) -> Any:
        return json.loads(self._read_text(*parts))

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, indent=1) + "\n"
        local = self.local(f"{self.root}/{name}")
        if local is not None:
            # Hadoop would start a program for each file, to set its permissions.
            is_new = _write_new(local, text)
        elif is_new := not self._exists(name):
            self._write_by_hadoop(name, text)
        if not is_new:
            raise CheckpointError(f"{self.root}/{name} is there already: does another job run?")

    def _write_by_hadoop(self, name: str, text: str) -> None:
        stream = self._files.createAtomic(self._path(name), False)
        try:
            stream.write(text.encode())
        except BaseException:
            stream.cancel()
            raise
        stream.close()


def _write_new(path: Path, text: str) -> bool:
    """Write a file whole or not at all; whether it was not there before."""
    written = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        written.write_text(text)
        path.hardlink_to(written)
    except FileExistsError:
        return False
    finally:
        written.unlink(missing_ok=True)
    return True


def _name(step: int) -> str:
    """Names that sort as numbers do."""
    return f"{step:012d}"
