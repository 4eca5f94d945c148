"""What a running job shows: a line that renews itself on a terminal, else a line a step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from sequitur.base.process import wall_clock_ms
from sequitur.consumer.reorder.awaited import awaited, utc_text
from sequitur.pipelines.ordering.job_report import (
    longest_delay_ms,
    source_lag,
    step_summary,
    waiting_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from sequitur.consumer.reorder.step_log import StepDone, StepEntry


_SEPARATOR: Final = " · "
_ANY_WIDTH: Final = 1_000


class ProgressStyle(StrEnum):
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


def print_step(entry: StepEntry, done: StepDone, output: TextIO | None = None) -> None:
    """Print one JSON line for the step, by default on standard output."""
    print(json.dumps(step_summary(entry, done)), file=output, flush=True)


class TextLines:
    """Shows where things stand on a console, with a line for each step."""

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
    """One line on a terminal, renewed by each step and each second while the block runs."""

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
        *([] if done.processed is None else [_topology_part(done.processed)]),
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
        # As long as nothing has come out, this is what a user wants to know.
        importance = 10 if entry.frontier_ms >= 0 else 1
        first = awaited(entry.clock)[0].partition
        parts.append(_Part(importance, f"waits: {waiting}", f"waits: partition {first.partition}"))
    return Text(_fitted(parts, width), no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the live line, and the same in fewer columns.

    On a narrow terminal those with the highest `importance` are left out first.
    """

    importance: int
    text: str
    short: str = ""


def _fitted(parts: Sequence[_Part], width: int) -> str:
    """Join the parts: whole, or short, or only the important ones."""
    line = _SEPARATOR.join(part.text for part in parts)
    kept = list(parts)
    while len(line) > width and kept:
        line = _SEPARATOR.join(part.short or part.text for part in kept)
        kept.remove(max(kept, key=lambda part: part.importance))
    return line


def _topology_part(counts: Mapping[str, int]) -> _Part:
    acked, pending, dead = (f"{name} {counts[name]:,}" for name in ("acked", "pending", "dead"))
    made = ""
    if counts["made"]:
        waiting, given_up = counts["made_pending"], counts["made_dead"]
        made = f", made {counts['made']:,}: pending {waiting:,}, dead {given_up:,}"
    return _Part(5, f"{acked}, {pending}, {dead}{made}", f"{pending}, {dead}")


def report_table(report: Mapping[str, Any]) -> Table:
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
    for bolt, count in sorted(report.get("late_for_window", {}).items()):
        table.add_row(f"late for a window of {bolt}", f"{count:,}")
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
    """Return an event time as text; a dash for None."""
    return "-" if time_ms is None or time_ms < 0 else utc_text(time_ms)


def _behind(frontier_ms: int, now_ms: int) -> str:
    return "" if frontier_ms < 0 else f"{(now_ms - frontier_ms) / 1000:,.1f} s ago"
