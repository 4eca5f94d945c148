"""What a running job tells: a line that renews itself on a terminal, else a line a step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from sequitur.base.process import wall_clock_ms
from sequitur.consumer import awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from sequitur.consumer import EventClock, LearnedDelays, StepDone, StepEntry, Totals

_SEPARATOR: Final = " · "
_ANY_WIDTH: Final = 1_000


class ProgressStyle(StrEnum):
    """How progress is shown."""

    AUTO = "auto"
    """Live on a terminal, else JSON."""
    LIVE = "live"
    TEXT = "text"
    """A line a step for people."""
    JSON = "json"

    def on(self, *, is_terminal: bool) -> ProgressStyle:
        """Return the style on an output: `AUTO` is live on a terminal, else JSON."""
        if self is ProgressStyle.AUTO:
            return ProgressStyle.LIVE if is_terminal else ProgressStyle.JSON
        return self


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


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a run of the job did. Counts are since the checkpoint began."""

    totals: Totals  # counts of rows
    frontier_ms: int  # event time up to which everything on time is out; -1 before any
    steps: int  # batches, ticks and drains
    seconds: float  # how long this run took
    records_per_s: float  # rows this run read a second
    # what the delays were learned from; None with a fixed delay
    learned: LearnedDelays | None = None
    processed: Mapping[str, int] | None = None  # counts of the topology behind; None without one
    waits_for: str = ""  # what the rows that are held wait for; empty without any
    # that all rows of this run were quarantined, and what they have instead of an event time, in
    # words; empty where others were read, or none
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
            **promised_and_achieved(self.learned),
            **({} if self.processed is None else {"processed": dict(self.processed)}),
        }


