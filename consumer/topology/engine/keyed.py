"""The keys of a step: what keyed bolts keep of them, what undoes it, and the timers that are due.

A call of a keyed bolt replaces the entry of its key. The entry before stays as an *image* until it
is known what became of the root that the call was for. The key then goes back to the image before
its first root that is not done. No later root of the key is done: it is held (`settling.outcomes`).
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from sequitur.consumer.topology.api.keyed import Entry, Key, KeyedBolt, SetTimer, Timer
from sequitur.consumer.topology.api.tuple import Stream
from sequitur.consumer.topology.engine.key_store import KeyChange, KeyChanges
from sequitur.consumer.topology.engine.runner import Runner
from sequitur.consumer.topology.engine.trees import ACKED, TrackedTuple
from sequitur.consumer.topology.settling.root import (
    AFTER_EVENTS,
    BEFORE_EVENTS,
    TimerPlace,
    timer_of,
)
from sequitur.errors import KeyedStateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sequitur.consumer.topology.api.bolt import BaseBolt, TopologyContext
    from sequitur.consumer.topology.engine.key_store import KeyStore
    from sequitur.consumer.topology.engine.task_output import Environment
    from sequitur.consumer.topology.settling.root import Order

EMPTY: Final = Entry()
TIMER: Final = Stream("__timer", "default", ("name", "at_ms"))
_ENTRY: Final = tuple[
    bytes | None, int, tuple[tuple[str, int, int, bool, int, int], ...]
]  # state, number, timers
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_ENTRY).decode
_warned: Final[set[tuple[str, str]]] = set()
"""The bolts of which this process has warned."""
_LOADED_AT_ONCE: Final = 1 << 16
_DUE_AT_ONCE: Final = 1 << 12
_LOOKED_EACH: Final = 1_000
"""One call of so many is looked at: whether it has changed a state in place."""


def encoded(entry: Entry) -> bytes | None:
    """Return an entry as it is stored; None if nothing is kept."""
    if entry.is_empty:
        return None
    timers = [(name, *one) for name, one in entry.timers.items()]
    return _encode((entry.state, entry.number, timers))


def decoded(stored: bytes | None) -> Entry:
    if stored is None:
        return EMPTY
    state, number, timers = _decode(stored)
    return Entry(state, {one[0]: SetTimer(*one[1:]) for one in timers}, number)


class Image(NamedTuple):
    """What undoes a call."""

    root: int  # id of the root that it was for
    component: str
    key: bytes
    before: Entry


class DueTimer(NamedTuple):
    """A timer that may be due, in the order in which timers are called."""

    time_ms: int
    topic: str  # `BEFORE_EVENTS` or `AFTER_EVENTS`
    hash: int
    number: int
    key: bytes
    component: str
    name: str | None  # None: all timers of the key, as the step found it, are still to be added


class KeyLog(NamedTuple):
    """What a task knows of its keys at the end of a step."""

    images: list[Image]  # in the order of calls
    # the entry that the step found, and the one that the last call left, of all keys that calls
    # have changed, by component and key
    found: dict[tuple[str, bytes], Entry]
    left: dict[tuple[str, bytes], Entry]

    def undo(self, unfinished: Collection[int]) -> set[tuple[str, bytes]]:
        """Take keys back to before their first root that is not done. Return which keys."""
        undone: set[tuple[str, bytes]] = set()
        if unfinished:
            for root, component, key, before in self.images:
                if root in unfinished and (component, key) not in undone:
                    undone.add((component, key))
                    self.left[component, key] = before
        return undone

    def drop(self, place: TimerPlace, entry: Entry | None = None) -> None:
        """Unset a timer that is given up: it is not called again."""
        where = place.component, place.key
        entry = self.left.get(where, entry)
        if entry is not None and is_current(place, entry.timers):
            timers = {name: one for name, one in entry.timers.items() if name != place.name}
            self.found.setdefault(where, entry)
            self.left[where] = Entry(entry.state, timers, entry.number)

    def changes(self) -> dict[str, KeyChanges]:
        """Return what has changed, by component."""
        rows: dict[str, list[KeyChange]] = {}
        more: dict[str, list[int]] = {}
        for (component, key), entry in self.left.items():
            before = self.found[component, key]
            if entry[:3] != before[:3]:
                stored = encoded(entry)
                rows.setdefault(component, []).append(KeyChange(key, stored, entry.timer_ms))
                counts = more.setdefault(component, [0, 0])
                counts[0] += before.is_empty - (stored is None)
                counts[1] += len(entry.timers) - len(before.timers)
        return {
            component: KeyChanges(sorted(several), *more[component])
            for component, several in rows.items()
        }


class StepKeys:
    """The keys of one process in a step: those of its stores, and what calls have made of them."""

    def __init__(self, stores: Mapping[str, KeyStore], reached_ms: int | None) -> None:
        self.log = KeyLog([], {}, {})
        # timers that wait as events do, with their keys: they are not called otherwise
        self.waiting: set[TimerPlace] = set()
        self._stores = stores
        self._reached_ms = reached_ms
        self._read: dict[tuple[str, bytes], Entry] = {}
        self._heap: list[DueTimer] = []
        self._coming: dict[str, Iterator[tuple[int, bytes]]] = {}
        if reached_ms is not None:
            for component, store in stores.items():
                self._coming[component] = self._with_entries(component, store.due(reached_ms))
                self._add_next(component)

    def entry(self, component: str, key: bytes) -> Entry:
        """Return what is kept of a key now."""
        return self.log.left.get((component, key)) or self._found(component, key)

    def loaded(self, events: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield events. Large stores are read before, in the order of keys: each block once."""
        large = [component for component, store in self._stores.items() if store.is_large]
        if not large:
            yield from events
        while some := list(itertools.islice(events, _LOADED_AT_ONCE)):
            for key in sorted({event[0] for event in some if event[0] is not None}):
                for component in large:
                    self._found(component, key)
            yield from some

    def _found(self, component: str, key: bytes) -> Entry:
        """Return what the step found of a key."""
        where = component, key
        found = self._read.get(where)
        if found is None:
            found = self._read[where] = decoded(self._stores[component].get(key))
        return found

    def replace(self, root: int, component: str, key: bytes, before: Entry, after: Entry) -> None:
        """Keep another entry of a key from now on, until a root turns out not to be done."""
        where, log = (component, key), self.log
        log.images.append(Image(root, component, key, before))
        if where not in log.found:
            log.found[where] = before
        log.left[where] = after
        if self._reached_ms is not None and after.timers and after.timers is not before.timers:
            self._add(component, key, after, before)

    def timers_before(self, order: Order | tuple[int, str]) -> Iterator[DueTimer]:
        """Yield the timers that are due before an event of this order, those set meanwhile, too.

        Each is set when it is yielded.
        """
        heap = self._heap
        while heap and heap[0] < order:
            due = heapq.heappop(heap)
            component, key = due.component, due.key
            if due.name is None:
                self._add(component, key, self._found(component, key), EMPTY)
                self._add_next(component)
                continue
            place = place_of(due)
            if place in self.waiting:
                continue
            if is_current(place, self.entry(component, key).timers):
                yield due

    def drop(self, place: TimerPlace) -> None:
        """Unset a timer that is given up."""
        self.log.drop(place, self.entry(place.component, place.key))

    @property
    def rest(self) -> tuple[int, str] | None:
        """The order behind the last timer that is due in this step."""
        return None if self._reached_ms is None else (self._reached_ms, AFTER_EVENTS + "\0")

    def next_timer_ms(self, blocked: Collection[bytes]) -> int | None:
        """Return when the next timer is due of keys that are not blocked; None without any."""
        changed = [
            entry.timer_ms for (_, key), entry in self.log.left.items() if key not in blocked
        ]
        times = [one for one in changed if one is not None]
        for component, store in self._stores.items():
            earliest = store.next_timer_ms()
            if earliest is None or (times and min(times) <= earliest):
                continue
            for time_ms, key in store.due(_EVER_MS):
                if (component, key) not in self.log.left and key not in blocked:
                    times.append(time_ms)
                    break
        return min(times, default=None)

    def _with_entries(
        self, component: str, due: Iterator[tuple[int, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield keys with timers. Those of a large store are read before, in their order."""
        if not self._stores[component].is_large:
            yield from due
        while some := list(itertools.islice(due, _DUE_AT_ONCE)):
            for key in sorted({key for _, key in some}):
                self._found(component, key)
            yield from some

    def _add_next(self, component: str) -> None:
        time_ms, key = next(self._coming[component], (None, b""))
        if time_ms is not None:
            heapq.heappush(self._heap, DueTimer(time_ms, "", -1, -1, key, component, None))

    def _add(self, component: str, key: bytes, entry: Entry, before: Entry) -> None:
        """Add the timers of a key that are due in this step, except those of another entry."""
        known, reached_ms = before.timers, self._reached_ms
        assert reached_ms is not None
        for name, one in entry.timers.items():
            if one.time_ms <= reached_ms and known.get(name) is not one:
                topic = AFTER_EVENTS if one.follows else BEFORE_EVENTS
                order = one.time_ms, topic, _hash(component, key), one.number
                heapq.heappush(self._heap, DueTimer(*order, key, component, name))


_EVER_MS: Final = (1 << 63) - 1


def place_of(due: DueTimer) -> TimerPlace:
    assert due.name is not None
    return TimerPlace(due.component, due.key, due.name, due[:4])


def is_current(place: TimerPlace, timers: Mapping[str, SetTimer]) -> bool:
    """Return whether a timer is still set, and not replaced."""
    one = timers.get(place.name)
    if one is None:
        return False
    topic = AFTER_EVENTS if one.follows else BEFORE_EVENTS
    time_ms, at_topic, _, number = place.order
    return (one.time_ms, topic, one.number) == (time_ms, at_topic, number)


def _hash(component: str, key: bytes) -> int:
    """Return a hash of a bolt and a key, the same in each process; 31 bits."""
    return zlib.crc32(key, zlib.crc32(component.encode())) & 0x7FFFFFFF


class KeyedRunner(Runner):
    """Runs one task of a keyed bolt."""

    def __init__(
        self, environment: Environment, context: TopologyContext, bolt: KeyedBolt, keys: StepKeys
    ) -> None:
        self._keys = keys
        self._key: Key | None = None
        self._before = EMPTY
        self._kind = type(bolt).state if type(bolt).state is not None else type(None)
        self._read = msgspec.msgpack.Decoder(self._kind).decode
        self._calls, self._looks_at = 0, 1
        super().__init__(environment, context, bolt)
        self._acks, self._holds = True, False
        self._is_noted = self._finishes or self._limit_s is not None
        self._is_tested = environment.runs_inline

    def renew(self, bolt: BaseBolt) -> None:
        super().renew(bolt)
        self._call = self._keyed

    def run(self, given: TrackedTuple) -> None:
        """Make the call. What it did to its key counts if the bolt acks what it was given."""
        super().run(given)
        (key, before), self._key = (self._key, self._before), None
        if key is None:
            return
        key.end()
        if given.owner is not ACKED:
            return
        self._calls += 1
        if self._calls >= self._looks_at:
            self._look(key)
        if key.entry is not before:
            self._keys.replace(given.root.id, self._component, key.value, before, key.entry)

    def encode(self, value: Any) -> tuple[bytes, Any]:
        try:
            state = _encode(value)
            return state, self._read(state)
        except Exception as error:
            raise KeyedStateError(
                f"bolt {self._component!r}: {value!r:.200} is not a {self._kind!r}: {error}"
            ) from error

    def decode(self, state: bytes) -> Any:
        try:
            return self._read(state)
        except Exception as error:
            raise KeyedStateError(
                f"bolt {self._component!r}: the state of a key is not a {self._kind!r}: {error}"
            ) from error

    def _keyed(self, given: TrackedTuple) -> Any:
        bolt: Any = self.bolt
        event = given.root.event
        key = event[0]
        if key is None:
            raise KeyedStateError(f"bolt {self._component!r} got an event without a key")
        before = self._before = self._keys.entry(self._component, key)
        if given.declared is not TIMER:
            self._key = made = Key(self, key, before, given, None)
            returned = bolt.process(given, made)
        else:
            place, at_ms = timer_of(event)
            entry, row = before, 0
            if is_current(place, before.timers):  # a replayed one is not
                row = before.timers[place.name].row
                others = {one: set_ for one, set_ in before.timers.items() if one != place.name}
                entry = Entry(before.state, others, before.number, before.fresh)
            timer = SetTimer(at_ms, event[3], event[4] == AFTER_EVENTS, event[6], row)
            self._key = made = Key(self, key, entry, given, timer)
            returned = bolt.on_timer(Timer(place.name, at_ms, given.root.attempt), made)
        if self._is_tested:
            if isinstance(returned, Iterator):
                returned = list(returned)
            self._check_in_place(made)
        return returned

    def _check_in_place(self, key: Key) -> None:
        """Refuse a state that the call has changed in place: what was assigned counts."""
        shown, kept = key.shown, key.entry.state
        if shown is not None and _encode(shown) != kept:
            raise KeyedStateError(
                f"bolt {self._component!r} has changed the state of key {key.value!r:.100} in "
                "place, which does not count: assign it to key.state"
            )

    def _look(self, key: Key) -> None:
        """Warn of a state that was changed in place. It cannot fail: it is looked at by chance."""
        self._looks_at = self._calls + _LOOKED_EACH
        try:
            self._check_in_place(key)
        except Exception as error:  # noqa: BLE001 - the state is an object of the user's
            bolt = self.context.topology, self._component
            if bolt not in _warned:
                self.context.logger.warning("%s", error)
            _warned.add(bolt)
