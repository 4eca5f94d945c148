"""The section `[produce]`: what the daemon `produce-events` reads, and where it sends it.

`[producer]` says how events are sent, and serves every program that sends. The names of both
sections' fields are disjoint, since each is a flag of the same command.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field, field_validator, model_validator

from sequitur.base.process import user_folder
from sequitur.base.settings import Section, Settings
from sequitur.base.units import Address, Duration, Size
from sequitur.kafka.partition import EXPECTED, is_topic_name
from sequitur.kafka.records import UNNAMED_PREFIX
from sequitur.kafka.settings import KafkaSettings
from sequitur.producer._settings import ProducerSettings
from sequitur.producer.daemon.log import LogFormat
from sequitur.producer.sources._registry import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEAD_LETTERS: Final = ".dead-letters.jsonl"
_NEVER: Final = timedelta(days=365)


class ProduceSettings(SourceSettings, Section):
    """What the daemon `produce-events` reads, and where it sends it."""

    title = "Daemon"
    panels: ClassVar = {
        "Topic": ("topic", "create_topic", "partitions", "replication_factor"),
        **SourceSettings.panels,
    }

    topic: str = Field(description="Topic that the daemon sends to")
    create_topic: bool = Field(default=True, description="Create the topic if it does not exist")
    partitions: int = Field(
        default=4, ge=1, le=10_000, description="Partitions of a topic that the daemon creates"
    )
    replication_factor: int = Field(
        default=-1,
        ge=-1,
        description="Replicas of a topic that the daemon creates. -1: the broker's default",
    )
    drain_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long the daemon, when stopped, waits for the answers to what it has sent",
    )
    dead_letter: Path | None = Field(
        default=None,
        description="File for events that could not be sent, each with its place and the "
        f"reason. Default: <journal>{_DEAD_LETTERS}",
    )
    dead_letter_limit: Size = Field(
        default=1 << 30,
        gt=0,
        description="Most bytes of the dead-letter file. Beyond, the daemon ends",
    )
    health: Address | None = Field(
        default=None,
        description="HOST:PORT at which the daemon answers /livez, /readyz and /metrics. "
        "Default: nowhere",
    )
    log_format: LogFormat = Field(
        default="console", description="Format of log lines on standard error: console or json"
    )

    @field_validator("topic")
    @classmethod
    def _is_a_topic_name(cls, value: str) -> str:
        if not is_topic_name(value):
            raise ValueError(EXPECTED)
        return value


class ProduceJob(Settings):
    """What the daemon needs.

    Unlike a library's user it has a journal by default, events in it do not expire unless
    `delivery_timeout` is set, and its topic is waited for unless `topic_timeout` is.
    """

    kafka: KafkaSettings
    producer: ProducerSettings
    produce: ProduceSettings

    @model_validator(mode="before")
    @classmethod
    def _has_a_journal(cls, values: Any) -> Any:
        """Run before the sections' own checks, which require a directory for a journal."""
        if not isinstance(values, dict):
            return values
        producer = dict(values.get("producer") or {})
        if producer.get("durability") != "none":
            if "journal" not in producer:
                producer["journal"] = default_journal(producer.get("name"))
            producer.setdefault("delivery_timeout", _NEVER)
        producer.setdefault("topic_timeout", _NEVER)
        return {**values, "producer": producer}


def default_journal(
    name: str | None, environ: Mapping[str, str] = os.environ, *, instead: str = "--journal"
) -> Path:
    """Return where the daemon keeps the journal of a producer name, by default."""
    state = user_folder("XDG_STATE_HOME", ".local/state", environ=environ, instead=instead)
    return state / "sequitur" / "producers" / f"{name or UNNAMED_PREFIX}.journal"


def dead_letter_file(produce: ProduceSettings, producer: ProducerSettings) -> Path:
    """Return the path of the dead-letter file: the setting, or a file beside the journal."""
    if produce.dead_letter is not None:
        return produce.dead_letter
    journal = producer.journal or default_journal(producer.name, instead="--dead-letter")
    return journal.with_name(journal.name + _DEAD_LETTERS)
