"""What a step leaves out: duplicates of rows that were read before, and rows that are acked.

Duplicates are found by their id, in two waves of tasks.

1. Rows of one id may be in any output partition. So a task for each block of output partitions
   writes the ids of its rows, with their places, into a file, in buckets by a hash of the id.
2. A task takes some buckets, one after the other, out of all files.

The subscription may ack rows while they are held: a time to live has passed, or somebody skipped
them. They are left out when they are due. They are found before the step is logged, and their
places stand beside those of the duplicates: what a step leaves out is decided once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from sequitur.base.json_field import (
    FieldWatch,
    JsonField,
    documents_of,
    which_fields,
    which_names,
)
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.base.units import milliseconds
from sequitur.consumer.reorder.reasons import LATE
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.ordering.key_tasks import WrittenFile, files_of, one_of_each
from sequitur.pipelines.ordering.runs import behind_ms, behind_part, duplicates_files, reached_parts
from sequitur.pipelines.rows.columns import (
    RELEASE_ORDER,
    ROW_LIMITS,
    RUN_ARROW_SCHEMA,
    SOURCE_ORDER,
    RowLimits,
    sources,
)
from sequitur.pipelines.rows.event_times import header_values
from sequitur.pipelines.rows.left_out import Places
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.spark.partition_blocks import stretches
from sequitur.pipelines.store.part_files import PartFile, forget
from sequitur.pipelines.store.storage import new_folder
from sequitur.pipelines.workers import blocks_for, done_here, in_blocks, is_small

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.consumer.reorder.step_log import StagedStep, StepEntry
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.store.storage import Location


IdKind = Literal["header", "json"]

PLACES_SCHEMA: Final = pa.schema([RUN_ARROW_SCHEMA.field(name) for name in SOURCE_ORDER])
_IDS_SCHEMA: Final = pa.schema(
    [
        ("event_id", pa.binary()),
        ("is_new", pa.int8()),
        *(RUN_ARROW_SCHEMA.field(name) for name in RELEASE_ORDER),
        ("is_behind", pa.bool_()),
        # The bucket: readers choose rows by the column of this name in every file.
        ("output_partition", pa.int32()),
    ]
)
_FIRST: Final = ("is_new", *RELEASE_ORDER)
"""What is out stays, and of several rows that are not, the first that would go out."""
_LOOKED_AT: Final = 20
"""Rows whose headers or fields are listed."""
_ID_BYTES: Final = 128
"""What a row takes in memory while its bucket is looked at, about."""


def buckets_for(rows: int, tasks: int, limits: RowLimits = ROW_LIMITS) -> int:
    """Return the number of buckets for about so many rows: one for each task, or more."""
    return max(tasks, -(-rows * _ID_BYTES // limits.slice_bytes))


class WrittenIds(NamedTuple):
    file: str | None  # the file's name; None where no row has an id
    new: int  # rows that are about to be released or judged, with an id or without


@dataclass(frozen=True, slots=True)
class IdsTask:
    folder: Location
    kind: IdKind  # whether the id is in a header or in the JSON value
    name: str  # the header, or the path of the field
    new: tuple[Part, ...]  # rows that are about to be released or judged
    out: tuple[Part, ...]  # rows of earlier steps
    buckets: int
    limits: RowLimits = ROW_LIMITS
    keeps: bool = False  # as of `RunWriter`

    def __call__(self, partitions: range) -> WrittenIds:
        new, most = 0, self.limits.row_group_rows
        with PartFile(self.folder, _IDS_SCHEMA, most, keeps=self.keeps) as file:
            for parts, is_new in ((self.new, True), (self.out, False)):
                columns = (*RELEASE_ORDER, self.column, "reason")
                for rows in RunRows(parts, partitions, columns, self.limits).pieces():
                    new += len(rows) * is_new
                    for bucket in self._buckets(rows, is_new=is_new):
                        file.write(bucket)
        return WrittenIds(file.name, new)

    @property
    def column(self) -> str:
        return "headers" if self.kind == "header" else "value"

    def _ids(self, rows: pa.Table) -> pa.Array:
        if self.kind == "header":
            return header_values(rows["headers"].combine_chunks(), self.name, last=False)
        field = JsonField(self.name)
        return pa.array(map(field.id_in, rows["value"].to_pylist()), pa.binary())

    def _buckets(self, rows: pa.Table, *, is_new: bool) -> Iterator[pa.Table]:
        ids = self._ids(rows)
        has_id = ids.is_valid()
        ids, rows = ids.filter(has_id), rows.filter(has_id)
        if not len(ids):
            return
        bucket = np.asarray(KeyPartitioner(self.buckets).each(ids.to_pylist()))
        order = np.argsort(bucket, kind="stable")
        bucket = bucket[order]
        found = pa.Table.from_pydict(
            {
                "event_id": ids,
                "is_new": pa.repeat(pa.scalar(int(is_new), pa.int8()), len(ids)),
                **{name: rows[name] for name in RELEASE_ORDER},
                "is_behind": pc.equal(rows["reason"], LATE).fill_null(False),
            }
        ).take(pa.array(order))
        found = found.append_column("output_partition", pa.array(bucket, pa.int32()))
        for _, own in stretches(bucket):
            yield found[own]


@dataclass(frozen=True, slots=True)
class RepeatsTask:
    folder: Location  # where their places are written to
    ids: tuple[Location, ...]  # the files of the first wave
    buckets: int
    tasks: int  # how many tasks share them
    limits: RowLimits = ROW_LIMITS
    keeps: bool = False  # as of `RunWriter`

    def __call__(self, number: int) -> WrittenFile:
        behind, most = 0, self.limits.row_group_rows
        with PartFile(self.folder, PLACES_SCHEMA, most, keeps=self.keeps) as file:
            for bucket in range(number, self.buckets, self.tasks):
                for repeats in self._repeats(bucket):
                    file.write(repeats.select(SOURCE_ORDER))
                    behind += pc.sum(repeats["is_behind"]).as_py() or 0
        return WrittenFile(file.name, rows=file.rows, late=behind)

    def _repeats(self, bucket: int) -> Iterator[pa.Table]:
        """Yield the new rows that are not the first with their id."""
        own = range(bucket, bucket + 1)
        rows = RunRows((Part(self.ids, reasons=()),), own, _IDS_SCHEMA.names, self.limits)
        first = one_of_each("event_id", rows.pieces(), _IDS_SCHEMA, by=_FIRST, last=False)
        for some in rows.pieces():
            own = first.take(pc.index_in(some["event_id"], first["event_id"].combine_chunks()))
            is_first = np.ones(len(some), np.bool_)
            for name in _FIRST:
                same = pc.equal(some[name], own[name])
                is_first &= same.to_numpy()
            yield some.filter(pa.array(~is_first & (some["is_new"].to_numpy() > 0)))


class DuplicateFinder:
    def __init__(self, job: JobContext, output_partitions: int) -> None:
        self._job = job
        self._id = job.settings.duplicate_id
        self._partitions = output_partitions
        self._watch = FieldWatch(
            f"the id of `duplicates` = {job.settings.duplicates!r}, by which none is dropped",
            lambda why: job.outages.tell(f"warning: {why}"),
        )

    def looked_for_from_ms(self, frontier_ms: int) -> int | None:
        """Return how far back to look for originals of duplicates; None if nothing looks."""
        if self._id is None:
            return None
        window_ms = milliseconds(self._job.settings.duplicate_window)
        return max(BEFORE_ALL_TIME_MS, frontier_ms - window_ms)

    def find(self, entry: StepEntry, staged: StagedStep) -> StepEntry:
        """Find the duplicates among the rows that a step is about to release or judge.

        Of rows with the same id in a step, the first in the order of release stays. If an earlier
        step had a row with that id, none stays. For that the rows up to the frontier are searched
        that are not older than the oldest row behind it, or than `deduplicated_ms`. So a duplicate
        must have the event time of its original.
        """
        if self._id is None or entry.deduplicated_ms is None:
            return entry
        checkpoint = self._job.checkpoint
        new = reached_parts(checkpoint, entry)
        after_ms = entry.previous_frontier_ms
        if staged.run is not None and staged.run.behind:
            after_ms = min(after_ms, staged.first_behind_ms)
            new.append(behind_part(checkpoint, entry))
        if not new:
            return entry
        after_ms = max(after_ms, entry.deduplicated_ms)
        earlier = [r for r in entry.runs if r.step != entry.step and r.reach_ms >= after_ms]
        out_ms = behind_ms(self._job.settings, entry.previous_frontier_ms)
        out = (Part(checkpoint.files(*earlier), after_ms, out_ms, reasons=()),)
        read = {run.name: run for run in (*entry.releasing_earlier, *earlier, entry.runs[-1])}
        found = self._written(entry, self._id, tuple(new), out, tuple(read.values()))
        late = entry.counts.late - sum(one.late for one in found)
        repeats = files_of(found)
        return replace(
            entry,
            counts=replace(entry.counts, late=late),
            duplicates=sum(repeats.values()),
            repeats=repeats,
        )

    def _written(
        self,
        entry: StepEntry,
        duplicate_id: tuple[IdKind, str],
        new: tuple[Part, ...],
        out: tuple[Part, ...],
        read: Sequence[Run],
    ) -> list[WrittenFile]:
        """Write the places of new rows that repeat another new row or a released row."""
        workers = self._job.workers
        # In a folder that no document names: it goes once the step is logged.
        ids = self._folder(self._job.checkpoint.new_name(entry.step))
        reads = sum(run.size_bytes for run in read)
        is_here = is_small(reads)
        tasks = len(blocks_for(workers, self._partitions, is_here=is_here))
        buckets = buckets_for(sum(run.rows + run.behind for run in read), tasks)
        task = IdsTask(ids, *duplicate_id, new, out, buckets, keeps=is_here)
        written = in_blocks(workers, task, self._partitions, reads=reads)
        files = tuple(ids / one.file for one in written if one.file is not None)
        if not self._watch.is_seen:
            rows = sum(one.new for one in written)
            self._watch.look(rows, has=bool(files), instead=lambda: _instead(task))
        repeats = RepeatsTask(self._folder(entry.name), files, buckets, tasks, keeps=is_here)
        if not files:
            return []
        if is_here:
            found = [done_here(lambda: repeats(0))]
            forget(ids)
            return found
        return workers.run([functools.partial(repeats, number) for number in range(tasks)])

    def _folder(self, name: str) -> Location:
        return self._job.checkpoint.new_folder(f"repeats/{name}")


def _instead(task: IdsTask) -> str:
    """Say which headers or fields rows without an id have."""
    found = next(RunRows(task.new, None, (task.column,), task.limits).pieces(), None)
    some = [] if found is None else found.slice(0, _LOOKED_AT)[task.column].to_pylist()
    if task.kind == "header":
        return which_names((one["key"] for headers in some for one in headers or ()), "header")
    return which_fields(documents_of(some))


def without_acked(job: JobContext, entry: StepEntry) -> StepEntry:
    """Drop acked rows from what a step would release, and count them as skipped."""
    subscription = job.subscription
    if subscription is None or not subscription.skips_held:
        return entry
    parts = reached_parts(job.checkpoint, entry)
    if not parts:
        return entry
    duplicates = Places(duplicates_files(job.checkpoint, entry))
    folder = job.checkpoint.location(f"repeats/{entry.name}")
    new_folder(folder, may_be_there=True)  # where duplicates were looked for
    with PartFile(folder, PLACES_SCHEMA, keeps=True) as file:
        for read in RunRows(parts, None, SOURCE_ORDER).pieces():
            rows = duplicates.without(read)
            if not len(rows):
                continue
            offsets, is_acked = rows["offset"].to_numpy(), np.zeros(len(rows), np.bool_)
            for source, place in sources(rows):
                is_acked[place] = subscription.acked_among(source, offsets[place])
            if is_acked.any():
                file.write(rows.filter(pa.array(is_acked)).select(SOURCE_ORDER))
    if file.name is None:
        return entry
    skipped = entry.counts.skipped + file.rows
    return replace(
        entry,
        counts=replace(entry.counts, skipped=skipped),
        repeats={**entry.repeats, file.name: file.rows},
    )
