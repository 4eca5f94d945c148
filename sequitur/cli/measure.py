"""`sequitur measure`: how disordered a topic is, and the delay that a reorder job needs for it."""

from __future__ import annotations

import contextlib
import heapq
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sequitur.base.flags import with_flags
from sequitur.base.process import wall_clock_ms
from sequitur.base.program import INTERRUPTED_EXIT_CODE, NOTHING_USABLE_EXIT_CODE, complain
from sequitur.base.units import Duration, format_duration, milliseconds
from sequitur.cli.console import AsJson, KafkaJob, echo_json
from sequitur.cli.disorder import Disorder
from sequitur.cli.topic_reader import open_topic
from sequitur.consumer.reorder import ReorderSettings, parse_event_time_spec
from sequitur.consumer.subscription.inspection import moment
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sequitur.cli.disorder import DelayOutcome, DisorderReport, Lateness
    from sequitur.kafka.stored_batches import LogRecord
    from sequitur.producer import KafkaSettings

    Spans = Mapping[SourcePartition, tuple[int, int]]

NOTHING_TO_MEASURE_EXIT_CODE: Final = 1
_WAITING_BYTES: Final = 32 << 20
"""The total bytes of packed records that wait for older records of other partitions."""
_PARTITION_BYTES: Final = 1 << 20
_FEWEST_BYTES: Final = 64 << 10
_SHOWN_EACH: Final = 5_000
_MOST_PARTITIONS: Final = 20
_duration: Final = TypeAdapter(Duration)


def spans_of(kafka: KafkaSettings, topic: str, since_ms: int | None = None) -> Spans:
    """Return which offsets a topic has now of each partition, of committed records.

    Args:
        kafka: How to reach the brokers.
        topic: The topic.
        since_ms: Begin with the first record whose timestamp is not before this.
    """
    with open_topic(kafka, topic) as opened:
        firsts = {one: first for one, (first, _) in opened.spans.items()}
        firsts |= {} if since_ms is None else opened.offsets_at(since_ms)
        ends = {one: end for one, (_, end) in opened.spans.items()}
    places = {SourcePartition(topic, one): first for one, first in firsts.items()}
    held = {where: first for where, first in places.items() if first < ends[where.partition]}
    stable = Reader(kafka=kafka).stable_ends(held)
    return {
        where: (first, min(ends[where.partition], stable.get(where, first)))
        for where, first in places.items()
    }


