"""The log of the reorder job: what each step staged, how far it moved the frontier, what is held.

A *step* is a micro-batch, a tick (no new rows, but time has passed), a drain, its end (which closes
windows), or a reset of Spark's own part (which reads nothing, and begins new batches after what was
read). It is written down three times:

1. As a `StagedStep` once its rows are staged, while the step before may still be at work. From then
   on the rows are the job's, whatever becomes of its input.
2. As a `StepEntry` once the step before is done, and before anything of the step goes out: what is
   late, what is a duplicate, what is folded. A repeat of the step reads it back instead of
   computing anew. So a restart never reopens released time, and a repeat gives the same rows.
3. As a `StepDone` once all that goes out is acknowledged.

Which rows a step releases, with F the frontier before and G after it:

- of runs staged by earlier steps: F < t <= G. Rows at F went out when F was reached.
- of the run staged by this step: F <= t <= G. A row at F that comes later is on time, and no row
  after F is out yet, so it goes out now without breaking the order.

A row of this step with t < F is *behind the frontier*. With `keys` in the entry it is judged by the
last released event time of its key (`sequitur.consumer.reorder.lateness`). It is either rescued,
which releases it in this step, before everything else, or late. Without `keys` it is late. What was
judged stands in a file of the step, written before the entry.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from msgspec import Struct, structs

from sequitur.base.stored import load
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.key_state import KeyState
from sequitur.consumer.reorder.late_policy import ROUTES, LatePolicy, Output
from sequitur.consumer.reorder.learned_delay import LearnedDelays
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.errors import ConservationError, StateFormatError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Sequence


STEP_FORMAT: Final = 7
"""No release had 1 to 6. They are refused, and none is used again."""


class StepKind(StrEnum):
    BATCH = "batch"
    TICK = "tick"
    DRAIN = "drain"
    RESET = "reset"
    CLOSE = "close"


class Totals(Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of rows, of a step or since the checkpoint began.

    Attributes:
        read: Rows that came from the source topics.
        released: Rows that went to the output topic.
        late: Rows that were late, whatever the late policy did with them.
        quarantined: Rows that went to the quarantine topic, by reason.
        duplicates: Rows dropped as duplicates.
        skipped: Rows left out because the job's subscription had acked them: an earlier job that
            lost its checkpoint, a time to live, `skip` or an eviction.
        missing: At most how many rows were gone before they could be read. It counts offsets, and
            not every offset had a row. They are not in `read`.
    """

    read: int = 0
    released: int = 0
    late: int = 0
    quarantined: Mapping[str, int] = {}
    duplicates: int = 0
    skipped: int = 0
    missing: int = 0

    @property
    def held(self) -> int:
        """Rows that were read and are not in an output yet."""
        not_released = self.late + sum(self.quarantined.values()) + self.duplicates + self.skipped
        return self.read - self.released - not_released

    def plus(self, other: Totals) -> Totals:
        """Return both counted together."""
        reasons = sorted({*self.quarantined, *other.quarantined})
        return Totals(
            read=self.read + other.read,
            released=self.released + other.released,
            late=self.late + other.late,
            quarantined={
                reason: self.quarantined.get(reason, 0) + other.quarantined.get(reason, 0)
                for reason in reasons
            },
            duplicates=self.duplicates + other.duplicates,
            skipped=self.skipped + other.skipped,
            missing=self.missing + other.missing,
        )


