"""What a task of a keyed bolt reads its keys from, and what it leaves of a step.

The engine reads an entry when an event or a timer of its key comes. At the end of a step it gives
back what has changed. Who keeps the entries, and where, is not its concern.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sequitur.errors import KeyedStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class KeyChange(NamedTuple):
    key: bytes  # the stored key: a group's order is the bytes' order
    entry: bytes | None  # encoded state and timers, opaque to the store; None: the key is gone
    timer_ms: int | None  # the earliest timer of the key; None: no timer


class KeyChanges(NamedTuple):
    """What a step has changed of a task's keys."""

    rows: Sequence[KeyChange]  # in the order of keys
    keys: int = 0  # how many more keys there are
    timers: int = 0  # how many more timers there are


class KeyStore(Protocol):
    """What one task of a keyed bolt keeps between steps. A step does not change it."""

    def get(self, key: bytes) -> bytes | None:
        """Return the entry of a key; None if there is none."""

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the entries of several keys, which are in order."""

    def range(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and entries in the order of keys, from `low` up to, and without, `high`."""

    def due(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield the keys whose earliest timer is not later, each after its timer, by time."""

    def next_timer_ms(self) -> int | None:
        """Return the time of the earliest timer of all keys; None without any."""


class MemoryKeyStore:
    """Keeps keys in memory. Between steps it takes in what has changed."""

    def __init__(self, changes: Iterable[KeyChange] = ()) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._timers: dict[bytes, int] = {}
        # earliest timers; those that have changed since are in it, too
        self._heap: list[tuple[int, bytes]] = []
        self._sorted: list[bytes] | None = None  # all keys, once they were asked for in order
        self.take_in(changes)

    def take_in(self, changes: Iterable[KeyChange]) -> None:
        self._sorted = None
        for key, entry, timer_ms in changes:
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry
            if timer_ms is None:
                self._timers.pop(key, None)
            elif self._timers.get(key) != timer_ms:
                self._timers[key] = timer_ms
                heapq.heappush(self._heap, (timer_ms, key))
        if len(self._heap) > 2 * len(self._timers) + _SMALL:
            self._heap = [(timer_ms, key) for key, timer_ms in self._timers.items()]
            heapq.heapify(self._heap)

    def all(self) -> Iterator[KeyChange]:
        """Yield all keys, as changes that make them."""
        for key, entry in self._entries.items():
            yield KeyChange(key, entry, self._timers.get(key))

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries.get(key) for key in keys]

    def range(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        for at in range(bisect_left(self._sorted, low), bisect_left(self._sorted, high)):
            yield self._sorted[at], self._entries[self._sorted[at]]

    def due(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        heap, last = self._heap, None
        if not heap or heap[0][0] > until_ms:
            return
        left = heap.copy()
        while left and left[0][0] <= until_ms:
            timer_ms, key = found = heapq.heappop(left)
            if self._timers.get(key) == timer_ms and found != last:
                last = found
                yield found

    def next_timer_ms(self) -> int | None:
        heap = self._heap
        while heap and self._timers.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None


class SharedStore:
    """A store that calls read while the executor does."""

    def __init__(self, store: KeyStore) -> None:
        self._kept: KeyStore | None = store
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let nothing read it any more.

        A call that was given up may go on while a later step reads the same files.
        """
        with self._lock:
            self._kept = None

    @property
    def _store(self) -> KeyStore:
        if self._kept is None:
            raise KeyedStateError("the step of this call is over, so it cannot read its key")
        return self._kept

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._store.get(key)

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        with self._lock:
            return self._store.get_all(keys)

    def range(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            return iter(list(self._store.range(low, high)))

    def due(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        with self._lock:
            found = self._store.due(until_ms)
        while True:
            with self._lock:
                one = next(found, None)
            if one is None:
                return
            yield one

    def next_timer_ms(self) -> int | None:
        with self._lock:
            return self._store.next_timer_ms()


_SMALL: Final = 1_000
