"""Settings of the reorder job: the section `[reorder]`."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from consumer._adaptive_delay import LATENESS_LIMIT_MS, DelayPolicy
from consumer._event_time import EventTimeSpec
from consumer._late_policy import LatePolicy, ReorderMode
from producer import EVENT_ID_HEADER
from producer.settings import Duration, Section, format_duration, milliseconds
from producer.sources._spec import parse_address

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


_APP: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LONGEST_TRANSACTION: Final = timedelta(minutes=15)


class Delivery(StrEnum):
    """How often a row can appear in an output topic when the job dies and starts again."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


def _check_app(value: object) -> object:
    if isinstance(value, str) and _APP.fullmatch(value) is None:
        raise ValueError("expected letters, digits, '.', '_' and '-', at most 200")
    return value


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _check_topic(value: object) -> object:
    if isinstance(value, str) and (_TOPIC.fullmatch(value) is None or value in {".", ".."}):
        raise ValueError("expected a topic name: letters, digits, '.', '_' and '-', at most 249")
    return value


def _parse_spec(value: object) -> object:
    return EventTimeSpec.parse(value) if isinstance(value, str) else value


Topic = Annotated[str, BeforeValidator(_check_topic)]
App = Annotated[str, BeforeValidator(_check_app)]
Topics = Annotated[tuple[Topic, ...], BeforeValidator(_split)]
Spec = Annotated[EventTimeSpec, BeforeValidator(_parse_spec), PlainSerializer(str, return_type=str)]


AUTO: Final = "auto"
_LONGEST_DELAY: Final = timedelta(milliseconds=LATENESS_LIMIT_MS)
_duration: Final = TypeAdapter(Duration)


def _parse_delay(value: object) -> object:
    if value == AUTO:
        return value
    try:
        return _duration.validate_python(value)
    except ValidationError:
        raise ValueError(
            "expected 'auto', or a duration such as '10 s', '500 ms' or '2 min'"
        ) from None


def _format_delay(value: timedelta | str) -> str:
    return format_duration(value) if isinstance(value, timedelta) else value


Delay = Annotated[
    timedelta | Literal["auto"],
    BeforeValidator(_parse_delay),
    PlainSerializer(_format_delay, return_type=str),
]


