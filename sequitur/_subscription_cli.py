"""`sequitur subscription`: list, create, delete, look at, reset, skip, expire, peek, watch.

What changes cursors tells first what it means, and asks; `--yes` answers. It is refused while the
subscription has an owner, unless `--fence` takes it away from that one.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sequitur._kafka_commands import AsJson, KafkaJob, echo_json, surveyor_of
from sequitur._subscription_moves_cli import expire, reset, skip
from sequitur._subscription_options import (
    Name,
    OneName,
    OnlyPartition,
    OnlyTopic,
    Yes,
    ask,
    only_of,
)
from sequitur._subscription_tables import print_cursors, print_list, print_messages, print_stats
from sequitur._subscription_watch_cli import watch
from sequitur.base.flags import with_flags
from sequitur.base.process import wall_clock_ms
from sequitur.consumer import parse_event_time_spec
from sequitur.consumer.subscription.documents import internal_document, listed, stats_document
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.registry import SubscriptionRecord, SubscriptionType

if TYPE_CHECKING:
    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.documents import Sight

# What asks brokers is loaded by the commands: `sequitur` has others.

_LONGEST_RATES_S: Final = 3_600.0
_MOST_PEEKED: Final = 1_000_000
"""They are held in memory, and sorted."""

subscription_app = typer.Typer(
    name="subscription",
    help="Subscriptions: their cursors and backlogs; create, delete, reset, skip, expire, peek.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Begin(StrEnum):
    """Where the cursors of a new subscription begin."""

    EARLIEST = "earliest"
    LATEST = "latest"


@subscription_app.command("list")
@with_flags(KafkaJob)
def list_subscriptions(settings: KafkaJob, as_json: AsJson = False) -> None:
    """List all subscriptions, with the backlog of each."""
    from sequitur.consumer.subscription.sights import take_sight  # noqa: PLC0415

    found = listed(take_sight(surveyor_of(settings)))
    if as_json:
        echo_json(found)
    else:
        print_list(found)


@subscription_app.command()
@with_flags(KafkaJob)
def create(
    settings: KafkaJob,
    name: Name,
    topic: Annotated[list[str], typer.Option("--topic", help="A topic; may be repeated")],
    position: Annotated[Begin, typer.Option(help="Where its cursors begin: earliest or latest")],
    kind: Annotated[
        SubscriptionType,
        typer.Option("--type", help="Exclusive, Failover, Shared or Key_Shared"),
    ] = SubscriptionType.EXCLUSIVE,
    expiration_time_minutes: Annotated[
        int | None,
        typer.Option(
            help="Delete it after so many minutes without a consumer; 0 never; by default as its "
            "topics say",
            min=0,
        ),
    ] = None,
    replication_factor: Annotated[
        int, typer.Option(help="Of the topics of subscriptions, if they are not there; -1: default")
    ] = -1,
    fence: Annotated[
        bool,
        typer.Option(
            "--fence", help="Also if a consumer group of that name has offsets or members"
        ),
    ] = False,
) -> None:
    """Create a subscription, with a cursor of each partition of its topics."""
    from sequitur.consumer.subscription.admin import SubscriptionAdmin  # noqa: PLC0415

    created_ms = wall_clock_ms()
    record = SubscriptionRecord(
        name,
        tuple(dict.fromkeys(topic)),
        kind,
        created_ms,
        last_connected_ms=created_ms,
        expiration_time_minutes=expiration_time_minutes,
    )
    surveyor = surveyor_of(settings, replication_factor=replication_factor)
    SubscriptionAdmin(surveyor).create(record, at=Edge(position.value), fence=fence)
    typer.echo(f"created {name} on {', '.join(record.topics)}, at the {position.value} messages")
    for one in record.topics:
        if limits := surveyor.topics.own_retention(one).limits:
            typer.echo(
                f"{one} has {' and '.join(limits)}: Kafka deletes messages there whether they are "
                "acked or not; with -1 it keeps them for `sequitur retention run`",
                err=True,
            )


@subscription_app.command()
@with_flags(KafkaJob)
def delete(
    settings: KafkaJob,
    name: Name,
    yes: Yes = False,
    force: Annotated[
        bool,
        typer.Option("--force", "--fence", help="Also one with an owner: that one stops by name"),
    ] = False,
) -> None:
    """Delete a subscription: its cursors, its record and the offsets of its consumer group."""
    from sequitur.consumer.subscription.admin import SubscriptionAdmin  # noqa: PLC0415

    surveyor = surveyor_of(settings)
    if not yes:
        ask(f"delete subscription {name}, with all that it has acked?")
    SubscriptionAdmin(surveyor).delete(name, force=force)
    typer.echo(f"deleted {name}")


@subscription_app.command()
@with_flags(KafkaJob)
def stats(
    settings: KafkaJob,
    name: OneName = None,
    topic: OnlyTopic = None,
    rates_over: Annotated[
        float,
        typer.Option(
            help="Look twice, so many seconds apart, and tell rates", min=0, max=_LONGEST_RATES_S
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Show topics and their subscriptions, as Pulsar's `topics stats` does."""
    surveyor = surveyor_of(settings)
    topics = _topics(surveyor, name, topic)
    before = None
    if rates_over:
        before = _sight(surveyor, topics)
        time.sleep(rates_over)
    sight = _sight(surveyor, topics, with_publishers=True)
    found = {one: stats_document(sight, one, before=before) for one in topics}
    for document in found.values() if name is not None else ():
        document["subscriptions"] = {name: document["subscriptions"][name]}
    if as_json:
        echo_json(found)
    else:
        print_stats(found)


