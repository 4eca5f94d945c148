"""Where tables are printed to."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from sequitur.base.program import complain
from sequitur.base.settings import Settings
from sequitur.base.text import renamed
from sequitur.kafka.connections import require_broker
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from sequitur.consumer.subscription.backlog import Surveyor


def table_console(narrowest: int, *, stderr: bool = False) -> Console:
    """Return a console that is wide enough for a table."""
    console = Console(stderr=stderr)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, width=max(console.width, narrowest))


# A line to be typed for each command; its help shows it.


EXAMPLES: Final = {
    "produce": "sequitur produce --topic readings --source file:app.jsonl --key json:host",
    "reorder run": "sequitur reorder --input-topics readings --output-topic ordered "
    '--event-time "json:at as ms" --delay "10 s" --checkpoint state',
    "reorder inspect": "sequitur reorder inspect state",
    "process": "sequitur process wordcount.py --input-topics lines --output-topic words "
    '--event-time json:at --delay "10 s" --checkpoint state',
    "tail": "sequitur tail ordered -n 20 --no-follow",
    "measure": "sequitur measure readings --event-time json:at --last 1h",
    "verify": "sequitur verify ordered --event-time json:at",
    "setup": "sequitur setup",
    "demo": "sequitur demo --seconds 10 --plot demo.png",
    "broker up": 'eval "$(sequitur broker up)"',
    "broker down": "sequitur broker down",
    "broker status": "sequitur broker status --json",
    "dlq list": "sequitur dlq list --output-topic words --reason crash",
    "dlq show": "sequitur dlq show 0:17 --output-topic words",
    "dlq replay": "sequitur dlq replay --output-topic words --checkpoint state --reason crash",
    "journal show": "sequitur journal show ~/.local/state/sequitur/producers/app-1.journal",
    "journal verify": "sequitur journal verify ~/.local/state/sequitur/producers/app-1.journal",
    "subscription list": "sequitur subscription list",
    "subscription create": "sequitur subscription create billing --topic orders --position latest",
    "subscription delete": "sequitur subscription delete billing",
    "subscription stats": "sequitur subscription stats billing --rates-over 10",
    "subscription stats-internal": "sequitur subscription stats-internal billing",
    "subscription peek": "sequitur subscription peek billing -n 5",
    "subscription reset": "sequitur subscription reset billing --time 4h --dry-run",
    "subscription skip": "sequitur subscription skip billing -n 1",
    "subscription expire": "sequitur subscription expire billing -t 3d --dry-run",
    "subscription maintain": "sequitur subscription maintain",
    "retention run": "sequitur retention run orders --dry-run",
    "topic get": "sequitur topic get orders",
    "topic get-backlog-quota": "sequitur topic get-backlog-quota orders",
    "topic set-backlog-quota": "sequitur topic set-backlog-quota orders --limit 10G",
    "topic remove-backlog-quota": "sequitur topic remove-backlog-quota orders",
    "topic get-message-ttl": "sequitur topic get-message-ttl orders",
    "topic set-message-ttl": "sequitur topic set-message-ttl orders -ttl 3d",
    "topic remove-message-ttl": "sequitur topic remove-message-ttl orders",
    "topic get-subscription-expiration-time": "sequitur topic get-subscription-expiration-time",
    "topic set-subscription-expiration-time": "sequitur topic set-subscription-expiration-time "
    "orders --time 2w",
    "topic remove-subscription-expiration-time": "sequitur topic "
    "remove-subscription-expiration-time orders",
    "topic get-retention": "sequitur topic get-retention orders",
    "topic set-retention": "sequitur topic set-retention orders --time 7d --size 10G",
    "topic remove-retention": "sequitur topic remove-retention orders",
    "topic set-thresholds": "sequitur topic set-thresholds orders --slow-age 10m",
    "topic remove-thresholds": "sequitur topic remove-thresholds orders",
}
"""By the words of the command."""


_NAMES_OF_TODAY: Final = {"run": "process", "watch": "maintain"}


class RenamedCommands(TyperGroup):
    """Commands, some of which had another name before 0.1.0: that is understood, but not shown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the first word names, today or before."""
        former, today = args[0], _NAMES_OF_TODAY.get(args[0])
        if today is not None and today in self.commands:
            complain(renamed(f"{ctx.command_path} {former}", f"{ctx.command_path} {today}"))
            args = [today, *args[1:]]
        return super().resolve_command(ctx, args)


# Keys, values and headers that others wrote, as JSON and on a terminal.


def plain(raw: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as a plain value: as text, or in base64 where they are none."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def shown(value: str | dict[str, str] | None) -> Text:
    """Return others' text as it is, without markup or a terminal's control sequences."""
    if value is None:
        return Text("-")
    text = " ".join(*value.items()) if isinstance(value, dict) else value
    return Text(
        "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)
    )


# What the commands about subscriptions, topics and retention share.


class KafkaJob(Settings):
    """What these commands need."""

    kafka: KafkaSettings


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, not a table")]


def surveyor_of(settings: KafkaJob, *, replication_factor: int = -1) -> Surveyor:
    """Return what asks Kafka."""
    from sequitur.consumer.subscription.backlog import Surveyor  # noqa: PLC0415

    require_broker(settings.kafka)
    return Surveyor(settings.kafka, replication_factor=replication_factor)


def echo_json(document: object) -> None:
    """Print a document."""
    typer.echo(json.dumps(document, indent=2))