class Step(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="format",
    tag=STEP_FORMAT,
    rename={"counts": "staged", "output_partitions": "partition_counts"},
):
    """What is known of a step from its staging on, and stands in both of its documents.

    Attributes:
        step: Number of the step, from 0, without a gap.
        kind: What made it.
        batch_id: Spark's id of the newest micro-batch up to this step; -1 before the first.
        previous_frontier_ms: The frontier before; rows are late against this one.
        clock: The clocks after, with the frontier that this step releases up to.
        counts: Of the rows it read; nothing of them is released yet.
        learned: What the delays of this and the following step come from; None with a fixed delay.
        owner: Owner generation of the driver's life that logged it.
        source: Name of the folder with Spark's own checkpoint.
        planned: Where `batch_id` ends in each source partition, as Spark planned it: another try
            of that batch has to have the same.
        topics: Ids of the input topics that have been read, by name, where brokers give them ids.
        lost: Of each source partition that lost rows before they were read, the first offset of
            these and the one behind the last.
        counted: Of each source partition that it read, how many rows, and bytes of them.
        output_partitions: By how many partitions of the output topic its rows are placed, and all
            rows of its checkpoint.
    """

    TITLE: ClassVar = "step"

    step: int
    kind: StepKind
    batch_id: int
    previous_frontier_ms: int
    clock: EventClock
    counts: Totals = Totals()
    learned: LearnedDelays | None = None
    owner: int = 0
    source: str = "spark"
    planned: Mapping[SourcePartition, int] = {}
    topics: Mapping[str, str] = {}
    lost: Mapping[SourcePartition, tuple[int, int]] = {}
    counted: Mapping[SourcePartition, tuple[int, int]] = {}
    output_partitions: int | None = None

    def to_stored(self) -> dict[str, Any]:
        partitions = self.output_partitions
        return {
            "format": STEP_FORMAT,
            **dict(zip(self.__struct_encode_fields__, structs.astuple(self), strict=True)),
            "clock": self.clock.to_stored(),
            "learned": None if self.learned is None else self.learned.to_stored(),
            "planned": [[*where, offset] for where, offset in sorted(self.planned.items())],
            "lost": [
                {"topic": topic, "partition": partition, "first": first, "end": end}
                for (topic, partition), (first, end) in sorted(self.lost.items())
            ],
            "counted": [[*where, *counts] for where, counts in sorted(self.counted.items())],
            "partition_counts": None if partitions is None else [[partitions, None]],
        }

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        learned = fields["learned"]
        return {
            **fields,
            "clock": load(EventClock, fields["clock"]),
            "learned": None if learned is None else load(LearnedDelays, learned),
            "planned": {(topic, number): offset for topic, number, offset in fields["planned"]},
            "lost": {
                (one["topic"], one["partition"]): (one["first"], one["end"])
                for one in fields["lost"]
            },
            "counted": {(topic, number): counts for topic, number, *counts in fields["counted"]},
            "partition_counts": _one_number(fields["partition_counts"]),
        }


class StagedStep(Step, frozen=True, kw_only=True):
    """A step whose rows are staged and for which nothing else is decided.

    The driver that creates its document takes the step's number: of two drivers one stops here.
    Rows behind the frontier count as late.

    Attributes:
        run: The run its rows are in; None without new rows.
        first_behind_ms: Smallest event time of the rows behind the frontier, if there are any.
    """

    run: Run | None = None
    first_behind_ms: int = BEFORE_ALL_TIME_MS

    def to_stored(self) -> dict[str, Any]:
        run = None if self.run is None else self.run.to_stored()
        return {**super().to_stored(), "run": run}


class StepEntry(Step, frozen=True, kw_only=True):
    """What a step decided, written before it acts.

    Attributes:
        runs: The runs that hold rows to release now or later, this step's own last.
        before: Counts of all earlier steps.
        logged_ms: Wall-clock time at which that was decided.
        late_policy: What becomes of its late rows.
        rescued: Rows behind the frontier that go out after all, None when none were judged: then
            all of them are late.
        keys: How far keys have been released, None when that is not kept.
        deduplicated_ms: Rows not older than this are searched for the originals of duplicates; None
            when duplicates are not looked for.
        duplicates: Rows that this step drops as duplicates, whichever step read them.
        judged: Files of the rows behind the frontier, judged, and the rows of each.
        repeats: Files with the places of the duplicates, and the rows of each.
        name: Name of the folders that this attempt at deciding has written.
    """

    runs: tuple[Run, ...]
    before: Totals
    logged_ms: int
    late_policy: LatePolicy = LatePolicy.TOPIC
    rescued: int | None = None
    keys: KeyState | None = None
    deduplicated_ms: int | None = None
    duplicates: int = 0
    judged: Mapping[str, int] = {}
    repeats: Mapping[str, int] = {}
    name: str = ""

    @classmethod
    def of(cls, staged: Step, **decided: Any) -> Self:
        shared = {name: getattr(staged, name) for name in Step.__struct_fields__}
        return cls(**{**shared, **decided})

    @property
    def frontier_ms(self) -> int:
        """The frontier up to which this step releases rows, inclusive."""
        return self.clock.frontier_ms

    @property
    def live_runs(self) -> tuple[Run, ...]:
        """Runs that still hold rows once this step is done."""
        return tuple(run for run in self.runs if run.is_live(self.frontier_ms))

    @property
    def folding_runs(self) -> tuple[Run, ...]:
        """Runs without rows to release whose last event times of keys are still needed."""
        keys = self.keys
        if keys is None:
            return ()
        return tuple(
            run
            for run in self.runs
            if not run.is_live(self.frontier_ms)
            and run.rows + run.behind
            and run.reach_ms >= keys.horizon_ms
            and not self._holds_originals(run)
        )

    @property
    def kept_runs(self) -> tuple[Run, ...]:
        folding = {run.step for run in self.folding_runs}
        return tuple(
            run
            for run in self.runs
            if run.is_live(self.frontier_ms) or run.step in folding or self._holds_originals(run)
        )

    def _holds_originals(self, run: Run) -> bool:
        """Tell whether a row in this run may still get a duplicate."""
        return self.deduplicated_ms is not None and run.reach_ms >= self.deduplicated_ms

    @property
    def releasing_earlier(self) -> tuple[Run, ...]:
        """Runs of earlier steps that may have rows in previous frontier < t <= frontier."""
        return tuple(
            run
            for run in self.runs
            if run.step != self.step
            and run.may_release(self.previous_frontier_ms, self.frontier_ms)
        )

    @property
    def releasing_own(self) -> Run | None:
        """This step's run if it has rows in previous frontier <= t <= frontier."""
        for run in self.runs:
            if run.step == self.step and run.rows and run.min_event_time_ms <= self.frontier_ms:
                return run
        return None

    def to_stored(self) -> dict[str, Any]:
        return {
            **super().to_stored(),
            "frontier_ms": self.frontier_ms,  # for those who query checkpoints
            "runs": [run.to_stored() for run in self.runs],
        }

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        keys = fields["keys"]
        read = None if keys is None else load(KeyState, keys)
        return {**super().from_stored(fields), "keys": read}


