"""The section `[produce]`: what the daemon `produce-events` reads, and where it sends it.

`[producer]` says how events are sent, and serves every program that sends. The names of both
sections' fields are disjoint, since each is a flag of the same command.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, field_validator

from producer.settings import Duration, Section
from producer.sources import SourceSettings, parse_address

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEAD_LETTERS: Final = ".dead-letters.jsonl"

LogFormat = Literal["console", "json"]


class ProduceSettings(SourceSettings, Section):
    """What the daemon `produce-events` reads, and where it sends it."""

    topic: str = Field(default="events", min_length=1, description="Topic the events go to")
    create_topic: bool = Field(default=True, description="Create the topic when it is missing")
    partitions: int = Field(
        default=4, ge=1, le=10_000, description="Partitions of a topic that we create"
    )
    replication_factor: int = Field(
        default=-1,
        ge=-1,
        description="Replicas of a topic that we create; -1: the broker's default",
    )
    drain_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long a stopped daemon waits for the answers of what it has sent",
    )
    dead_letter: Path | None = Field(
        default=None,
        description="File for what could not be sent, with where it stood and why; without it, "
        f"<journal>{_DEAD_LETTERS}",
    )
    health: str | None = Field(
        default=None,
        description="HOST:PORT to answer /livez, /readyz and /metrics at; without it, nowhere",
    )
    log_format: LogFormat = Field(
        default="console", description="How log lines look on standard error: console or json"
    )

    @field_validator("health")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            parse_address(value)
        return value


def default_journal(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the daemon keeps the journal of a producer name, unless it is told otherwise."""
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "sequitur", "producers", f"{name}.journal")


def dead_letter_file(settings: ProduceSettings, journal: Path) -> Path:
    """Where what could not be sent goes: what the settings say, or beside the journal."""
    return settings.dead_letter or journal.with_name(journal.name + _DEAD_LETTERS)
