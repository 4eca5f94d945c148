"""What the commands about subscriptions, topics and retention share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from sequitur.base.settings import Settings
from sequitur.kafka.connections import require_broker
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from sequitur.consumer.subscription.backlog import Surveyor


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
