"""The command-line program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from sequitur.base.flags import with_flags
from sequitur.base.program import complain, run_program
from sequitur.cli.broker import broker_app
from sequitur.cli.console import EXAMPLES, KafkaJob, RenamedCommands
from sequitur.cli.dlq import dlq_app
from sequitur.cli.jobs import reorder_app, run_topology
from sequitur.cli.journal import journal_app
from sequitur.cli.measure import measure
from sequitur.cli.subscription import subscription_app
from sequitur.cli.tail import show_tail
from sequitur.cli.topic import retention_app, topic_app
from sequitur.cli.topic_reader import TopicRecord, is_truncated, read_topic
from sequitur.cli.verify import Order, TopicCheck, TopicReport
from sequitur.consumer import ConsumerError, parse_event_time_spec
from sequitur.errors import PipelineError, SequiturError
from sequitur.pipelines.jars import fetch_jars
from sequitur.producer import ProducerError
from sequitur.producer.daemon.cli import produce

FOUND_WRONG_EXIT_CODE: Final = 1
"""The program did its work, and the check failed."""

app = typer.Typer(
    name="sequitur",
    cls=RenamedCommands,
    help="Write events to Kafka once and in order, and read them in event-time order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(broker_app, name="broker")
app.add_typer(dlq_app, name="dlq")
app.add_typer(journal_app, name="journal")
app.add_typer(reorder_app, name="reorder")
app.add_typer(subscription_app, name="subscription")
app.add_typer(retention_app, name="retention")
app.add_typer(topic_app, name="topic")
app.command()(produce)
app.command("process")(run_topology)
app.command("tail")(show_tail)
app.command()(measure)


@app.command()
def setup(
    archive: Annotated[
        bool,
        typer.Option(
            "--archive/--no-archive",
            help="Write an archive of Spark's classes: local jobs then start with a third less CPU",
        ),
    ] = True,
) -> None:
    """Fetch the jars that jobs and broker need, and write an archive of Spark's classes.

    Run it once after an installation, as the user who runs the jobs. The jars take 50 MB, the
    archive 160 MB, in ~/.cache/sequitur or in the folder that SEQUITUR_CACHE names. Files that are
    there are kept. Ivy fetches the jars, with the settings file that SEQUITUR_IVY_SETTINGS names.
    """
    fetch_jars()
    if archive:
        from sequitur.pipelines.spark_classes import write_archive  # noqa: PLC0415 - loads Spark's

        if not write_archive():
            complain("the archive of Spark's classes could not be written. Jobs start without it")


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the daemons sample", min=1.0)] = 20.0,
    rate_hz: Annotated[float, typer.Option(help="Samples a second of each CPU", min=1.0)] = 100.0,
    delay: Annotated[str, typer.Option(help="How long the job waits for late events")] = "10 s",
    plot: Annotated[Path, typer.Option(help="The picture to draw")] = Path("demo.png"),
    report: Annotated[Path | None, typer.Option(help="Write the result as JSON")] = None,
) -> None:
    """Run the main job on this machine's own CPU readings, and check its output."""
    from sequitur.cli.demo import print_report, run_demo  # noqa: PLC0415 - only the demo needs it

    result = run_demo(seconds=seconds, rate_hz=rate_hz, delay=delay, plot=plot)
    print_report(result, Console())
    typer.echo(f"picture: {plot}")
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(result.as_json(), indent=2) + "\n")
    if result.problems:
        raise typer.Exit(FOUND_WRONG_EXIT_CODE)


@app.command()
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table")] = False,
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


def main() -> None:
    """`sequitur`: run the command line."""
    errors = (ProducerError, ConsumerError, PipelineError, SequiturError)
    run_program("sequitur", app, errors=errors, examples=EXAMPLES)
