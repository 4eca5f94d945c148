"""The command `verify`: what a `TopicCheck` finds, printed."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sequitur.base.flags import with_flags
from sequitur.base.program import FOUND_WRONG_EXIT_CODE
from sequitur.cli.console import AsJson, KafkaJob
from sequitur.cli.topic_reader import TopicRecord, is_truncated, read_topic
from sequitur.cli.verify import Order, TopicCheck, TopicReport
from sequitur.consumer.reorder import parse_event_time_spec


@with_flags(KafkaJob)
def verify(
    settings: KafkaJob,
    topic: Annotated[str, typer.Argument(help="The topic to check")],
    event_time: Annotated[
        str | None, typer.Option(help="json:PATH, header:NAME or kafka-timestamp (the default)")
    ] = None,
    order: Annotated[
        Order | None,
        typer.Option(help="event, send or both. Default: event with --event-time, else send"),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Another topic that has events of the same producers. May be repeated"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a topic for order, gaps and duplicates. Status 1: the topic has a fault.

    A producer's topic is in the order of sending. The reorder job's topic is in the order of event
    times.

    A producer numbers its events over all topics that it sends to. A job may have moved late events
    to another topic. Name such topics with --also: the command searches them for gaps and
    duplicates, but does not check their order.
    """
    spec = parse_event_time_spec(event_time or "kafka-timestamp")
    expected = order or (Order.SEND if event_time is None else Order.EVENT)

    def time_of(record: TopicRecord) -> int | None:
        return spec.of(record.value, record.headers, record.timestamp_ms)

    further = tuple(also or ())
    truncated = any(is_truncated(settings.kafka, one) for one in (topic, *further))
    check = TopicCheck(topic, time_of, truncated=truncated, also=further, order=expected)
    check.observe_all(read_topic(settings.kafka, topic))
    for one in further:
        for record in read_topic(settings.kafka, one):
            check.observe_elsewhere(record)
    result = check.report()
    if as_json:
        typer.echo(json.dumps(result.as_json(), indent=2))
    else:
        _print_topic(result, Console())
    if not result.holds:
        raise typer.Exit(FOUND_WRONG_EXIT_CODE)


def _print_topic(report: TopicReport, console: Console) -> None:
    table = Table(title=f"Topic {report.topic}", title_justify="left", show_header=False)
    for name, value in report.as_json().items():
        if isinstance(value, int) and name != "holds":
            table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)
    if report.producers:
        producers = Table(title="Producers", title_justify="left")
        for column in ("producer", "events", "first", "last", "missing", "duplicates"):
            producers.add_column(column, justify="left" if column == "producer" else "right")
        for found in report.producers:
            producers.add_row(
                found.producer,
                f"{found.events:,}",
                f"{found.first_sequence:,}",
                f"{found.last_sequence:,}",
                f"{found.missing:,}",
                f"{found.duplicates:,}",
            )
        console.print(producers)
        for found in report.producers:
            if found.shared:
                told = (
                    f"{found.producer}: {found.shared:,} sequences were given by two holders of "
                    "its journal, or by one that was restored from a copy"
                )
                console.print(told, markup=False, soft_wrap=True)
    for problem in report.problems:
        console.print(problem, markup=False, soft_wrap=True)
    console.print("[bold green]holds" if report.holds else "[bold red]does not hold")
