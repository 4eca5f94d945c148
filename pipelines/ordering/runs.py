"""Sorted runs: one folder a batch, where rows wait until the frontier passes them.

Tasks read the topics and work at the rows a column at a time. So nothing has to be planned,
generated or compiled for a step, whatever runs the tasks: docs/adr/0008-arrow-tasks.md has the
figures.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.base.settings import milliseconds
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder import ReorderMode
from sequitur.consumer.reorder.advice import UnusableRow
from sequitur.consumer.reorder.key_state import Fold, KeyState
from sequitur.consumer.reorder.late_policy import ROUTES, Output
from sequitur.consumer.reorder.lateness import LateJudge
from sequitur.consumer.reorder.learned_delay import StepLateness
from sequitur.consumer.reorder.reasons import LATE, QUARANTINE_REASONS, STALE
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import Totals, late_rows_to
from sequitur.pipelines.rows.columns import (
    RELEASE_ORDER,
    ROW_LIMITS,
    RUN_ARROW_SCHEMA,
    SOURCE_ORDER,
    RowLimits,
    in_row_groups,
)
from sequitur.pipelines.rows.left_out import Places
from sequitur.pipelines.rows.oversized import MOST_ADDED
from sequitur.pipelines.rows.row_order import comparable, order_of
from sequitur.pipelines.rows.run_rows import HeldRows, Part, RunRows
from sequitur.pipelines.rows.run_writer import RunWriter, Summary
from sequitur.pipelines.rows.selection import LAST_RELEASED, Selection, SideSelection
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.workers import in_blocks, is_small

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.key_state import Upkeep
    from sequitur.consumer.reorder.step_log import StagedStep, StepEntry
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.ordering.context import JobContext, Spans
    from sequitur.pipelines.rows.run_writer import AckedOffsets
    from sequitur.pipelines.sink.sink import Outputs, OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


_LOOKED_AT: Final = 20
"""Quarantined rows that show what they have instead of an event time."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What staging saw of a batch."""

    # counts of its rows; those behind the frontier count as late until they are judged
    totals: Totals
    run: Run
    first_behind_ms: int  # smallest event time of the rows behind the frontier, if there are any
    # greatest usable event time of each source partition, late rows included
    max_event_time_ms: Mapping[SourcePartition, int | None]
    # how late the rows of each source partition were, if that was asked for
    lateness: Mapping[SourcePartition, StepLateness]
    # how many rows each source partition gave, and bytes of them
    counted: Mapping[SourcePartition, tuple[int, int]]


