"""Tuples, the roots of their trees, and what became of them.

An *event* of the ordered stream is the root of a tree. Each *tuple* that goes to a task is an edge
of the trees it is anchored to; the XOR of a tree's open edges is kept in its root, as far as one
task knows of them (`sequitur.consumer.topology.settling.acker` has the whole).

Roots and tuples are made by the million, so they are msgspec's structs: these are made in half the
time of a class with `__init__`. Each is equal to itself alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

DEFAULT_STREAM: Final = "default"


class Place(NamedTuple):
    """Where an event came from."""

    topic: str
    partition: int
    offset: int


class EventValues(NamedTuple):
    """The values of a spout's tuple; a tuple of these columns will do as well."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    event_time_ms: int
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class FailReason(StrEnum):
    """Why an event was not processed to the end."""

    FAILED = "failed"
    """A bolt failed it."""
    EXCEPTION = "exception"
    """A bolt raised."""
    TIMEOUT = "timeout"
    """A call, or the whole tree, took longer than `message_timeout`."""
    NEVER_ACKED = "never-acked"
    """Its batch ended, and a tuple of it was neither acked nor failed."""
    CRASH = "crash"
    """The process that ran it died."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a root failed.

    Attributes:
        reason: The reason.
        detail: A traceback, or what is known.
        path: The components that the failed tuple had come through, the spout first.
    """

    reason: FailReason
    detail: str = ""
    path: tuple[str, ...] = ()


def never_acked(spout: str, raised: Iterable[tuple[str, str]]) -> Failure:
    """Why a root failed that was neither acked nor failed by the end of its batch.

    Args:
        spout: Name of the spout.
        raised: Bolts whose `finish_batch` raised, and what.
    """
    detail = "; ".join(f"finish_batch of {who!r}: {why}" for who, why in raised)
    return Failure(FailReason.NEVER_ACKED, detail, (spout,))


class Root(msgspec.Struct, eq=False):
    """The root of a tuple tree, and the acker's entry for it: one XOR value, plus flags.

    Attributes:
        id: Tells it from all others of its batch; 0 of what comes of no event.
        event: The event's values, or those that say where it came from.
        attempt: 1 the first time.
        value: XOR of the tree's edges, as this task knows them.
        failure: Why it failed; sticky.
        is_held: Whether a tuple of it was passed over, since an earlier event of its key failed.
        begun_s: When this task first saw it, in seconds of the executor's clock.
        is_tracked: Whether anyone waits for it.
    """

    id: int
    event: Any
    attempt: int = 1
    begun_s: float = 0.0
    is_tracked: bool = True
    value: int = 0
    failure: Failure | None = None
    is_held: bool = False

    @property
    def key(self) -> bytes | None:
        """The event's key."""
        key: bytes | None = self.event[0]
        return key

    @property
    def order(self) -> tuple[int, str, int, int]:
        """Its place in the ordered stream."""
        event = self.event
        return event[3], event[4], event[5], event[6]

    @property
    def place(self) -> Place:
        """Where it came from."""
        return Place(*self.event[4:7])

    @property
    def is_done(self) -> bool:
        """Whether every tuple of the tree was acked, and none failed."""
        return self.value == 0 and self.failure is None and not self.is_held

    def __reduce__(self) -> Any:
        # To another task goes what it is known by, not its payload nor what this task saw of it.
        event = self.event
        known = (event[0], None, (), event[3], event[4], event[5], event[6], 0)
        return Root, (self.id, known, self.attempt, 0.0, self.is_tracked)

    def __repr__(self) -> str:
        return f"Root({self.id:#x}, {tuple(self.place)})"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as its component declares it.

    Attributes:
        component: Who emits to it.
        name: Its name.
        fields: Names of a tuple's values.
        is_direct: Whether who emits says which task gets a tuple.
        task: Of a task's own stream, the task's number.
        index: Where each field stands.
    """

    component: str
    name: str
    fields: tuple[str, ...]
    is_direct: bool = False
    task: int = 0
    index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {name: at for at, name in enumerate(self.fields)})

    def __reduce__(self) -> Any:
        return Stream, (self.component, self.name, self.fields, self.is_direct, self.task)

    @property
    def title(self) -> str:
        """How it is called where it is read."""
        return self.component if self.name == DEFAULT_STREAM else f"{self.component}.{self.name}"


class Tuple(msgspec.Struct, eq=False):
    """What a bolt is given: named values, with the trees it belongs to.

    `tuple["word"]` gives a value by its field, `tuple[0]` by its place.

    Attributes:
        values: The values, in the order of the stream's fields.
    """

    values: Any
    _stream: Stream
    _root: Root
    _edge: int
    _parent: Any
    _owner: Any

    _more: ClassVar[tuple[tuple[Root, int], ...]] = ()
    """Further trees it belongs to: see `WovenTuple`."""

    def __getitem__(self, field: str | int) -> Any:
        if field.__class__ is str:
            try:
                return self.values[self._stream.index[field]]
            except KeyError:
                raise KeyError(
                    f"{field!r}: tuples of {self._stream.title!r} have the fields "
                    f"{', '.join(self._stream.fields)}"
                ) from None
        return self.values[field]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of its values."""
        return self._stream.fields

    @property
    def source(self) -> str:
        """The component that emitted it."""
        return self._stream.component

    @property
    def source_task(self) -> int:
        """Number of the task that emitted it; of an event, its partition of the ordered stream."""
        return self._stream.task

    @property
    def stream(self) -> str:
        """The stream it was emitted to."""
        return self._stream.name

    @property
    def is_tick(self) -> bool:
        """Whether it is a tick, and not of any event."""
        return self._stream.component == "__system"

    @property
    def place(self) -> Place:
        """Where the event is from that it comes of; of several, the first."""
        return self._root.place

    @property
    def places(self) -> tuple[Place, ...]:
        """Where all events are from that it comes of."""
        return tuple(root.place for root, _ in self._trees())

    @property
    def attempt(self) -> int:
        """How many times its event has been tried, this time included."""
        return max(root.attempt for root, _ in self._trees())

    @property
    def event_time_ms(self) -> int:
        """Event time of its event; of several, of the newest."""
        time_ms: int = max(root.event[3] for root, _ in self._trees())
        return time_ms

    @property
    def event_key(self) -> bytes | None:
        """Key of the event it came from."""
        return self._root.key

    def as_dict(self) -> dict[str, Any]:
        """Its values by field."""
        return dict(zip(self._stream.fields, self.values, strict=True))

    def _trees(self) -> tuple[tuple[Root, int], ...]:
        """The trees it belongs to, and its edge in each."""
        return ((self._root, self._edge), *self._more)

    def _path(self) -> tuple[str, ...]:
        """The components it came through, the spout first."""
        path = [self._stream.component]
        parent = self._parent
        while parent is not None:
            if isinstance(parent, tuple):  # of another task
                path.extend(reversed(parent))
                break
            path.append(parent._stream.component)
            parent = parent._parent
        return tuple(reversed(path))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"<tuple of {self._stream.title}: {shown}>"


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


class WovenTuple(Tuple, eq=False):
    """A tuple of several trees."""

    _more: tuple[tuple[Root, int], ...] = ()  # type: ignore[misc]


def woven(
    values: Any, stream: Stream, trees: Sequence[tuple[Root, int]], parent: Any, owner: Any
) -> WovenTuple:
    """A tuple of these trees."""
    root, edge = trees[0]
    return WovenTuple(values, stream, root, edge, parent, owner, tuple(trees[1:]))
