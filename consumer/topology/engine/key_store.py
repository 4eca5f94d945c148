"""What a task of a keyed bolt reads its keys from, and what it leaves of a step.

The engine reads an entry when an event or a timer of its key comes. At the end of a step it gives
back what has changed. Who keeps the entries, and where, is not its concern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class KeyChange(NamedTuple):
    key: bytes  # the stored key: a group's order is the bytes' order
    entry: bytes | None  # encoded state and timers, opaque to the store; None: the key is gone
    timer_ms: int | None  # the earliest timer of the key; None: no timer


class KeyStore(Protocol):
    """What one task of a keyed bolt keeps between steps. A step does not change it."""

    def get(self, key: bytes) -> bytes | None:
        """Return the entry of a key; None if there is none."""

    def range(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and entries in the order of keys, from `low` up to, and without, `high`."""

    def due(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield the keys whose earliest timer is not later, each after its timer, by time."""

    def next_timer_ms(self) -> int | None:
        """Return the time of the earliest timer of all keys; None without any."""
