"""A topology: components, and the streams they read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology.api.tuple import EventValues, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.consumer.topology.api.bolt import BaseBolt
    from sequitur.consumer.topology.api.groupings import Grouping
    from sequitur.consumer.topology.api.hooks import EventHook


EVENT_FIELDS: Final = EventValues._fields


class Kind(StrEnum):
    """What a component is."""

    SPOUT = "spout"
    BOLT = "bolt"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A stream that a component reads."""

    component: str  # whose stream
    stream: str
    grouping: Grouping  # how its tuples are spread over the reader's tasks


@dataclass(frozen=True, slots=True)
class KafkaOutput:
    """What an output bolt makes of a tuple."""

    topic: str | None = None  # the topic; None for the job's `output_topic`
    key: str | None = None  # field of the record's key: bytes, text, None, or anything as JSON
    # field of its value, likewise; None for a JSON object of all fields but those of key and
    # headers
    value: str | None = None
    headers: str | None = None  # field of its headers, a sequence of (name, bytes, text or None)
    # makes bytes or text of keys and values that are neither; None for JSON
    encode: Callable[[Any], bytes | str] | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """A spout, a bolt or an output.

    Attributes:
        id: Its name.
        kind: What it is.
        bolt: Of a bolt, what runs.
        output: Of an output, where it writes.
        parallelism: How many tasks; None for as many as what it reads has where it can run there,
            and otherwise as many as the spout has (`engine.plan`).
        concurrency: How many calls of a task run side by side.
        inputs: What it reads.
        streams: What it emits, by name.
        tick_ms: Of a bolt, how often it is given a tick; None for never.
        tracked: Of the spout: which events have a message id, so that their trees are tracked.
    """

    id: str
    kind: Kind
    bolt: BaseBolt | None = None
    output: KafkaOutput | None = None
    parallelism: int | None = None
    concurrency: int = 1
    inputs: tuple[Subscription, ...] = ()
    streams: Mapping[str, Stream] = field(default_factory=dict)
    tick_ms: int | None = None
    tracked: bool | Callable[[Any], bool] = True


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology that was checked.

    Attributes:
        name: Its name.
        components: Its components, each behind those it reads.
        config: The configuration that bolts find in their context.
        hook: Is notified of acked and failed events; None for no hook.
    """

    name: str
    components: Mapping[str, Component]
    config: Mapping[str, Any]
    hook: EventHook | None = None

    @property
    def is_transactional(self) -> bool:
        """Whether a batch of it is a transaction (`TransactionalTopology`)."""
        return False

    @property
    def commit_phase(self) -> frozenset[str]:
        """Bolts that take part in the commit phase of a transaction; none without transactions."""
        return frozenset()

    def values_of(self, event: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values that the spout emits of an event."""
        return event

    @property
    def spout(self) -> Component:
        """The ordered stream."""
        return next(one for one in self.components.values() if one.kind is Kind.SPOUT)

    @property
    def bolts(self) -> tuple[Component, ...]:
        """Its bolts, each behind those it reads."""
        return tuple(one for one in self.components.values() if one.kind is Kind.BOLT)

    @property
    def is_concurrent(self) -> bool:
        """Whether a bolt has calls that run side by side, as those do that wait for a service."""
        return any(one.concurrency > 1 for one in self.bolts)

    @property
    def tick_intervals_ms(self) -> dict[str, int]:
        """How often bolts are given a tick, of those that are."""
        return {one.id: one.tick_ms for one in self.bolts if one.tick_ms is not None}

    @property
    def outputs(self) -> tuple[Component, ...]:
        """Its outputs."""
        return tuple(one for one in self.components.values() if one.kind is Kind.OUTPUT)

    def topics(self, default: str) -> tuple[str, ...]:
        """Return the topics its outputs write to.

        Args:
            default: The topic of outputs without one of their own.
        """
        named = (one.output.topic or default for one in self.outputs if one.output is not None)
        return tuple(dict.fromkeys(named))

    def readers(self, component: str, stream: str) -> tuple[tuple[Component, Grouping], ...]:
        """Who reads a stream, and by which grouping."""
        return tuple(
            (reader, one.grouping)
            for reader in self.components.values()
            for one in reader.inputs
            if (one.component, one.stream) == (component, stream)
        )
