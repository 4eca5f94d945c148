"""`sequitur subscription`: list, create, delete, look at, reset, skip, expire, peek, maintain.

A command that changes cursors says first what that means, and asks; `--yes` answers. It is refused
while the subscription has an owner, unless `--fence` takes the subscription from the owner. Each
command imports what it asks brokers with, since `sequitur` has commands that ask none.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sequitur.base.flags import with_flags
from sequitur.base.process import wall_clock_ms
from sequitur.cli.commands import RenamedCommands
from sequitur.cli.console import (
    AsJson,
    KafkaJob,
    echo_json,
    surveyor_of,
)
from sequitur.cli.subscription_tables import (
    print_cursors,
    print_list,
    print_messages,
    print_moves,
    print_stats,
)
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.inspection import internal_document, listed, stats_document
from sequitur.consumer.subscription.policies import parse_time_s
from sequitur.consumer.subscription.position import (
    Edge,
    Position,
    ToPositions,
    ToTime,
    parse_ago_ms,
    parse_time_ms,
)
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.kafka.broker_check import require_broker
from sequitur.pipelines.ordering.progress import instant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.checks import CheckRound
    from sequitur.consumer.subscription.cursor_moves import CursorMoves, Plan
    from sequitur.consumer.subscription.inspection import Sight
    from sequitur.consumer.subscription.position import ResetTarget
    from sequitur.kafka.partition import SourcePartition

Name = Annotated[str, typer.Argument(help="The subscription", show_default=False)]
OneName = Annotated[
    str | None,
    typer.Argument(help="The subscription. Default: all", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
OnlyTopic = Annotated[str | None, typer.Option("--topic", help="Only this topic")]
OnlyPartition = Annotated[
    int | None, typer.Option("--partition", help="Only this partition", min=0)
]

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what the command would do, and do nothing")
]
Fence = Annotated[
    bool,
    typer.Option(
        "--fence",
        help="Do it even if the subscription has an owner. The owner stops with an error. "
        "Started again, it resumes from the new cursors",
    ),
]

_ACTS = frozenset(
    {
        FindingKind.EVICTED,
        FindingKind.EXPIRED_MESSAGES,
        FindingKind.EXPIRED_SUBSCRIPTION,
    }
)
"""Each of these findings is printed. A lasting state is printed only when it begins."""

_LONGEST_RATES_S: Final = 3_600.0
_MOST_PEEKED: Final = 1_000_000
"""They are held in memory and sorted."""

subscription_app = typer.Typer(
    name="subscription",
    cls=RenamedCommands,
    help="Subscriptions with their cursors and backlogs: create, delete, reset, skip, expire, "
    "peek, maintain.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Begin(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


@subscription_app.command("list")
@with_flags(KafkaJob)
def list_subscriptions(settings: KafkaJob, as_json: AsJson = False) -> None:
    """List all subscriptions, with the backlog of each."""
    from sequitur.consumer.subscription.inspection import take_sight  # noqa: PLC0415

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
    topic: Annotated[list[str], typer.Option("--topic", help="A topic. May be repeated")],
    position: Annotated[Begin, typer.Option(help="Where its cursors begin: earliest or latest")],
    kind: Annotated[
        SubscriptionType,
        typer.Option("--type", help="Exclusive, Failover, Shared or Key_Shared"),
    ] = SubscriptionType.EXCLUSIVE,
    expiration_time_minutes: Annotated[
        int | None,
        typer.Option(
            help="Delete it after this many minutes without a consumer. 0: never. Default: as "
            "the policy of its topics says",
            min=0,
        ),
    ] = None,
    replication_factor: Annotated[
        int,
        typer.Option(
            help="Replicas of the system topics of subscriptions, if they are "
            "missing. -1: the broker's default"
        ),
    ] = -1,
    fence: Annotated[
        bool,
        typer.Option(
            "--fence", help="Create it even if a consumer group of that name has offsets or members"
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
        group=group_of_new(settings.kafka, name),
        last_connected_ms=created_ms,
        expiration_time_minutes=expiration_time_minutes,
    )
    surveyor = surveyor_of(settings, replication_factor=replication_factor)
    SubscriptionAdmin(surveyor).create(record, at=Edge(position.value), fence=fence)
    typer.echo(f"created {name} on {', '.join(record.topics)}, at the {position.value} messages")
    for one in record.topics:
        if limits := surveyor.topics.own_retention(one).limits:
            typer.echo(
                f"{one} has {' and '.join(limits)}: Kafka deletes messages there whether they "
                "are acked or not. With -1 it keeps them for `sequitur retention run`",
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
        typer.Option(
            "--force",
            "--fence",
            help="Delete it even if it has an owner. The owner stops with an error",
        ),
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
            help="Look twice, this many seconds apart, and print rates", min=0, max=_LONGEST_RATES_S
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
    """Show the oldest unacked messages, by event time, without acking them."""
    from sequitur.cli.console import plain  # noqa: PLC0415
    from sequitur.consumer.subscription.inspection import peek as peeked  # noqa: PLC0415

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


@subscription_app.command()
@with_flags(KafkaJob)
def reset(
    settings: KafkaJob,
    name: Name,
    ago: Annotated[
        str | None, typer.Option("--time", "-t", help="To this long ago: 30s, 90m, 4h, 3d, 2w")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(help="To a time: ISO 8601, or milliseconds since 1970")
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--to-offset", "-m", help="PARTITION:OFFSET or TOPIC:PARTITION:OFFSET. May be repeated"
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first message that is there")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="After the last message")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    fence: Fence = False,
    as_json: AsJson = False,
) -> None:
    """Move the cursors to other messages, and begin a new epoch.

    All messages from there on are unacked.

    The job begins with a new frontier, without its memory of keys, and with a new identity of its
    output. Acks of an earlier epoch are refused. Partitions that --to-offset does not name stay
    where they are.
    """
    targets: list[ResetTarget] = []
    if ago is not None:
        targets.append(ToTime(parse_ago_ms(ago, now_ms=wall_clock_ms())))
    if to_time is not None:
        targets.append(ToTime(parse_time_ms(to_time)))
    if to_offset:
        targets.append(ToPositions(tuple(map(Position.parse, to_offset))))
    if to_earliest:
        targets.append(Edge.EARLIEST)
    if to_latest:
        targets.append(Edge.LATEST)
    if len(targets) != 1:
        raise typer.BadParameter(
            "give one of --time, --to-time, --to-offset, --to-earliest and --to-latest"
        )
    moves = _moves(settings)
    plan = moves.plan_reset(name, targets[0])
    _carry_out(moves, plan, dry_run=dry_run, yes=yes, fence=fence, as_json=as_json)


@subscription_app.command()
@with_flags(KafkaJob)
def skip(
    settings: KafkaJob,
    name: Name,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="How many messages of each partition", min=1)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All messages: this clears the backlog")
    ] = False,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    fence: Fence = False,
    as_json: AsJson = False,
) -> None:
    """Ack the oldest unacked messages of each partition, without processing them."""
    if (count is None) is not everything:
        raise typer.BadParameter("give either --count or --all")
    moves = _moves(settings)
    plan = moves.plan_skip(name, count, only=only_of(topic, partition))
    _carry_out(moves, plan, dry_run=dry_run, yes=yes, fence=fence, as_json=as_json)


@subscription_app.command()
@with_flags(KafkaJob)
def expire(
    settings: KafkaJob,
    name: Name,
    older_than: Annotated[
        str, typer.Option("--expireTime", "-t", help="Seconds, or 90m, 4h, 3d, 2w")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    fence: Fence = False,
    as_json: AsJson = False,
) -> None:
    """Ack messages that are older than a time, without processing them.

    In each partition it stops at the first message that is younger.
    """
    older_than_s = parse_time_s(older_than)
    if older_than_s is None:
        raise typer.BadParameter(f"{older_than}: a negative time has not passed")
    moves = _moves(settings)
    plan = moves.plan_expire(name, older_than_s)
    _carry_out(moves, plan, dry_run=dry_run, yes=yes, fence=fence, as_json=as_json)


@subscription_app.command()
@with_flags(KafkaJob)
def maintain(
    settings: KafkaJob,
    interval: Annotated[
        float, typer.Option(help="Seconds from one round to the next", min=0.1, max=3600)
    ] = 1.0,
    copy_to: Annotated[
        str | None,
        typer.Option(
            help="Topic that messages are copied to before they are evicted, for subscriptions "
            "that name none"
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="End after this many rounds. Default: run until stopped", min=1),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and do nothing")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Apply policies: evict and expire messages, make producers wait, delete unused subscriptions.

    A job does so while it runs. This program does so when no job runs: it checks quotas, times to
    live, expirations and thresholds, again and again, and acts on what it finds. If several
    programs check, one of them acts, and another takes over when that one ends. It prints what it
    finds, when that begins, and what it has done. With --dry-run it prints, and does not act.
    """
    from sequitur.consumer.subscription.led_checks import watch as run_checks  # noqa: PLC0415

    require_broker(settings.kafka)
    told: set[tuple[str, str | None, str | None]] = set()
    done = 0

    def tell(found: CheckRound) -> None:
        nonlocal told, done
        done += 1
        if as_json:
            typer.echo(json.dumps(found.to_document()))
            return
        lasting = {(one.kind.value, one.topic, one.subscription) for one in found.findings}
        for one in found.findings:
            if one.kind in _ACTS or (one.kind.value, one.topic, one.subscription) not in told:
                where = " ".join(name for name in (one.topic, one.subscription) if name)
                typer.echo(f"{instant(found.now_ms)} {one.kind.value}: {where}: {one.sentence}")
        told = lasting

    with _stop_on_signals() as stop:
        run_checks(
            settings.kafka,
            tell=tell,
            stop=lambda: stop.is_set() or (rounds is not None and done >= rounds),
            interval_s=interval,
            copy_to=copy_to,
            dry_run=dry_run,
            warn=lambda line: typer.echo(line, err=True),
        )


