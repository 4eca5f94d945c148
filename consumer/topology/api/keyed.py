"""Keyed bolts: state and timers of each key, undone with a failed tree."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from sequitur.base.text import encodable
from sequitur.consumer.topology.api.bolt import BaseBolt
from sequitur.consumer.topology.api.key_items import (
    Entries,
    KeyList,
    KeyMap,
    Names,
    list_type,
    map_types,
)
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM
from sequitur.errors import KeyedStateError, TimerLoopError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event


MOST_BYTES: Final = 1 << 30
"""A bolt's `max_bytes` can be no more."""
LATEST_VERSION: Final = 127
"""A bolt's `version` can be no more: it is a byte of each entry."""
MOST_IN_A_ROW: Final = 1_000
"""So many timers at most may be set one by the other that are due at once."""
_TIMER_BYTES: Final = 32
_LATEST_MS: Final = 1 << 53


class KeyedBolt(BaseBolt):
    """A bolt that keeps a state and timers for each key of the ordered stream.

    It reads the spout, by `fields_grouping(SPOUT, "key")`. The events of a key come in event-time
    order, with its timers between them. Keyed by another field, or as a reader of another bolt, it
    has a stage of its own: then an event that is tried again comes after later ones, and timers
    wait for it. What is yielded or emitted by the key is anchored to the
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
        state: The type of a key's state: any type that `msgspec` takes. None: it has none.
        state_map: The types of its map, as `dict[str, int]`: names are text, bytes or ints. None:
            it has none.
        state_list: The type of its list, as `list[Order]`. None: it has none.
        ttl: How long state, map and list are kept without an event or timer of the key: seconds, a
            `timedelta`, or text such as "30 days". None: until the bolt forgets them.
        max_bytes: How many bytes a key keeps at most, all together.
        version: Of its types, from 1 to 127. What is stored by another one goes through `migrate`.
        lag_ms: How much earlier than its timer what `on_timer` emits may be, in ms of event time.
            The timers of keyed bolts that read it wait so much longer.
        takes_events: Whether it takes events only: tuples with the fields of the spout's.
        needs_order: Whether it takes events, and in their order. Such a bolt cannot be keyed by
            another field.
        drains: Whether a job that ends with `--drain` calls all timers of the bolt, as if their
            time had come. Each key's must come to an end. Its `ttl` does not end by that.
    """

    state: ClassVar[Any] = None
    state_map: ClassVar[Any] = None
    state_list: ClassVar[Any] = None
    ttl: Length | None = None
    max_bytes: int = 1 << 20
    version: int = 1
    lag_ms: int = 0
    takes_events: bool = False
    needs_order: bool = False
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

    def migrate(self, old: Any, version: int, kind: str, /) -> Any:
        """Return what was stored by another `version`, as it is now. It is called on each read.

        Args:
            old: What was stored: None, bool, numbers, text, bytes, lists and dicts of them. A
                Struct is a dict.
            version: By which version.
            kind: "state", or "map" or "list" for a value in it.

        Raises:
            KeyedStateError: The bolt has no `migrate`.
        """
        del old
        raise KeyedStateError(
            f"its {kind} is of version {version}, the bolt of version {self.version}: give the "
            "bolt a migrate()"
        )


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


class More(NamedTuple):
    """What few keys have."""

    version: int = 1  # of the state
    bytes: int = 0  # of the entries of map and list
    begin: int = 0  # number of the list's first value
    end: int = 0  # and of the next one that is appended
    touched_ms: int | None = None  # of the last event or timer; None if it is kept without an end
    expires_ms: int | None = None  # when state, map and list are forgotten


