"""The log of the reorder job: what each step staged, how far it moved the frontier, what is held.

A *step* is a micro-batch, a tick (no new rows, but time has passed) or a drain. Its `StepEntry` is
written before anything of the step goes out, and a repeat of the step reads it back instead of
computing anew: so a restart never reopens released time, and a repeat gives the same rows. What
went out is written afterwards as `StepDone`.

Which rows a step releases, with F the frontier before and G after it:

- of runs staged by earlier steps: F < t <= G. Rows at F went out when F was reached.
- of the run staged by this step: F <= t <= G. A row at F that comes later is on time, and no row
  after F is out yet, so it goes out now without breaking the order.

A row of this step with t < F is late.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from consumer._adaptive_delay import LearnedDelays
from consumer._clock import EventClock
from consumer._errors import ConservationError, StateFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_FORMAT: Final = 1


class StepKind(StrEnum):
    """What made the step."""

    BATCH = "batch"
    TICK = "tick"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Run:
    """One sorted run on disk: the rows a batch staged.

    Attributes:
        step: The step that staged it; also its name.
        rows: Rows that were on time.
        min_event_time_ms: Smallest event time of these; `BEFORE_ALL_TIME_MS` without any.
        max_event_time_ms: Greatest event time of these; `BEFORE_ALL_TIME_MS` without any.
    """

    step: int
    rows: int
    min_event_time_ms: int
    max_event_time_ms: int

    def is_live(self, frontier_ms: int) -> bool:
        """Whether it still holds rows once everything up to the frontier is out."""
        return self.rows > 0 and self.max_event_time_ms > frontier_ms


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of rows, of a step or since the checkpoint began.

    Attributes:
        read: Rows that came from the source topics.
        released: Rows that went to the output topic.
        late: Rows that went to the late topic.
        quarantined: Rows that went to the quarantine topic, by reason.
        duplicates: Rows dropped as repeats. None yet: the place is kept for it.
    """

    read: int = 0
    released: int = 0
    late: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0

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

    @property
    def frontier_ms(self) -> int:
        """The frontier this step releases up to, itself included."""
        return self.clock.frontier_ms

    @property
    def live_runs(self) -> tuple[Run, ...]:
        """The runs that still hold rows once this step is done."""
        return tuple(run for run in self.runs if run.is_live(self.frontier_ms))

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
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        _check_format(document)
        learned = document.get("learned")
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
        )


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a step sent out, written once all of it is acknowledged.

    Attributes:
        step: Number of the step.
        totals: Counts of this and all earlier steps.
    """

    step: int
    totals: Totals

    def to_document(self) -> dict[str, Any]:
        """The mark as a JSON document."""
        return {"format": STEP_FORMAT, "step": self.step, "totals": asdict(self.totals)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        _check_format(document)
        return cls(step=document["step"], totals=Totals(**document["totals"]))


NOTHING_DONE: Final = StepDone(step=-1, totals=Totals())


def finish(entry: StepEntry, *, released: int, late: int, quarantined: int) -> StepDone:
    """Account for a step by what its outputs counted.

    Args:
        entry: What the step decided.
        released: Rows written to the output topic.
        late: Rows written to the late topic.
        quarantined: Rows written to the quarantine topic.

    Raises:
        ConservationError: A side output got other rows than were staged for it, more came out than
            was held, or the runs are through and yet rows are missing.
    """
    totals = entry.before.plus(entry.staged).plus(Totals(released=released))
    staged_quarantined = sum(entry.staged.quarantined.values())
    live = entry.live_runs
    claims = {
        f"{entry.staged.late} rows late, {late} written": entry.staged.late == late,
        f"{staged_quarantined} rows quarantined, {quarantined} written": staged_quarantined
        == quarantined,
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
