"""What the commands of `sequitur subscription` share: options, and how they ask and print."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from sequitur.producer import KafkaSettings
from sequitur.producer.kafka.reach import require_broker
from sequitur.producer.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer import SourcePartition
    from sequitur.pipelines.subscriptions.backlog import Surveyor


class SubscriptionJob(Settings):
    """What commands about subscriptions need."""

    kafka: KafkaSettings


Name = Annotated[str, typer.Argument(help="The subscription", show_default=False)]
OneName = Annotated[
    str | None,
    typer.Argument(help="The subscription; without one, all of them", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, not a table")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
OnlyTopic = Annotated[str | None, typer.Option("--topic", help="Only this topic")]
OnlyPartition = Annotated[
    int | None, typer.Option("--partition", help="Only this partition", min=0)
]


def surveyor_of(settings: SubscriptionJob, *, replication_factor: int = -1) -> Surveyor:
    """Return what asks Kafka.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    from sequitur.pipelines.subscriptions.backlog import Surveyor  # noqa: PLC0415

    require_broker(settings.kafka)
    return Surveyor(settings.kafka, replication_factor=replication_factor)


def ask(question: str) -> None:
    """Ask, and end the program unless the answer is yes."""
    typer.confirm(question, abort=True, err=True)


def only_of(topic: str | None, partition: int | None) -> Callable[[SourcePartition], bool]:
    """Return what says whether a partition is wanted."""
    return lambda where: topic in {None, where.topic} and partition in {None, where.partition}


def echo_json(document: object) -> None:
    """Print a document."""
    typer.echo(json.dumps(document, indent=2))


def now_ms() -> int:
    """Return the time, epoch milliseconds."""
    return int(time.time() * 1000)
