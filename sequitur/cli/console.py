"""What the commands share: their settings, consoles for tables, JSON, and others' text."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sequitur.base.settings import Settings
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from sequitur.consumer.subscription.backlog import Surveyor

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, not a table")]


class KafkaJob(Settings):
    kafka: KafkaSettings


def surveyor_of(settings: KafkaJob, *, replication_factor: int = -1) -> Surveyor:
    from sequitur.consumer.subscription.backlog import Surveyor  # noqa: PLC0415
    from sequitur.kafka.broker_check import require_broker  # noqa: PLC0415

    require_broker(settings.kafka)
    return Surveyor(settings.kafka, replication_factor=replication_factor)


def table_console(narrowest: int, *, stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, width=max(console.width, narrowest))


def echo_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2))


def plain(raw: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as plain text, or in base64 if they are not text."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def shown(value: str | dict[str, str] | None) -> Text:
    """Return foreign text unchanged, without markup or a terminal's control sequences."""
    if value is None:
        return Text("-")
    text = " ".join(*value.items()) if isinstance(value, dict) else value
    return Text(
        "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)
    )