class SortedRuns:
    """The runs of a checkpoint."""

    def __init__(
        self, job: JobContext, outputs: Outputs, partitions: int, *, releases: bool
    ) -> None:
        self._job = job
        self._partitions = partitions
        self._checkpoint = job.checkpoint
        self._outputs = outputs
        self._releases = releases

    def write_run(
        self,
        step: int,
        spans: Spans,
        *,
        name: str,
        clock: EventClock,
        learns: bool,
        acked: AckedOffsets,
        holding: Sequence[Run],
    ) -> Staged:
        """Write a batch as the run of a step, and count it in passing."""
        tombstones = self._job.settings.tombstones
        folder = self._checkpoint.new_folder(f"runs/{name}")
        writer = RunWriter(
            folder=folder,
            event_time=self._job.settings.event_time,
            frontier_ms=behind_ms(self._job.settings, clock.frontier_ms),
            bounds=self._job.settings.bounds(self._job.now_ms()),
            clock=clock if learns else None,
            limit=self._staging_limit(),
            acked=acked,
            dates_tombstones=tombstones != "quarantine",
            held=self._held(holding, clock.frontier_ms) if tombstones == "key" else None,
        )
        found = self._job.source.read_into(
            writer, step=step, spans=spans, partitions=self._partitions
        )
        files = {one.file: one.read - one.skipped for one in found if one.file is not None}
        return _staged(step, name, found, sorted(spans), files)

    def _held(self, holding: Sequence[Run], frontier_ms: int) -> HeldRows:
        live = tuple(run for run in holding if run.is_live(frontier_ms))
        return HeldRows(self._checkpoint.location("runs"), live, frontier_ms)

    def _limit(self) -> RecordLimit | None:
        """Return what the output topic takes of a row; None when no row goes there."""
        if not self._releases:
            return None
        return self._job.topics.record_limit(self._outputs.released.name)

    def _staging_limit(self) -> RecordLimit | None:
        """Return what it takes of a row that is read."""
        limit, late = self._limit(), ROUTES[self._job.settings.late_policy]
        if limit is not None and late.output is Output.RELEASED:
            # A late row that is emitted in place has headers that say so.
            return replace(limit, max_bytes=limit.max_bytes - MOST_ADDED)
        return limit

    def due(self, entry: StepEntry) -> Selection | None:
        """Return the rows that a step writes to the output; None when there are none for sure."""
        parts = reached_parts(self._checkpoint, entry)
        if entry.rescued:
            parts.append(Part(self._judged_files(entry)))
        emits = late_rows_to(Output.RELEASED, entry)
        if emits:
            parts.append(self._late_part(entry))
        if not parts:
            return None
        return Selection(
            tuple(parts),
            duplicates_files(self._checkpoint, entry),
            flagged_ms=entry.previous_frontier_ms if emits else None,
            limit=self._limit() if emits else None,
        )

    def late(self, entry: StepEntry) -> SideSelection:
        """Return the rows that a step found late, with the headers that say so."""
        return self._aside(self._outputs.late, self._late_part(entry), entry)

    def _late_part(self, entry: StepEntry) -> Part:
        """Return the rows that a step found late; where they were not judged, with duplicates."""
        if entry.rescued is not None:
            return Part(self._judged_files(entry), reasons=(LATE, STALE))
        return behind_part(self._checkpoint, entry)

    def describe_late(self, entry: StepEntry) -> str:
        """Return the first of the rows that a step found late, in words."""
        left_out = Places(duplicates_files(self._checkpoint, entry))
        columns = (*RELEASE_ORDER, "key", "reason", LAST_RELEASED)
        late = RunRows((self._late_part(entry),), None, columns).in_source_order()
        rows = next(filter(len, map(left_out.without, late)))
        (row,) = rows.take(pa.array(order_of(rows, SOURCE_ORDER)[:1])).to_pylist()
        if row["reason"] == STALE:
            compared = f"not newer than {row[LAST_RELEASED]}, the last released of its key"
        else:
            late_by_ms = entry.previous_frontier_ms - row["event_time_ms"]
            compared = f"{late_by_ms} ms before the frontier, {entry.previous_frontier_ms}"
        return (
            f"topic {row['topic']!r}, partition {row['partition']}, offset {row['offset']}, "
            f"key {row['key']!r}: event time {row['event_time_ms']} is "
            f"{compared}; {row['reason']} rows in this batch: {entry.staged.late} "
            f"(late_policy = {entry.late_policy})"
        )

    def quarantined(self, entry: StepEntry) -> SideSelection:
        """Return the rows of a step without a usable event time, with the headers that say why."""
        own = self._checkpoint.files(entry.runs[-1])
        part = Part(own, reasons=QUARANTINE_REASONS, untimed=True)
        return self._aside(self._outputs.quarantine, part, entry)

    def some_quarantined(self, entry: StepEntry, reason: str) -> list[UnusableRow]:
        """Return some rows of a step that were quarantined for a reason."""
        part = Part(self._checkpoint.files(entry.runs[-1]), reasons=(reason,), untimed=True)
        found = next(RunRows((part,), None, ("value", "headers")).pieces(), None)
        return [
            UnusableRow(row["value"], [(one["key"], one["value"]) for one in row["headers"] or ()])
            for row in ([] if found is None else found.slice(0, _LOOKED_AT).to_pylist())
        ]

    def _aside(self, topic: OutputTopic, part: Part, entry: StepEntry) -> SideSelection:
        return SideSelection(
            (part,),
            duplicates_files(self._checkpoint, entry),
            flagged_ms=entry.previous_frontier_ms,
            limit=self._job.topics.record_limit(topic.name),
            root=self._checkpoint.location(),
            placed=self._partitions,
        )

    def _judged_files(self, entry: StepEntry) -> tuple[Location, ...]:
        folder = self._checkpoint.location(f"behind/{entry.name}")
        return tuple(folder / name for name in entry.judged)


