"""Duplicates of an event: rows with the id of one that was read before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sequitur.pipelines.ordering.duplicate_tasks import IdsTask, RepeatsTask, buckets_for
from sequitur.pipelines.ordering.key_tasks import files_of
from sequitur.pipelines.ordering.runs import (
    behind_part,
    logged_files,
    new_folder,
    reached_parts,
)
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.spark.tasks import each_partition, in_blocks, parallelism

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from sequitur.consumer import StepEntry
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.files import Location


@dataclass(frozen=True, slots=True)
class FoundDuplicates:
    """What a step drops as duplicates.

    Attributes:
        count: All of them.
        behind: Those of them that were behind the frontier.
        files: Files of their places, and how many are in each.
    """

    count: int
    behind: int
    files: Mapping[str, int] = field(default_factory=dict)


class DuplicateFinder:
    """Finds duplicates by a header.

    Args:
        spark: The session.
        checkpoint: Where the runs stand, and what is found is written to.
        header: The header with the event id; None when duplicates are not looked for.
        output_partitions: Partitions of the output topic.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        header: str | None,
        output_partitions: int,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._header = header
        self._partitions = output_partitions

    def find(
        self, entry: StepEntry, *, first_behind_ms: int | None, frontier_ms: int
    ) -> FoundDuplicates:
        """Find the duplicates among the rows that a step is about to release or judge.

        Of rows with the same id in a step the first in the order of release stays. None stays when
        one with that id was there in an earlier step: for that, rows up to the frontier are looked
        through that are not older than the oldest row behind it, or than `deduplicated_ms`. So a
        duplicate must have the event time of its original.

        Args:
            entry: The step, not logged yet; a run of its own is the last of its runs.
            first_behind_ms: The smallest event time of its rows behind the frontier, None without
                such rows.
            frontier_ms: All rows of earlier steps up to it are out.
        """
        new = reached_parts(self._checkpoint, entry)
        after_ms = entry.previous_frontier_ms
        if first_behind_ms is not None:
            after_ms = min(after_ms, first_behind_ms)
            new.append(behind_part(self._checkpoint, entry))
        if not new or self._header is None:
            return FoundDuplicates(0, 0)
        after_ms = max(after_ms, entry.deduplicated_ms or 0)
        earlier = [r for r in entry.runs if r.step != entry.step and r.reach_ms >= after_ms]
        files = logged_files(self._checkpoint, *earlier)
        out = (Part(files, after_ms, frontier_ms, reasons=()),) if files else ()
        read = {run.name: run for run in (*entry.releasing_earlier, *earlier, entry.runs[-1])}
        rows = sum(run.rows + run.behind for run in read.values())
        return self._find(entry, tuple(new), out, rows)

    def _find(
        self, entry: StepEntry, new: tuple[Part, ...], out: tuple[Part, ...], rows: int
    ) -> FoundDuplicates:
        # In a folder that no document names: it goes once the step is logged.
        ids = self._folder(self._checkpoint.new_name(entry.step))
        tasks = len(blocks_of(self._partitions, parallelism(self._spark)))
        buckets = buckets_for(rows, tasks)
        task = IdsTask(ids, self._header or "", new, out, buckets)
        written = in_blocks(self._spark, task, self._partitions)
        files = tuple(ids / name for name in written if name is not None)
        repeats = RepeatsTask(self._folder(entry.name), files, buckets, tasks)
        found = each_partition(self._spark, repeats, tasks) if files else []
        return FoundDuplicates(
            sum(one.count for one in found),
            sum(one.behind for one in found),
            files_of((one.file, one.count) for one in found),
        )

    def _folder(self, name: str) -> Location:
        return new_folder(self._checkpoint, self._checkpoint.duplicates_folder(name))
