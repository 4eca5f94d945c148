"""Settings of the reorder job: the section `[reorder]`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from sequitur.base.json_field import parse_key
from sequitur.base.settings import Section, split
from sequitur.base.units import Address, Duration, format_duration, milliseconds
from sequitur.consumer.reorder.event_time import EventTimeSpec
from sequitur.consumer.reorder.late_policy import DataLoss, LatePolicy, ReorderMode
from sequitur.consumer.reorder.learned_delay import LATENESS_LIMIT_MS, DelayPolicy
from sequitur.consumer.reorder.time_bounds import TimeBounds
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER, OutputTimestamp
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.kafka.settings import Topic

_APP: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DEEPEST_FLOOR: Final = timedelta(days=7)
"""Timestamps in a batch differ by less: a delta then has 5 bytes at most."""


def _check_app(value: object) -> object:
    if isinstance(value, str) and _APP.fullmatch(value) is None:
        raise ValueError("expected letters, digits, '.', '_' and '-', at most 200")
    return value


def _parse_spec(value: object) -> object:
    return EventTimeSpec.parse(value) if isinstance(value, str) else value


def _in_utc(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


Moment = Annotated[
    datetime, AfterValidator(_in_utc), PlainSerializer(datetime.isoformat, return_type=str)
]
App = Annotated[str, BeforeValidator(_check_app)]
Topics = Annotated[tuple[Topic, ...], BeforeValidator(split)]
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
    """How the reorder job restores event-time order.

    ::

        settings = ReorderSettings(
            input_topics=("readings",),
            output_topic="readings.ordered",
            event_time="json:at",
            delay="10 s",
            checkpoint="/data/state/readings",
        )
    """

    title = "Topics and state"
    panels: ClassVar = {
        "Delay": (
            *("delay", "late_target", "delay_min", "delay_max", "delay_half_life"),
            *("idle_timeout", "max_future_skew"),
        ),
        "Late rows and duplicates": (
            *("late_policy", "late_topic", "stale_topic", "rescue", "key_ttl"),
            *("duplicates", "duplicate_window", "quarantine_topic"),
        ),
        "Reading and writing": (
            *(
                "runner",
                "workers",
                "stop_timeout",
                "starting_offsets",
                "max_offsets_per_trigger",
                "trigger_interval",
            ),
            *("small_batch_rows", "small_batch_bytes"),
            *("output_partitions", "replication_factor", "app", "metrics"),
        ),
    }

    input_topics: Topics = Field(default=(), description="Topics to read, separated by commas")
    input_pattern: str | None = Field(
        default=None,
        min_length=1,
        description="Instead of input_topics: read each topic whose whole name this Java "
        "regular expression matches. Topics created later are included",
    )
    output_topic: Topic = Field(description="Topic for the rows in event-time order")
    late_topic: Topic | None = Field(
        default=None,
        description="Topic for late rows. Default: output topic + .late",
    )
    mode: ReorderMode = Field(
        default=ReorderMode.ORDERED,
        description="ordered, or latest: hold nothing, and release a row only if it is newer "
        "than the last released row of its key",
    )
    stale_topic: Topic | None = Field(
        default=None,
        description="Topic for stale rows in latest mode. Default: output topic + .stale",
    )
    late_policy: LatePolicy = Field(
        default=LatePolicy.TOPIC,
        description="What the job does with late rows: topic (write them to the late topic), "
        "emit (write them to the output topic, flagged), drop, or fail (end the job)",
    )
    rescue: bool = Field(
        default=True,
        description="Release a row that is older than the frontier if it is not older than the "
        "last released row of its key",
    )
    key_ttl: Duration = Field(
        default=timedelta(days=1),
        gt=timedelta(0),
        description="How long the job remembers a key after its last event, in event time. Rows "
        "older than that are late, whatever their key",
    )
    duplicates: str = Field(
        default="keep",
        pattern="^(keep|event-id|header:.+|json:.+)$",
        description="Which duplicates to drop: keep (none), event-id (rows with the same event "
        "id of a Sequitur producer), or header:NAME or json:PATH (rows with the same id "
        "of another producer)",
    )
    duplicate_window: Duration = Field(
        default=timedelta(minutes=1),
        description="How much older than the frontier the original of a duplicate may be",
    )
    quarantine_topic: Topic | None = Field(
        default=None,
        description="Topic for rows without a usable event time. Default: output topic + "
        ".quarantine",
    )
    event_time: Spec = Field(
        description="Where the event time is: json:PATH, header:NAME or kafka-timestamp. If it "
        "is not in ms, add ' as s', us, ns, auto or a strptime form (json:at as s)"
    )
    tombstones: Literal["quarantine", "timestamp", "key"] = Field(
        default="quarantine",
        description="Where a deletion (a row without a value) goes: quarantine, timestamp (its "
        "event time is the record's timestamp), or key (the same, but after all held rows "
        "of its key)",
    )
    checkpoint: str = Field(
        min_length=1,
        description="Folder of the job's state: a path that all machines of the job share, "
        "s3a://, gs:// or abfs:// (extra s3), or hdfs:// without Kerberos (extra hdfs)",
    )
    subscription: Topic | None = Field(
        default=None,
        description="Store the job's progress in Kafka, as the cursor of this subscription. A "
        "job that lost its checkpoint resumes from it. The lag of the consumer group "
        "shows the backlog",
    )
    evicted_topic: Topic | None = Field(
        default=None,
        description="With a subscription: topic that messages are copied to before a backlog "
        "quota evicts them",
    )
    delay: Delay = Field(
        default=timedelta(seconds=10),
        description="How much older than the newest event of its partition an event may be. "
        "auto: the job learns it from how late events are",
    )
    late_target: float = Field(
        default=0.001,
        gt=0,
        lt=1,
        description="With delay auto: the share of late rows that the job aims to stay below",
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
        description="With delay auto: after this much event time, an observation has half its "
        "weight",
    )
    idle_timeout: Duration = Field(
        default=timedelta(seconds=30),
        description="How long the frontier waits for a partition that has nothing new",
    )
    max_future_skew: Duration = Field(
        default=timedelta(minutes=10),
        description="A row whose event time is further in the future than this goes to quarantine",
    )
    min_event_time: Moment = Field(
        default=datetime(2000, 1, 1, tzinfo=UTC),
        ge=datetime(1970, 1, 1, tzinfo=UTC),
        description="A row whose event time is before this goes to quarantine, since the unit "
        "is probably wrong",
    )
    runner: Literal["spark", "local"] = Field(
        default="spark",
        description="What runs the job: spark, or local (one program, without Spark and Java)",
    )
    workers: int | None = Field(
        default=None,
        gt=0,
        le=1_000,
        description="With runner local: processes that run tasks. Default: one for each core",
    )
    stop_timeout: Duration = Field(
        default=timedelta(seconds=20),
        description="With runner local: how long tasks may run after a stop",
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where a new job begins to read"
    )
    max_offsets_per_trigger: int | None = Field(
        default=2_000_000, gt=0, description="Most rows that one batch reads"
    )
    small_batch_rows: int = Field(
        default=50_000,
        ge=0,
        description="The driver reads batches of at most this many rows itself, without tasks. "
        "0: tasks read all",
    )
    small_batch_bytes: int = Field(
        default=32 << 20,
        gt=0,
        description="Most uncompressed bytes of a batch that the driver reads itself",
    )
    trigger_interval: Duration | None = Field(
        default=None,
        description="Shortest time between batch starts (Spark: 0, local: up to 100 ms)",
    )
    output_partitions: int | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="Partitions of the output topics that the job creates. Default: as many as "
        "the input has",
    )
    on_data_loss: DataLoss = Field(
        default=DataLoss.FAIL,
        description="What to do when Kafka deleted rows, or their topic, before the job read "
        "them: fail, or continue and count them",
    )
    patience: Duration = Field(
        default=timedelta(minutes=15),
        description="How long the job waits for brokers that do not answer and for partitions "
        "without a leader",
    )
    restarts: int = Field(
        default=10,
        ge=0,
        description="How often a run restarts its query when patience is over. A finished step "
        "resets the count",
    )
    max_held_bytes: int = Field(
        default=16 << 30,
        gt=0,
        description="When held rows reach this size, the frontier stops waiting for the slowest "
        "partitions",
    )
    metrics: Address | None = Field(
        default=None,
        description="HOST:PORT at which the job serves Prometheus metrics, under /metrics. "
        "Default: nowhere",
    )
    output_timestamp: OutputTimestamp = Field(
        default=OutputTimestamp.EVENT_TIME,
        description="Timestamps of the records in the output topic: event-time, source (as in "
        "the source topic) or now",
    )
    timestamp_floor: Duration = Field(
        default=timedelta(hours=6),
        gt=timedelta(0),
        le=_DEEPEST_FLOOR,
        description="No output timestamp is older than this, so that retention does not delete "
        "a backfill at once. The event time of such a row is in a header",
    )
    replication_factor: int = Field(
        default=-1,
        ge=-1,
        description="Replicas of the topics that the job creates. -1: the broker's default",
    )

    app: App | None = Field(
        default=None,
        description="Name of this job in Kafka, which owns its producer id. Default: reorder. + "
        "output topic",
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
        """The limits of a learned delay. None if the delay is fixed or nothing is held."""
        if isinstance(self.delay, timedelta) or self.mode is ReorderMode.LATEST:
            return None
        return DelayPolicy(
            late_target=self.late_target,
            min_ms=milliseconds(self.delay_min),
            max_ms=milliseconds(self.delay_max),
            half_life_ms=milliseconds(self.delay_half_life),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the job does that a user of these settings may not expect, each in a sentence."""
        is_event_time = self.output_timestamp is OutputTimestamp.EVENT_TIME
        held = self.mode is ReorderMode.ORDERED and self.longest_delay > self.timestamp_floor
        if not (is_event_time and held):
            return ()
        delay, floor = format_duration(self.longest_delay), format_duration(self.timestamp_floor)
        warning = (
            f"delay {delay} is longer than timestamp_floor {floor}: when rows go out, their "
            f"timestamps will be {floor} ago and not their event times, which are in the header "
            f"{EVENT_TIME_HEADER}"
        )
        return (warning,)

    def bounds(self, now_ms: int) -> TimeBounds:
        """Return the range of event times that the job accepts now.

        Args:
            now_ms: Wall-clock time, epoch ms.
        """
        return TimeBounds(
            earliest_ms=(self.min_event_time - _EPOCH) // timedelta(milliseconds=1),
            latest_ms=now_ms + milliseconds(self.max_future_skew),
            unit=self.event_time.format.unit,
        )

    @field_validator("duplicates")
    @classmethod
    def _names_a_field(cls, value: str) -> str:
        if value.startswith("json:"):
            parse_key(value)
        return value

    @property
    def duplicate_id(self) -> tuple[Literal["header", "json"], str] | None:
        """Where the id is that shows duplicates. None if they are kept.

        A header by its name, or a field of the JSON value by its path.
        """
        kind, _, name = self.duplicates.partition(":")
        if kind == "json":
            return "json", name
        return None if kind == "keep" else ("header", name or EVENT_ID_HEADER)

    @property
    def late(self) -> str:
        """The late topic's name, or in latest mode the stale topic's."""
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
        evicted = () if self.evicted_topic is None else (self.evicted_topic,)
        return (self.output_topic, self.late, self.quarantine, *evicted)

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
        if self.evicted_topic in self.input_topics:
            raise ValueError("evicted_topic must not be read, too: its copies would be evicted")
        if set(self.input_topics) & set(outputs):
            raise ValueError("output_topic and the topics beside it must not be read, too")
        if len(set(outputs)) < len(outputs):
            raise ValueError("output_topic and the topics beside it must differ")
        return self
