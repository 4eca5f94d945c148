"""What a running job tells: a line that renews itself on a terminal, else a JSON line a step."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from consumer import LearnedDelays, StepDone, StepEntry, Totals


class ProgressStyle(StrEnum):
    """How progress is shown."""

    AUTO = "auto"
    """Live on a terminal, else JSON."""
    LIVE = "live"
    JSON = "json"

    def on(self, *, is_terminal: bool) -> ProgressStyle:
        """What it comes to on an output."""
        if self is ProgressStyle.AUTO:
            return ProgressStyle.LIVE if is_terminal else ProgressStyle.JSON
        return self


def counts(totals: Totals) -> dict[str, Any]:
    """Counts of rows as plain values: read = released + late + quarantined + duplicates + held."""
    return {
        "read": totals.read,
        "released": totals.released,
        "late": totals.late,
        "quarantined": sum(totals.quarantined.values()),
        "duplicates": totals.duplicates,
        "held": totals.held,
        "quarantined_by_reason": dict(totals.quarantined),
    }


def step_summary(entry: StepEntry, done: StepDone) -> dict[str, Any]:
    """A step as plain values: what it read and released, and where things stand."""
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
        "held": done.totals.held,
        "frontier_ms": entry.frontier_ms,
        "runs": len(entry.live_runs),
        "runs_to_fold": len(entry.folding_runs),
        "keys": 0 if entry.keys is None else entry.keys.keys,
        "keys_bytes": 0 if entry.keys is None else entry.keys.size_bytes,
        "lag": source_lag(entry),
        "seconds": done.seconds,
    }
    if done.processed is not None:
        summary["processed"] = dict(done.processed)
    promised = promised_and_achieved(entry.learned)
    return summary | ({"delay_ms": longest_delay_ms(entry)} if promised else {}) | promised


def promised_and_achieved(learned: LearnedDelays | None) -> dict[str, Any]:
    """What a learned delay promised, and the share of rows that were behind the frontier.

    Since learning began, and with recent rows weighing most; nothing of a fixed delay.
    """
    if learned is None or not learned.late_target:
        return {}
    return {
        "late_target": learned.late_target,
        "late_share": round(learned.late_share, 6),
        "recent_late_share": round(learned.recent_late_share, 6),
    }


def source_lag(entry: StepEntry) -> int:
    """Rows that were in the source topics, and not read, when the step looked."""
    clocks = entry.clock.partitions.values()
    return sum(max(0, clock.high_watermark - clock.position) for clock in clocks)


def longest_delay_ms(entry: StepEntry) -> int:
    """The delay of the partition that has the longest."""
    return max((clock.delay_ms for clock in entry.clock.partitions.values()), default=0)


def print_step(entry: StepEntry, done: StepDone) -> None:
    """One JSON line a step."""
    print(json.dumps(step_summary(entry, done)), flush=True)  # noqa: T201 - the job's output


class LiveLine:
    """One line on a terminal, renewed by each step while this is entered.

    Args:
        console: The terminal.
        now_ms: The wall clock.
    """

    def __init__(
        self, console: Console, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._now_ms = now_ms
        self._live = Live(Text("waiting for the first batch"), console=console, auto_refresh=False)
        self._read_from = 0
        self._since_ms = now_ms()
        self._is_first = True

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, entry: StepEntry, done: StepDone) -> None:
        """Show where things stand after a step."""
        if self._is_first:
            self._is_first = False
            self._read_from = entry.before.read
        passed_s = max(0.001, (self._now_ms() - self._since_ms) / 1000)
        rate = (done.totals.read - self._read_from) / passed_s
        self._live.update(live_text(entry, done, rate=rate, now_ms=self._now_ms()), refresh=True)


def live_text(entry: StepEntry, done: StepDone, *, rate: float, now_ms: int) -> Text:
    """The live line.

    Args:
        entry: The newest step.
        done: What it sent out.
        rate: Rows read a second since the job started.
        now_ms: Wall-clock time.
    """
    totals = done.totals
    parts = [
        f"step {entry.step:,}",
        f"read {totals.read:,} ({rate:,.0f}/s, {source_lag(entry):,} to go)",
        f"released {totals.released:,}",
        f"late {totals.late:,}",
        f"quarantined {sum(totals.quarantined.values()):,}",
        *([f"duplicates {totals.duplicates:,}"] if totals.duplicates else []),
        f"held {totals.held:,}",
        *([] if done.processed is None else [_processed(done.processed)]),
        f"frontier {instant(entry.frontier_ms)}{_behind(entry.frontier_ms, now_ms)}",
    ]
    if entry.learned is not None and entry.learned.late_target:
        parts.append(
            f"delay {longest_delay_ms(entry) / 1000:.1f} s, "
            f"late {entry.learned.recent_late_share:.2%} of {entry.learned.late_target:.2%}"
        )
    return Text(" · ".join(parts), no_wrap=True, overflow="ellipsis")


def _processed(counts: Mapping[str, int]) -> str:
    return f"acked {counts['acked']:,}, pending {counts['pending']:,}, dead {counts['dead']:,}"


def report_table(report: Mapping[str, Any]) -> Table:
    """The final report: what was read, and below it where it went, which is as much.

    Args:
        report: `JobReport.as_json`.
    """
    table = Table(title="Rows since the checkpoint began", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("read", f"{report['read']:,}")
    table.add_section()
    for name in ("released", "late", "quarantined"):
        table.add_row(f"{name}", f"{report[name]:,}")
    for reason, rows in sorted(report["quarantined_by_reason"].items()):
        table.add_row(f"  {reason}", f"{rows:,}", style="dim")
    for name in ("duplicates", "held"):
        table.add_row(name, f"{report[name]:,}")
    if "processed" in report:
        table.add_section()
        for name, count in report["processed"].items():
            table.add_row(name.replace("_", " "), f"{count:,}")
    table.add_section()
    table.add_row("frontier", instant(report["frontier_ms"]))
    table.add_row("steps", f"{report['steps']:,}")
    table.add_row("read a second, this run", f"{report['records_per_s']:,.0f}")
    if "late_target" in report:
        table.add_row("late, promised", f"{report['late_target']:.3%}")
        table.add_row("late, achieved", f"{report['late_share']:.3%}")
    return table


def instant(time_ms: int | None) -> str:
    """An event time as text; a dash for none."""
    if time_ms is None or time_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (OverflowError, ValueError):  # beyond the year 9999
        return f"{time_ms:,} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _behind(frontier_ms: int, now_ms: int) -> str:
    return "" if frontier_ms < 0 else f" ({(now_ms - frontier_ms) / 1000:,.1f} s ago)"