@subscription_app.command("stats-internal")
@with_flags(KafkaJob)
def stats_internal(
    settings: KafkaJob,
    name: OneName = None,
    topic: OnlyTopic = None,
    as_json: AsJson = False,
) -> None:
    """Show the cursors of each partition, as Pulsar's `topics stats-internal` does."""
    surveyor = surveyor_of(settings)
    topics = _topics(surveyor, name, topic)
    sight = _sight(surveyor, topics, with_places=True)
    names = () if name is None else (name,)
    found = {one: internal_document(sight, one, names) for one in topics}
    if as_json:
        echo_json(found)
    else:
        print_cursors(found)


@subscription_app.command()
@with_flags(KafkaJob)
def peek(
    settings: KafkaJob,
    name: Name,
    count: Annotated[
        int, typer.Option("--count", "-n", help="How many messages", min=1, max=_MOST_PEEKED)
    ] = 1,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    event_time: Annotated[
        str, typer.Option(help="json:PATH, header:NAME or kafka-timestamp")
    ] = "kafka-timestamp",
    as_json: AsJson = False,
) -> None:
    """Show the oldest messages that are not acked, by event time; nothing is acked by that."""
    from sequitur._foreign_text import plain  # noqa: PLC0415
    from sequitur.consumer.subscription.sights import peek as peeked  # noqa: PLC0415

    spec = parse_event_time_spec(event_time)
    found = peeked(surveyor_of(settings), name, count, only=only_of(topic, partition))
    messages: list[dict[str, Any]] = [
        {
            "position": str(one.position),
            "eventTimeMs": spec.of(one.value, one.headers, one.timestamp_ms),
            "timestampMs": one.timestamp_ms,
            "key": plain(one.key),
            "value": plain(one.value),
            "headers": [[header, plain(value)] for header, value in one.headers],
        }
        for one in found
    ]
    # Those without an event time come last: a job sets them aside at once.
    messages.sort(key=lambda one: (one["eventTimeMs"] is None, one["eventTimeMs"] or 0))
    if as_json:
        echo_json(messages[:count])
    else:
        print_messages(name, messages[:count])


for _command in (reset, skip, expire, watch):
    subscription_app.command()(_command)


def _topics(surveyor: Surveyor, name: str | None, topic: str | None) -> list[str]:
    """Return the topics to look at: of a subscription, or all that subscriptions are on."""
    registry = surveyor.registry.read()
    found = registry.topics() if name is None else list(registry.require(name).topics)
    if topic is not None and topic not in found:
        who = "no subscription is" if name is None else f"{name} is not"
        raise typer.BadParameter(f"{who} on topic {topic}")
    return [one for one in found if topic in {None, one}]


def _sight(surveyor: Surveyor, topics: list[str], **options: bool) -> Sight:
    from sequitur.consumer.subscription.sights import take_sight  # noqa: PLC0415

    return take_sight(surveyor, topics, **options)
