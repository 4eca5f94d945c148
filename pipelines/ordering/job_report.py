"""What came of a run of the job, or of one step, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequitur.base.process import wall_clock_ms
from sequitur.consumer.reorder.awaited import awaited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.learned_delay import LearnedDelays
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry, Totals


@dataclass(frozen=True, slots=True)
class JobReport:
    """The result of a run of the job. Counts are since the checkpoint began.

    Attributes:
        totals: Counts of rows.
        frontier_ms: Event time up to which all rows on time are out, epoch ms. -1 before any row.
        steps: Number of batches, ticks and drains.
        seconds: How long this run took.
        records_per_s: How many rows a second this run read.
        learned: With `delay = "auto"`: `late_target` as it is set, and two shares of rows that were
            older than the frontier. `late_share` is of all rows. In `recent_late_share` recent rows
            weigh most. Empty with a fixed delay.
        processed: Counts of the topology. None without one.
        late_for_window: How many events were late for a window and are done, by bolt.
        waits_for: Why rows are held, in words. Empty if none are.
        all_quarantined: If this run read rows and quarantined all of them: what they have in place
            of an event time, in words. Otherwise empty.
    """

    totals: Totals
    frontier_ms: int
    steps: int
    seconds: float
    records_per_s: float
    learned: Mapping[str, float] = field(default_factory=dict)
    processed: Mapping[str, int] | None = None
    late_for_window: Mapping[str, int] = field(default_factory=dict)
    waits_for: str = ""
    all_quarantined: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, for `json.dumps`."""
        return {
            **counts(self.totals),
            "frontier_ms": self.frontier_ms,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records_per_s, 1),
            **({"waits_for": self.waits_for} if self.waits_for else {}),
            **({"all_quarantined": self.all_quarantined} if self.all_quarantined else {}),
            **self.learned,
            **({} if self.processed is None else {"processed": dict(self.processed)}),
            **({"late_for_window": dict(late)} if (late := self.late_for_window) else {}),
        }


def counts(totals: Totals) -> dict[str, Any]:
    """Return counts as plain values.

    read = released + late + quarantined + duplicates + skipped + held.
    """
    return {
        "read": totals.read,
        "released": totals.released,
        "late": totals.late,
        "quarantined": sum(totals.quarantined.values()),
        "duplicates": totals.duplicates,
        "skipped": totals.skipped,
        "held": totals.held,
        "missing": totals.missing,
        "quarantined_by_reason": dict(totals.quarantined),
    }


def step_summary(entry: StepEntry, done: StepDone) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "step": entry.step,
        "kind": entry.kind.value,
        "batch_id": entry.batch_id,
        "read": entry.counts.read,
        "released": done.totals.released - entry.before.released,
        "late": done.totals.late - entry.before.late,
        "rescued": entry.rescued or 0,
        "quarantined": sum(entry.counts.quarantined.values()),
        "duplicates": done.totals.duplicates - entry.before.duplicates,
        "skipped": done.totals.skipped - entry.before.skipped,
        "held": done.totals.held,
        "missing": entry.counts.missing,
        "frontier_ms": entry.frontier_ms,
        "runs": len(entry.live_runs),
        "runs_to_fold": len(entry.folding_runs),
        "keys": 0 if entry.keys is None else entry.keys.keys,
        "keys_bytes": 0 if entry.keys is None else entry.keys.size_bytes,
        "lag": source_lag(entry),
        "seconds": done.seconds,
    }
    if done.totals.held:
        summary["waits_for"] = waits_for(entry, now_ms=wall_clock_ms())
    if done.processed is not None:
        summary["processed"] = dict(done.processed)
    promised = promised_and_achieved(entry.learned)
    return summary | ({"delay_ms": longest_delay_ms(entry)} if promised else {}) | promised


def promised_and_achieved(learned: LearnedDelays | None) -> dict[str, float]:
    """Return what a learned delay promised, and the share of rows that were behind the frontier.

    Since learning began, and with recent rows weighing most; nothing of a fixed delay.
    """
    if learned is None or not learned.late_target:
        return {}
    return {
        "late_target": learned.late_target,
        "late_share": round(learned.late_share, 6),
        "recent_late_share": round(learned.recent_late_share, 6),
    }


def waits_for(entry: StepEntry, *, now_ms: int) -> list[dict[str, Any]]:
    """Return the partitions that the frontier waits for, as plain values."""
    return [
        {
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "event_time_ms": one.event_time_ms,
            "to_read": one.to_read,
            "idle_in_s": None
            if one.idle_at_ms is None or one.to_read
            else round(max(0, one.idle_at_ms - now_ms) / 1000, 1),
        }
        for one in awaited(entry.clock)
    ]


def waiting_text(clock: EventClock, *, now_ms: int) -> str:
    """Describe what the frontier waits for; empty if it waits for nothing."""
    found = awaited(clock)
    if not found:
        return ""
    others = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"{found[0].text(now_ms)}{others}"


def source_lag(entry: StepEntry) -> int:
    """Count the source rows that were unread when the step looked."""
    return sum(clock.to_read for clock in entry.clock.partitions.values())


def longest_delay_ms(entry: StepEntry) -> int:
    return max((clock.delay_ms for clock in entry.clock.partitions.values()), default=0)