def merged(kafka: KafkaSettings, spans: Spans) -> Iterator[tuple[SourcePartition, LogRecord]]:
    """Yield the records of partitions in the order of their timestamps.

    Those of one partition stay in its order, whatever their timestamps are. Records of one
    timestamp, as a file has that was sent at once, come from all partitions by their shares.
    """
    each = max(_FEWEST_BYTES, min(_PARTITION_BYTES, _WAITING_BYTES // max(1, len(spans))))
    reader = Reader(kafka=kafka, passes_deleted=True, partition_bytes=each)

    def of_one(where: SourcePartition) -> Iterator[tuple[SourcePartition, LogRecord]]:
        for _, columns in reader.columns({where: spans[where]}):
            for record in columns.rows():
                yield where, record

    def place_of(one: tuple[SourcePartition, LogRecord]) -> tuple[int, float]:
        (first, end), record = spans[one[0]], one[1]
        return record.timestamp, (record.offset - first) / (end - first)

    return heapq.merge(*map(of_one, sorted(spans)), key=place_of)


def read_into(
    disorder: Disorder, records: Iterable[tuple[SourcePartition, LogRecord]], spans: Spans
) -> bool:
    """Read records, with a progress bar on a terminal; return whether Ctrl-C ended the read."""
    console = Console(stderr=True)
    bar = Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar, contextlib.suppress(KeyboardInterrupt):
        task = bar.add_task("offsets", total=sum(end - first for first, end in spans.values()))
        read = dict.fromkeys(spans, 0)
        for number, (where, record) in enumerate(records):
            disorder.observe(
                where,
                timestamp_ms=record.timestamp,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
            read[where] = record.offset + 1 - spans[where][0]
            if number % _SHOWN_EACH == 0:
                bar.update(task, completed=sum(read.values()))
        return False
    return True


@with_flags(KafkaJob)
def measure(
    settings: KafkaJob,
    topic: Annotated[str, typer.Argument(help="The topic to measure")],
    event_time: Annotated[str, typer.Option(help="json:PATH, header:NAME or kafka-timestamp")],
    last: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Only records whose timestamps are at most this old, such as 1h",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how disordered a topic is, and propose the delay of a reorder job.

    The command applies the rules of the job to the records, in the order of their timestamps. For
    each partition it shows how late records are, and how many of them a delay of 1, 5, 10 and 60
    seconds puts in order. It proposes the shortest delay within which 999 of 1,000 records arrive.

    The command only reads, up to the end that the topic has at the start. After Ctrl-C it shows the
    result so far.
    """
    job = ReorderSettings(
        input_topics=("measured",),
        output_topic="ordered",
        checkpoint="none",
        event_time=parse_event_time_spec(event_time),
        delay="auto",
    )
    before = _length_of(last)
    since_ms = None if before is None else max(0, wall_clock_ms() - milliseconds(before))
    spans = spans_of(settings.kafka, topic, since_ms)
    held = {where: span for where, span in spans.items() if span[0] < span[1]}
    # A partition without records is idle, and delays nothing.
    disorder = Disorder(job, held or spans)
    is_cut = read_into(disorder, merged(settings.kafka, held), held)
    report = disorder.report()
    if as_json:
        echo_json({"topic": topic, **report.as_json(), "is_interrupted": is_cut})
    elif report.usable:
        _show(topic, report, Console(highlight=False))
    if is_cut:
        complain(f"interrupted: {report.records:,} records were read, and not the whole topic")
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if not report.records:
        complain(_nothing_in(topic, before))
        raise typer.Exit(NOTHING_TO_MEASURE_EXIT_CODE)
    if not report.usable:
        complain(
            f"topic {topic!r}: no record has a usable event time, of {report.records:,} that were "
            f"read, {report.advice}"
        )
        raise typer.Exit(NOTHING_USABLE_EXIT_CODE)


def _length_of(last: str | None) -> timedelta | None:
    try:
        found = None if last is None else _duration.validate_python(last)
    except ValidationError:
        found = timedelta(0)
    if found is not None and not found:
        raise typer.BadParameter(f"--last {last!r}: expected a duration such as 1h, 30min or 2d")
    return found


def _nothing_in(topic: str, before: timedelta | None) -> str:
    if before is None:
        return f"topic {topic!r} is empty: there is nothing to measure"
    return (
        f"topic {topic!r} has no record of the last {format_duration(before)}: give a longer "
        "--last, or none"
    )


def _show(topic: str, report: DisorderReport, console: Console) -> None:
    ends = (report.first_ms, report.last_ms)
    span = " to ".join(moment(one) or "-" for one in ends if one is not None)
    console.print(f"Topic {topic}: {report.records:,} records, {span}\n", soft_wrap=True)
    console.print("How late the records came (0: in order)", soft_wrap=True)
    console.print(_by_partition(report))
    more = len(report.partitions) - _MOST_PARTITIONS
    if more > 0:
        console.print(f"{more:,} partitions whose records are less late: --json shows them")
    for reason, rows in report.quarantined.items():
        console.print(f"Without a usable event time: {rows:,}, {reason}", markup=False)
    if report.advice:
        console.print(report.advice, markup=False, soft_wrap=True)
    console.print(
        "\nWhat a delay puts in order (rescued: too late for the delay, but not for its key)",
        soft_wrap=True,
    )
    console.print(_by_delay(report))
    if report.keys_followed > 1:
        console.print(
            f"Late records are estimated: 1 key in {report.keys_followed} was followed.",
            soft_wrap=True,
        )
    if report.proposed is not None:
        console.print(_proposal(report.proposed, report), soft_wrap=True, markup=False)


def _by_partition(report: DisorderReport) -> Table:
    table = Table()
    for column in ("partition", "records", "p50", "p99", "p99.9", "most", "no event time"):
        table.add_column(column, justify="right")
    found = sorted(report.partitions.items(), key=lambda one: -one[1].p99_9_ms)
    for number, one in sorted(found[:_MOST_PARTITIONS]):
        table.add_row(str(number), *_row(one))
    if len(report.partitions) > 1:
        table.add_row("all", *_row(report.together), style="bold")
    return table


def _row(one: Lateness) -> list[str]:
    times = (one.p50_ms, one.p99_ms, one.p99_9_ms, one.most_ms)
    return [f"{one.records:,}", *map(_length, times), f"{one.unusable:,}"]


def _by_delay(report: DisorderReport) -> Table:
    table = Table()
    for column in ("delay", "in order", "late", "rescued"):
        table.add_column(column, justify="right")
    for one in report.delays:
        table.add_row(_length(one.delay_ms), _share(one), f"{one.late:,}", f"{one.rescued:,}")
    return table


def _proposal(one: DelayOutcome, report: DisorderReport) -> str:
    text = (
        f'delay = "{_length(one.delay_ms)}" puts {_share(one)} of the records in order: '
        f"{one.in_order:,} of {report.usable:,}"
    )
    if one.late > report.late_target * report.usable:
        text += "; most of the others are late with any delay up to a minute"
    return text


def _share(one: DelayOutcome) -> str:
    """Return a share, which is 100 % only if all are in order."""
    return f"{int(one.share * 10_000) / 100:.2f} %"


def _length(ms: int) -> str:
    return format_duration(timedelta(milliseconds=ms))
