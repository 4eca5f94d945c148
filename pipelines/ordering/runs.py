"""Sorted runs: one folder a batch, where rows wait until the frontier passes them.

Tasks read the topics and work at the rows a column at a time. So nothing has to be planned,
generated or compiled for a step, whatever runs the tasks: docs/adr/0008-arrow-tasks.md has the
figures.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.advice import UnusableRow
from sequitur.consumer.reorder.late_policy import ROUTES, Output
from sequitur.consumer.reorder.lateness import LateJudge
from sequitur.consumer.reorder.learned_delay import StepLateness
from sequitur.consumer.reorder.reasons import LATE, QUARANTINE_REASONS, STALE
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import Totals, late_rows_to
from sequitur.pipelines.rows.columns import RELEASE_ORDER, SOURCE_ORDER
from sequitur.pipelines.rows.left_out import Places
from sequitur.pipelines.rows.oversized import MOST_ADDED
from sequitur.pipelines.rows.row_order import order_of
from sequitur.pipelines.rows.run_rows import HeldRows, Part, RunRows
from sequitur.pipelines.rows.run_writer import RunWriter
from sequitur.pipelines.rows.selection import LAST_RELEASED, Selection, SideSelection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.step_log import StepEntry
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.ordering.context import JobContext, Spans
    from sequitur.pipelines.rows.run_writer import AckedOffsets, Summary
    from sequitur.pipelines.sink.sink import Outputs, OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location


_LOOKED_AT: Final = 20
"""Quarantined rows that show what they have instead of an event time."""


class SortedRuns:
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
        """Write a batch as the run of a step, and count its rows in the same pass."""
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
        """Return the output topic's limit on a row; None if no row goes there."""
        if not self._releases:
            return None
        return self._job.topics.record_limit(self._outputs.released.name)

    def _staging_limit(self) -> RecordLimit | None:
        limit, late = self._limit(), ROUTES[self._job.settings.late_policy]
        if limit is not None and late.output is Output.RELEASED:
            # A late row that goes to the output has headers that say so.
            return replace(limit, max_bytes=limit.max_bytes - MOST_ADDED)
        return limit

    def due(self, entry: StepEntry) -> Selection | None:
        """Return the rows that a step writes to the output; None if there are surely none."""
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
        """Return the late rows of a step, with headers that say so."""
        return self._side_rows(self._outputs.late, self._late_part(entry), entry)

    def _late_part(self, entry: StepEntry) -> Part:
        """Return the late rows of a step, with duplicates if they were not judged."""
        if entry.rescued is not None:
            return Part(self._judged_files(entry), reasons=(LATE, STALE))
        return behind_part(self._checkpoint, entry)

    def describe_late(self, entry: StepEntry) -> str:
        """Describe the first late row of a step."""
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
            f"{compared}; {row['reason']} rows in this batch: {entry.counts.late} "
            f"(late_policy = {entry.late_policy})"
        )

    def quarantined(self, entry: StepEntry) -> SideSelection:
        """Return the rows of a step without a usable event time, with headers that say why."""
        own = self._checkpoint.files(entry.runs[-1])
        part = Part(own, reasons=QUARANTINE_REASONS, untimed=True)
        return self._side_rows(self._outputs.quarantine, part, entry)

    def some_quarantined(self, entry: StepEntry, reason: str) -> list[UnusableRow]:
        part = Part(self._checkpoint.files(entry.runs[-1]), reasons=(reason,), untimed=True)
        found = next(RunRows((part,), None, ("value", "headers")).pieces(), None)
        return [
            UnusableRow(row["value"], [(one["key"], one["value"]) for one in row["headers"] or ()])
            for row in ([] if found is None else found.slice(0, _LOOKED_AT).to_pylist())
        ]

    def _side_rows(self, topic: OutputTopic, part: Part, entry: StepEntry) -> SideSelection:
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


@dataclass(frozen=True, slots=True)
class Staged:
    """What staging saw of a batch."""

    # counts of its rows; those older than the frontier count as late until judged
    totals: Totals
    run: Run
    is_synced: bool  # whether the run's files outlast a power cut
    first_behind_ms: int  # smallest event time of the rows older than the frontier, if any
    # greatest usable event time of each source partition, late rows included
    max_event_time_ms: Mapping[SourcePartition, int | None]
    # how late the rows of each source partition were, if delays are learned
    lateness: Mapping[SourcePartition, StepLateness]
    # how many rows each source partition gave, and bytes of them
    counted: Mapping[SourcePartition, tuple[int, int]]


def behind_ms(settings: ReorderSettings, frontier_ms: int) -> int:
    """Return the event time that `LateJudge.behind_ms` gives for these settings."""
    return LateJudge(settings.mode).behind_ms(frontier_ms)


def reached_parts(checkpoint: Checkpoint, entry: StepEntry) -> list[Part]:
    """Return the on-time rows that a step reaches, with duplicates."""
    parts: list[Part] = []
    first_ms, last_ms = entry.previous_frontier_ms, entry.frontier_ms
    if earlier := entry.releasing_earlier:
        parts.append(Part(checkpoint.files(*earlier), first_ms + 1, last_ms))
    if own := entry.releasing_own:
        parts.append(Part(checkpoint.files(own), first_ms, last_ms))
    return parts


def behind_part(checkpoint: Checkpoint, entry: StepEntry) -> Part:
    """Return the rows that a step found behind the frontier, with duplicates and not judged."""
    run = entry.runs[-1]
    return Part(checkpoint.files(run), last_ms=run.max_behind_ms, reasons=(LATE,))


def duplicates_files(checkpoint: Checkpoint, entry: StepEntry) -> tuple[Location, ...]:
    """Return the files that name a step's duplicates; empty if it drops none."""
    folder = checkpoint.location(f"repeats/{entry.name}")
    return tuple(folder / name for name in entry.repeats)


def _staged(
    step: int,
    name: str,
    found: Sequence[Summary],
    partitions: Sequence[SourcePartition],
    files: Mapping[str, int],
) -> Staged:
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
    return Staged(
        totals,
        run,
        all(one.is_synced for one in found),
        first_behind_ms,
        maxima,
        _lateness(found),
        counted,
    )


def _lateness(found: Sequence[Summary]) -> Mapping[SourcePartition, StepLateness]:
    together: dict[SourcePartition, StepLateness] = {}
    for one in found:
        for source, (rows, late, bins) in one.lateness.items():
            before = together.get(source, StepLateness(0))
            counts = Counter(before.behind)
            counts.update(bins)
            together[source] = StepLateness(before.rows + rows, before.late + late, dict(counts))
    return together