def behind_ms(settings: ReorderSettings, frontier_ms: int) -> int:
    """Return the event time that rows are behind of, see `LateJudge.behind_ms`."""
    return LateJudge(settings.mode).behind_ms(frontier_ms)


def reached_parts(checkpoint: Checkpoint, entry: StepEntry) -> list[Part]:
    """Return the rows on time that a step comes to, with duplicates."""
    parts: list[Part] = []
    first_ms, last_ms = entry.previous_frontier_ms, entry.frontier_ms
    if earlier := entry.releasing_earlier:
        parts.append(Part(checkpoint.files(*earlier), first_ms + 1, last_ms))
    if own := entry.releasing_own:
        parts.append(Part(checkpoint.files(own), first_ms, last_ms))
    return parts


def behind_part(checkpoint: Checkpoint, entry: StepEntry) -> Part:
    """Return the rows that a step found behind the frontier, with duplicates, not judged."""
    run = entry.runs[-1]
    return Part(checkpoint.files(run), last_ms=run.max_behind_ms, reasons=(LATE,))


def duplicates_files(checkpoint: Checkpoint, entry: StepEntry) -> tuple[Location, ...]:
    """Return the files that say which rows a step drops as duplicates; none where it drops none."""
    folder = checkpoint.location(f"repeats/{entry.name}")
    return tuple(folder / name for name in entry.repeats)


def _staged(
    step: int,
    name: str,
    found: Sequence[Summary],
    partitions: Sequence[SourcePartition],
    files: Mapping[str, int],
) -> Staged:
    """Sum up what all tasks saw."""
    reasons: Counter[str] = Counter()
    for one in found:
        reasons.update(one.reasons)
    quarantined = {reason: reasons[reason] for reason in QUARANTINE_REASONS if reasons[reason]}
    totals = Totals(
        read=sum(one.read for one in found),
        late=reasons[LATE],
        quarantined=quarantined,
        skipped=sum(one.skipped for one in found),
    )
    on_time = [one.on_time_ms for one in found if one.on_time_ms is not None]
    behind = [one.behind_ms for one in found if one.behind_ms is not None]
    run = Run(
        step=step,
        rows=totals.held,
        min_event_time_ms=min((first for first, _ in on_time), default=BEFORE_ALL_TIME_MS),
        max_event_time_ms=max((last for _, last in on_time), default=BEFORE_ALL_TIME_MS),
        behind=totals.late,
        max_behind_ms=max((last for _, last in behind), default=BEFORE_ALL_TIME_MS),
        size_bytes=sum(one.size_bytes for one in found),
        name=name,
        files=files,
    )
    maxima: dict[SourcePartition, int | None] = dict.fromkeys(partitions)
    for one in found:
        for source, time_ms in one.maxima.items():
            maxima[source] = max(time_ms, maxima.get(source) or 0)
    first_behind_ms = min((first for first, _ in behind), default=BEFORE_ALL_TIME_MS)
    counted: dict[SourcePartition, tuple[int, int]] = {}
    for one in found:
        for source, (rows, size) in one.counted.items():
            before = counted.get(source, (0, 0))
            counted[source] = before[0] + rows, before[1] + size
    return Staged(totals, run, first_behind_ms, maxima, _lateness(found), counted)


def _lateness(found: Sequence[Summary]) -> Mapping[SourcePartition, StepLateness]:
    together: dict[SourcePartition, StepLateness] = {}
    for one in found:
        for source, (rows, late, bins) in one.lateness.items():
            before = together.get(source, StepLateness(0))
            counts = Counter(before.behind)
            counts.update(bins)
            together[source] = StepLateness(before.rows + rows, before.late + late, dict(counts))
    return together


# How far each key has been released: folds of the runs, and the rows judged by them.
#
# What is kept, and why that suffices, stands in `sequitur.consumer.reorder.lateness`. One kind of
# tasks folds runs that are through into one row a key; one looks up the keys of the few rows behind
# the frontier. Either reads two columns, in latest mode four, and of the rows only those that can
# matter.
#
# A key's rows all go to one output partition, so each task finds all it has to know among the rows
# of its own. What is decided, and by what, says `sequitur.consumer.reorder.lateness.LateJudge`.