class StepDone(Struct, frozen=True, tag_field="format", tag=STEP_FORMAT):
    """What a step sent out, written once all of it is acknowledged.

    Attributes:
        step: Number of the step.
        totals: Counts of this and all earlier steps.
        seconds: How long the step took, in the life that finished it.
        processed: Counts of a topology that ran behind it, of this and all earlier steps.
        stamped_ms: What the step took for now: none of its records has a newer timestamp.
        sent: Which sequence comes next in each output partition, in the sink's own words.
    """

    TITLE: ClassVar = "step"

    step: int
    totals: Totals
    seconds: float = 0.0
    processed: Mapping[str, int] | None = None
    stamped_ms: int = 0
    sent: Mapping[str, Any] | None = None


NOTHING_DONE: Final = StepDone(step=-1, totals=Totals())


def late_rows_to(output: Output, entry: StepEntry) -> int:
    return entry.counts.late if ROUTES[entry.late_policy].output is output else 0


def finish(entry: StepEntry, *, released: int, late: int, quarantined: int) -> StepDone:
    """Account for a step by what its outputs counted.

    Args:
        entry: What the step decided.
        released: Rows written to the output topic, late ones that were emitted there included.
        late: Rows written to the late topic.
        quarantined: Rows written to the quarantine topic.

    Raises:
        ConservationError: A side output got other rows than were staged for it, more came out than
            was held, or the runs are through and yet rows are missing.
    """
    to_late_topic, emitted = late_rows_to(Output.LATE, entry), late_rows_to(Output.RELEASED, entry)
    out = Totals(released=released - emitted, duplicates=entry.duplicates)
    totals = entry.before.plus(entry.counts).plus(out)
    staged_quarantined = sum(entry.counts.quarantined.values())
    live = entry.live_runs
    lost = sum(last - first for first, last in entry.lost.values())
    claims = {
        f"{entry.counts.missing} rows missing, {lost} lost": entry.counts.missing == lost,
        f"{to_late_topic} rows late, {late} written": to_late_topic == late,
        f"{staged_quarantined} rows quarantined, {quarantined} written": staged_quarantined
        == quarantined,
        f"{emitted + (entry.rescued or 0)} rows older than the frontier to write out, {released} "
        "written": released >= emitted + (entry.rescued or 0),
        f"{totals.held} rows held, none were left": bool(live) or totals.held == 0,
        f"{totals.held} rows held in runs of {sum(run.rows for run in live)}": len(live)
        <= totals.held
        <= sum(run.rows for run in live),
    }
    broken = [claim for claim, holds in claims.items() if not holds]
    if broken:
        raise ConservationError(f"step {entry.step}: {'; '.join(broken)}: {totals}")
    return StepDone(entry.step, totals)


def _one_number(counts: Sequence[Sequence[int]] | None) -> int | None:
    """Return by how many output partitions rows are placed; no release wrote several numbers."""
    if counts is None:
        return None
    (first, cut_ms), *later = counts
    if later:
        raise StateFormatError(
            "the output topic has gained partitions while the job had this checkpoint: rows up to "
            f"event time {cut_ms} go by {first} partitions and later ones by {later[0][0]}, this "
            "version keeps one number for a checkpoint"
        )
    return first