class ReorderSettings(Section):
    """How the reorder job restores event-time order."""

    input_topics: Topics = Field(default=(), description="Topics to read, separated by commas")
    input_pattern: str | None = Field(
        default=None,
        min_length=1,
        description="Read all topics whose whole name this (Java) regular expression matches, "
        "those created later, too; instead of input_topics",
    )
    output_topic: Topic = Field(description="Topic for the rows in event-time order")
    late_topic: Topic | None = Field(
        default=None,
        description="Topic for rows behind the frontier; by default the output topic + .late",
    )
    mode: ReorderMode = Field(
        default=ReorderMode.ORDERED,
        description="ordered, or latest: hold nothing, and pass a row that is newer than what is "
        "out of its key",
    )
    stale_topic: Topic | None = Field(
        default=None,
        description="In latest mode, topic for rows that are not; by default + .stale",
    )
    late_policy: LatePolicy = Field(
        default=LatePolicy.TOPIC,
        description="What becomes of late rows: topic, emit (into the output topic, flagged), "
        "drop, or fail (end the job)",
    )
    rescue: bool = Field(
        default=True,
        description="Release a row behind the frontier after all when it is not older than what "
        "was released of its key",
    )
    key_ttl: Duration = Field(
        default=timedelta(days=1),
        gt=timedelta(0),
        description="How long a silent key is remembered, in event time; rows older than that are "
        "late whatever their key",
    )
    duplicates: str = Field(
        default="keep",
        pattern="^(keep|event-id|header:.+)$",
        description="Drop rows that repeat an event: keep (none), event-id, or header:NAME "
        "for the ids of other producers",
    )
    duplicate_window: Duration = Field(
        default=timedelta(minutes=1),
        description="How far behind the frontier the original of a repeat is looked for",
    )
    quarantine_topic: Topic | None = Field(
        default=None,
        description="Topic for rows without a usable event time; by default + .quarantine",
    )
    event_time: Spec = Field(
        description="Where the event time stands: json:PATH, header:NAME or kafka-timestamp"
    )
    checkpoint: str = Field(
        min_length=1,
        description="Folder of the job's state, on any file system that Spark can write",
    )
    delay: Delay = Field(
        default=timedelta(seconds=10),
        description="How far behind the newest event of its partition an event may be; auto: "
        "learned from how late events are",
    )
    late_target: float = Field(
        default=0.001,
        gt=0,
        lt=1,
        description="With delay auto: the share of late rows to stay under",
    )
    delay_min: Duration = Field(
        default=timedelta(milliseconds=100), description="With delay auto: the shortest delay"
    )
    delay_max: Duration = Field(
        default=timedelta(minutes=1),
        le=_LONGEST_DELAY,
        description="With delay auto: the longest delay",
    )
    delay_half_life: Duration = Field(
        default=timedelta(minutes=1),
        ge=timedelta(milliseconds=1),
        description="With delay auto: event time in which what was learned loses half its weight",
    )
    idle_timeout: Duration = Field(
        default=timedelta(seconds=30),
        description="Wait for a partition that has nothing new so long, then go on without it",
    )
    max_future_skew: Duration = Field(
        default=timedelta(minutes=10),
        description="An event time further ahead of now than this goes to quarantine",
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where a new job begins to read"
    )
    max_offsets_per_trigger: int | None = Field(
        default=2_000_000, gt=0, description="Most rows of one batch"
    )
    trigger_interval: Duration = Field(
        default=timedelta(0), description="Time between the beginnings of two batches, at least"
    )
    output_partitions: int | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="Partitions of output topics we create; by default as many as the input",
    )
    metrics: str | None = Field(
        default=None,
        description="HOST:PORT to serve Prometheus metrics at, under /metrics; without it, nowhere",
    )
    replication_factor: int = Field(
        default=-1, ge=-1, description="Replicas of topics we create; -1: the broker's default"
    )

    delivery: Delivery = Field(
        default=Delivery.EXACTLY_ONCE,
        description="exactly-once: by transactions, for readers at read_committed; "
        "at-least-once: a step that is repeated writes its rows again",
    )
    app: App | None = Field(
        default=None,
        description="Name of this job in Kafka, for its transactions and commit tokens; "
        "by default reorder. + the output topic",
    )
    transaction_timeout: Duration = Field(
        default=timedelta(minutes=5),
        gt=timedelta(0),
        le=_LONGEST_TRANSACTION,
        description="The brokers give up a transaction that is open for so long",
    )

    @property
    def app_name(self) -> str:
        """The job's name in Kafka."""
        return self.app or f"reorder.{self.output_topic}"

    @property
    def longest_delay(self) -> timedelta:
        """The fixed delay, or the longest one that may be learned."""
        return self.delay if isinstance(self.delay, timedelta) else self.delay_max

    @property
    def delay_policy(self) -> DelayPolicy | None:
        """What a learned delay has to keep to; None of a fixed one, and where nothing is held."""
        if isinstance(self.delay, timedelta) or self.mode is ReorderMode.LATEST:
            return None
        return DelayPolicy(
            late_target=self.late_target,
            min_ms=milliseconds(self.delay_min),
            max_ms=milliseconds(self.delay_max),
            half_life_ms=milliseconds(self.delay_half_life),
        )

    @property
    def event_id_header(self) -> str | None:
        """The header that repeats are known by, None when they are kept."""
        kind, _, name = self.duplicates.partition(":")
        return None if kind == "keep" else name or EVENT_ID_HEADER

    @property
    def late(self) -> str:
        """The late topic's name; in latest mode that of the stale topic, in its place."""
        if self.mode is ReorderMode.LATEST:
            return self.stale_topic or f"{self.output_topic}.stale"
        return self.late_topic or f"{self.output_topic}.late"

    @property
    def quarantine(self) -> str:
        """The quarantine topic's name."""
        return self.quarantine_topic or f"{self.output_topic}.quarantine"

    @property
    def written_topics(self) -> tuple[str, ...]:
        """All topics that the job writes."""
        return (self.output_topic, self.late, self.quarantine)

    @field_validator("metrics")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            parse_address(value)
        return value

    @model_validator(mode="after")
    def _input_is_given_once(self) -> Self:
        if bool(self.input_topics) == (self.input_pattern is not None):
            raise ValueError("give either input_topics or input_pattern")
        return self

    @model_validator(mode="after")
    def _delays_are_ordered(self) -> Self:
        if self.delay_min > self.delay_max:
            raise ValueError("delay_min must not be longer than delay_max")
        return self

    @model_validator(mode="after")
    def _topics_differ(self) -> Self:
        outputs = self.written_topics
        if set(self.input_topics) & set(outputs):
            raise ValueError("output_topic and the topics beside it must not be read, too")
        if len(set(outputs)) < len(outputs):
            raise ValueError("output_topic and the topics beside it must differ")
        return self
