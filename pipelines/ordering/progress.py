"""What a running job tells: a line that renews itself on a terminal, else a line a step."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sequitur.base.process import wall_clock_ms
from sequitur.base.settings import parse_address
from sequitur.consumer.reorder.advice import advice
from sequitur.consumer.reorder.awaited import awaited
from sequitur.consumer.reorder.reasons import QUARANTINE_REASONS
from sequitur.errors import ReorderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric
    from rich.console import Console

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import EventTimeSpec
    from sequitur.consumer.reorder.advice import UnusableRow
    from sequitur.consumer.reorder.clock import EventClock, PartitionClock
    from sequitur.consumer.reorder.learned_delay import LearnedDelays
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry, Totals
    from sequitur.consumer.subscription.cursor import PartitionCursor
    from sequitur.kafka.partition import SourcePartition


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
    """The result of a run of the job. Counts are since the checkpoint began.

    Attributes:
        totals: Counts of rows.
        frontier_ms: Event time up to which all rows on time are out, epoch ms. -1 before any row.
        steps: Number of batches, ticks and drains.
        seconds: How long this run took.
        records_per_s: How many rows a second this run read.
        learned: With `delay = "auto"`: `late_target` as it is set, and the shares of rows that came
            behind the frontier, `late_share` of all and `recent_late_share`, in which recent rows
            weigh most. Empty with a fixed delay.
        processed: Counts of the topology. None without one.
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


def print_step(entry: StepEntry, done: StepDone, output: TextIO | None = None) -> None:
    """Print one JSON line a step; on standard output, unless told otherwise."""
    print(json.dumps(step_summary(entry, done)), file=output, flush=True)


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


def _topology_part(counts: Mapping[str, int]) -> _Part:
    acked, pending, dead = (f"{name} {counts[name]:,}" for name in ("acked", "pending", "dead"))
    made = ""
    if counts["made"]:
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


# Tells when many rows are quarantined: most likely `event_time` names what the rows do not have.
#
# Such a job runs well, and nothing comes out of it.


_WINDOW_S: Final = 60.0
_MANY: Final = 0.1


@dataclass(slots=True)
class _Window:
    """A minute at least, of which one warning is given."""

    began_s: float
    read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    is_told: bool = False


