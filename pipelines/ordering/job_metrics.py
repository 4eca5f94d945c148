"""The job's metrics for Prometheus, served at `/metrics` of the setting `metrics`.

Counts are since the checkpoint began, so they go on after a restart. Names end with their unit, and
counters with `_total`. In every scrape `sequitur_reorder_rows_read_total` is the sum of released,
late, quarantined, duplicate, skipped and `rows_held`. Cursors of a subscription may be newer than
the step: what expires is acked between steps.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sequitur.base.units import parse_address
from sequitur.consumer.reorder.reasons import QUARANTINE_REASONS
from sequitur.errors import ReorderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder.clock import EventClock, PartitionClock
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry
    from sequitur.consumer.subscription.partitions import PartitionCursor
    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.topology.kept_keys import BoltKeys


PREFIX: Final = "sequitur_reorder"
_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@contextlib.contextmanager
def serve_metrics(address: str | None, outages: Outages | None = None) -> Iterator[JobMetrics]:
    """Serve metrics while the block runs; call the result with each step."""
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


class JobMetrics:
    """Metrics of the newest step that is done; a scrape never sees half a step."""

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
        self._late: Callable[[], Mapping[str, int]] = dict
        self._keys: Callable[[], Mapping[str, BoltKeys]] = dict
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
        self._durations.labels(entry.kind.value).observe(done.seconds)
        self._newest = (entry, done)

    def show_cursors(
        self, cursors: Callable[[], Mapping[SourcePartition, PartitionCursor]]
    ) -> None:
        self._cursors = cursors

    def show_late(self, late: Callable[[], Mapping[str, int]]) -> None:
        """Show how many events were late for a window, by bolt."""
        self._late = late

    def show_keys(self, keys: Callable[[], Mapping[str, BoltKeys]]) -> None:
        """Show what keyed bolts keep."""
        self._keys = keys

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that a registry accepts this collector before the first step."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; before the first step only those of outages."""
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
        yield from _late_for_window(self._late())
        yield from _keys_of_bolts(self._keys())
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

    The same holds for the tuples that its bolts make on their own.
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
    for name, what, waiting in (
        ("events_pending", "Events", counts["pending"]),
        ("tuples_pending", "Tuples of bolts", counts["made_pending"]),
    ):
        yield GaugeMetricFamily(f"sequitur_process_{name}", text.format(what), value=waiting)


def _late_for_window(late: Mapping[str, int]) -> Iterator[Metric]:
    if late:
        text = "Events that were late for a window or a join, and are done"
        found = CounterMetricFamily("sequitur_process_late_for_window", text, labels=["bolt"])
        for bolt, count in sorted(late.items()):
            found.add_metric([bolt], count)
        yield found


def _keys_of_bolts(bolts: Mapping[str, BoltKeys]) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[BoltKeys], int]], ...] = (
        ("keys", "Keys that a keyed bolt keeps something of", lambda one: one.keys),
        ("keys_bytes", "Bytes of the files with these keys", lambda one: one.size_bytes),
        ("key_timers", "Timers that are set", lambda one: one.timers),
        (
            "keys_blocked",
            "Keys of events that wait: their later events and timers wait, too",
            lambda one: one.blocked,
        ),
    )
    for name, text, value_of in gauges if bolts else ():
        gauge = GaugeMetricFamily(f"sequitur_process_{name}", text, labels=["bolt"])
        for bolt, found in sorted(bolts.items()):
            gauge.add_metric([bolt], value_of(found))
        yield gauge
    if bolts:
        text = (
            "How often a step ran a key's later events again, without a failed one before them. "
            "Only keys of another field have this"
        )
        ties = CounterMetricFamily("sequitur_process_keys_tied", text, labels=["bolt"])
        for bolt, found in sorted(bolts.items()):
            ties.add_metric([bolt], found.tied)
        yield ties


def _partitions(clock: EventClock) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[PartitionClock], float | None]], ...] = (
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
    for name, text, value_of in gauges:
        gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["topic", "partition"])
        for source, found in sorted(clock.partitions.items()):
            if (value := value_of(found)) is not None:
                gauge.add_metric([source.topic, str(source.partition)], value)
        yield gauge


def _subscription(
    cursors: Mapping[SourcePartition, PartitionCursor], clock: EventClock
) -> Iterator[Metric]:
    """Return what a subscription has not acked, counted as `sequitur subscription stats` does."""
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
        # Expired rows are acked before they are read, so acks may be ahead of the reading.
        end = cursor.read_position + to_read
        unacked = cursor.unacked_ranges(cursor.committed_offset, end)
        backlog.add_metric(place, sum(stop - first for first, stop in unacked))
        ranges.add_metric(place, cursor.acked_range_count)
        committed.add_metric(place, cursor.committed_offset)
        lost.add_metric(place, cursor.counts.lost)
    yield from (backlog, ranges, committed, lost)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)
