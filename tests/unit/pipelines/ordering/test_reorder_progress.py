"""What a running job tells, on a terminal, in JSON and to Prometheus: where every row is."""

from __future__ import annotations

import io
import json
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from sequitur.base.ports import choose_free
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.errors import ReorderError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_metrics import JobMetrics, serve_metrics
from sequitur.pipelines.ordering.job_report import JobReport, promised_and_achieved
from sequitur.pipelines.ordering.progress import (
    LiveLine,
    ProgressStyle,
    TextLines,
    instant,
    live_text,
    print_step,
    report_table,
)
from tests.support.done_step import T0, A, done_step
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S


def _sums_up(found: dict[str, Any]) -> bool:
    parts = ("released", "late", "quarantined", "duplicates", "skipped", "held")
    return bool(found["read"] == sum(found[name] for name in parts))


def test_a_step_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads the output gets a document a line, with all that the step did."""
    print_step(*done_step())
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "step": 7,
        "kind": "batch",
        "batch_id": 6,
        "read": 200,
        "released": 150,
        "late": 3,
        "rescued": 0,
        "quarantined": 4,
        "duplicates": 5,
        "skipped": 0,
        "held": 78,
        "missing": 0,
        "frontier_ms": T0 - 2000,
        "runs": 1,
        "runs_to_fold": 0,
        "keys": 0,
        "keys_bytes": 0,
        "lag": 12,
        "seconds": 0.75,
        "waits_for": [
            {
                "topic": "readings",
                "partition": 1,
                "event_time_ms": T0,
                "to_read": 12,
                "idle_in_s": None,
            }
        ],
    }


def test_a_learned_delay_is_told_with_what_it_promised(capsys: pytest.CaptureFixture[str]) -> None:
    """Promised against achieved: the target, and the share of rows that were late."""
    print_step(*done_step(learned=True))
    line = json.loads(capsys.readouterr().out)
    shown = {name: line[name] for name in ("delay_ms", "late_target", "late_share")}
    assert shown == {"delay_ms": 2000, "late_target": 0.05, "late_share": 0.01}
    entry, done = done_step(learned=True)
    text = live_text(entry, done, rate=10, now_ms=T0, width=350).plain
    assert "delay 2.0 s, late 1.00% of 5.00%" in text


def test_live_line_shows_where_every_row_is() -> None:
    """On a terminal one line tells the counts, the speed and how far the frontier is behind."""
    entry, done = done_step()
    assert live_text(entry, done, rate=1234.5, now_ms=T0 + 1000, width=300).plain == (
        "step 7 · read 1,200 (1,234/s, 12 to go) · released 1,100 · late 13 · quarantined 4 · "
        "duplicates 5 · held 78 · frontier 2023-11-14 22:13:18Z (3.0 s ago) · "
        "waits: partition 1 of 'readings' stands at 2023-11-14 22:13:20Z, 12 to read"
    )


@pytest.mark.promise("cli-terminal-narrow-wide")
@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, "read 1,200 · frontier 3.0 s ago"),
        (80, "read 1,200 · released 1,100 · late 13 · held 78 · frontier 3.0 s ago"),
        (
            90,
            "read 1,200 · released 1,100 · late 13 · quarantined 4 · held 78 · frontier 3.0 s ago",
        ),
    ],
)
def test_live_line_fits_any_width(width: int, shown: str) -> None:
    """What is left out first is what says least of how the job is; the line never wraps."""
    entry, done = done_step()
    text = live_text(entry, done, rate=1234.5, now_ms=T0 + 1000, width=width)
    assert text.plain == shown
    assert text.cell_len <= width


@pytest.mark.promise("cli-terminal-narrow-wide")
@pytest.mark.parametrize("width", [1, 10, 20, 40, 79, 80, 81, 132, 200])
def test_live_line_is_one_row_of_the_terminal(width: int) -> None:
    """Two rows would stay behind at each step."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width)
    with LiveLine(console, lambda: T0) as line:
        line(*done_step(learned=True))
        line(*done_step(learned=True))
    assert output.getvalue().count("\n") == 1


@pytest.mark.promise("cli-make-demo-fresh")
def test_text_is_a_whole_line_a_step() -> None:
    """Where no line can renew itself: nothing is cut, and no control sequence is in it."""
    now_ms = T0
    console = Console(file=io.StringIO(), width=40)
    with TextLines(console, lambda: now_ms) as line:
        now_ms += 1000
        line(*done_step())
        line(*done_step())
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue().splitlines()
    assert len(said) == 2
    for one in said:
        assert one.startswith("step 7 · read 1,200 (200/s, 12 to go) · released 1,100 · late 13 · ")
        assert "\x1b" not in one
        assert "frontier" in one


def test_live_line_says_what_it_waits_for_while_nothing_comes_out() -> None:
    entry, done = done_step()
    clock = replace(entry.clock, frontier_ms=-1)
    entry = replace(
        entry,
        clock=clock.observe(A, max_event_time_ms=None, position=0, high_watermark=0, now_ms=0),
    )
    text = live_text(entry, done, rate=1, now_ms=T0, width=80).plain
    assert text.endswith("held 78 · frontier - · waits: partition 1")
    text = live_text(entry, done, rate=1, now_ms=T0, width=300).plain
    assert "waits: partition 1 of 'readings' stands at 2023-11-14 22:13:20Z, 12 to read" in text