def _carry_out(
    moves: CursorMoves, plan: Plan, *, dry_run: bool, yes: bool, fence: bool, as_json: bool
) -> None:
    """Print what a plan means, ask, and carry it out."""
    preview = {**plan.to_document(), "dryRun": True}
    if dry_run and as_json:
        echo_json(preview)
    elif dry_run or not yes:
        print_moves(preview, beside=as_json)
    if dry_run:
        return
    if not yes:
        ask(f"{plan.kind.value} subscription {plan.name}?")
    done = {**moves.carry_out(plan, fence=fence).to_document(), "dryRun": False}
    if as_json:
        echo_json(done)
    else:
        print_moves(done)


def _moves(settings: KafkaJob) -> CursorMoves:
    from sequitur.consumer.subscription.cursor_moves import CursorMoves  # noqa: PLC0415

    return CursorMoves(surveyor_of(settings))


def ask(question: str) -> None:
    """Ask, and end the program unless the answer is yes."""
    typer.confirm(question, abort=True, err=True)


def only_of(topic: str | None, partition: int | None) -> Callable[[SourcePartition], bool]:
    """Return a test whether a partition is wanted."""
    return lambda where: topic in {None, where.topic} and partition in {None, where.partition}


def _topics(surveyor: Surveyor, name: str | None, topic: str | None) -> list[str]:
    """Return a subscription's topics, or all topics with subscriptions."""
    registry = surveyor.registry.read()
    found = registry.topics() if name is None else list(registry.require(name).topics)
    if topic is not None and topic not in found:
        who = "no subscription is" if name is None else f"{name} is not"
        raise typer.BadParameter(f"{who} on topic {topic}")
    return [one for one in found if topic in {None, one}]


def _sight(surveyor: Surveyor, topics: list[str], **options: bool) -> Sight:
    from sequitur.consumer.subscription.inspection import take_sight  # noqa: PLC0415

    return take_sight(surveyor, topics, **options)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set while the block runs."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