_BEHIND_SCHEMA: Final = RUN_ARROW_SCHEMA.append(pa.field("last_released_ms", pa.int64()))
_FOLD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("event_time_ms", pa.int64()),
        # Known in latest mode alone, where places break ties.
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("output_partition", pa.int32()),
    ]
)


def place_columns(mode: ReorderMode) -> tuple[str, ...]:
    """Return the columns by which it is known which row of a key was released last."""
    return RELEASE_ORDER if mode is ReorderMode.LATEST else RELEASE_ORDER[:1]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a task wrote."""

    file: str | None = None  # name of the file; None when there was nothing to write
    size_bytes: int = 0
    rows: int = 0
    late: int = 0  # rows of these that are late, or were before they were found to be duplicates
    last_ms: int = BEFORE_ALL_TIME_MS  # greatest event time of a fold


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """Judges the rows that a step found behind the frontier."""

    folder: Location
    behind: Part  # these rows
    # rows that are out, and folds of such; none is older than what matters
    released: tuple[Part, ...]
    judge: LateJudge
    duplicates: tuple[Location, ...] = ()  # files with the places of rows to leave out
    limits: RowLimits = ROW_LIMITS
    keeps: bool = False  # as of `RunWriter`

    def __call__(self, partitions: range) -> WrittenFile:
        """Judge the rows of some output partitions."""
        left_out = Places(self.duplicates, self.limits)
        late, rows = 0, self.limits.row_group_rows
        with PartFile(self.folder, _BEHIND_SCHEMA, rows, keeps=self.keeps) as file:
            behind = RunRows((self.behind,), partitions, RUN_ARROW_SCHEMA.names, self.limits)
            for block in behind.blocks():
                last = self._last_released(block.partitions)
                for found in block.pieces():
                    judged = self._judged(left_out.without(found), last)
                    for some in in_row_groups(judged, self.limits):
                        file.write(some)
                    late += len(judged) - judged["reason"].null_count
        return WrittenFile(file.name, file.size_bytes, file.rows, late)

    def _judged(self, rows: pa.Table, last: pa.Table) -> pa.Table:
        """Add the reason of late rows, and the last event time released of their keys."""
        keys = rows["key"].combine_chunks()
        found = last.take(pc.index_in(keys, last["key"].combine_chunks()))
        last_ms = found["event_time_ms"].combine_chunks()
        has_last = _mask(last_ms.is_valid())
        place, last_place = self._places(rows, found, has_last)
        is_late = self.judge.is_late(
            event_time_ms=rows["event_time_ms"].to_numpy(),
            has_key=_mask(keys.is_valid()),
            place=place,
            last=last_place,
            has_last=has_last,
        )
        reasons = pc.if_else(pa.array(is_late), self.judge.reason, pa.scalar(None, pa.string()))
        number = rows.schema.get_field_index("reason")
        return rows.set_column(number, "reason", reasons).append_column("last_released_ms", last_ms)

    def _places(self, rows: pa.Table, last: pa.Table, has_last: Any) -> tuple[Longs, Longs]:
        """Return numbers that compare as the places of rows, and of the last ones of their keys."""
        names = place_columns(self.judge.mode)
        some = pa.array(has_last)
        both = pa.concat_tables([one.select(names).filter(some) for one in (rows, last)])
        columns = [comparable(both[name]) for name in names]
        order = np.lexsort(columns[::-1])
        is_another = np.zeros(len(order), np.bool_)
        for column in columns:
            is_another[1:] |= np.diff(column[order]) != 0
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.cumsum(is_another)
        places = np.zeros((2, len(rows)), np.int64)
        places[:, has_last] = ranks.reshape(2, -1)
        return places[0], places[1]

    def _last_released(self, partitions: range | None) -> pa.Table:
        """Look up the last row released of each key that may pass."""
        wanted, more = pa.array([], pa.binary()), pa.array([], pa.binary())
        asked = ("key", "event_time_ms")
        for rows in RunRows((self.behind,), partitions, asked, self.limits).pieces():
            asking = self.judge.asks_key(rows["event_time_ms"].to_numpy())
            more = pa.concat_arrays([more, rows.filter(pa.array(asking))["key"].unique()])
            if len(more) >= len(wanted):  # so that each is looked at a few times
                wanted, more = pa.concat_arrays([wanted, more]).unique(), more[:0]
        wanted = pa.concat_arrays([wanted, more]).unique().drop_null()
        place = place_columns(self.judge.mode)
        parts = self.released if len(wanted) else ()
        rows = RunRows(parts, partitions, ("key", *place), self.limits, keys=wanted)
        return _last_of_keys(rows.pieces(), place)


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Puts runs and folds into one row a key."""

    folder: Location  # where the fold is written to
    released: tuple[Part, ...]  # the runs and folds, from the horizon on
    mode: ReorderMode = ReorderMode.ORDERED  # what is known of a key's last row
    limits: RowLimits = ROW_LIMITS
    keeps: bool = False  # as of `RunWriter`

    def __call__(self, partitions: range) -> WrittenFile:
        """Fold the rows of some output partitions."""
        last_ms = BEFORE_ALL_TIME_MS
        columns = ("key", "output_partition", *place_columns(self.mode))
        most = self.limits.row_group_rows
        with PartFile(self.folder, _FOLD_SCHEMA, most, keeps=self.keeps) as file:
            for block in RunRows(self.released, partitions, columns, self.limits).blocks():
                fold = self._folded(block)
                for some in in_row_groups(fold, self.limits):
                    file.write(some)
                    last_ms = max(last_ms, pc.max(some["event_time_ms"]).as_py())
        return WrittenFile(file.name, file.size_bytes, file.rows, last_ms=last_ms)

    def _folded(self, rows: RunRows) -> pa.Table:
        """Return one row for each key."""
        place, where = place_columns(self.mode), ("output_partition",)
        pieces = (some.filter(some["key"].is_valid()) for some in rows.pieces())
        keys = _last_of_keys(pieces, place, alike=where)
        columns = {
            name: keys[name] if name in keys.column_names else pa.nulls(len(keys), field_type)
            for name, field_type in zip(_FOLD_SCHEMA.names, _FOLD_SCHEMA.types, strict=True)
        }
        return pa.Table.from_pydict(columns, schema=_FOLD_SCHEMA)