class QuarantineWatch:
    """Counts what a run quarantines."""

    def __init__(
        self,
        event_time: EventTimeSpec,
        tell: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._event_time = event_time
        self._tell = tell
        self._clock = clock
        self._read = 0
        self._reasons: Counter[str] = Counter()
        self._advice: dict[str, str] = {}
        self._window = _Window(clock())

    def step_is_done(self, staged: Totals, some: Callable[[str], Sequence[UnusableRow]]) -> None:
        """Count a step; warn once a minute while a reason has more than a tenth of the rows."""
        read = staged.read - staged.skipped
        self._read += read
        self._reasons.update(staged.quarantined)
        now_s = self._clock()
        if now_s - self._window.began_s >= _WINDOW_S:
            self._window = _Window(now_s)
        window = self._window
        window.read += read
        window.reasons.update(staged.quarantined)
        reason, rows = next(iter(window.reasons.most_common(1)), ("", 0))
        if window.is_told or rows <= _MANY * window.read:
            return
        if reason in staged.quarantined:
            self._advice[reason] = advice(self._event_time, reason, some(reason))
        window.is_told = True
        found = self._with_advice(reason)
        self._tell(f"warning: {rows:,} of {window.read:,} rows were quarantined, {found}")

    @property
    def verdict(self) -> str:
        """That all rows of the run were quarantined, in words; empty where they were not."""
        if not self._read or self._reasons.total() < self._read:
            return ""
        reason, rows = self._reasons.most_common(1)[0]
        each = f"all {self._read:,} rows of this run were quarantined"
        if rows < self._read:
            return f"{each}, {rows:,} of them {self._with_advice(reason)}"
        return f"{each}, {self._with_advice(reason)}"

    def _with_advice(self, reason: str) -> str:
        found = self._advice.get(reason)
        return f"{reason}: {found}" if found else reason


# The job's metrics for Prometheus, served at `/metrics` of the setting `metrics`.
#
# Counts are since the checkpoint began, so they go on after a restart. Names end with their unit,
# and counters with `_total`; `sequitur_reorder_rows_read_total` is the sum of released, late,
# quarantined, duplicate, skipped and `rows_held`, in every scrape. Cursors of a subscription may be
# newer than the step: what expires is acked between steps.


PREFIX: Final = "sequitur_reorder"
_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class JobMetrics:
    """Metrics of the newest step that is done; a scrape sees one step, and never half of one."""

    def __init__(
        self,
        registry: CollectorRegistry,
        outages: Outages | None = None,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._outages = outages
        self._now_s = now_s
        self._newest: tuple[StepEntry, StepDone] | None = None
        self.empty_partitions = 0
        self._cursors: Callable[[], Mapping[SourcePartition, PartitionCursor]] | None = None
        self._durations = Histogram(
            f"{PREFIX}_step_duration_seconds",
            "How long steps of this run took",
            ["kind"],
            buckets=_SECONDS,
            registry=registry,
        )
        registry.register(self)

    def __call__(self, entry: StepEntry, done: StepDone) -> None:
        """Take in that a step is done."""
        self._durations.labels(entry.kind.value).observe(done.seconds)
        self._newest = (entry, done)

    def show_cursors(
        self, cursors: Callable[[], Mapping[SourcePartition, PartitionCursor]]
    ) -> None:
        """Have those of the job's subscription shown, too."""
        self._cursors = cursors

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that a registry takes this collector before the first step."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics now; before the first step only those of outages."""
        if self._outages is not None:
            text = "How long the job has been waiting for brokers. 0 when it does not wait"
            yield _gauge("waiting_seconds", text, self._outages.waiting_s)
            text = "How often this run has restarted its query"
            restarts = self._outages.restarted
            yield CounterMetricFamily(f"{PREFIX}_query_restarts", text, value=restarts)
        if self._newest is None:
            return
        entry, done = self._newest
        yield from _rows(done)
        yield from _metrics_of_topology(done)
        yield _gauge("live_runs", "Runs on disk that hold rows", len(entry.live_runs))
        keys = entry.keys
        yield _gauge(
            "runs_to_fold", "Runs that wait to be folded into keys/", len(entry.folding_runs)
        )
        yield _gauge("keys", "Rows of the checkpoint's keys/", 0 if keys is None else keys.keys)
        yield _gauge(
            "keys_bytes", "Bytes of the checkpoint's keys/", 0 if keys is None else keys.size_bytes
        )
        yield _gauge("steps", "Steps since the checkpoint began", done.step + 1)
        text = "Partitions of the output topic that get no rows: the checkpoint began without them"
        yield _gauge("output_partitions_empty", text, self.empty_partitions)
        if entry.frontier_ms >= 0:
            frontier_s = entry.frontier_ms / 1000
            yield _gauge(
                "frontier_timestamp_seconds",
                "The frontier: the event time up to which rows are released",
                frontier_s,
            )
            text = "How much older than the wall clock the frontier is"
            yield _gauge("frontier_lag_seconds", text, self._now_s() - frontier_s)
        yield from _partitions(entry.clock)
        if self._cursors is not None:
            yield from _subscription(self._cursors(), entry.clock)
        learned = entry.learned
        if learned is not None and learned.late_target:
            text = "With delay auto: the share of late rows that the job aims to stay below"
            yield _gauge("late_target_ratio", text, learned.late_target)
            text = (
                "With delay auto: the share of rows older than the frontier, recent rows "
                "weighing most"
            )
            yield _gauge("recent_late_ratio", text, learned.recent_late_share)


@contextlib.contextmanager
def serve_metrics(address: str | None, outages: Outages | None = None) -> Iterator[JobMetrics]:
    """Serve metrics while the block runs; gives what is to be told of each step."""
    registry = CollectorRegistry()
    metrics = JobMetrics(registry, outages)
    if address is None:
        yield metrics
        return
    host, port = parse_address(address)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ReorderError(f"metrics: cannot listen on {address}: {error}") from error
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _rows(done: StepDone) -> Iterator[Metric]:
    totals = done.totals
    for name, text, value in (
        ("rows_read", "Rows that came from the source topics", totals.read),
        ("rows_released", "Rows in the output topic", totals.released),
        ("rows_late", "Late rows: older than the frontier, and not released", totals.late),
        ("rows_duplicate", "Rows dropped as duplicates", totals.duplicates),
        (
            "rows_skipped",
            "Rows that the job left out because the subscription had acked them",
            totals.skipped,
        ),
        (
            "rows_missing",
            (
                "Most rows that Kafka can have deleted before the job read them. Rows read do not "
                "include them"
            ),
            totals.missing,
        ),
    ):
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)
    quarantined = CounterMetricFamily(
        f"{PREFIX}_rows_quarantined", "Rows without a usable event time", labels=["reason"]
    )
    for reason in QUARANTINE_REASONS:
        quarantined.add_metric([reason], totals.quarantined.get(reason, 0))
    yield quarantined
    yield _gauge("rows_held", "Rows that were read and are in no output yet", totals.held)


def _metrics_of_topology(done: StepDone) -> Iterator[Metric]:
    """Return those of a topology: taken + replayed = acked + dead-lettered + pending.

    Likewise of the tuples that its bolts make by themselves.
    """
    counts = done.processed
    if counts is None:
        return
    for name, text, value in (
        ("events_taken", "Events given to the topology", counts["taken"]),
        ("events_replayed", "Dead letters given to the topology again", counts["replayed"]),
        ("events_acked", "Events whose trees are done", counts["acked"]),
        ("events_dead_lettered", "Events that were dead-lettered", counts["dead"]),
        (
            "tuples_made",
            "Tuples that bolts made by themselves, on a tick or in finish_batch",
            counts["made"],
        ),
        (
            "tuples_replayed",
            "Dead-lettered tuples of bolts, given to the topology again",
            counts["made_replayed"],
        ),
        (
            "tuples_acked",
            "Tuples of bolts whose trees are done",
            counts["made_acked"],
        ),
        (
            "tuples_dead_lettered",
            "Tuples of bolts that were dead-lettered",
            counts["made_dead"],
        ),
        ("attempts_failed", "Attempts that failed", counts["failed"]),
        ("acks_late", "Acks that came too late", counts["late_acks"]),
        ("outputs", "Output records, including those of failed trees", counts["outputs"]),
        ("task_crashes", "How often a task's process died", counts["crashes"]),
    ):
        yield CounterMetricFamily(f"sequitur_process_{name}", text, value=value)
    text = "{} that wait for a retry or for an earlier event of their key"
    for name, told, waiting in (
        ("events_pending", "Events", counts["pending"]),
        ("tuples_pending", "Tuples of bolts", counts["made_pending"]),
    ):
        yield GaugeMetricFamily(f"sequitur_process_{name}", text.format(told), value=waiting)


def _partitions(clock: EventClock) -> Iterator[Metric]:
    told: tuple[tuple[str, str, Callable[[PartitionClock], float | None]], ...] = (
        ("source_lag_rows", "Rows not read yet", lambda one: one.to_read),
        ("delay_seconds", "The delay of the partition", lambda one: one.delay_ms / 1000),
        ("partition_idle", "Whether the frontier ignores the partition", lambda one: one.was_idle),
        (
            "partition_overruled",
            "Whether the frontier ignores the partition because of max_held_bytes",
            lambda one: one.was_overruled,
        ),
        (
            "partition_event_timestamp_seconds",
            "The partition's clock: the greatest event time that the job has read",
            lambda one: None if one.max_event_time_ms is None else one.max_event_time_ms / 1000,
        ),
    )
    for name, text, value_of in told:
        gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["topic", "partition"])
        for source, found in sorted(clock.partitions.items()):
            if (value := value_of(found)) is not None:
                gauge.add_metric([source.topic, str(source.partition)], value)
        yield gauge


