"""What a job plans to read and has committed, in the files of Spark's own checkpoint.

::

    spark/metadata      {"id": "<uuid>"}; without it Spark 4.2 refuses to start
    spark/sources/0/0   a zero byte, "v1", where the first batch begins
    spark/offsets/<n>   "v1", what Spark keeps of its clock and settings, where batch n ends
    spark/commits/<n>   "v1", the watermark of the next batch: batch n is staged

So a job moves between both runners: each continues where the other has stopped. A batch that is
planned and not committed runs as it was planned. Spark starts from the newest plan and the one
before it.

Files are created whole and never replace another. An owner checks that it still is the owner before
it plans. A plan and the commit before it are on the disk before the log names anything of the batch
(`Checkpoint.write_staged`), as with Spark. Without that they need not be: a plan that a power cut
takes is made anew, and nothing has come of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

from sequitur.errors import CheckpointError
from sequitur.pipelines.store.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.spark_part import SparkPart
    from sequitur.pipelines.store.storage import Storage

_VERSION: Final = "v1"
_FIRST_METADATA: Final = {
    "batchWatermarkMs": 0,
    "batchTimestampMs": 0,
    "conf": {"spark.sql.shuffle.partitions": "200"},
}
"""Settings that a plan does not name, Spark takes from the session that goes on.

But for that one, Spark's default: Spark 4.2 compares it between the two newest plans before it runs
one that is not committed, and fails where one does not name it. The job shuffles nothing.
"""
_WATERMARK: Final = "nextBatchWatermarkMs"
_KEPT: Final = 100
"""Committed plans that stay beside the newest; Spark's own default."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch that is planned.

    Attributes:
        batch_id: Its number.
        ends: The offset after its last one, of every partition.
        is_committed: Whether it is staged, and will not be run again.
    """

    batch_id: int
    ends: Mapping[SourcePartition, int]
    is_committed: bool


class PlanLog:
    """The plans and commits of one Spark query; only one owner writes them.

    Args:
        storage: The checkpoint.
        spark: What reads Spark's files in it.
        source: The folder of the query, such as `spark`.
        check_owner: Raises an error if another process has taken the checkpoint over.
        sweep: Deletes files, now or a little later.
    """

    def __init__(
        self,
        storage: Storage,
        spark: SparkPart,
        source: str,
        check_owner: Callable[[], None],
        sweep: Callable[[Sequence[str]], None],
    ) -> None:
        self._storage = storage
        self._spark = spark
        self._source = source
        self._check_owner = check_owner
        self._sweep = sweep
        # Hadoop keeps checksums beside the files of a local folder, and beside no others.
        self._has_checksums = not is_remote(storage.location(""))
        self._metadata = _as_json(_FIRST_METADATA)
        self._watermark_ms = 0
        self.newest = self._read()

    @classmethod
    def of(cls, checkpoint: Checkpoint, source: str) -> Self:
        return cls(
            checkpoint.storage,
            checkpoint.spark,
            source,
            partial(checkpoint.check_owner, may_know=True),
            checkpoint.sweep,
        )

    def begin(self, begins: Mapping[SourcePartition, int]) -> Mapping[SourcePartition, int]:
        """Write down once where the first batch begins; return what is written there."""
        self._prepare()
        if self._create("sources/0/0", f"\0{_VERSION}\n{_as_json(_by_topic(begins))}"):
            return begins
        return self._spark.begins(self._source)

    def plan(self, ends: Mapping[SourcePartition, int]) -> Plan:
        """Plan the batch after the newest one, which is committed.

        The ends are those of every partition. An owner before us may have woken up and planned the
        same batch: then it is run as planned there.
        """
        batch_id = 0 if self.newest is None else self.newest.batch_id + 1
        text = f"{_VERSION}\n{self._metadata}\n{_as_json(_by_topic(ends))}"
        self._check_owner()
        # Of the first plan depends where the job has begun.
        if self._create(f"offsets/{batch_id}", text, lasts=not batch_id):
            self._spark.take_note(self._source, batch_id, ends)
        else:
            ends = self._spark.planned_offsets(self._source, batch_id)
        self.newest = Plan(batch_id, ends, is_committed=False)
        return self.newest

    def commit(self) -> None:
        """Write down that the newest batch is staged, and delete an old one."""
        if (newest := self.newest) is None or newest.is_committed:
            return
        document = {_WATERMARK: self._watermark_ms}
        text = f"{_VERSION}\n{_as_json(document)}"
        self._create(f"commits/{newest.batch_id}", text, lasts=False)
        self.newest = Plan(newest.batch_id, newest.ends, is_committed=True)
        self._forget([newest.batch_id - _KEPT - 1])

    def _read(self) -> Plan | None:
        planned = self._spark.batches(self._source, "offsets")
        if not planned:
            return None
        newest, committed = planned[-1], self._spark.batches(self._source, "commits")
        self._metadata = self._metadata_of(newest)
        if committed:
            self._watermark_ms = self._watermark_of(committed[-1])
        self._prepare()
        self._forget({one for one in (*planned, *committed) if one < newest - _KEPT})
        ends = self._spark.planned_offsets(self._source, newest)
        return Plan(newest, ends, is_committed=newest in committed)

    def _prepare(self) -> None:
        """Make the folders, and the file that Spark requires in them."""
        for folder in ("offsets", "commits", "sources/0"):
            self._storage.make_folder(f"{self._source}/{folder}")
        self._create("metadata", _as_json({"id": str(uuid4())}))

    def _metadata_of(self, batch_id: int) -> str:
        """Return the line of a plan with Spark's clock and settings."""
        name = f"{self._source}/offsets/{batch_id}"
        version, _, behind = self._storage.read(name).partition("\n")
        if version != _VERSION:
            raise CheckpointError(
                f"{self._storage.root}/{name} has the format {version[:20]!r}, and the local "
                f'runner knows {_VERSION}: use runner = "spark", or put the file back'
            )
        return behind.partition("\n")[0]

    def _watermark_of(self, batch_id: int) -> int:
        """Return the watermark in a commit; 0 without one."""
        lines = self._storage.read(f"{self._source}/commits/{batch_id}").splitlines()
        try:
            return int(json.loads(lines[-1])[_WATERMARK])
        except (IndexError, KeyError, TypeError, ValueError):
            return 0  # Spark only shows it

    def _create(self, name: str, text: str, *, lasts: bool = True) -> bool:
        path = f"{self._source}/{name}"
        if self._has_checksums:
            if self._storage.exists(path):
                return False
            # Spark refuses a file beside the checksum of another, which a power cut may have left.
            self._storage.delete(_checksum(path))
        return self._storage.create(path, text, lasts=lasts)

    def _forget(self, batches: Iterable[int]) -> None:
        paths = [
            f"{self._source}/{folder}/{batch_id}"
            for batch_id in batches
            for folder in ("offsets", "commits")
            if batch_id >= 0
        ]
        if paths:
            self._sweep([*paths, *(map(_checksum, paths) if self._has_checksums else ())])


def _checksum(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def _as_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _by_topic(offsets: Mapping[SourcePartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found