def step_summary(entry: StepEntry, done: StepDone) -> dict[str, Any]:
    """Return a step as plain values: what it read and released, and where things stand."""
    summary: dict[str, Any] = {
        "step": entry.step,
        "kind": entry.kind.value,
        "batch_id": entry.batch_id,
        "read": entry.staged.read,
        "released": done.totals.released - entry.before.released,
        "late": done.totals.late - entry.before.late,
        "rescued": entry.rescued or 0,
        "quarantined": sum(entry.staged.quarantined.values()),
        "duplicates": done.totals.duplicates - entry.before.duplicates,
        "skipped": done.totals.skipped - entry.before.skipped,
        "held": done.totals.held,
        "missing": entry.staged.missing,
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


def promised_and_achieved(learned: LearnedDelays | None) -> dict[str, Any]:
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
    """Return what the frontier waits for, as plain values."""
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
    """Return what the frontier waits for, in words; empty when it waits for nothing."""
    found = awaited(clock)
    if not found:
        return ""
    others = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"{found[0].text(now_ms)}{others}"


def source_lag(entry: StepEntry) -> int:
    """Count the rows that were in the source topics, and not read, when the step looked."""
    return sum(clock.to_read for clock in entry.clock.partitions.values())


def longest_delay_ms(entry: StepEntry) -> int:
    """Return the delay of the partition that has the longest."""
    return max((clock.delay_ms for clock in entry.clock.partitions.values()), default=0)


def print_step(entry: StepEntry, done: StepDone) -> None:
    """Print one JSON line a step."""
    print(json.dumps(step_summary(entry, done)), flush=True)  # noqa: T201 - the job's output


class TextLines:
    """Where things stand, on a console: a line a step."""

    def __init__(self, console: Console, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._console = console
        self._now_ms = now_ms
        self._read_from = 0
        self._since_ms = now_ms()
        self._newest: tuple[StepEntry, StepDone] | None = None
        self._rate = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __call__(self, entry: StepEntry, done: StepDone) -> None:
        """Show where things stand after a step."""
        if self._newest is None:
            self._read_from = entry.before.read
        passed_s = max(0.001, (self._now_ms() - self._since_ms) / 1000)
        self._rate = (done.totals.read - self._read_from) / passed_s
        self._newest = (entry, done)
        self._show()

    def _show(self) -> None:
        self._console.print(self._text(_ANY_WIDTH), soft_wrap=True)

    def _text(self, width: int) -> Text:
        if self._newest is None:
            return Text("waiting for the first batch", no_wrap=True, overflow="ellipsis")
        return live_text(*self._newest, rate=self._rate, now_ms=self._now_ms(), width=width)


class LiveLine(TextLines):
    """One line on a terminal, renewed by each step and each second while this is entered."""

    def __init__(self, console: Console, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(console, now_ms)
        self._live = Live(
            get_renderable=lambda: self._text(console.width), console=console, refresh_per_second=1
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self) -> None:
        self._live.refresh()


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the live line, and the same in fewer columns.

    On a narrow terminal those with the highest `importance` are left out first.
    """

    importance: int
    text: str
    short: str = ""


def live_text(entry: StepEntry, done: StepDone, *, rate: float, now_ms: int, width: int) -> Text:
    """Return the live line, as much of it as there is room for."""
    totals, lag = done.totals, source_lag(entry)
    behind = _behind(entry.frontier_ms, now_ms)
    parts = [
        _Part(8, f"step {entry.step:,}"),
        _Part(0, f"read {totals.read:,} ({rate:,.0f}/s, {lag:,} to go)", f"read {totals.read:,}"),
        _Part(4, f"released {totals.released:,}"),
        _Part(3, f"late {totals.late:,}"),
        _Part(6, f"quarantined {sum(totals.quarantined.values()):,}"),
        *([_Part(7, f"duplicates {totals.duplicates:,}")] if totals.duplicates else []),
        _Part(2, f"held {totals.held:,}"),
        *([] if done.processed is None else [_processed(done.processed)]),
        _Part(
            1,
            f"frontier {instant(entry.frontier_ms)}{behind and f' ({behind})'}",
            f"frontier {behind or '-'}",
        ),
    ]
    if entry.learned is not None and entry.learned.late_target:
        delay = f"delay {longest_delay_ms(entry) / 1000:.1f} s"
        share = f"late {entry.learned.recent_late_share:.2%} of {entry.learned.late_target:.2%}"
        parts.append(_Part(9, f"{delay}, {share}", delay))
    if totals.held and (waiting := waiting_text(entry.clock, now_ms=now_ms)):
        # Where nothing has come out yet, this is what one wants to know.
        importance = 10 if entry.frontier_ms >= 0 else 1
        first = awaited(entry.clock)[0].partition
        parts.append(_Part(importance, f"waits: {waiting}", f"waits: partition {first.partition}"))
    return Text(_fitted(parts, width), no_wrap=True, overflow="ellipsis")


def _fitted(parts: Sequence[_Part], width: int) -> str:
    """Put the parts side by side: whole, or short, or only the important ones."""
    line = _SEPARATOR.join(part.text for part in parts)
    kept = list(parts)
    while len(line) > width and kept:
        line = _SEPARATOR.join(part.short or part.text for part in kept)
        kept.remove(max(kept, key=lambda part: part.importance))
    return line


def _processed(counts: Mapping[str, int]) -> _Part:
    acked, pending, dead = (f"{name} {counts[name]:,}" for name in ("acked", "pending", "dead"))
    made = ""
    if counts.get("made"):  # an earlier version has not counted any
        waiting, given_up = counts["made_pending"], counts["made_dead"]
        made = f", made {counts['made']:,}: pending {waiting:,}, dead {given_up:,}"
    return _Part(5, f"{acked}, {pending}, {dead}{made}", f"{pending}, {dead}")


def report_table(report: Mapping[str, Any]) -> Table:
    """Lay out the final report: what was read, and below it where it went."""
    table = Table(title="Rows since the checkpoint began", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("read", f"{report['read']:,}")
    table.add_section()
    for name in ("released", "late", "quarantined"):
        table.add_row(f"{name}", f"{report[name]:,}")
    for reason, rows in sorted(report["quarantined_by_reason"].items()):
        table.add_row(f"  {reason}", f"{rows:,}", style="dim")
    for name in ("duplicates", "skipped", "held"):
        table.add_row(name, f"{report[name]:,}")
    if "processed" in report:
        table.add_section()
        for name, count in report["processed"].items():
            if name.startswith("made") and not report["processed"]["made"]:
                continue
            table.add_row(name.replace("_", " "), f"{count:,}")
    table.add_section()
    table.add_row("frontier", instant(report["frontier_ms"]))
    if report.get("waits_for"):
        table.add_row("waits for", report["waits_for"])
    table.add_row("steps", f"{report['steps']:,}")
    table.add_row("read a second, this run", f"{report['records_per_s']:,.0f}")
    if "late_target" in report:
        table.add_row("late, promised", f"{report['late_target']:.3%}")
        table.add_row("late, achieved", f"{report['late_share']:.3%}")
    return table


def instant(time_ms: int | None) -> str:
    """Return an event time as text; a dash for none."""
    if time_ms is None or time_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (OverflowError, ValueError):  # beyond the year 9999
        return f"{time_ms:,} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


def _behind(frontier_ms: int, now_ms: int) -> str:
    return "" if frontier_ms < 0 else f"{(now_ms - frontier_ms) / 1000:,.1f} s ago"