def _subscription(
    cursors: Mapping[SourcePartition, PartitionCursor], clock: EventClock
) -> Iterator[Metric]:
    """Return what a subscription has not acked, as `sequitur subscription stats` counts it."""
    labels = ["topic", "partition"]
    prefix = "sequitur_subscription"
    backlog = GaugeMetricFamily(
        f"{prefix}_backlog_rows", "Rows that are not acked, read or not", labels=labels
    )
    ranges = GaugeMetricFamily(
        f"{prefix}_acked_ranges",
        "Acked ranges after the first row that is not acked",
        labels=labels,
    )
    committed = GaugeMetricFamily(
        f"{prefix}_committed_offset", "The first offset that is not acked", labels=labels
    )
    lost = GaugeMetricFamily(
        f"{prefix}_lost_rows",
        "Most rows that Kafka can have deleted before the job read them",
        labels=labels,
    )
    for where, (cursor, *_) in sorted(cursors.items()):
        place = [where.topic, str(where.partition)]
        part = clock.partitions.get(where)
        to_read = 0 if part is None else part.to_read or 0
        # What expires is acked before it is read, so acks may lie behind where reading will end.
        end = cursor.read_position + to_read
        unacked = cursor.unacked_ranges(cursor.committed_offset, end)
        backlog.add_metric(place, sum(stop - first for first, stop in unacked))
        ranges.add_metric(place, cursor.acked_range_count)
        committed.add_metric(place, cursor.committed_offset)
        lost.add_metric(place, cursor.counts.lost)
    yield from (backlog, ranges, committed, lost)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)
