"""Tuples as bolts see them, and the streams they are emitted to.

An *event* of the ordered stream is the root of a tuple tree. What tracks the trees is hidden from
bolts (`sequitur.consumer.topology.engine.trees`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEFAULT_STREAM: Final = "default"
"""The stream of tuples that are emitted without a stream's name."""
SYSTEM_COMPONENT: Final = "__system"
"""The source of tick tuples, by Storm's name."""
TRANSACTION_FIELD: Final = "transaction"
"""In a transactional topology the first field of the spout's tuples and of ticks."""


class Place(NamedTuple):
    """Where an event came from.

    Attributes:
        topic: Its source topic.
        partition: Its partition there.
        offset: Its offset there.
    """

    topic: str
    partition: int
    offset: int


class EventValues(NamedTuple):
    """The values of a spout's tuple. Testers also take a plain tuple of them, or a mapping.

    Attributes:
        key: The event's key.
        value: The event's value. None is a tombstone.
        headers: Name and value of each header.
        event_time_ms: Its event time, epoch ms.
        topic: Its source topic.
        partition: Its partition there.
        offset: Its offset there.
        timestamp_ms: The timestamp of its record there, epoch ms.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    event_time_ms: int
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Stream:
    component: str
    name: str
    fields: tuple[str, ...]  # names of a tuple's values
    is_direct: bool = False  # whether the emitter names the task that gets a tuple
    task: int = 0
    index: dict[str, int] = field(init=False, repr=False, compare=False)  # where each field stands

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {name: at for at, name in enumerate(self.fields)})

    def __reduce__(self) -> Any:
        return Stream, (self.component, self.name, self.fields, self.is_direct, self.task)

    @property
    def title(self) -> str:
        """Its name for readers: of the default stream, the component's."""
        return self.component if self.name == DEFAULT_STREAM else f"{self.component}.{self.name}"


class Tuple(msgspec.Struct, eq=False):
    """The input of a bolt: named values of a stream.

    `tuple["word"]` is a value by its field, `tuple[0]` by its index.

    Attributes:
        values: The values, in the order of the stream's fields.
        declared: The stream, as its component declares it.
    """

    values: Any
    declared: Stream

    def __getitem__(self, field: str | int) -> Any:
        if field.__class__ is str:
            try:
                return self.values[self.declared.index[field]]
            except KeyError:
                raise KeyError(
                    f"{field!r}: tuples of {self.declared.title!r} have the fields "
                    f"{', '.join(self.declared.fields)}"
                ) from None
        return self.values[field]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of its values."""
        return self.declared.fields

    @property
    def source(self) -> str:
        """The component that emitted it."""
        return self.declared.component

    @property
    def source_task(self) -> int:
        """Number of the task that emitted it. For an event, its partition of the ordered stream."""
        return self.declared.task

    @property
    def stream(self) -> str:
        """Name of the stream it was emitted to."""
        return self.declared.name

    @property
    def is_tick(self) -> bool:
        """Whether it is a tick, and not derived from an event."""
        return self.declared.component == SYSTEM_COMPONENT

    @property
    @abstractmethod
    def place(self) -> Place:
        """Source position of the event it is derived from, or of the first of several."""

    @property
    @abstractmethod
    def places(self) -> tuple[Place, ...]:
        """Source positions of all events it is derived from."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """How often its event has been tried, including this attempt."""

    @property
    @abstractmethod
    def event_time_ms(self) -> int:
        """Event time of its event, or of the newest of several."""

    @property
    @abstractmethod
    def event_key(self) -> bytes | None:
        """Key of the event it is derived from, or of the first of several."""

    def as_dict(self) -> dict[str, Any]:
        """Return its values by field."""
        return dict(zip(self.declared.fields, self.values, strict=True))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"<tuple of {self.declared.title}: {shown}>"


class Event(Tuple, eq=False):
    """A tuple of the ordered stream."""

    @property
    def key(self) -> bytes | None:
        """The event's key."""
        key: bytes | None = self.values[0]
        return key

    @property
    def value(self) -> bytes | None:
        """The event's value."""
        value: bytes | None = self.values[1]
        return value

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """The event's headers."""
        headers: Sequence[tuple[str, bytes | None]] = self.values[2] or ()
        return headers

    @property
    @abstractmethod
    def behind(self) -> bool:
        """Whether timers and ticks may have passed its time already.

        That is so for rescued rows, for replayed dead letters, and for events after a silence.
        Only the bolt that gets the event may ask, in its call.
        """
