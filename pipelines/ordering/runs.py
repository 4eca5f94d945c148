"""Sorted runs: one folder a batch, where rows wait until the frontier passes them.

Spark reads the topics, moves rows to its Python tasks and runs these; what they do with the rows
they do by themselves, a column at a time. A row then costs a third of what Spark's own plans for it
cost, and nothing has to be planned, generated or compiled for a step: docs/adr/0008-arrow-tasks.md
has the figures.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import (
    BEFORE_ALL_TIME_MS,
    LATE,
    QUARANTINE_REASONS,
    STALE,
    ConservationError,
    LateJudge,
    Run,
    StepLateness,
    Totals,
    UnusableRow,
)
from sequitur.consumer.lateness.policy import ROUTES, Output
from sequitur.consumer.step_log.entry import late_rows_to
from sequitur.pipelines.ordering.far_timestamps import FAR_MS, is_far, read_spans
from sequitur.pipelines.rows.columns import (
    RELEASE_ORDER,
    SOURCE_COLUMNS,
    SOURCE_ORDER,
    output_partition,
    payload_bytes,
)
from sequitur.pipelines.rows.oversized import MOST_ADDED
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.rows.run_writer import (
    LARGE_ROW_BYTES,
    SUMMARY_SCHEMA,
    RunWriter,
    Summary,
)
from sequitur.pipelines.rows.selection import (
    LAST_RELEASED,
    Places,
    Selection,
    SideSelection,
    order_of,
)
from sequitur.pipelines.spark.tasks import in_few_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from sequitur.consumer import (
        EventClock,
        PartitionCounts,
        ReorderSettings,
        SourcePartition,
        StepEntry,
    )
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.far_timestamps import Spans
    from sequitur.pipelines.rows.run_writer import AckedOffsets
    from sequitur.pipelines.sink.sink import Outputs, OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.files import Location

_BATCH_ROWS: Final = 1024
"""Rows that go to Python together: 16 MiB where none of them is large."""
_BATCH_BYTES: Final = 16 << 20
"""Bytes that do, where there is a bound; the row that reaches it is still among them."""
_UNBOUNDED_BYTES: Final = (1 << 31) - 1
"""What Spark takes for no bound. With any other it measures the whole batch again for each row,
which takes 17 us where there is a column of headers."""
_LOOKED_AT: Final = 20
"""Quarantined rows that show what they have instead of an event time."""
_MOST_FOR_A_LARGE: Final = 16
"""When one of so many rows is large, the next batch goes by size as a whole."""


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

    def __init__(self, job: JobContext, outputs: Outputs, *, releases: bool) -> None:
        self._job = job
        self._checkpoint = job.checkpoint
        self._outputs = outputs
        self._releases = releases
        self._expects_large = False
        self._expects_far = False

    def stage(
        self,
        rows: DataFrame,
        step: int,
        spans: Spans,
        *,
        name: str,
        clock: EventClock,
        learns: bool,
        acked: AckedOffsets,
        by: PartitionCounts,
    ) -> Staged:
        """Write a batch as the run of a step, and count it in passing.

        What is on its way to Python is bounded by bytes. To have Spark do that for each row costs
        ten times what a small row costs in all; so small rows go by number, and large ones, which
        are rare, go after them and by size. Where they are not rare, all rows go by size at once.
        """
        folder = self._checkpoint.new_folder(f"runs/{name}")
        to = output_partition(self._job.spark, by.newest)
        rows = in_few_tasks(rows, sum(first < stop for first, stop in spans.values()))
        rows = rows.withColumn("output_partition", to)
        writer = RunWriter(
            folder=folder,
            event_time=self._job.settings.event_time,
            frontier_ms=behind_ms(self._job.settings, clock.frontier_ms),
            bounds=self._job.settings.bounds(self._job.now_ms()),
            clock=clock if learns else None,
            limit=self._staging_limit(),
            acked=acked,
            partition_counts=None if by.only else by,
        )
        found = None if self._expects_far else self._by_spark(rows, step, writer)
        if found is None:
            batches = read_spans(self._job, spans, by.newest)
            found = [writer.write(batches)]
            self._expects_far = found[0].max_timestamp_ms > FAR_MS
        read = sum(one.read for one in found)
        self._expects_large = _MOST_FOR_A_LARGE * sum(one.large for one in found) > read
        files = {one.file: one.read - one.skipped for one in found if one.file is not None}
        return _staged(step, name, found, sorted(spans), files)

    def _by_spark(self, rows: DataFrame, step: int, writer: RunWriter) -> list[Summary] | None:
        """Write what Spark reads; None where it cannot, for the timestamp of a row."""
        columns = [*SOURCE_COLUMNS, "output_partition"]
        try:
            if self._expects_large:
                return _written(rows.select(*columns), writer, by_size=True)
            rows = rows.withColumn("is_large", payload_bytes() > LARGE_ROW_BYTES)
            found = _written(rows.select(*_without_large(columns)), writer)
            if large := sum(one.left_out for one in found):
                rest = rows.where("is_large").select(*columns)
                found += (behind := _written(rest, writer, by_size=True))
                if (read := sum(one.read for one in behind)) != large:
                    raise ConservationError(f"step {step}: {large} large rows, {read} were read")
        except (Py4JError, PySparkException) as error:
            if not is_far(error):
                raise
            self._job.outages.tell(
                "a row has a Kafka timestamp that Spark cannot hold, as of a producer that writes "
                "nanoseconds: its batch is read without Spark's source, and what follows until a "
                "batch has none"
            )
            return None
        return found

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
        counts = entry.partition_counts
        placed = None if counts is None else counts.only
        return self._aside(self._outputs.late, self._late_part(entry), entry, placed)

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
            compared = f"{late_by_ms} ms behind the frontier, {entry.previous_frontier_ms}"
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
        counts = entry.partition_counts
        placed = None if counts is None else counts.newest
        return self._aside(self._outputs.quarantine, part, entry, placed)

    def some_quarantined(self, entry: StepEntry, reason: str) -> list[UnusableRow]:
        """Return some rows of a step that were quarantined for a reason."""
        part = Part(self._checkpoint.files(entry.runs[-1]), reasons=(reason,), untimed=True)
        found = next(RunRows((part,), None, ("value", "headers")).pieces(), None)
        return [
            UnusableRow(row["value"], [(one["key"], one["value"]) for one in row["headers"] or ()])
            for row in ([] if found is None else found.slice(0, _LOOKED_AT).to_pylist())
        ]

    def _aside(
        self, topic: OutputTopic, part: Part, entry: StepEntry, placed: int | None
    ) -> SideSelection:
        return SideSelection(
            (part,),
            duplicates_files(self._checkpoint, entry),
            flagged_ms=entry.previous_frontier_ms,
            limit=self._job.topics.record_limit(topic.name),
            root=self._checkpoint.location(),
            placed=placed,
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


def _without_large(columns: Sequence[str]) -> list[Column]:
    """Return the columns of rows, with nothing that is large in them: a large row has no topic."""
    return [
        F.when(~F.col("is_large"), F.col(name)).alias(name)
        if name in {"topic", "key", "value", "headers"}
        else F.col(name)
        for name in columns
    ]


def _written(rows: DataFrame, writer: RunWriter, *, by_size: bool = False) -> list[Summary]:
    """Have tasks write rows as parts of a run; what each of them saw.

    What goes to Python together is bound by rows, and with `by_size` by bytes, too.
    """
    conf = rows.sparkSession.conf  # a query has a session of its own
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _BATCH_ROWS)
    most_bytes = _BATCH_BYTES if by_size else _UNBOUNDED_BYTES
    conf.set("spark.sql.execution.arrow.maxBytesPerBatch", most_bytes)
    answers = rows.mapInArrow(writer, SUMMARY_SCHEMA).collect()
    return [pickle.loads(answer["summary"]) for answer in answers]  # noqa: S301 - our own tasks' answers


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
