"""`sequitur topic`: policies of a topic, in the shape of pulsar-admin's commands.

Without a topic a command is about the namespace: the default for all topics without a policy of
their own. `sequitur retention` deletes what all subscriptions have acked and no retention keeps.
Each command imports what it asks brokers with, since `sequitur` has commands that ask none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec.structs import asdict, replace
from rich.table import Table

from sequitur.base.flags import with_flags
from sequitur.base.stored import dump
from sequitur.cli.console import AsJson, KafkaJob, echo_json, surveyor_of, table_console
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    DetectionThresholds,
    Retention,
    TopicPolicies,
    parse_size,
    parse_time_s,
)
from sequitur.kafka.broker_check import require_broker
from sequitur.kafka.settings import check_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.subscription.retention_run import RetentionRun

REFUSED_EXIT_CODE: Final = 1
"""An acked message was not deleted."""
_NARROWEST_TOPICS: Final = 120
"""The table needs so many columns. A pipe has none, and rich would take 80."""

retention_app = typer.Typer(
    name="retention",
    help="Delete messages that all subscriptions have acked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_NARROWEST: Final = 100
"""The tables need so many columns. A pipe has none, and rich would take 80."""
_NAMESPACE: Final = "namespace"
_NO_LIMIT: Final = "no limit"

topic_app = typer.Typer(
    name="topic",
    help="Policies of topics that subscriptions are on: backlog quota, message time to live, "
    "subscription expiration, retention.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _checked(topic: str | None) -> str | None:
    """Raise if no topic can have this name: its policy would have no effect, without a message."""
    try:
        check_topic(topic)
    except ValueError as error:
        raise typer.BadParameter(f"{topic!r}: {error}") from None
    return topic


Topic = Annotated[
    str | None,
    typer.Argument(
        help="The topic. Without one, the command is about the default for all topics",
        show_default=False,
        callback=_checked,
    ),
]


@topic_app.command("get")
@with_flags(KafkaJob)
def get(settings: KafkaJob, topic: Topic = None, as_json: AsJson = False) -> None:
    """Show all policies of a topic: those that are set, and those that apply."""
    registry = _store(settings).read()
    own = registry.set_policies(topic)
    default = registry.set_policies(None)
    held = (own if topic is None else own.over(default)).in_force()
    shown, given = dump(TopicPolicies(**asdict(held))), dump(own)
    del shown["format"], given["format"]
    if as_json:
        echo_json({"topic": topic, "set": given, "inForce": shown})
        return
    by_default = {} if topic is None else dump(default)
    table = Table(title=f"Policies of {_said(topic)}", title_justify="left")
    for column in ("policy", "in force", "set by"):
        table.add_column(column, overflow="fold")
    for name, value in shown.items():
        owner = "topic" if topic is not None and name in given else _NAMESPACE
        by = owner if name in given or name in by_default else "-"
        table.add_row(name, _text(value), by)
    table_console(_NARROWEST).print(table)


@topic_app.command("get-backlog-quota")
@with_flags(KafkaJob)
def get_backlog_quota(settings: KafkaJob, topic: Topic = None, as_json: AsJson = False) -> None:
    """Show the backlog quota that is set."""
    _show(settings, topic, "backlogQuota", as_json=as_json)


@topic_app.command("set-backlog-quota")
@with_flags(KafkaJob)
def set_backlog_quota(
    settings: KafkaJob,
    topic: Topic = None,
    limit: Annotated[
        str | None, typer.Option("--limit", "-l", help="Bytes, or 10M, 16G, 1T. Negative: no limit")
    ] = None,
    limit_time: Annotated[
        str | None,
        typer.Option("--limitTime", "-lt", help="Seconds, or 4h, 3d, 2w. Negative: no limit"),
    ] = None,
    policy: Annotated[
        BacklogPolicy | None, typer.Option("--policy", "-p", help="What happens at the limit")
    ] = None,
) -> None:
    """Limit the backlog by size, by the age of its oldest message, or by both.

    Options that are not given keep their values. A new quota has no limit, and its policy is
    producer_request_hold.

    With producer_request_hold, producers wait. With producer_exception, sends fail. With
    consumer_backlog_eviction, the oldest messages of the slowest subscription are skipped.
    """
    given: dict[str, Any] = {}
    if limit is not None:
        given["limit_bytes"] = parse_size(limit)
    if limit_time is not None:
        given["limit_s"] = parse_time_s(limit_time)
    if policy is not None:
        given["policy"] = policy
    if not given:
        raise typer.BadParameter("expected --limit, --limitTime or --policy")

    def change(own: TopicPolicies) -> TopicPolicies:
        return replace(own, backlog_quota=replace(own.backlog_quota or BacklogQuota(), **given))

    _change(settings, topic, change)


@topic_app.command("remove-backlog-quota")
@with_flags(KafkaJob)
def remove_backlog_quota(settings: KafkaJob, topic: Topic = None) -> None:
    """Remove the backlog quota. Then the default applies."""
    _change(settings, topic, lambda own: replace(own, backlog_quota=None))


@topic_app.command("get-message-ttl")
@with_flags(KafkaJob)
def get_message_ttl(settings: KafkaJob, topic: Topic = None, as_json: AsJson = False) -> None:
    """Show the message time to live that is set, in seconds."""
    _show(settings, topic, "messageTtlInSeconds", as_json=as_json)


@topic_app.command("set-message-ttl")
@with_flags(KafkaJob)
def set_message_ttl(
    settings: KafkaJob,
    topic: Topic = None,
    ttl: Annotated[
        str, typer.Option("--messageTTL", "-ttl", help="Seconds, or 4h, 3d, 2w. 0: never")
    ] = ...,  # type: ignore[assignment] # typer's way to say that it is required
) -> None:
    """Ack messages that are older than this, even if no consumer has processed them."""
    seconds = _limited(ttl, parse_time_s(ttl))
    _change(settings, topic, lambda own: replace(own, message_ttl_s=seconds))


@topic_app.command("remove-message-ttl")
@with_flags(KafkaJob)
def remove_message_ttl(settings: KafkaJob, topic: Topic = None) -> None:
    """Remove the message time to live. Then the default applies."""
    _change(settings, topic, lambda own: replace(own, message_ttl_s=None))


@topic_app.command("get-subscription-expiration-time")
@with_flags(KafkaJob)
def get_subscription_expiration(
    settings: KafkaJob, topic: Topic = None, as_json: AsJson = False
) -> None:
    """Show after how many minutes unused subscriptions are deleted."""
    _show(settings, topic, "subscriptionExpirationTimeMinutes", as_json=as_json)


@topic_app.command("set-subscription-expiration-time")
@with_flags(KafkaJob)
def set_subscription_expiration(
    settings: KafkaJob,
    topic: Topic = None,
    minutes: Annotated[
        str, typer.Option("--time", "-t", help="Minutes, or 4h, 3d, 2w. 0: never")
    ] = ...,  # type: ignore[assignment] # likewise
) -> None:
    """Delete subscriptions that had no consumer for this time."""
    seconds = _limited(minutes, parse_time_s(minutes, plain_unit="m"))
    if seconds % 60:
        raise typer.BadParameter(f"{minutes!r} is not a whole number of minutes")
    _change(
        settings,
        topic,
        lambda own: replace(own, subscription_expiration_time_minutes=seconds // 60),
    )


@topic_app.command("remove-subscription-expiration-time")
@with_flags(KafkaJob)
def remove_subscription_expiration(settings: KafkaJob, topic: Topic = None) -> None:
    """Remove the subscription expiration. Then the default applies."""
    _change(settings, topic, lambda own: replace(own, subscription_expiration_time_minutes=None))


@topic_app.command("get-retention")
@with_flags(KafkaJob)
def get_retention(settings: KafkaJob, topic: Topic = None, as_json: AsJson = False) -> None:
    """Show the retention that is set."""
    _show(settings, topic, "retention", as_json=as_json)


@topic_app.command("set-retention")
@with_flags(KafkaJob)
def set_retention(
    settings: KafkaJob,
    topic: Topic = None,
    time: Annotated[
        str, typer.Option("--time", "-t", help="90m, 4h, 3d, 2w. 0: off. Negative: for ever")
    ] = ...,  # type: ignore[assignment] # likewise
    size: Annotated[
        str, typer.Option("--size", "-s", help="10M, 16G. 0: off. Negative: no limit")
    ] = ...,  # type: ignore[assignment] # likewise
) -> None:
    """Keep messages that all subscriptions have acked, for a time and up to a size of a partition.

    `sequitur retention run` deletes messages beyond one of the two limits.
    """
    kept = Retention.parse(time=time, size=size)
    _change(settings, topic, lambda own: replace(own, retention=kept))


@topic_app.command("remove-retention")
@with_flags(KafkaJob)
def remove_retention(settings: KafkaJob, topic: Topic = None) -> None:
    """Remove the retention. Then the default applies."""
    _change(settings, topic, lambda own: replace(own, retention=None))


@topic_app.command("set-thresholds")
@with_flags(KafkaJob)
def set_thresholds(
    settings: KafkaJob,
    *,
    topic: Topic = None,
    slow_backlog: Annotated[int | None, typer.Option(help="Messages not acked", min=0)] = None,
    slow_age: Annotated[
        str | None, typer.Option(help="Age of the oldest message that is not acked")
    ] = None,
    ack_hole_entries: Annotated[
        int | None, typer.Option(help="Messages from the first that is not acked on", min=0)
    ] = None,
    ack_hole_share: Annotated[
        float | None, typer.Option(help="At most this share of these is not acked", min=0, max=1)
    ] = None,
    unacked_messages: Annotated[
        int | None, typer.Option(help="Messages that were read and are not acked", min=0)
    ] = None,
) -> None:
    """Set from where on a subscription is reported.

    Thresholds that are not given keep their values. 0 means never.
    """
    slow_age_s = None if slow_age is None else _limited(slow_age, parse_time_s(slow_age))
    given = {
        "slow_backlog": slow_backlog,
        "slow_age_s": slow_age_s,
        "ack_hole_entries": ack_hole_entries,
        "ack_hole_share": ack_hole_share,
        "unacked_messages": unacked_messages,
    }
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    _change(
        settings,
        topic,
        lambda own: replace(
            own, thresholds=replace(own.thresholds or DetectionThresholds(), **wanted)
        ),
    )


@topic_app.command("remove-thresholds")
@with_flags(KafkaJob)
def remove_thresholds(settings: KafkaJob, topic: Topic = None) -> None:
    """Remove the thresholds. Then the default applies."""
    _change(settings, topic, lambda own: replace(own, thresholds=None))


def _store(settings: KafkaJob) -> Any:
    from sequitur.consumer.subscription.registry_store import RegistryStore  # noqa: PLC0415

    require_broker(settings.kafka)
    return RegistryStore(settings.kafka)


def _change(
    settings: KafkaJob, topic: str | None, change: Callable[[TopicPolicies], TopicPolicies]
) -> None:
    """Change the policies of a topic or of the namespace. Other admins are fenced."""
    _store(settings).change(
        lambda registry: registry.with_policies(topic, change(registry.set_policies(topic)))
    )


def _show(settings: KafkaJob, topic: str | None, name: str, *, as_json: bool) -> None:
    """Print the setting. As in pulsar-admin, an unset one is null."""
    value = dump(_store(settings).read().set_policies(topic)).get(name)
    if as_json:
        echo_json(value)
        return
    table = Table(title=f"{name} of {_said(topic)}", title_justify="left", show_header=False)
    for key, part in (value if isinstance(value, dict) else {name: value}).items():
        table.add_row(key, _text(part))
    table_console(_NARROWEST).print(table)


def _limited(text: str, value: int | None) -> int:
    if value is None:
        raise typer.BadParameter(f"{text!r} is negative. 0 means never")
    return value


def _said(topic: str | None) -> str:
    return _NAMESPACE if topic is None else f"topic {topic}"


def _text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    return _NO_LIMIT if value == -1 else f"{value:,}" if isinstance(value, int) else str(value)


@retention_app.callback()
def _is_a_group() -> None:
    """With a callback a single command keeps its name."""


@retention_app.command()
@with_flags(KafkaJob)
def run(
    settings: KafkaJob,
    *,
    topic: Annotated[
        list[str] | None, typer.Argument(help="Topics. Default: all that have subscriptions")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing")
    ] = False,
    despite_topic_retention: Annotated[
        bool,
        typer.Option(
            "--despite-topic-retention",
            help="Include topics whose own retention deletes messages that are not acked",
        ),
    ] = False,
    despite_other_groups: Annotated[
        bool,
        typer.Option(
            "--despite-other-groups",
            help="Delete messages even if consumer groups that are not subscriptions have not "
            "committed them",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the messages of each partition before the smallest mark-delete position.

    The retention of the topic may keep some of them: see `sequitur topic set-retention`. Status 1:
    something was refused.
    """
    from sequitur.consumer.subscription.retention_run import run_retention  # noqa: PLC0415

    surveyor = surveyor_of(settings)
    for one in topic or ():
        surveyor.topics.require(one)
    found = run_retention(
        surveyor,
        topic or None,
        dry_run=dry_run,
        despite_topic_retention=despite_topic_retention,
        despite_other_groups=despite_other_groups,
    )
    if as_json:
        echo_json(found.to_document())
    else:
        _print(found)
    if found.refusals:
        raise typer.Exit(REFUSED_EXIT_CODE)


def _print(found: RetentionRun) -> None:
    console = table_console(_NARROWEST_TOPICS)
    verb = "To be deleted" if found.is_dry else "Deleted"
    table = Table(title=f"{verb}: {found.records:,} messages", title_justify="left")
    table.add_column("topic", overflow="fold")
    for column in ("partition", "from", "to before", "messages", "bytes, about"):
        table.add_column(column, justify="right")
    table.add_column("the next is kept by", overflow="fold")
    for one in found.plans:
        held = "-" if one.held_by is None else one.held_by.value
        table.add_row(
            one.topic,
            str(one.partition),
            str(one.before),
            str(one.after),
            f"{one.records:,}",
            f"{one.size_bytes:,}",
            held if one.holder is None else f"{held} {one.holder}",
        )
    console.print(table)
    for refusal in found.refusals:
        console.print(f"refused: {refusal.sentence}", markup=False, soft_wrap=True)