def test_live_line_renews_itself() -> None:
    """The line stays one line however many steps there are, and the speed is that of this run."""
    output = io.StringIO()
    now_ms = 0
    console = Console(file=output, force_terminal=True, width=300)
    with LiveLine(console, lambda: now_ms) as line:
        for passed_ms in (2000, 4000):
            now_ms = passed_ms
            line(*done_step())
    shown = output.getvalue()
    assert shown.count("\n") == 1
    assert "(100/s" in shown
    assert "(50/s" in shown


@pytest.mark.parametrize(
    ("style", "is_terminal", "shown"),
    [
        (ProgressStyle.AUTO, True, ProgressStyle.LIVE),
        (ProgressStyle.AUTO, False, ProgressStyle.JSON),
        (ProgressStyle.JSON, True, ProgressStyle.JSON),
        (ProgressStyle.LIVE, False, ProgressStyle.LIVE),
    ],
)
def test_progress_is_live_on_a_terminal(
    style: ProgressStyle, is_terminal: bool, shown: ProgressStyle
) -> None:
    """A pipe gets JSON and a terminal the live line, unless one of them is asked for."""
    assert style.on(is_terminal=is_terminal) is shown


def test_final_report_accounts_for_every_row() -> None:
    """Read = released + late + quarantined + duplicates + held, in JSON and in the table."""
    entry, done = done_step(learned=True)
    report = JobReport(
        done.totals,
        entry.frontier_ms,
        steps=8,
        seconds=2.0,
        records_per_s=600.0,
        learned=promised_and_achieved(entry.learned),
    )
    document = report.as_json()
    assert _sums_up(document)
    output = io.StringIO()
    Console(file=output, width=100).print(report_table(document))
    rows = [line.strip("│ ").split("│") for line in output.getvalue().splitlines() if "│" in line]
    shown = {name.strip(): value.strip() for name, value in rows}
    names = ("read", "late", "held", "event-time-missing", "late, promised", "late, achieved")
    assert {name: shown[name] for name in names} == {
        "late, promised": "5.000%",
        "late, achieved": "1.000%",
        "read": "1,200",
        "late": "13",
        "held": "78",
        "event-time-missing": "4",
    }


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (None, "-"),
        (-1, "-"),
        (0, "1970-01-01 00:00:00Z"),
        (T0, "2023-11-14 22:13:20Z"),
        (1 << 60, "1,152,921,504,606,846,976 ms"),
    ],
)
def test_instants_are_shown_whatever_they_are(time_ms: int | None, text: str) -> None:
    """An event time may be anything that fits; showing it never fails."""
    assert instant(time_ms) == text


def _scraped(text: str) -> dict[tuple[str, ...], float]:
    return {
        (
            sample.name.removeprefix("sequitur_reorder_"),
            *sorted(sample.labels.values()),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.promise("order-row-unaccounted")
def test_metrics_are_served_and_account_for_every_row() -> None:
    """One scrape sees one step: counts that fit together, clocks, delays, and how long it took."""
    address = f"127.0.0.1:{choose_free()}"
    with serve_metrics(address) as tell:
        tell(*done_step(learned=True))
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            found = _scraped(answer.read().decode())
    out = ("rows_released_total", "rows_late_total", "rows_duplicate_total", "rows_held")
    quarantined = sum(value for name, value in found.items() if "quarantined_total" in name[0])
    assert sum(found[(name,)] for name in out) + quarantined == found["rows_read_total",] == 1200
    assert found["rows_quarantined_total", "event-time-missing"] == 4
    assert found["frontier_timestamp_seconds",] == T0 / 1000 - 2
    assert found["source_lag_rows", "1", "readings"] == 12
    assert found["delay_seconds", "1", "readings"] == 2.0
    assert found["partition_idle", "0", "readings"] == 0
    assert found["step_duration_seconds_sum", "batch"] == 0.75
    assert found["late_target_ratio",] == 0.05
    assert found["live_runs",] == 1
    assert found["steps",] == 8


def test_metrics_of_a_subscription_are_what_it_has_not_acked() -> None:
    """Of 12 rows that are not read two have expired; of those read, five are not acked."""
    where = SourcePartition("readings", 1)
    cursor = Cursor(CursorIdentity("sub1", *where))
    cursor.seek(30, end=42)
    for first, stop in ((0, 20), (25, 30), (40, 42)):
        cursor.ack_range(first, stop, end=42)
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    metrics.show_cursors(lambda: {where: PartitionCursor(cursor)})
    assert not any("subscription" in metric.name for metric in registry.collect())
    metrics(*done_step())
    place = {"topic": "readings", "partition": "1"}
    found = {
        name: registry.get_sample_value(f"sequitur_subscription_{name}", place)
        for name in ("backlog_rows", "acked_ranges", "committed_offset", "lost_rows")
    }
    assert found == {"backlog_rows": 15, "acked_ranges": 2, "committed_offset": 20, "lost_rows": 0}


@pytest.mark.promise("order-output-topic-gains")
def test_metrics_say_how_many_output_partitions_stay_empty() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    for empty in (0, 2):
        metrics.empty_partitions = empty
        metrics(*done_step())
        assert registry.get_sample_value("sequitur_reorder_output_partitions_empty") == empty


def test_metrics_before_the_first_step_are_none() -> None:
    """A scrape during the start is answered, with nothing that could be taken for a count."""
    registry = CollectorRegistry()
    JobMetrics(registry)
    names = [metric.name for metric in registry.collect()]
    assert names == ["sequitur_reorder_step_duration_seconds"]


def test_address_in_use_is_an_error() -> None:
    """A job that cannot serve its metrics says so at the start."""
    address = f"127.0.0.1:{choose_free()}"
    with serve_metrics(address), pytest.raises(ReorderError, match="cannot listen on"):  # noqa: SIM117
        with serve_metrics(address):
            pass
