"""The log of the reorder job: what each step staged, how far it moved the frontier, what is held.

A *step* is a micro-batch, a tick (no new rows, but time has passed), a drain, or a reset of Spark's
own part (which reads nothing, and begins batches anew behind what was read). Its `StepEntry` is
written before anything of the step goes out, and a repeat of the step reads it back instead of
computing anew: so a restart never reopens released time, and a repeat gives the same rows. What
went out is written afterwards as `StepDone`.

Which rows a step releases, with F the frontier before and G after it:

- of runs staged by earlier steps: F < t <= G. Rows at F went out when F was reached.
- of the run staged by this step: F <= t <= G. A row at F that comes later is on time, and no row
  after F is out yet, so it goes out now without breaking the order.

A row of this step with t < F is *behind the frontier*. With `keys` in the entry it is judged by the
last released event time of its key (`sequitur.consumer.lateness.key_state`), and either rescued,
which releases it in this step, before everything else, or late. Without, it is late. What was
judged stands in a file of the step, written before the entry.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.consumer._errors import ConservationError, StateFormatError
from sequitur.consumer.lateness.key_state import KeyState
from sequitur.consumer.lateness.policy import LatePolicy
from sequitur.consumer.time.adaptive_delay import LearnedDelays
from sequitur.consumer.time.clock import BEFORE_ALL_TIME_MS, EventClock, SourcePartition

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_FORMAT: Final = 4


class StepKind(StrEnum):
    """What made the step."""

    BATCH = "batch"
    TICK = "tick"
    DRAIN = "drain"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Run:
    """One sorted run on disk: the rows a batch staged.

    Attributes:
        step: The step that staged it.
        rows: Rows that were on time.
        min_event_time_ms: Smallest event time of these; `BEFORE_ALL_TIME_MS` without any.
        max_event_time_ms: Greatest event time of these; `BEFORE_ALL_TIME_MS` without any.
        behind: Rows that were behind the frontier.
        max_behind_ms: Greatest event time of these; `BEFORE_ALL_TIME_MS` without any.
        size_bytes: Its size on disk.
        name: Its folder: that of the attempt at the step that counts.
        files: The names of its files, each with the number of its rows, whatever these are.
    """

    step: int
    rows: int
    min_event_time_ms: int
    max_event_time_ms: int
    behind: int = 0
    max_behind_ms: int = BEFORE_ALL_TIME_MS
    size_bytes: int = 0
    name: str = ""
    files: Mapping[str, int] = field(default_factory=dict)

    @property
    def reach_ms(self) -> int:
        """Greatest usable event time in it."""
        return max(self.max_event_time_ms, self.max_behind_ms)

    def held_bytes(self, frontier_ms: int) -> int:
        """Its bytes if it still holds rows behind a frontier: for one of them all are kept."""
        return self.size_bytes if self.is_live(frontier_ms) else 0

    def is_live(self, frontier_ms: int) -> bool:
        """Whether it still holds rows once everything up to the frontier is out."""
        return self.rows > 0 and self.max_event_time_ms > frontier_ms


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of rows, of a step or since the checkpoint began.

    Attributes:
        read: Rows that came from the source topics.
        released: Rows that went to the output topic.
        late: Rows that were late, whatever the late policy did with them.
        quarantined: Rows that went to the quarantine topic, by reason.
        duplicates: Rows dropped as repeats.
        missing: Rows that were gone before they could be read, at most: offsets, of which not each
            need have had a row. They are not among those read.
    """

    read: int = 0
    released: int = 0
    late: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    missing: int = 0

    @property
    def held(self) -> int:
        """Rows read that are in no output yet."""
        out = self.released + self.late + sum(self.quarantined.values()) + self.duplicates
        return self.read - out

    def plus(self, other: Totals) -> Totals:
        """Both counted together."""
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
            missing=self.missing + other.missing,
        )