def files_of(written: Iterable[WrittenFile]) -> dict[str, int]:
    """Return the files that tasks wrote, with the rows of each, as the log names them."""
    return {one.file: one.rows for one in written if one.file is not None}


def _mask(truths: pa.BooleanArray) -> Any:
    return truths.to_numpy(zero_copy_only=False)


def _last_of_keys(
    pieces: Iterable[pa.Table], place: Sequence[str], alike: Sequence[str] = ()
) -> pa.Table:
    schema = pa.schema([_FOLD_SCHEMA.field(name) for name in ("key", *place, *alike)])
    return one_of_each("key", pieces, schema, by=place, last=True, alike=alike)


def one_of_each(
    name: str,
    pieces: Iterable[pa.Table],
    schema: pa.Schema,
    *,
    by: Sequence[str],
    last: bool,
    alike: Sequence[str] = (),
) -> pa.Table:
    """Return one row of each value of a column: the first or the last of its rows in an order.

    Rows are brought together each time there are as many new ones: so each is looked at a few
    times, and no more are in memory than twice the values and a piece.
    """

    def merged(tables: Sequence[pa.Table]) -> pa.Table:
        return _one_of_each(name, pa.concat_tables(tables), by, last=last, alike=alike)

    found, more = schema.empty_table(), schema.empty_table()
    for rows in pieces:
        more = pa.concat_tables([more, rows.select(schema.names)])
        if len(more) >= len(found):
            found, more = merged([found, more]), schema.empty_table()
    return merged([found, more]) if len(more) else found


def _one_of_each(
    name: str, rows: pa.Table, by: Sequence[str], *, last: bool, alike: Sequence[str]
) -> pa.Table:
    names = [name, *by, *alike]
    if rows.column_names == names and len(by) == 1:  # twice as quick
        which = "max" if last else "min"
        grouped = rows.group_by(name, use_threads=False).aggregate(
            [(one, which) for one in names[1:]]
        )
        return grouped.select([name, *(f"{one}_{which}" for one in names[1:])]).rename_columns(
            names
        )
    encoded = rows[name].combine_chunks().dictionary_encode()
    order = order_of(rows, by)[:: 1 if last else -1]
    kept = np.empty(len(encoded.dictionary), np.int64)
    # Of several rows of one value, the one that comes last here stays.
    kept[encoded.indices.to_numpy()[order]] = order
    return rows.take(pa.array(kept))


