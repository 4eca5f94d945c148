"""The root of a tuple tree: an event, and what one task knows of its tree.

Each tuple that goes to a task is an edge of the trees it is anchored to. The XOR of a tree's open
edges is kept in its root, as far as one task knows them; ackers combine what all tasks know.

Roots are made by the million, so they are msgspec's structs: these are made in half the time of a
class with `__init__`. Each is equal to itself alone.
"""

from __future__ import annotations

import functools
import pickle
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from sequitur.base.copy_headers import FailReason
from sequitur.base.json_field import name_twice_in
from sequitur.base.text import encodable, named
from sequitur.consumer.topology.api.builder import TreeFailure
from sequitur.consumer.topology.api.tuple import Place
from sequitur.errors import EmitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sequitur.consumer.topology.api.builder import Topology


Order: TypeAlias = tuple[int, str, int, int]
"""Position of an event in the ordered stream: event time, topic, partition, offset."""


class Root(msgspec.Struct, eq=False):
    """An event's tree as one task knows it: one XOR value and flags. Ackers combine these."""

    id: int  # unique in its batch; 0 for tuples that come from no event
    event: Any  # the event's values, or only those that say where it came from
    attempt: int = 1  # 1 the first time
    # 0; in older versions a time, which batches prepared by them still have
    begun_s: float = 0.0
    is_tracked: bool = True  # whether its tree is tracked
    value: int = 0  # XOR of the tree's edges, as this task knows them
    failure: TreeFailure | None = None  # why it failed; sticky
    # whether a tuple of its tree was skipped because an earlier event of its key failed
    is_held: bool = False
    kept: int = 0  # how many of its tuples a transaction's bolts keep something of

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self.event[0]
        return key

    @property
    def order(self) -> Order:
        """Its place in the ordered stream."""
        event = self.event
        return event[3], event[4], event[5], event[6]

    @property
    def place(self) -> Place:
        return Place(*self.event[4:7])

    @property
    def is_done(self) -> bool:
        """Whether every tuple of the tree was acked, and none failed."""
        return self.value == 0 and self.failure is None and not self.is_held

    def __reduce__(self) -> Any:
        # Another task gets what identifies it, not its payload nor what this task knows of it.
        event = self.event
        known = (event[0], None, (), event[3], event[4], event[5], event[6], 0)
        return Root, (self.id, known, self.attempt, 0.0, self.is_tracked)

    def __repr__(self) -> str:
        return f"Root({self.id:#x}, {tuple(self.place)})"


def never_acked(spout: str) -> TreeFailure:
    """Return the failure of a tree that was neither acked nor failed by the end of its batch."""
    return TreeFailure(FailReason.NEVER_ACKED, "", (spout,))


_STEP_BITS: Final = 32


def is_made(event: tuple[Any, ...]) -> bool:
    """Return whether an event's values are those of a made tuple."""
    return "/" in event[4]


def component_of(event: tuple[Any, ...]) -> str:
    """Return the component that made a tuple, from its event's values."""
    place: str = event[4]
    return place.rpartition("/")[0]


def first_offset(step: int, before: Iterable[Order]) -> int:
    """Return the offset of the first tuple that a task makes: behind all before it."""
    return max([step << _STEP_BITS, *(offset + 1 for *_, offset in before)])


def last_orders(events: Iterable[tuple[Any, ...]]) -> Mapping[bytes, Order]:
    """Return the order of the last made tuple of each task, by the task's key."""
    last: dict[bytes, Order] = {}
    for event in events:
        if is_made(event):
            order = event[3], event[4], event[5], event[6]
            last[event[0]] = max(order, last.get(event[0], order))
    return last


@functools.lru_cache
def _place_and_key(component: str, task: int) -> tuple[str, bytes]:
    place = f"{component}/{task}"
    return place, f"\0{place}".encode()


BEFORE_EVENTS: Final = ""
AFTER_EVENTS: Final = "~"
"""The topic of a timer that is called before the events of its time, and after them: the names of
Kafka's topics are between the two."""


class TimerPlace(NamedTuple):
    """A timer of a key: whose it is, and where it stands among the events.

    A timer that waits does so in the form of an event of its key. The offset is the number of its
    setting, the partition a hash of bolt and key.
    """

    component: str
    key: bytes
    name: str
    order: Order

    def event(self, at_ms: int, *, is_replayed: bool = False) -> tuple[Any, ...]:
        """Return the timer as an event: the values of `EventValues`."""
        said = msgspec.json.encode(
            {"bolt": self.component, "timer": self.name, "at_ms": at_ms}
            | ({"replayed": True} if is_replayed else {})
        )
        time_ms = self.order[0]
        return self.key, said, (), *self.order, time_ms


def least(*times: int | None) -> int | None:
    """Return the least time, or turn; None if none is known."""
    return min((one for one in times if one is not None), default=None)


def turn_of(time_ms: int, topic: str = BEFORE_EVENTS) -> int:
    """Return the turn of an event or a timer among the timers of a bolt by a field.

    A timer waits for all that has an earlier turn: at T for events before T, and one that comes
    after the events of its time for these, too. So there are two turns to each millisecond.
    """
    return 2 * time_ms + (topic == AFTER_EVENTS)


