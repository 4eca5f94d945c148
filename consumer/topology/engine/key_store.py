"""What a task of a keyed bolt reads its keys from, and what it leaves of a step.

The engine reads an entry when an event or a timer of its key comes. At the end of a step it gives
back what has changed. Who keeps the entries, and where, is not its concern.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

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

    @property
    def is_large(self) -> bool:
        """Whether keys are read sooner in their order: memory does not hold them all."""

    def get(self, key: bytes) -> bytes | None:
        """Return the entry of a key; None if there is none."""

    def range(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and entries in the order of keys, from `low` up to, and without, `high`."""

    def due(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield the keys whose earliest timer is not later, each after its timer, by time."""

    def next_timer_ms(self) -> int | None:
        """Return the time of the earliest timer of all keys; None without any."""


class MemoryKeyStore:
    """Keeps keys in memory. Between steps it takes in what has changed."""

    is_large = False

    def __init__(self, changes: Iterable[KeyChange] = ()) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._timers: dict[bytes, int] = {}
        # earliest timers; those that have changed since are in it, too
        self._heap: list[tuple[int, bytes]] = []
        self.take_in(changes)

    def take_in(self, changes: Iterable[KeyChange]) -> None:
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

    def range(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(one for one in self._entries if low <= one < high):
            yield key, self._entries[key]

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


_SMALL: Final = 1_000