class Entry(NamedTuple):
    """What is kept of a key. It is not changed, but replaced."""

    state: bytes | None = None
    timers: Mapping[str, SetTimer] = {}
    number: int = 0  # number of the next timer's setting
    more: More = More()
    # the state as it was read back when it was assigned: whoever takes it has it alone
    fresh: list[Any] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.timers and not self.has_state

    @property
    def has_state(self) -> bool:
        """Whether there is a state, or an entry of map or list."""
        return self.state is not None or self.more.bytes > 0

    @property
    def timer_ms(self) -> int | None:
        """When its earliest timer is due, or its state expires; None if nothing is."""
        expires_ms = self.more.expires_ms
        if not self.timers:
            return expires_ms
        times = [one.time_ms for one in self.timers.values()]
        return min(times if expires_ms is None else [*times, expires_ms])

    def without(self, timer: str) -> Entry:
        timers = {name: one for name, one in self.timers.items() if name != timer}
        return Entry(self.state, timers, self.number, self.more, self.fresh)

    def touched(self, time_ms: int, ttl_ms: int | None) -> Entry:
        """Return it with the time at which it expires if nothing touches it."""
        more = self.more
        touched_ms = expires_ms = None
        if ttl_ms is not None and self.has_state:
            touched_ms = time_ms if more.touched_ms is None else max(time_ms, more.touched_ms)
            expires_ms = touched_ms + ttl_ms
        if (touched_ms, expires_ms) == more[4:]:
            return self
        return self._replace(more=More(*more[:4], touched_ms, expires_ms))

    def precedes_events_of(self, time_ms: int) -> bool:
        """Return whether a timer is called, or the state expires, before the events of a time."""
        return self.more.expires_ms == time_ms or any(
            one.time_ms == time_ms and not one.follows for one in self.timers.values()
        )

    def expired(self) -> Entry:
        return Entry(None, self.timers, self.number)


