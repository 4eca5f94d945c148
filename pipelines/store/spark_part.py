"""Spark's own part of a checkpoint: what a query has planned to read, and has committed.

::

    spark/offsets/<batch>   where a batch ends in each source partition, written before it begins
    spark/commits/<batch>   written once a batch is through
    spark/sources/0/0       where the first batch begins

Spark renames these files into place and does not sync them, and the local runner does the same with
its own. Those that a step rests on are synced before the step is logged (`files_around`), and the
newest commit once it is seen. So a power cut leaves at most the newest plan and the newest commit
cut short, and neither is in the log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import CheckpointError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.pipelines.store.storage import SparkFolder


FIRST_SPARK_FOLDER: Final = "spark"
WAY_ON: Final = (
    "start the job once with --reset-input: it then reads on from the end of its log, and reads "
    "recreated topics from their beginning"
)
_HEAD_LINES: Final = {"offsets": 2, "commits": 1}
"""Lines before the one that says it: Spark's version, and of a plan its metadata."""
_PLANS_ASKED_FOR: Final = 2
"""The plan of the batch that is staged, and of the one before it."""


class SparkPart:
    def __init__(self, storage: SparkFolder) -> None:
        self._storage = storage
        self._created: dict[tuple[str, int], Mapping[SourcePartition, int]] = {}

    def take_note(self, source: str, batch_id: int, offsets: Mapping[SourcePartition, int]) -> None:
        """Note a plan that this process has created, so that it need not be read."""
        self._created[source, batch_id] = offsets
        while len(self._created) > _PLANS_ASKED_FOR:
            self._created.pop(next(iter(self._created)))

    def planned_offsets(self, source: str, batch_id: int) -> Mapping[SourcePartition, int]:
        """Return where a batch ends in each source partition, by Spark's plan."""
        if (created := self._created.get((source, batch_id))) is not None:
            return created
        name = f"{source}/offsets/{batch_id}"
        where = f"{self._storage.root}/{name}, the plan of a batch"
        if not self._storage.exists(name):
            raise CheckpointError(f"{where}, is gone: put it back, or {WAY_ON}")
        try:
            (offsets,) = self._storage.read(name).splitlines()[_HEAD_LINES["offsets"] :]
            return _offsets(json.loads(offsets))
        except (AttributeError, TypeError, ValueError) as error:  # no plan, or several sources
            raise CheckpointError(
                f"{where}, cannot be read: {error}. Put it back, or {WAY_ON}"
            ) from error

    def is_planned(self, source: str, batch_id: int) -> bool:
        """Tell whether Spark has planned the batch and will not plan it anew."""
        return self._storage.exists(f"{source}/offsets/{batch_id}")

    def is_committed(self, source: str, batch_id: int) -> bool:
        """Tell whether Spark will never run this batch again."""
        return self._storage.exists(f"{source}/commits/{batch_id}")

    def make_commit_last(self, source: str, batch_id: int) -> None:
        """Return once the commit of a batch outlasts a power cut."""
        self._storage.sync(*_with_checksum(source, f"commits/{batch_id}"))

    def traces(self) -> str | None:
        """Return what shows that Spark has read behind its first batch; None without any."""
        for source in self._storage.names(""):
            if source.startswith(f"{FIRST_SPARK_FOLDER}-"):
                return source  # it began behind what the log had as read by then
            if source == FIRST_SPARK_FOLDER and (done := self.batches(source, "commits")):
                return f"{source}/commits/{done[-1]}"
        return None

    def first_offsets(self, source: str) -> dict[SourcePartition, int]:
        """Return where the first batch begins in each source partition; empty before its plan."""
        return self.begins(source) if self.is_planned(source, 0) else {}

    def begins(self, source: str) -> dict[SourcePartition, int]:
        """Return where the first batch begins, planned or not; empty if nothing says so."""
        name = f"{source}/sources/0/0"
        if not self._storage.exists(name):
            return {}
        try:
            return _offsets(json.loads(self._storage.read(name).splitlines()[-1]))
        except (AttributeError, IndexError, TypeError, ValueError):
            return {}

    def drop(self, source: str) -> None:
        """Delete a folder of Spark's that the log does not know."""
        self._created.clear()
        self._storage.delete(source)

    def forget_unfinished(self, source: str, logged: int) -> None:
        """Delete what a query, or a power cut, has left unfinished; when no query runs.

        Spark refuses a plan or a commit that is cut short, and a folder in which the plan of the
        first batch was begun and not ended. A plan that is not in the log is made anew, and a batch
        without its commit is given again, and known by the log.
        """
        self._created.clear()
        if not self._storage.exists(source):
            return
        for folder in ("", "/offsets", "/commits", "/sources/0"):
            self._storage.drop_unfinished(f"{source}{folder}")
        planned, committed = self.batches(source, "offsets"), self.batches(source, "commits")
        if planned and planned[-1] > logged:
            self._delete_if_cut(source, "offsets", planned[-1])
        if committed and committed[-1] == logged:
            self._delete_if_cut(source, "commits", logged)
        if logged < 0 and not self.batches(source, "offsets"):
            self.drop(source)

    def batches(self, source: str, folder: str) -> list[int]:
        """Return the numbers of the batches in `offsets` or `commits`, in order."""
        names = self._storage.names(f"{source}/{folder}")
        return sorted(int(name) for name in names if name.isdecimal())

    def _delete_if_cut(self, source: str, folder: str, batch_id: int) -> None:
        name = f"{folder}/{batch_id}"
        try:
            lines = self._storage.read(f"{source}/{name}").splitlines()[_HEAD_LINES[folder] :]
            is_whole = bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
        except ValueError:
            is_whole = False
        if not is_whole:
            for one in reversed(_with_checksum(source, name)):
                self._storage.delete(one)


def files_around(source: str, batch_id: int) -> list[str]:
    """Name Spark's files of a batch, with Hadoop's checksums of them."""
    if not batch_id:
        return [source]  # its folders, too, are new
    documents = (f"commits/{batch_id - 1}", f"offsets/{batch_id}", f"commits/{batch_id}")
    return [name for document in documents for name in _with_checksum(source, document)]


def _with_checksum(source: str, document: str) -> list[str]:
    folder, _, number = document.partition("/")
    return [f"{source}/{folder}/.{number}.crc", f"{source}/{folder}/{number}"]


def _offsets(document: Any) -> dict[SourcePartition, int]:
    return {
        SourcePartition(topic, int(partition)): int(offset)
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }
