"""What a step sent out, held against what it had to send."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.consumer.lateness.policy import Output
from sequitur.consumer.step_log.entry import StepEntry, late_rows_to
from sequitur.consumer.step_log.step_format import STEP_FORMAT, check_format
from sequitur.consumer.step_log.totals import Totals
from sequitur.errors import ConservationError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a step sent out, written once all of it is acknowledged.

    Attributes:
        step: Number of the step.
        totals: Counts of this and all earlier steps.
        seconds: How long the step took, in the life that finished it.
        processed: Counts of a topology that ran behind it, of this and all earlier steps.
        stamped_ms: What the step took for now: none of its records has a newer timestamp.
        sent: Which sequence comes next in each output partition, in the sink's own words.
    """

    step: int
    totals: Totals
    seconds: float = 0.0
    processed: Mapping[str, int] | None = None
    stamped_ms: int = 0
    sent: Mapping[str, Any] | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the mark as a JSON document."""
        return {
            "format": STEP_FORMAT,
            "step": self.step,
            "totals": asdict(self.totals),
            "seconds": self.seconds,
            "processed": None if self.processed is None else dict(self.processed),
            "stamped_ms": self.stamped_ms,
            "sent": self.sent,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        check_format(document)
        return cls(
            step=document["step"],
            totals=Totals(**document["totals"]),
            seconds=document.get("seconds", 0.0),
            processed=document.get("processed"),
            stamped_ms=document.get("stamped_ms", 0),
            sent=document.get("sent"),
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
    aside, emitted = late_rows_to(Output.LATE, entry), late_rows_to(Output.RELEASED, entry)
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