class KeyRunner(Protocol):
    """Runs a keyed bolt's task."""

    def encode(self, value: Any, /) -> tuple[bytes, Any]:
        """Return a state as bytes, and as it is read from them."""

    def decode(self, state: bytes, version: int, /) -> Any:
        """Return a state from its bytes."""

    def encode_entry(self, place: bytes, value: Any, /) -> bytes:
        """Return an entry of map or list as bytes."""

    def decode_entry(self, place: bytes, stored: bytes, /) -> Any:
        """Return an entry of map or list from its bytes."""

    def stored_at(self, key: bytes, place: bytes, /) -> bytes | None:
        """Return an entry of map or list, as the call found it; None without it."""

    def stored(self, key: bytes, low: bytes, high: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Yield places and entries, as the call found them."""

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
        value: The key: that of the events, bytes; or the value of the field, or a tuple of those of
            several.
    """

    __slots__ = (
        *("_anchor", "_bolt", "_shown", "_timer"),
        *("before", "entries", "entry", "is_late", "runner", "stored", "value"),
    )

    def __init__(  # noqa: PLR0917 - private, and each is of a type of its own
        self,
        runner: KeyRunner,
        bolt: KeyedBolt,
        value: Any,
        before: Entry,
        entry: Entry,
        anchor: Any,
        timer: SetTimer | None,
    ) -> None:
        self.value = self.stored = value
        self.before = before
        self.entry = entry
        self.is_late = False
        self.runner = runner
        self.entries: Entries | None = None
        self._bolt = bolt
        self._anchor = anchor
        self._timer = timer
        self._shown: Any = None

    @property
    def state(self) -> Any:
        """The state; None if there is none. What is assigned counts, as it is then.

        An assigned state that is changed later in place stays as it was: assign it again.

        Raises:
            KeyedStateError: On assignment: it is not of the bolt's `state`, or the key would keep
                more than `max_bytes`.
        """
        entry = self.entry
        if self._shown is None and entry.state is not None:
            fresh, version = entry.fresh, entry.more.version
            self._shown = fresh.pop() if fresh else self.runner.decode(entry.state, version)
        return self._shown

    @state.setter
    def state(self, value: Any) -> None:
        if self._anchor is None:
            self.check_call()
        _, timers, number, more, _ = self.entry
        if value is None:
            self.entry = Entry(None, timers, number, more)
        else:
            bolt = self._bolt
            encoded, read = self.runner.encode(value)
            # What `_check_size` comes to nearly always.
            if len(encoded) + _TIMER_BYTES * len(timers) + more.bytes > bolt.max_bytes:
                self._check_size(len(encoded), len(timers), more.bytes)
            if more.version != bolt.version:
                more = more._replace(version=bolt.version)
            self.entry = Entry(encoded, timers, number, more, [read])
        self._shown = value

    @property
    def state_map(self) -> KeyMap[Any, Any]:
        """The map, whose entries are read and stored one by one.

        Raises:
            KeyedStateError: The bolt says no `state_map`.
        """
        kind = type(self._bolt).state_map
        if kind is None:
            raise KeyedStateError(
                f"key {self.value!r:.100} has no map: say `state_map` in the bolt"
            )
        return KeyMap(self._entries(), Names.of(map_types(kind)[0]))

    @property
    def state_list(self) -> KeyList[Any]:
        """The list, whose values are stored one by one.

        Raises:
            KeyedStateError: The bolt says no `state_list`.
        """
        if type(self._bolt).state_list is None:
            raise KeyedStateError(
                f"key {self.value!r:.100} has no list: say `state_list` in the bolt"
            )
        return KeyList(self, self._entries())

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
            KeyedStateError: The name is no text, `at` is no time, or the key would keep more than
                `max_bytes`.
            TimerLoopError: A thousand timers in a row were due as soon as they were set.
        """
        self.check_call()
        if not _is_text(name) or name.startswith("\0") or not _is_time(at):
            raise KeyedStateError(
                f"timer({name!r:.100}, at={at!r:.100}): the name is text that does not begin with "
                "NUL, and `at` an int in ms"
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
        size = len(entry.state or b"") + sum(map(len, timers))
        self._check_size(size, len(timers), entry.more.bytes)
        self.entry = Entry(entry.state, timers, entry.number + 1, entry.more, entry.fresh)

    def cancel(self, name: str) -> None:
        """Cancel a timer. Without a timer of this name it does nothing."""
        self.check_call()
        entry = self.entry
        if name in entry.timers:
            self.entry = entry.without(name)

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
        if self._anchor is None:
            self.check_call()
        if event_time_ms is not None and not _is_time(event_time_ms):
            raise KeyedStateError(f"emit(event_time_ms={event_time_ms!r:.100}): it is an int in ms")
        return self.runner.emit(values, (self._anchor,), stream, task, event_time_ms)

    def count_late(self) -> None:
        """Count the event as late for a window, once it is done: see `late_for_window`."""
        self.check_call()
        self.is_late = True

    @property
    def shown(self) -> Any:
        """The state that the bolt has seen or assigned, as it is now."""
        return self._shown

    def end(self) -> None:
        self._anchor = None

    def check_call(self) -> None:
        if self._anchor is None:
            raise KeyedStateError(
                f"key {self.value!r:.100} is of a call that is over: use the key of each call"
            )

    def number_list(self, begin: int, end: int) -> None:
        self._keep(self.entry.more._replace(begin=begin, end=end))

    def resize(self, by: int) -> None:
        """Count the bytes of entries that have changed."""
        if by:
            entry = self.entry
            size = entry.more.bytes + by
            if by > 0:
                self._check_size(len(entry.state or b""), len(entry.timers), size)
            self._keep(entry.more._replace(bytes=size))

    def _keep(self, more: More) -> None:
        entry = self.entry
        self.entry = Entry(entry.state, entry.timers, entry.number, more, entry.fresh)

    def _entries(self) -> Entries:
        if self.entries is None:
            self.entries = Entries(self)
        return self.entries

    def _check_size(self, state: int, timers: int, entries: int) -> None:
        size, most = state + _TIMER_BYTES * timers + entries, self._bolt.max_bytes
        if size > most:
            raise KeyedStateError(
                f"key {self.value!r:.100} would keep {size} bytes, more than {most}: keep less of "
                "it, spread it over more keys, or set `max_bytes` in the bolt"
            )


def _is_time(at: Any) -> bool:
    return at.__class__ is int and abs(at) <= _LATEST_MS


def _is_text(name: Any) -> bool:
    """Return whether a name is text that UTF-8 can hold."""
    return name.__class__ is str and (name.isascii() or encodable(name) == name)


def has_entries(bolt: KeyedBolt) -> bool:
    """Return whether keys of a bolt have a map or a list."""
    return (type(bolt).state_map, type(bolt).state_list) != (None, None)


def check_types(bolt: KeyedBolt) -> None:
    """Refuse what can be no state of a bolt.

    Raises:
        ValueError: It says what it is, and why.
    """
    made = type(bolt)
    for said, kind, types in (
        ("state", made.state, lambda one: (one,)),
        ("state_map", made.state_map, map_types),
        ("state_list", made.state_list, lambda one: (list_type(one),)),
    ):
        if kind is None:
            continue
        try:
            for one in types(kind):
                msgspec.msgpack.Decoder(one)
        except Exception as error:
            raise ValueError(f"its {said} {kind!r} is not a type: {error}") from error
    for name, least, most in (("max_bytes", 1, MOST_BYTES), ("version", 1, LATEST_VERSION)):
        number = getattr(bolt, name)
        if number.__class__ is not int or not least <= number <= most:
            raise ValueError(f"{name} = {number!r}: expected {least} to {most}")
