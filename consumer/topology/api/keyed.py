"""Keyed bolts: state and timers of each key, undone with a failed tree."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from sequitur.base.text import encodable
from sequitur.consumer.topology.api.bolt import BaseBolt
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM
from sequitur.errors import KeyedStateError, TimerLoopError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.tuple import Event


MOST_BYTES: Final = 1 << 20
"""At most so many bytes a key keeps, state and timers."""
MOST_IN_A_ROW: Final = 1_000
"""So many timers at most may be set one by the other that are due at once."""
_TIMER_BYTES: Final = 32
_LATEST_MS: Final = 1 << 53


class KeyedBolt(BaseBolt):
    """A bolt that keeps a state and timers for each key of the ordered stream.

    It reads the spout, by `fields_grouping(SPOUT, "key")`. The events of a key come in event-time
    order, with its timers between them. What is yielded or emitted by the key is anchored to the
    event or timer, which is acked when the call returns. If its tree fails, state and timers go
    back to where they were before it.

    ::

        from msgspec import Struct

        from sequitur import KeyedBolt


        class Seen(Struct):
            at_ms: int


        class Quiet(KeyedBolt):
            fields = ("user", "last_ms")
            state = Seen

            def process(self, event, key):
                key.state = Seen(event.event_time_ms)
                key.timer("quiet", at=event.event_time_ms + 600_000)

            def on_timer(self, timer, key):
                yield key.value, key.state.at_ms
                key.state = None

    Attributes:
        state: The type of a key's state: any type that `msgspec` takes. None: keys have only
            timers.
        drains: Whether a job that ends with `--drain` calls all timers of the bolt, as if their
            time had come. Each key's must come to an end.
    """

    state: ClassVar[Any] = None
    drains: bool = False

    @abstractmethod
    def process(self, event: Event, key: Key, /) -> Any:
        """Process an event. What it yields, or returns in a list, is emitted.

        Args:
            event: The event.
            key: Its key, for this call only.
        """

    def on_timer(self, timer: Timer, key: Key, /) -> Any:
        """Called when a timer is due. What it yields, or returns in a list, is emitted.

        A timer at T is called once all events before T were, and before those of T. It is set no
        longer.

        Args:
            timer: The timer.
            key: Its key, for this call only.
        """
        del key
        raise NotImplementedError(f"timer {timer.name!r} is due, and the bolt has no on_timer")


class Timer(NamedTuple):
    """A timer that is due.

    Attributes:
        name: Its name, one of its key's.
        at_ms: When it was to be called, event time in epoch ms.
        attempt: How often it has been tried, including this attempt.
    """

    name: str
    at_ms: int
    attempt: int = 1


class SetTimer(NamedTuple):
    """A timer that waits.

    Its place in the order of events is `time_ms`, before the events of that time. One that is set
    for no later time than it is set at comes after the events of that time: it `follows` them.
    """

    at_ms: int  # what the user asked for
    time_ms: int
    follows: bool
    number: int  # of its setting, among those of its key
    row: int  # how many timers in a row were due as soon as they were set, this one included


class Entry(NamedTuple):
    """What is kept of a key. It is not changed, but replaced."""

    state: bytes | None = None
    timers: Mapping[str, SetTimer] = {}
    number: int = 0  # number of the next timer's setting
    # the state as it was read back when it was assigned: whoever takes it has it alone
    fresh: list[Any] | None = None

    @property
    def is_empty(self) -> bool:
        return self.state is None and not self.timers

    @property
    def timer_ms(self) -> int | None:
        """The time of its earliest timer; None without any."""
        return min((one.time_ms for one in self.timers.values()), default=None)


class KeyRunner(Protocol):
    """Runs a keyed bolt's task."""

    def encode(self, value: Any, /) -> tuple[bytes, Any]:
        """Return a state as bytes, and as it is read from them."""

    def decode(self, state: bytes, /) -> Any:
        """Return a state from its bytes."""

    def emit(
        self,
        values: Any,
        anchors: Sequence[Any],
        stream: str,
        task: int | None,
        own_time_ms: int | None = None,
    ) -> list[TaskId]:
        """Emit for the key."""


class Key:
    """A key in a call of a keyed bolt: its state, its timers, and what is emitted for it.

    Attributes:
        value: The key of its events.
    """

    __slots__ = ("_anchor", "_runner", "_shown", "_timer", "entry", "is_late", "value")

    def __init__(
        self,
        runner: KeyRunner,
        value: bytes,
        entry: Entry,
        anchor: Any,
        timer: SetTimer | None,
    ) -> None:
        self.value = value
        self.entry = entry
        self.is_late = False
        self._runner = runner
        self._anchor = anchor
        self._timer = timer
        self._shown: Any = None

    @property
    def state(self) -> Any:
        """The state; None if there is none. What is assigned counts, as it is then.

        An assigned state that is changed later in place stays as it was: assign it again.

        Raises:
            KeyedStateError: On assignment: it is not of the bolt's `state`, or the key would keep
                more than 1 MiB.
        """
        entry = self.entry
        if self._shown is None and entry.state is not None:
            fresh = entry.fresh
            self._shown = fresh.pop() if fresh else self._runner.decode(entry.state)
        return self._shown

    @state.setter
    def state(self, value: Any) -> None:
        self._check_call()
        entry = self.entry
        if value is None:
            self.entry = Entry(None, entry.timers, entry.number)
        else:
            encoded, read = self._runner.encode(value)
            if len(encoded) > MOST_BYTES - _TIMER_BYTES * len(entry.timers):
                raise self._too_large(len(encoded))
            self.entry = Entry(encoded, entry.timers, entry.number, [read])
        self._shown = value

    @property
    def timers(self) -> dict[str, int]:
        """The names of the key's timers, and when each is due, event time in epoch ms."""
        return {name: one.at_ms for name, one in self.entry.timers.items()}

    def timer(self, name: str, *, at: int) -> None:
        """Set a timer; it replaces the key's timer of this name.

        A timer that is due already is called in the same step, after the events of its time.

        Args:
            name: Its name.
            at: When it is due, event time in epoch ms.

        Raises:
            KeyedStateError: The key would keep more than 1 MiB.
            TimerLoopError: A thousand timers in a row were due as soon as they were set.
        """
        self._check_call()
        if not _is_text(name) or not _is_time(at):
            raise KeyedStateError(
                f"timer({name!r:.100}, at={at!r:.100}): the name is text, and `at` an int in ms"
            )
        entry, by, now_ms = self.entry, self._timer, self._anchor.event_time_ms
        time_ms, follows, row = at, False, 0
        if at <= now_ms:
            # It stands after whoever sets it: an event, or another timer.
            time_ms, follows = now_ms, by is None or by.follows
            row = 1 if by is None else by.row + 1
            if row > MOST_IN_A_ROW:
                raise TimerLoopError(
                    f"key {self.value!r:.100}: timer {name!r} would be the {row}th in a row that "
                    "is due as soon as it is set: set it for a later time"
                )
        timers = dict(entry.timers)
        timers[name] = SetTimer(at, time_ms, follows, entry.number, row)
        size = len(entry.state or b"") + _TIMER_BYTES * len(timers) + sum(map(len, timers))
        if size > MOST_BYTES:
            raise self._too_large(size)
        self.entry = Entry(entry.state, timers, entry.number + 1, entry.fresh)

    def cancel(self, name: str) -> None:
        """Cancel a timer. Without a timer of this name it does nothing."""
        self._check_call()
        entry = self.entry
        if name in entry.timers:
            timers = {other: one for other, one in entry.timers.items() if other != name}
            self.entry = Entry(entry.state, timers, entry.number, entry.fresh)

    def emit(
        self,
        values: Any,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        *,
        event_time_ms: int | None = None,
    ) -> list[TaskId]:
        """Emit a tuple, anchored to the event or timer. See `OutputCollector.emit`.

        Args:
            values: See `OutputCollector.emit`.
            stream: See `OutputCollector.emit`.
            task: See `OutputCollector.emit`.
            event_time_ms: Its event time, and that of all that is made of it, epoch ms. None: that
                of the event or timer.
        """
        self._check_call()
        if event_time_ms is not None and not _is_time(event_time_ms):
            raise KeyedStateError(f"emit(event_time_ms={event_time_ms!r:.100}): it is an int in ms")
        return self._runner.emit(values, (self._anchor,), stream, task, event_time_ms)

    def count_late(self) -> None:
        """Count the event as late for a window, once it is done: see `late_for_window`."""
        self._check_call()
        self.is_late = True

    @property
    def shown(self) -> Any:
        """The state that the bolt has seen or assigned, as it is now."""
        return self._shown

    def end(self) -> None:
        self._anchor = None

    def _check_call(self) -> None:
        if self._anchor is None:
            raise KeyedStateError(
                f"key {self.value!r:.100} is of a call that is over: use the key of each call"
            )

    def _too_large(self, size: int) -> KeyedStateError:
        return KeyedStateError(
            f"key {self.value!r:.100} would keep {size} bytes, more than {MOST_BYTES}: keep less "
            "of it, or spread it over more keys"
        )


def _is_time(at: Any) -> bool:
    return at.__class__ is int and abs(at) <= _LATEST_MS


def _is_text(name: Any) -> bool:
    """Return whether a name is text that UTF-8 can hold."""
    return name.__class__ is str and (name.isascii() or encodable(name) == name)


def why_no_state(kind: Any) -> str | None:
    """Return why a type can be no state; None if it can be one."""
    if kind is None:
        return None
    try:
        msgspec.msgpack.Decoder(kind)
    except Exception as error:  # noqa: BLE001 - whatever a type of the user's makes of it
        return str(error)
    return None
