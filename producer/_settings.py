"""The section `[producer]`: how events are sent, by every program that sends."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from sequitur.base.retry import Backoff
from sequitur.base.settings import Section
from sequitur.base.units import Duration, Size, milliseconds
from sequitur.kafka.record_format import Compression
from sequitur.kafka.records import check_producer_name

Durability = Literal["journal", "journal-async", "none"]

MAX_IN_FLIGHT = 5
"""How many batches of a producer a broker remembers; with more in flight, duplicates may get in."""


class ProducerSettings(Section):
    """How events are sent.

    ::

        from pathlib import Path

        settings = ProducerSettings(journal=Path("orders.journal"), linger="20 ms")
    """

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
        description="Name of the producer, the first half of each event id. Default: the name "
        "in the journal",
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        description="Client id in the brokers' logs and quotas. Default: the producer's name",
    )
    journal: Path | None = Field(
        default=None,
        description="Directory of the journal, which keeps name, identity and unacknowledged "
        "events over a restart. One producer at a time can use it",
    )
    durability: Durability | None = Field(
        default=None,
        description="journal: events are synced to disk before they are sent. journal-async: "
        "events are written before they are sent, and synced now and then. none: "
        "unacknowledged events are lost with the process. Default: journal with a "
        "directory, none without",
    )
    journal_limit: Size = Field(
        default=1 << 30,
        ge=1 << 20,
        description="Most bytes of the journal on disk. When they are used up, senders wait. A "
        "disk with less free space limits it further",
    )
    journal_sync_interval: Duration = Field(
        default=timedelta(milliseconds=100),
        gt=timedelta(0),
        description="Time between two syncs with journal-async. A power cut may lose the events "
        "of that time",
    )
    accept_new_cluster: bool = Field(
        default=False,
        description="Start although the journal belongs to another cluster, as after a move. "
        "Its unacknowledged events are sent to the new cluster",
    )
    backlog_quota: bool = Field(
        default=False,
        description="Obey backlog quotas: sends to a topic wait or fail while a subscription's "
        "backlog exceeds its quota. Needs the right to read SYSTEM_PREFIX-subscriptions",
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
        description="Most bytes of unacknowledged events in memory. Without a journal, senders "
        "wait when they are used up. With a journal, further events are on disk, up to "
        "journal_limit",
    )
    max_request_size: Size = Field(
        default=1 << 20,
        gt=0,
        le=1 << 30,
        description="Most bytes of one event. A larger event is refused, whatever the topic allows",
    )
    max_in_flight: int = Field(
        default=MAX_IN_FLIGHT,
        ge=1,
        le=MAX_IN_FLIGHT,
        description="Most batches of a partition that wait for their answer at the same time",
    )
    delivery_timeout: Duration = Field(
        default=timedelta(minutes=2),
        gt=timedelta(0),
        description="Longest time from accepting an event to its outcome",
    )
    create_topics: bool = Field(
        default=False,
        description="Create missing topics, with the brokers' defaults. For the daemon's own "
        "topic, create_topic decides",
    )
    topic_timeout: Duration = Field(
        default=timedelta(seconds=5),
        gt=timedelta(0),
        description="How long a topic that the producer and its journal never saw may be "
        "missing. Then events for it are refused. From delivery_timeout on, the producer "
        "waits for it as for any other topic, even without the right to write to it",
    )
    request_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long the producer waits for a broker's answer",
    )
    close_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long closing waits for the answers to batches that were sent",
    )
    producer_expiry: Duration = Field(
        default=timedelta(hours=24),
        gt=timedelta(0),
        description="producer.id.expiration.ms of the brokers. Before an unanswered batch is "
        "sent again, the log is searched for its event ids if its newest record is older "
        "than this minus one hour",
    )
    retry_backoff: Duration = Field(
        default=timedelta(milliseconds=100),
        gt=timedelta(0),
        description="Wait before the first retry. It doubles with each retry, 20 % either way",
    )
    retry_backoff_max: Duration = Field(
        default=timedelta(seconds=1), description="Longest wait before a retry"
    )

    @field_validator("name")
    @classmethod
    def _fits_into_an_event_id(cls, value: str | None) -> str | None:
        return None if value is None else check_producer_name(value)

    @property
    def waits_for_topics(self) -> bool:
        """Whether the producer waits for a topic that it never saw as for others."""
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
