"""The keys of a step: what keyed bolts keep of them, what undoes it, and the timers that are due.

A call of a keyed bolt replaces the entry of its key. The entry before stays as an *image* until it
is known what became of the root that the call was for. The key then goes back to the image before
its first root that is not done. No later root of the key is done: it is held (`settling.outcomes`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from sequitur.base.portions import portions
from sequitur.consumer.topology.api.builder import KEY_ENTRIES
from sequitur.consumer.topology.api.key_items import LIST, MAP, list_type, map_types, with_changes
from sequitur.consumer.topology.api.keyed import Entry, Key, KeyedBolt, More, SetTimer, Timer
from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM, Stream
from sequitur.consumer.topology.engine.key_store import KeyChange, KeyChanges, SharedStore
from sequitur.consumer.topology.engine.plan import OF_TIMERS
from sequitur.consumer.topology.engine.runner import Runner, awaited_values, is_awaited
from sequitur.consumer.topology.engine.trees import ACKED, TrackedTuple
from sequitur.consumer.topology.settling.root import (
    AFTER_EVENTS,
    BEFORE_EVENTS,
    TimerPlace,
    hash_of,
    turn_of,
)
from sequitur.errors import KeyedStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sequitur.consumer.topology.api.bolt import BaseBolt, TopologyContext
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.engine.key_store import KeyStore
    from sequitur.consumer.topology.engine.task_output import Environment, Target
    from sequitur.consumer.topology.settling.root import Order

EMPTY: Final = Entry()
TIMER: Final = Stream(*OF_TIMERS, ("name", "at_ms"))
EXPIRY: Final = "\0expiry"
"""The timer at which the state of a key by another field is forgotten."""
_PLAIN: Final = More()
_NOTHING: Final[Mapping[bytes, bytes | None]] = {}


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """An entry as it is stored. One that has nothing more ends after its timers."""

    state: bytes | None
    number: int
    timers: tuple[tuple[str, int, int, bool, int, int], ...]
    more: tuple[int, int, int, int, int | None, int | None] = _PLAIN


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Stored).decode
_decode_old: Final = msgspec.msgpack.Decoder().decode
_warned: Final[set[tuple[str, str]]] = set()
"""The bolts of which this process has warned."""
AHEAD_BYTES: Final = 16 << 20
"""Events of about so many bytes are in memory at once: their keys are read before."""
AHEAD_EACH: Final = 250
"""What one of them takes without its bytes."""
_DUE_AT_ONCE: Final = 1 << 12
_DUE_AT_FIRST: Final = 1 << 6
_MOST_TIMERS_BYTES: Final = 64 << 20
"""Once the keys of timers take so much memory, further timers are left to the next step."""
_KEY_BYTES: Final = 1_000
"""About how much a key takes in a step, without its entry."""
_LOOKED_EACH: Final = 1_000
"""One call of so many is looked at: whether it has changed a state in place."""


def encoded(entry: Entry) -> bytes | None:
    """Return an entry as it is stored; None if nothing is kept."""
    if entry.is_empty:
        return None
    timers = [(name, *one) for name, one in entry.timers.items()]
    more = () if entry.more == _PLAIN else (entry.more,)
    return _encode((entry.state, entry.number, timers, *more))


def decoded(stored: bytes | None) -> Entry:
    if stored is None:
        return EMPTY
    found = _decode(stored)
    timers = {one[0]: SetTimer(*one[1:]) for one in found.timers}
    more = found.more if found.more is _PLAIN else More(*found.more)
    return Entry(found.state, timers, found.number, more)


class Image(NamedTuple):
    """What undoes a call."""

    root: int  # id of the root that it was for
    component: str
    key: bytes
    before: Entry
    # what stood before at places of its map and list that it has changed
    entries: Mapping[bytes, bytes | None] = {}
    call: int = 0  # number of the call among those by a field, which may be for several roots


def _size_of(event: tuple[Any, ...]) -> int:
    headers = event[2]
    more = sum(len(value or b"") for _, value in headers) if headers else 0
    return AHEAD_EACH + len(event[1] or b"") + more


class DueTimer(NamedTuple):
    """A timer that may be due, in the order in which timers are called."""

    time_ms: int
    topic: str  # `BEFORE_EVENTS` or `AFTER_EVENTS`
    hash: int
    number: int
    key: bytes
    component: str
    # None: all timers of the key, as the step found it, are still to be added if the number is -1;
    # otherwise its state expires
    name: str | None


class KeyLog(NamedTuple):
    """What a task knows of its keys at the end of a step."""

    images: list[Image]  # in the order of calls
    # the entry that the step found, and the one that the last call left, of all keys that calls
    # have changed, by component and key
    found: dict[tuple[str, bytes], Entry]
    left: dict[tuple[str, bytes], Entry]
    # the same of entries of maps and lists, by place
    found_entries: dict[tuple[str, bytes], dict[bytes, bytes | None]]
    left_entries: dict[tuple[str, bytes], dict[bytes, bytes | None]]
    late: list[tuple[int, str]]  # ids of roots that were late for a window, and of which bolt
    timers: dict[int, TimerPlace]  # those by a field that were called or came back, by root
    killers: list[TimerPlace]  # those by the events' key that were given up without a call
    # ids of the roots with tuples by a field that were left to the next step
    left_roots: set[int]
    # the turn of the first of these tuples; None: none was
    first_left: int | None = None

    @classmethod
    def empty(cls) -> KeyLog:
        return cls([], {}, {}, {}, {}, [], {}, [], set())

    def late_for_window(self, unfinished: Collection[int]) -> dict[str, int]:
        """Count by bolt the events that were late for a window, without those not done."""
        return Counter(component for root, component in self.late if root not in unfinished)

    def undo(self, unfinished: Collection[int]) -> set[tuple[str, bytes]]:
        """Take keys back to before their first root that is not done. Return which keys."""
        undone: dict[tuple[str, bytes], set[bytes]] = {}  # with the places that are back
        if unfinished:
            for root, component, key, before, entries, _ in self.images:
                where = component, key
                if where not in undone:
                    if root not in unfinished:
                        continue
                    undone[where] = set()
                    self.left[where] = before
                for place in entries.keys() - undone[where]:
                    self.left_entries[where][place] = entries[place]
                undone[where].update(entries)
        for timer in self.killers:  # they have no image
            self.drop(timer)
        return set(undone)

    def undo_calls(self, mark: int) -> None:
        """Undo the calls from an image on."""
        for _, component, key, before, entries, _ in reversed(self.images[mark:]):
            where = component, key
            self.left[where] = before
            if entries:
                self.left_entries[where].update(entries)
        del self.images[mark:]

    def forget(self, begin: int, unfinished: Collection[int]) -> None:
        """Forget the images from a place on, except of keys that go back."""
        some = self.images[begin:]
        undone = {one[1:3] for one in some if one.root in unfinished}
        self.images[begin:] = [one for one in some if one[1:3] in undone] if undone else ()

    def drop(self, place: TimerPlace, entry: Entry | None = None) -> None:
        """Unset a timer that is given up: it is not called again."""
        where = place.component, place.key
        entry = self.left.get(where, entry)
        if entry is not None and is_current(place, entry.timers):
            self.found.setdefault(where, entry)
            self.left[where] = entry.without(place.name)

    def changes(self) -> dict[str, KeyChanges]:
        """Return what has changed, by component."""
        rows: dict[str, list[KeyChange]] = {}
        more: dict[str, list[int]] = {}
        for (component, key), entry in self.left.items():
            before = self.found[component, key]
            if entry[:4] != before[:4]:
                stored = encoded(entry)
                rows.setdefault(component, []).append(KeyChange(key, stored, entry.timer_ms))
                counts = more.setdefault(component, [0, 0])
                counts[0] += before.is_empty - (stored is None)
                counts[1] += len(entry.timers) - len(before.timers)
        for (component, key), entries in self.left_entries.items():
            found = self.found_entries[component, key]
            several = [
                KeyChange(entry_key(key, place), stored, None)
                for place, stored in entries.items()
                if stored != found[place]
            ]
            if several:
                rows.setdefault(component + KEY_ENTRIES, []).extend(several)
        return {
            component: KeyChanges(sorted(several), *more.get(component, ()))
            for component, several in rows.items()
        }


LAST_PLACE: Final = b"\xff"
"""It comes after all places of maps and lists."""


def entry_key(key: bytes, place: bytes) -> bytes:
    """Return the key under which an entry of a key's map or list is stored.

    It begins as the key does, and no key with its end is the beginning of another one.
    """
    return key.replace(b"\0", b"\0\xff") + b"\0\1" + place


class StepKeys:
    """The keys of one process in a step: those of its stores, and what calls have made of them."""

    def __init__(
        self,
        stores: Mapping[str, KeyStore],
        reached_ms: int | None,
        draining: Collection[str] = (),
        room: int = 1,
    ) -> None:
        """Take all timers of the bolts that are `draining` for due.

        They may take `room` times the usual memory.
        """
        self.room = room
        # waits until no call of a key runs, and returns whether one did; None: calls run one by one
        self.await_key: Callable[[bytes], bool] | None = None
        # whether state expires in a call, which may have to be undone, as that of a timer
        self.expires_by_calls = False
        # the line of a key's timers: see `settling.timer_holds.line_of`
        self.line_of: Callable[[bytes], bytes] = lambda key: key
        self.log = KeyLog.empty()
        # timers that wait as events do: they are not called otherwise
        self.waiting: set[TimerPlace] = set()
        # their keys, with the bolts: memory has room for them, as it has for those of events
        self._waiting_keys: set[tuple[str, bytes]] = set()
        self.images_bytes = 0  # about how much the images of keys by a field take
        self._timers_bytes = 0  # about how much the keys take that were read for timers
        # and how much entries of maps and lists that timers by the events' key have changed
        self._changed_bytes = 0
        # whether further timers, and what comes after them, are left to the next step
        self.is_cut = False
        # time, topic, key and bolt of the first timer that memory has no room for: it stays set,
        # and so do those behind it
        self._cut: tuple[int, str, bytes, str] = _EVER_MS, "", b"", ""
        self._stores = stores
        self._reached_ms = reached_ms
        here = () if reached_ms is None else draining
        self._draining = [one for one in here if one in stores]
        # times of the last timers that were due only by that, by bolt
        self.closed_ms: dict[str, int] = {}
        self._read: dict[tuple[str, bytes], Entry] = {}
        self.coming: list[DueTimer] = []  # what may be due in this step, a heap
        self._of_stores: dict[str, Iterator[tuple[int, bytes]]] = {}
        if reached_ms is not None:
            for component, store in stores.items():
                if component.endswith(KEY_ENTRIES):  # they have no timers
                    continue
                due = store.due(self._until_ms(component))
                self._of_stores[component] = self._with_entries(component, due)
                self._add_next(component)

    def let_wait(self, places: Iterable[TimerPlace]) -> None:
        """Call timers only in the form of the events that they wait as."""
        self.waiting.update(places)
        self._waiting_keys = {(one.component, one.key) for one in self.waiting}

    def close(self) -> None:
        """Let go of all keys. The bolts that a process keeps between steps refer to them."""
        self.log = KeyLog.empty()
        self._read, self.coming, self._of_stores = {}, [], {}
        for store in self._stores.values():
            if isinstance(store, SharedStore):
                store.close()

    def entry(self, component: str, key: bytes) -> Entry:
        """Return what is kept of a key now."""
        where = component, key
        return self.log.left.get(where) or self._read.get(where) or self._found(component, key)

    def loaded(self, events: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield events. Their keys are read before, in the order of keys: each block once."""
        bolts = [one for one in self._stores if not one.endswith(KEY_ENTRIES)]
        for some in portions(events, _size_of, AHEAD_BYTES):
            asked = {event[0] for event in some if event[0] is not None}
            for component in bolts:
                self.read_ahead(component, asked)
            yield from some

    def read_ahead(self, component: str, keys: Collection[bytes]) -> None:
        """Read what is kept of keys, in their order."""
        read = self._read
        unread = sorted(key for key in keys if (component, key) not in read)
        for key, stored in zip(unread, self._stores[component].get_all(unread), strict=True):
            read[component, key] = decoded(stored)

    def _found(self, component: str, key: bytes) -> Entry:
        """Return what the step found of a key."""
        where = component, key
        found = self._read.get(where)
        if found is None:
            found = self._read[where] = decoded(self._stores[component].get(key))
        return found

    def stored_at(self, component: str, key: bytes, place: bytes) -> bytes | None:
        """Return what is kept at a place of a key's map or list."""
        left = self.log.left_entries.get((component, key))
        if left is not None and place in left:
            return left[place]
        return self._stores[component + KEY_ENTRIES].get(entry_key(key, place))

    def stored(
        self, component: str, key: bytes, low: bytes, high: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield places of a key's map or list, in order, and what is kept there."""
        store, skip = self._stores[component + KEY_ENTRIES], len(entry_key(key, b""))
        rows = store.range(entry_key(key, low), entry_key(key, high))
        kept = ((one[skip:], stored) for one, stored in rows)
        left = self.log.left_entries.get((component, key), {})
        return with_changes(kept, left, low, high)

    def replace(  # noqa: PLR0917 - each is of a type of its own
        self,
        root: int,
        component: str,
        key: bytes,
        before: Entry,
        after: Entry,
        entries: Mapping[bytes, bytes | None] = {},
    ) -> None:
        """Keep another entry of a key from now on, until a root turns out not to be done.

        Also keep `entries` at places of its map or list.
        """
        where, log = (component, key), self.log
        left, known = log.left, len(log.left)
        left[where] = after
        if len(left) > known:  # the first change: `found` has the keys that `left` has
            log.found[where] = before
        if not entries:
            log.images.append(Image(root, component, key, before))
        else:
            was = {place: self.stored_at(component, key, place) for place in entries}
            log.images.append(Image(root, component, key, before, was))
            log.left_entries.setdefault(where, {}).update(entries)
            log.found_entries[where] = was | log.found_entries.get(where, {})
        if self._reached_ms is not None and (
            (after.timers and after.timers is not before.timers)
            or after.more.expires_ms != before.more.expires_ms
        ):
            self._add(component, key, after, before)

    def timers_before(
        self, order: Order | tuple[int, str], blocked: Collection[bytes]
    ) -> Iterator[tuple[TimerPlace, int]]:
        """Yield the timers that are due before an event of this order, those set meanwhile, too.

        Beside each stands the time that it was set for. Each is set when it is yielded, and its key
        is not blocked. State that expires is forgotten. Timers that memory has no room for stay.
        """
        heap, reached_ms = self.coming, self._reached_ms
        while heap and heap[0] < order and heap[0].time_ms <= self._cut[0]:
            if self.await_key is not None and self.await_key(heap[0].key):
                continue  # its call may have set a timer that is due before
            due = heapq.heappop(heap)
            component, key = due.component, due.key
            if due.name is None and due.number == _TO_ADD:
                self._take_in(due, blocked)
                continue
            is_left = self.is_behind_cut(due.time_ms, due.topic, key, component)
            if is_left or self.line_of(key) in blocked:
                continue
            if due.name is None and not self.expires_by_calls:
                self._expire(due)
                continue
            if self._changed_bytes > self.room * _MOST_TIMERS_BYTES:
                self.is_cut, self._cut = True, (due.time_ms, due.topic, key, component)
                continue
            place = place_of(due)
            if self.waiting and place in self.waiting:
                continue
            entry = self.entry(component, key)
            if is_set(place, entry):
                if reached_ms is not None and due.time_ms > reached_ms:
                    self.closed_ms[component] = due.time_ms
                yield place, due.time_ms if due.name is None else entry.timers[due.name].at_ms

    def is_behind_cut(self, time_ms: int, topic: str, key: bytes, component: str) -> bool:
        """Return whether a timer of a bolt's key is left to the next step."""
        return (time_ms, topic, key, component) >= self._cut

    def drop(self, place: TimerPlace) -> None:
        """Unset a timer that is given up, unless the state of its bolt is dropped."""
        if place.component in self._stores:
            self.log.drop(place, self.entry(place.component, place.key))

    def count_changed(self, entries: Mapping[bytes, bytes | None]) -> None:
        """Count what a timer has put into its key's map and list, and what stood there."""
        was = self.log.images[-1].entries
        self._changed_bytes += sum(len(one or b"") for one in (*entries.values(), *was.values()))

    def drop_killer(self, place: TimerPlace) -> None:
        """Unset a timer that kills its process, whatever is undone of its key."""
        self.log.killers.append(place)
        self.drop(place)

    @property
    def rest(self) -> tuple[int, str] | None:
        """The order behind the last timer that is due in this step."""
        if self._reached_ms is None:
            return None
        return _EVER_MS if self._draining else self._reached_ms, AFTER_EVENTS + "\0"

    def is_open(self, blocked: Collection[bytes]) -> bool:
        """Return whether a timer was to be called that was not.

        It stood behind another one, or memory had no room for it.
        """
        return (self.is_cut and bool(self._draining)) or any(
            self.entry(component, key).timers
            for component, key in itertools.chain(self._read, self.log.left)
            if component in self._draining and key not in blocked
        )

    def next_timer_ms(self, blocked: Collection[bytes]) -> int | None:
        """Return when the next timer is due of keys that are not blocked; None without any."""
        turn = self.next_turn(blocked)
        return None if turn is None else turn >> 1

    def next_turn(self, blocked: Collection[bytes]) -> int | None:
        """Return the turn of that timer."""
        changed = (
            turn_of_entry(one) for (_, key), one in self.log.left.items() if key not in blocked
        )
        turns = [one for one in changed if one is not None]
        for component, store in self._stores.items():
            if component.endswith(KEY_ENTRIES):
                continue
            earliest = store.next_timer_ms()
            if earliest is None or (turns and min(turns) <= turn_of(earliest)):
                continue
            for _, key in store.due(_EVER_MS):
                if (component, key) not in self.log.left and key not in blocked:
                    turn = turn_of_entry(self.entry(component, key))
                    assert turn is not None
                    turns.append(turn)
                    break
        return min(turns, default=None)

    @property
    def cut_turn(self) -> int | None:
        """The turn of the first timer that memory had no room for; None if there was room."""
        return turn_of(*self._cut[:2]) if self.is_cut else None

    def first_left(self, blocked: Collection[bytes]) -> int | None:
        """Return the turn of the first timer that was to be called in this step and was not.

        None without one. Those of blocked keys do not count: what blocks them is told of itself.
        """
        if self._reached_ms is None:
            return None
        first_ms = self.next_timer_ms(blocked)
        times = [] if first_ms is None or first_ms > self._reached_ms else [first_ms]
        if self._draining:
            times.append(self._cut[0])
            times += [
                one.time_ms
                for component, key in itertools.chain(self._read, self.log.left)
                if component in self._draining and key not in blocked
                for one in self.entry(component, key).timers.values()
            ]
        first_ms = min((one for one in times if one < _EVER_MS), default=None)
        return None if first_ms is None else turn_of(first_ms)

    def _expire(self, due: DueTimer) -> None:
        """Forget the state of a key, its map and its list, unless something has touched it."""
        component, key = due.component, due.key
        entry = self.entry(component, key)
        if entry.more.expires_ms == due.time_ms:
            entries: dict[bytes, bytes | None] = {}
            if entry.more.bytes and component + KEY_ENTRIES in self._stores:
                entries = dict.fromkeys(
                    one for one, _ in self.stored(component, key, b"", LAST_PLACE)
                )
            self.replace(_NO_ROOT, component, key, entry, entry.expired(), entries)

    def _until_ms(self, component: str) -> int:
        assert self._reached_ms is not None
        return _EVER_MS if component in self._draining else self._reached_ms

    def _with_entries(
        self, component: str, due: Iterator[tuple[int, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield keys with timers, which are read before, in the order of keys: some MiB at once."""
        count = _DUE_AT_FIRST
        while some := list(itertools.islice(due, count)):
            keys = {key for _, key in some}
            self.read_ahead(component, keys)
            size = sum(len(self._read[component, key].state or b"") for key in keys)
            count = min(_DUE_AT_ONCE, 2 * count, AHEAD_BYTES * len(some) // (size + 1) + 1)
            yield from some

    def _add_next(self, component: str) -> None:
        time_ms, key = next(self._of_stores[component], (None, b""))
        if time_ms is not None:
            heapq.heappush(self.coming, DueTimer(time_ms, "", -1, _TO_ADD, key, component, None))

    def _take_in(self, due: DueTimer, blocked: Collection[bytes]) -> None:
        """Add the timers of a key that are due, as the step found it, if there is room for it."""
        component, key, time_ms, reached_ms = due.component, due.key, due.time_ms, self._reached_ms
        if self.is_cut:
            return
        entry = self._found(component, key)
        is_next = due.topic == BEFORE_EVENTS
        if is_next and not entry.precedes_events_of(time_ms):
            # It takes room once the events of its time are there, which it waits for.
            self._add_next(component)
            del self._read[component, key]
            heapq.heappush(self.coming, due._replace(topic=AFTER_EVENTS))
            return
        if self._timers_bytes > self.room * _MOST_TIMERS_BYTES:
            self.is_cut, self._cut = True, (time_ms, due.topic, key, component)
            return
        if is_next:
            self._add_next(component)
        assert reached_ms is not None
        times = [one.time_ms for one in entry.timers.values()]
        if time_ms not in times and time_ms > reached_ms:
            # Its state expires then, which a drain does not reach. So it is read again later.
            del self._read[component, key]
            if times:
                heapq.heappush(self.coming, due._replace(time_ms=min(times)))
            return
        where = component, key
        # Keys with calls are in memory anyway. They do not count: their timers may be undone with
        # these calls, and a step must not end with nothing done.
        is_blocked = self.line_of(key) in blocked
        if not is_blocked and where not in self._waiting_keys and where not in self.log.left:
            self._timers_bytes += _KEY_BYTES + len(entry.state or b"")
        expires_ms = entry.more.expires_ms
        if expires_ms is not None and expires_ms <= reached_ms and not self.expires_by_calls:
            self._timers_bytes += entry.more.bytes
        self._add(component, key, entry, EMPTY)

    def _add(self, component: str, key: bytes, entry: Entry, before: Entry) -> None:
        """Add the timers of a key that are due in this step, except those of another entry."""
        known, until_ms = before.timers, self._until_ms(component)
        for name, one in entry.timers.items():
            if one.time_ms <= until_ms and known.get(name) is not one:
                topic = AFTER_EVENTS if one.follows else BEFORE_EVENTS
                order = one.time_ms, topic, hash_of(component, key), one.number
                heapq.heappush(self.coming, DueTimer(*order, key, component, name))
        expires_ms, reached_ms = entry.more.expires_ms, self._reached_ms
        assert reached_ms is not None
        if expires_ms not in {None, before.more.expires_ms} and expires_ms <= reached_ms:
            # Before the timers and events of this time. A drain ends no time to live.
            due = DueTimer(expires_ms, "", -1, _EXPIRES, key, component, None)
            heapq.heappush(self.coming, due)


_TO_ADD, _EXPIRES = -1, 0
_NO_ROOT: Final = -1
_EVER_MS: Final = (1 << 63) - 1


def place_of(due: DueTimer) -> TimerPlace:
    if due.name is None:  # before the timers of its time
        order = due.time_ms, BEFORE_EVENTS, hash_of(due.component, due.key), -1
        return TimerPlace(due.component, due.key, EXPIRY, order)
    return TimerPlace(due.component, due.key, due.name, due[:4])


def is_set(place: TimerPlace, entry: Entry) -> bool:
    """Return whether a timer is to be called, or the state is to expire then."""
    if place.name == EXPIRY:
        return entry.more.expires_ms == place.order[0]
    return is_current(place, entry.timers)


def turn_of_entry(entry: Entry) -> int | None:
    """Return the turn of an entry's first timer, or of its state's end; None without any."""
    first_ms = entry.timer_ms
    if first_ms is None:
        return None
    topic = BEFORE_EVENTS if entry.precedes_events_of(first_ms) else AFTER_EVENTS
    return turn_of(first_ms, topic)


def is_current(place: TimerPlace, timers: Mapping[str, SetTimer]) -> bool:
    """Return whether a timer is still set, and not replaced."""
    one = timers.get(place.name)
    if one is None:
        return False
    topic = AFTER_EVENTS if one.follows else BEFORE_EVENTS
    time_ms, at_topic, _, number = place.order
    return (one.time_ms, topic, one.number) == (time_ms, at_topic, number)


class _Kind(NamedTuple):
    """A type of values that are kept."""

    name: str  # "state", "map" or "list"
    type: Any
    read: Callable[[bytes], Any]

    @classmethod
    def of(cls, name: str, kind: Any) -> _Kind:
        return cls(name, kind, msgspec.msgpack.Decoder(kind).decode)


class KeyedRunner(Runner):
    """Runs one task of a keyed bolt."""

    key_kind: type[Key] = Key

    def __init__(self, environment: Environment, context: TopologyContext, bolt: KeyedBolt) -> None:
        assert environment.keys is not None
        self._keys: StepKeys = environment.keys
        self._key: Key | None = None
        made = type(bolt)
        self._store = environment.topology.components[context.component].key_store
        self._kind = _Kind.of("state", type(None) if made.state is None else made.state)
        self._read_state = self._kind.read
        # of the values in map and list, by the first byte of their places
        self._of_entries: dict[int, _Kind] = {}
        if made.state_map is not None:
            self._of_entries[MAP[0]] = _Kind.of("map", map_types(made.state_map)[1])
        if made.state_list is not None:
            self._of_entries[LIST[0]] = _Kind.of("list", list_type(made.state_list))
        self._ttl_ms = None if bolt.ttl is None else length_ms("", "ttl", bolt.ttl)
        self._version: int = bolt.version
        self._calls, self._looks_at = 0, 1
        super().__init__(environment, context, bolt)
        self._acks, self._holds = True, False
        self._is_noted = self._finishes or self._limit_s is not None
        self._is_tested = environment.runs_inline

    def connect(self, streams: Mapping[str, tuple[Stream, Sequence[Target]]]) -> None:
        super().connect(streams)
        is_usual = type(self) is KeyedRunner and not self._environment.start.is_again
        if is_usual and not self._is_noted and not self._is_tested and self._trace is None:
            self.take = self._short_keyed_run()

    def renew(self, bolt: BaseBolt) -> None:
        super().renew(bolt)
        self._call = self._keyed

    def run(self, given: TrackedTuple) -> None:
        """Make the call. What it did to its key counts if the bolt acks what it was given."""
        super().run(given)
        key, self._key = self._key, None
        if key is not None:
            self.keep_key(given, key)

    def _short_keyed_run(self) -> Callable[[TrackedTuple], None]:
        """Return a faster `run` for keys of events, where nothing notes calls; see `Runner`."""
        users, trees, keys, store = self._users, self._trees, self._keys, self._store

        def run(given: TrackedTuple) -> None:
            bolt: Any = self.bolt
            key = None
            try:
                users.call = users.running = given
                if given.declared is TIMER:
                    key = self.key_of(given)
                    returned = self.call_with(key, given)
                else:
                    stored, _ = self._key_in(given)
                    before = keys.entry(store, stored)
                    key = Key(self, bolt, stored, before, before, given, None)
                    returned = bolt.process(given, key)
                if returned is not None:
                    self._emit_all(returned, given)
                users.running = None
                root = given.root
                if root is trees.current and root.failure is None and given.owner is self:
                    given.owner = ACKED
                    root.value ^= given.edge
                else:
                    self.ack(given)
            except BaseException as error:  # noqa: BLE001 - whatever a bolt raises fails its tuple
                users.running = None
                self._end_by(error, given)
            if key is not None:
                self.keep_key(given, key)

        return run

    def emit(
        self,
        values: Any,
        anchors: Sequence[TrackedTuple],
        stream: str,
        task: int | None,
        own_time_ms: int | None = None,
    ) -> list[TaskId]:
        output, users = self._output, self._users
        if (
            output.emit_one is not None
            and output.given_to is not None
            and values.__class__ is tuple
            and len(values) == output.width
            and stream == DEFAULT_STREAM
            and task is None
            and len(anchors) == 1
            and anchors[0].owner is self
            and not anchors[0].more
            and users.running is anchors[0]
        ):
            output.emit_one(values, anchors[0], own_time_ms)
            if users.overdue is not None:
                users.go_on(anchors[0])
            return list(output.given_to)
        return super().emit(values, anchors, stream, task, own_time_ms)

    def keep_key(self, given: TrackedTuple, key: Key) -> None:
        """Keep what a call that is over did to its key."""
        key.end()
        if given.owner is not ACKED:
            return
        self._calls += 1
        if self._calls >= self._looks_at:
            self._look(key)
        entry = key.entry
        entries = _NOTHING if key.entries is None else key.entries.written
        if self._ttl_ms is not None or entry.more.expires_ms is not None:
            entry = entry.touched(given.event_time_ms, self._ttl_ms)
        self._keep(given, key, entry, entries)
        if key.is_late:
            self._keys.log.late.append((given.root.id, self._component))

    def _keep(
        self,
        given: TrackedTuple,
        key: Key,
        entry: Entry,
        entries: Mapping[bytes, bytes | None],
    ) -> None:
        # What has only looked is undone, too: its key may expire before it is known to have failed.
        if entry is not key.before or entries or entry.more.expires_ms is not None:
            root, before = given.root.id, key.before
            self._keys.replace(root, self._store, key.stored, before, entry, entries)
            if entries and given.declared is TIMER:
                self._keys.count_changed(entries)

    def _key_in(self, given: TrackedTuple) -> tuple[bytes, Any]:
        """Return the key of a tuple as it is stored, and its value."""
        key: bytes | None = given.root.event[0]
        if key is None:
            raise KeyedStateError(f"bolt {self._component!r} got an event without a key")
        return key, key

    def encode(self, value: Any) -> tuple[bytes, Any]:
        try:
            stored = _encode(value)
            return stored, self._read_state(stored)
        except Exception as error:
            raise self._wrong_type(value, self._kind, error) from error

    def decode(self, state: bytes, version: int) -> Any:
        return self._decoded(state, version, self._kind)

    def encode_entry(self, place: bytes, value: Any) -> bytes:
        encoded, _ = self._encoded(value, self._of_entries[place[0]])
        return bytes((self._version,)) + encoded

    def decode_entry(self, place: bytes, stored: bytes) -> Any:
        return self._decoded(stored[1:], stored[0], self._of_entries[place[0]])

    def stored_at(self, key: bytes, place: bytes) -> bytes | None:
        return self._keys.stored_at(self._store, key, place)

    def stored(self, key: bytes, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._keys.stored(self._store, key, low, high)

    def _encoded(self, value: Any, kind: _Kind) -> tuple[bytes, Any]:
        try:
            stored = _encode(value)
            return stored, kind.read(stored)
        except Exception as error:
            raise self._wrong_type(value, kind, error) from error

    def _wrong_type(self, value: Any, kind: _Kind, error: Exception) -> KeyedStateError:
        return KeyedStateError(
            f"bolt {self._component!r}: {value!r:.200} is not a {kind.type!r}: {error}"
        )

    def _decoded(self, stored: bytes, version: int, kind: _Kind) -> Any:
        if version != self._version:
            bolt: Any = self.bolt
            value = bolt.migrate(_decode_old(stored), version, kind.name)
            return self._encoded(value, kind)[1]
        try:
            return kind.read(stored)
        except Exception as error:
            raise KeyedStateError(
                f"bolt {self._component!r}: the {kind.name} of a key is not a {kind.type!r}: "
                f"{error}. If its type has changed, raise the bolt's `version` and give it a "
                "migrate()"
            ) from error

    def _keyed(self, given: TrackedTuple) -> Any:
        self._key = key = self.key_of(given)
        return self.call_with(key, given)

    def key_of(self, given: TrackedTuple) -> Key:
        """Return the key of an event or timer, for its call."""
        event = given.root.event
        stored, value = self._key_in(given)
        bolt: Any = self.bolt
        before = entry = self._keys.entry(self._store, stored)
        timer = None
        if given.declared is TIMER:
            (name, at_ms), row = given.values, 0
            place = TimerPlace(self._store, stored, name, event[3:7])
            if is_current(place, before.timers):  # a replayed one is not
                row = before.timers[name].row
                entry = before.without(name)
            timer = SetTimer(at_ms, event[3], event[4] == AFTER_EVENTS, event[6], row)
        key = self.key_kind(self, bolt, value, before, entry, given, timer)
        key.stored = stored
        return key

    def call_with(self, key: Key, given: TrackedTuple) -> Any:
        bolt: Any = self.bolt
        if given.declared is not TIMER:
            returned = bolt.process(given, key)
        else:
            name, at_ms = given.values
            returned = bolt.on_timer(Timer(name, at_ms, given.root.attempt), key)
        if self._is_tested:
            if is_awaited(returned):
                return self._tested(key, returned)
            if isinstance(returned, Iterator):
                returned = list(returned)
            self._check_in_place(key)
        return returned

    async def _tested(self, key: Key, returned: Any) -> list[Any]:
        found = [one async for one in awaited_values(self._component, returned)]
        self._check_in_place(key)
        return found

    def _check_in_place(self, key: Key) -> None:
        """Refuse a state that the call has changed in place: what was assigned counts."""
        entry, entries = key.entry, key.entries
        if key.shown is not None and self._is_changed(
            key.shown, entry.state, lambda: self.decode(entry.state or b"", entry.more.version)
        ):
            raise self._in_place(key, "the state", "assign it to key.state")
        if entries is not None:
            for place, shown in entries.shown.items():
                stored = entries.stored_at(place) or b""
                if self._is_changed(shown, stored[1:], partial(self.decode_entry, place, stored)):
                    what = f"a value in the {self._of_entries[place[0]].name}"
                    raise self._in_place(key, what, "put it there again")

    def _is_changed(self, shown: Any, stored: bytes | None, decode: Callable[[], Any]) -> bool:
        """Return whether a value is another one than what is kept."""
        encoded = _encode(shown)
        # What another version has stored may be of another form.
        return encoded != stored and (not stored or encoded != _encode(decode()))

    def _in_place(self, key: Key, what: str, how: str) -> KeyedStateError:
        return KeyedStateError(
            f"bolt {self._component!r} has changed {what} of key {key.value!r:.100} in place, "
            f"which does not count: {how}"
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
