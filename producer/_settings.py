"""The section `[producer]`: how events are sent, by every program that sends."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from sequitur.base.retry import Backoff
from sequitur.base.settings import Duration, Section, Size, milliseconds
from sequitur.kafka.record_format import Compression
from sequitur.kafka.records import check_producer_name

Durability = Literal["journal", "journal-async", "none"]

MAX_IN_FLIGHT = 5
"""How many batches of a producer a broker remembers; with more in flight, duplicates may get in."""


class ProducerSettings(Section):
    """How events are sent."""

    title = "Producer"
    panels: ClassVar = {
        "Batches, limits, times": (
            *("compression", "linger", "batch_size", "buffer_size", "max_request_size"),
            *("max_in_flight", "delivery_timeout", "topic_timeout", "request_timeout"),
            "close_timeout",
            *("retry_backoff", "retry_backoff_max"),
        ),
    }

    name: str | None = Field(
        default=None,
        description="The producer's name, first half of each event id; without it, the journal's",
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        description="Client id in the brokers' logs and quotas; without it, the producer's name",
    )
    journal: Path | None = Field(
        default=None,
        description="Directory of the journal, which keeps name, identity and un-acked events over "
        "a restart; one producer at a time",
    )
    durability: Durability | None = Field(
        default=None,
        description="journal: synced to disk before it is sent; journal-async: written before it "
        "is sent, synced now and then; none: unacknowledged events are lost with the process. "
        "By default journal with a directory, none without",
    )
    journal_limit: Size = Field(
        default=1 << 30,
        ge=1 << 20,
        description="Bytes the journal may take on disk, beyond which a sender has to wait; "
        "a disk with less room is a smaller limit",
    )
    journal_sync_interval: Duration = Field(
        default=timedelta(milliseconds=100),
        gt=timedelta(0),
        description="Time between two syncs with journal-async, which is what a power cut may lose",
    )
    accept_new_cluster: bool = Field(
        default=False,
        description="Go on although the journal belongs to another cluster, as after a move: what "
        "it holds un-acknowledged is sent to the new one",
    )
    backlog_quota: bool = Field(
        default=False,
        description="Keep to backlog quotas: read the topic SYSTEM_PREFIX-subscriptions, "
        "and hold or refuse events for a topic whose subscriptions are too far behind",
    )
    compression: Compression = Field(default="lz4", description="Codec of a batch")
    linger: Duration = Field(
        default=timedelta(milliseconds=5),
        description="How long a batch waits for more events before it is sent",
    )
    batch_size: Size = Field(
        default=256 << 10, gt=0, le=64 << 20, description="Bytes of a batch before compression"
    )
    buffer_size: Size = Field(
        default=64 << 20,
        gt=0,
        description="Bytes of memory for unacknowledged events. Without a journal a sender has to "
        "wait beyond it; with one, what waits is on disk, up to journal_limit, and memory holds "
        "a window of it",
    )
    max_request_size: Size = Field(
        default=1 << 20,
        gt=0,
        le=1 << 30,
        description="Bytes of one event beyond which it is refused, whatever the topic allows",
    )
    max_in_flight: int = Field(
        default=MAX_IN_FLIGHT,
        ge=1,
        le=MAX_IN_FLIGHT,
        description="Batches of a partition that wait for their answer at the same time",
    )
    delivery_timeout: Duration = Field(
        default=timedelta(minutes=2),
        gt=timedelta(0),
        description="When an event's outcome is told at the latest",
    )
    create_topics: bool = Field(
        default=False,
        description="Create topics that are missing, with the brokers' defaults; the daemon "
        "creates its own as create_topic says",
    )
    topic_timeout: Duration = Field(
        default=timedelta(seconds=5),
        gt=timedelta(0),
        description="How long a topic that this producer and its journal never saw may be missing "
        "before events for it are refused. At delivery_timeout or above such a topic is waited for "
        "as any other, also without the right to write to it",
    )
    request_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long an answer of a broker is waited for",
    )
    close_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long closing waits for the answers to what was sent",
    )
    producer_expiry: Duration = Field(
        default=timedelta(hours=24),
        gt=timedelta(0),
        description="producer.id.expiration.ms of the brokers: a batch without an answer whose "
        "newest record is older than this less an hour is looked for in the log, by event id, "
        "before it is sent again",
    )
    retry_backoff: Duration = Field(
        default=timedelta(milliseconds=100),
        gt=timedelta(0),
        description="Wait before the first retry; it doubles from there, 20 % either way",
    )
    retry_backoff_max: Duration = Field(
        default=timedelta(seconds=1), description="Wait that the doubling ends at"
    )

    @field_validator("name")
    @classmethod
    def _fits_into_an_event_id(cls, value: str | None) -> str | None:
        return None if value is None else check_producer_name(value)

    @property
    def waits_for_topics(self) -> bool:
        """Whether a topic that was never seen is waited for as one that was."""
        return self.topic_timeout >= self.delivery_timeout

    @property
    def journaling(self) -> Durability:
        """The durability that is in force."""
        if self.durability is not None:
            return self.durability
        return "none" if self.journal is None else "journal"

    @model_validator(mode="after")
    def _journal_has_a_place(self) -> Self:
        if self.journal is None and self.journaling != "none":
            raise ValueError(f"durability = {self.durability}: expected a directory in journal")
        return self

    @model_validator(mode="after")
    def _timeouts_fit(self) -> Self:
        if self.delivery_timeout < self.linger:
            raise ValueError("delivery_timeout is shorter than linger: no event would ever be sent")
        if self.retry_backoff_max < self.retry_backoff:
            raise ValueError("retry_backoff_max is smaller than retry_backoff")
        return self


def backoff_of(settings: ProducerSettings) -> Backoff:
    """Return the waits between retries."""
    return Backoff(
        initial_ms=milliseconds(settings.retry_backoff),
        maximum_ms=milliseconds(settings.retry_backoff_max),
    )