def behind_turn(turn: int) -> tuple[int, str]:
    """Return the order behind the last timer of a turn."""
    return turn >> 1, (AFTER_EVENTS if turn & 1 else BEFORE_EVENTS) + "\0"


def first_turn(turn: Any, delay_ms: int) -> Any:
    """Return the first turn of what may come of another bolt's event or timer.

    Args:
        turn: That event's or timer's turn, or an array of turns.
        delay_ms: See `Topology.delay_ms`.
    """
    return (turn - 2 * delay_ms) & ~1


def hash_of(component: str, key: bytes) -> int:
    """Return a hash of a bolt and a key, the same in each process; 31 bits."""
    return zlib.crc32(key, zlib.crc32(component.encode())) & 0x7FFFFFFF


def is_timer(event: tuple[Any, ...]) -> bool:
    """Return whether an event's values are those of a timer."""
    return event[4] in {BEFORE_EVENTS, AFTER_EVENTS} and event[0] is not None


def is_own(event: tuple[Any, ...]) -> bool:
    """Return whether an event's values are of no event, but of what a bolt made or set."""
    return is_made(event) or is_timer(event)


def timer_of(event: tuple[Any, ...]) -> tuple[TimerPlace, int]:
    """Return a timer from its event's values, and when it was to be called."""
    said = msgspec.json.decode(event[1])
    return TimerPlace(said["bolt"], event[0], said["timer"], event[3:7]), said["at_ms"]


def is_replayed_timer(event: tuple[Any, ...]) -> bool:
    """Return whether a timer was given up and is given back: its key has it no longer."""
    return is_timer(event) and bool(msgspec.json.decode(event[1]).get("replayed"))


class MadeTuple(NamedTuple):
    """A tuple that a task makes by itself: at a tick or at the end of a batch, without an event.

    Nobody could make such a tuple again: its bolt has forgotten by then what it was made of. So it
    waits and is tried again as an event is, in the form of an event that has the tuple's values.

    - Its topic is `component/task`: no topic of Kafka's can have such a name.
    - Its key is that of its task, so that the tuples of one task keep their order.
    - Its offset numbers the tuples of a task for good.
    """

    component: str
    task: int
    stream: str  # name of the stream that it was emitted to
    values: tuple[Any, ...]
    target: int | None  # the task that it is for, on a direct stream; None on other streams

    @property
    def key(self) -> bytes:
        return _place_and_key(self.component, self.task)[1]

    def event(self, offset: int, time_ms: int, *, is_kept: bool = True) -> tuple[Any, ...]:
        """Return the tuple as an event: the values of `EventValues`."""
        place, key = _place_and_key(self.component, self.task)
        try:
            kept = is_kept and pickle.dumps((self.stream, self.values, self.target), protocol=5)
        except Exception as error:
            raise EmitError(
                f"bolt {self.component!r} emitted a value that cannot be pickled. It must be "
                f"pickled to be kept until its tree is acked: {named(error)}"
            ) from error
        return key, kept or None, (), time_ms, place, self.task, offset, time_ms

    @classmethod
    def of(cls, event: tuple[Any, ...]) -> MadeTuple:
        """Return the tuple that `event` gave the form of an event."""
        component = component_of(event)
        try:
            stream, values, target = pickle.loads(event[1])  # noqa: S301 - a task's, from the checkpoint
        except Exception as error:
            raise EmitError(
                f"a kept value of bolt {component!r} cannot be unpickled: {named(error)}"
            ) from error
        return cls(component, event[5], stream, values, target)

    def check(self, topology: Topology) -> None:
        """Raise if a topology, which may have changed since, lacks the tuple's stream."""
        component = topology.components.get(self.component)
        stream = None if component is None else component.streams.get(self.stream)
        if stream is None or len(stream.fields) != len(self.values):
            raise EmitError(
                f"bolt {self.component!r} emitted {len(self.values)} values to stream "
                f"{self.stream!r}, and the topology has no such stream any more"
            )


def readable(event: tuple[Any, ...], topology: Topology) -> tuple[str, bytes]:
    """Return the stream that a made tuple was emitted to, and its values as text.

    The text is JSON. If the topology still has the stream, the values stand by field. A value that
    JSON has no form for stands as Python shows it. If that fails, all stand as Python shows them.
    """
    try:
        made = MadeTuple.of(event)
    except EmitError as error:
        return "", encodable(str(error)).encode()
    values: Any = made.values
    try:
        made.check(topology)
        fields = topology.components[made.component].streams[made.stream].fields
        values = dict(zip(fields, values, strict=True))
    except EmitError:
        pass
    try:
        said = msgspec.json.encode(values, enc_hook=repr)
        return made.stream, said if name_twice_in(said) is None else _shown(values)
    except Exception:  # noqa: BLE001 - whatever values of the user's raise
        return made.stream, _shown(values)


def _shown(values: Any) -> bytes:
    try:
        return repr(values).encode(errors="backslashreplace")
    except Exception as error:  # noqa: BLE001 - likewise
        return f"values that cannot be shown: {type(error).__name__}".encode()
