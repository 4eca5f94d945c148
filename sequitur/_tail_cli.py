"""`sequitur tail`: shows the records of a topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from sequitur._kafka_commands import KafkaJob
from sequitur._tail import ShownRecord, ValueStyle, tail
from sequitur.base.flags import with_flags
from sequitur.consumer import parse_event_time_spec
from sequitur.consumer.subscription.position import (
    Edge,
    Position,
    ToPositions,
    ToTime,
    parse_time_ms,
)

if TYPE_CHECKING:
    from sequitur.consumer.subscription.position import ResetTarget

_NEWEST: Final = 10


@with_flags(KafkaJob)
def show_tail(
    settings: KafkaJob,
    topic: Annotated[str, typer.Argument(help="The topic")],
    count: Annotated[
        int | None,
        typer.Option("-n", help=f"The newest so many, over all partitions ({_NEWEST})", min=1),
    ] = None,
    from_earliest: Annotated[
        bool, typer.Option("--from-earliest", help="From the first record that is there")
    ] = False,
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Only what comes from now on")
    ] = False,
    from_time: Annotated[
        str | None,
        typer.Option(help="From a timestamp: ISO 8601, or milliseconds since 1970"),
    ] = None,
    from_offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P:O",
            help="From an offset of a partition, which is then the only one; may be repeated",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with what comes, until Ctrl-C")
    ] = True,
    value: Annotated[
        ValueStyle, typer.Option(help="Values as text, json or hex; what is no JSON, as text")
    ] = ValueStyle.TEXT,
    event_time: Annotated[
        str | None,
        typer.Option(
            help="json:PATH, header:NAME or kafka-timestamp; by default what the jobs say in a "
            "header where it is not the timestamp"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line")] = False,
) -> None:
    """Show the records of a topic: the newest, and those that come.

    Each has its place (PARTITION:OFFSET), timestamp, key and value; below them event time, event
    id, the reason it is in a side topic for, and its headers. Records of a partition are in its
    order. Without a --from option the newest are shown, by timestamp. Bytes that are no text are in
    base64. Partitions that are added later are not seen.
    """
    starts: list[ResetTarget | int] = []
    if count is not None:
        starts.append(count)
    if from_earliest:
        starts.append(Edge.EARLIEST)
    if from_latest:
        starts.append(Edge.LATEST)
    if from_time is not None:
        starts.append(ToTime(parse_time_ms(from_time)))
    if from_offset:
        starts.append(ToPositions(tuple(map(Position.parse, from_offset))))
    if len(starts) > 1:
        raise typer.BadParameter(
            "give one of -n, --from-earliest, --from-latest, --from-time and --from-offset"
        )
    spec = None if event_time is None else parse_event_time_spec(event_time)
    console = Console(highlight=False)
    for record in tail(settings.kafka, topic, [*starts, _NEWEST][0], follows=follow):
        found = ShownRecord.of(topic, record, spec, value)
        if as_json:
            typer.echo(json.dumps(found.as_json()))
        else:
            console.print(found.as_text(), soft_wrap=True)