@dataclass(frozen=True, slots=True)
class StepEntry:
    """What a step decided, written before it acts.

    Attributes:
        step: Number of the step, from 0, without a gap.
        kind: What made it.
        batch_id: Spark's id of the newest micro-batch up to this step; -1 before the first.
        previous_frontier_ms: The frontier before; rows are late against this one.
        clock: The clocks after, with the frontier that this step releases up to.
        staged: Counts of the rows this step read; nothing of them is released yet.
        runs: The runs that hold rows to release now or later, this step's own last.
        before: Counts of all earlier steps.
        logged_ms: Wall-clock time.
        learned: What the delays of this and the following step come from; None with a fixed delay.
        late_policy: What becomes of its late rows.
        rescued: Rows behind the frontier that go out after all, None when none were judged: then
            all of them are late.
        keys: How far keys have been released, None when that is not kept.
        deduplicated_ms: Rows not older than this are looked through for the originals of repeats,
            None when repeats are not looked for.
        duplicates: Rows that this step drops as repeats, whichever step read them.
        owner: Owner generation of the driver's life that logged it.
        name: Name of the folders that this attempt at the step has written.
        source: Name of the folder with Spark's own checkpoint.
        planned: Where `batch_id` ends in each source partition, as Spark planned it: a repeat of
            that batch has to have the same.
        topics: Ids of the input topics that have been read, by name, where brokers give them ids.
        lost: Of each source partition that lost rows before they were read, the first offset of
            these and the one behind the last.
    """

    step: int
    kind: StepKind
    batch_id: int
    previous_frontier_ms: int
    clock: EventClock
    staged: Totals
    runs: tuple[Run, ...]
    before: Totals
    logged_ms: int
    learned: LearnedDelays | None = None
    late_policy: LatePolicy = LatePolicy.TOPIC
    rescued: int | None = None
    keys: KeyState | None = None
    deduplicated_ms: int | None = None
    duplicates: int = 0
    owner: int = 0
    name: str = ""
    source: str = "spark"
    planned: Mapping[SourcePartition, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[SourcePartition, tuple[int, int]] = field(default_factory=dict)

    @property
    def frontier_ms(self) -> int:
        """The frontier this step releases up to, itself included."""
        return self.clock.frontier_ms

    @property
    def live_runs(self) -> tuple[Run, ...]:
        """The runs that still hold rows once this step is done."""
        return tuple(run for run in self.runs if run.is_live(self.frontier_ms))

    @property
    def folding_runs(self) -> tuple[Run, ...]:
        """The runs without rows to release that still say how far their keys have been."""
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
        """The runs that later steps need."""
        folding = self.folding_runs
        return tuple(
            run
            for run in self.runs
            if run.is_live(self.frontier_ms) or run in folding or self._holds_originals(run)
        )

    def _holds_originals(self, run: Run) -> bool:
        """Whether a repeat may still come of a row in this run."""
        return self.deduplicated_ms is not None and run.reach_ms >= self.deduplicated_ms

    @property
    def releasing_earlier(self) -> tuple[Run, ...]:
        """Runs of earlier steps that may have rows in previous frontier < t <= frontier."""
        return tuple(
            run
            for run in self.runs
            if run.step != self.step
            and run.is_live(self.previous_frontier_ms)
            and run.min_event_time_ms <= self.frontier_ms
        )

    @property
    def releasing_own(self) -> Run | None:
        """This step's run if it has rows in previous frontier <= t <= frontier."""
        for run in self.runs:
            if run.step == self.step and run.rows and run.min_event_time_ms <= self.frontier_ms:
                return run
        return None

    def to_document(self) -> dict[str, Any]:
        """The entry as a JSON document."""
        return {
            "format": STEP_FORMAT,
            "step": self.step,
            "kind": self.kind.value,
            "batch_id": self.batch_id,
            "previous_frontier_ms": self.previous_frontier_ms,
            "frontier_ms": self.frontier_ms,
            "clock": self.clock.to_document(),
            "staged": asdict(self.staged),
            "runs": [asdict(run) for run in self.runs],
            "before": asdict(self.before),
            "logged_ms": self.logged_ms,
            "learned": None if self.learned is None else self.learned.to_document(),
            "late_policy": self.late_policy.value,
            "rescued": self.rescued,
            "keys": None if self.keys is None else self.keys.to_document(),
            "deduplicated_ms": self.deduplicated_ms,
            "duplicates": self.duplicates,
            "owner": self.owner,
            "name": self.name,
            "source": self.source,
            "planned": [[*partition, offset] for partition, offset in sorted(self.planned.items())],
            "topics": dict(self.topics),
            "lost": [
                {"topic": where.topic, "partition": where.partition, "first": first, "end": end}
                for where, (first, end) in sorted(self.lost.items())
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        _check_format(document)
        learned = document.get("learned")
        keys = document["keys"]
        return cls(
            step=document["step"],
            kind=StepKind(document["kind"]),
            batch_id=document["batch_id"],
            previous_frontier_ms=document["previous_frontier_ms"],
            clock=EventClock.from_document(document["clock"]),
            staged=Totals(**document["staged"]),
            runs=tuple(Run(**run) for run in document["runs"]),
            before=Totals(**document["before"]),
            logged_ms=document["logged_ms"],
            learned=None if learned is None else LearnedDelays.from_document(learned),
            late_policy=LatePolicy(document["late_policy"]),
            rescued=document["rescued"],
            keys=None if keys is None else KeyState.from_document(keys),
            deduplicated_ms=document["deduplicated_ms"],
            duplicates=document["duplicates"],
            owner=document["owner"],
            name=document["name"],
            source=document["source"],
            planned={
                SourcePartition(topic, partition): offset
                for topic, partition, offset in document["planned"]
            },
            topics=document["topics"],
            lost={
                SourcePartition(one["topic"], one["partition"]): (one["first"], one["end"])
                for one in document["lost"]
            },
        )


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a step sent out, written once all of it is acknowledged.

    Attributes:
        step: Number of the step.
        totals: Counts of this and all earlier steps.
        seconds: How long the step took, in the life that finished it.
        processed: Counts of a topology that ran behind it, of this and all earlier steps.
        stamped_ms: What the step took for now: none of its records has a newer timestamp.
    """

    step: int
    totals: Totals
    seconds: float = 0.0
    processed: Mapping[str, int] | None = None
    stamped_ms: int = 0

    def to_document(self) -> dict[str, Any]:
        """The mark as a JSON document."""
        return {
            "format": STEP_FORMAT,
            "step": self.step,
            "totals": asdict(self.totals),
            "seconds": self.seconds,
            "processed": None if self.processed is None else dict(self.processed),
            "stamped_ms": self.stamped_ms,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        _check_format(document)
        return cls(
            step=document["step"],
            totals=Totals(**document["totals"]),
            seconds=document.get("seconds", 0.0),
            processed=document.get("processed"),
            stamped_ms=document.get("stamped_ms", 0),
        )


NOTHING_DONE: Final = StepDone(step=-1, totals=Totals())


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
    aside = entry.staged.late if entry.late_policy is LatePolicy.TOPIC else 0
    emitted = entry.staged.late if entry.late_policy is LatePolicy.EMIT else 0
    out = Totals(released=released - emitted, duplicates=entry.duplicates)
    totals = entry.before.plus(entry.staged).plus(out)
    staged_quarantined = sum(entry.staged.quarantined.values())
    live = entry.live_runs
    lost = sum(last - first for first, last in entry.lost.values())
    claims = {
        f"{entry.staged.missing} rows missing, {lost} lost": entry.staged.missing == lost,
        f"{aside} rows late, {late} written": aside == late,
        f"{staged_quarantined} rows quarantined, {quarantined} written": staged_quarantined
        == quarantined,
        f"{emitted + (entry.rescued or 0)} rows behind the frontier to write out, "
        f"{released} written": released >= emitted + (entry.rescued or 0),
        f"{totals.held} rows held, none were left": bool(live) or totals.held == 0,
        f"{totals.held} rows held in runs of {sum(run.rows for run in live)}": len(live)
        <= totals.held
        <= sum(run.rows for run in live),
    }
    broken = [claim for claim, holds in claims.items() if not holds]
    if broken:
        raise ConservationError(f"step {entry.step}: {'; '.join(broken)}: {totals}")
    return StepDone(entry.step, totals)


def _check_format(document: Mapping[str, Any]) -> None:
    if document.get("format") != STEP_FORMAT:
        raise StateFormatError(
            f"step of format {document.get('format')!r}; this version reads {STEP_FORMAT}"
        )