_KEY_BYTES: Final = 32
"""Of a key and a time, about."""


class KeyHistory:
    """The last released event time of keys."""

    def __init__(self, job: JobContext, output_partitions: int) -> None:
        self._job = job
        self._mode = job.settings.mode
        self._partitions = output_partitions

    def begin(
        self, before: StepEntry | None, step: int, name: str
    ) -> tuple[tuple[Run, ...], KeyState | None]:
        """Return the runs and folds that a step begins with, folded where it is time for that."""
        settings = self._job.settings
        keeps_keys = settings.rescue or self._mode is ReorderMode.LATEST
        if before is None:
            return (), KeyState() if keeps_keys else None
        if not keeps_keys:
            return replace(before, keys=None).kept_runs, None
        if before.keys is None:
            # Of what is out so far nothing is known: whatever is older than that is late.
            return before.kept_runs, KeyState(horizon_ms=before.frontier_ms)
        keys = before.keys.expire(
            frontier_ms=before.frontier_ms, ttl_ms=milliseconds(settings.key_ttl)
        )
        before = replace(before, keys=keys)
        upkeep = keys.upkeep(before.folding_runs, self._job.fold_limits)
        if upkeep is None:
            return before.kept_runs, keys
        fold = self.fold(upkeep, step, name=name, horizon_ms=keys.horizon_ms)
        runs = tuple(run for run in before.kept_runs if run not in upkeep.runs)
        return runs, keys.with_fold(fold, upkeep)

    def fold(self, upkeep: Upkeep, step: int, *, name: str, horizon_ms: int) -> Fold:
        """Put runs and folds into one new fold, without keys that were last seen long ago."""
        folder = self._job.checkpoint.new_folder(f"keys/{name}")
        files = self._job.checkpoint.files(*upkeep.runs, *upkeep.folds)
        released = Part(files, horizon_ms, reasons=())
        reads = sum(run.size_bytes for run in upkeep.runs) + _size_of(upkeep.folds)
        task = FoldTask(folder, (released,), self._mode, keeps=is_small(reads))
        written = in_blocks(self._job.workers, task, self._partitions, reads=reads)
        return Fold(
            step=step,
            keys=sum(one.rows for one in written),
            size_bytes=sum(one.size_bytes for one in written),
            max_event_time_ms=max(one.last_ms for one in written),
            name=name,
            files=files_of(written),
        )

    def judge(self, entry: StepEntry, staged: StagedStep) -> StepEntry:
        """Decide on the rows that a step found behind the frontier, and write that to a file.

        What is decided, and by what, says `LateJudge`; without folds all of them are late.
        """
        if not entry.staged.late or entry.keys is None:
            return entry
        checkpoint, first_ms = self._job.checkpoint, staged.first_behind_ms
        lookup = entry.keys.lookup(entry.runs[:-1], first_behind_ms=first_ms)
        judge = LateJudge(self._mode, lookup.horizon_ms)
        out_ms = judge.behind_ms(entry.previous_frontier_ms)  # all rows up to it are out
        files = checkpoint.files(*lookup.runs, *lookup.folds)
        reads = _KEY_BYTES * _rows_of(entry.runs[-1], *lookup.runs) + _size_of(lookup.folds)
        task = JudgeTask(
            folder=checkpoint.new_folder(f"behind/{entry.name}"),
            behind=behind_part(checkpoint, entry),
            released=(Part(files, lookup.after_ms, out_ms, reasons=()),),
            judge=judge,
            duplicates=duplicates_files(checkpoint, entry),
            keeps=is_small(reads),
        )
        written = in_blocks(self._job.workers, task, self._partitions, reads=reads)
        late, judged = sum(one.late for one in written), files_of(written)
        return replace(
            entry,
            staged=replace(entry.staged, late=late),
            rescued=sum(judged.values()) - late,
            judged=judged,
        )


def _rows_of(*runs: Run) -> int:
    return sum(run.rows + run.behind for run in runs)


def _size_of(folds: Sequence[Fold]) -> int:
    return sum(fold.size_bytes for fold in folds)
