"""Concurrent calls of keyed bolts: of many keys side by side, and of one key one after the other.

A call reads its key when it begins. What it did counts once it is over, before the next call of its
key begins. So timers of a key, too, wait until no call of it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sequitur.consumer.topology.engine.concurrency import Call, ConcurrentRunner
from sequitur.consumer.topology.engine.keyed import EXPIRY, TIMER, KeyedRunner
from sequitur.consumer.topology.engine.keyed_by_field import FieldKeyedRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sequitur.consumer.topology.engine.trees import TrackedTuple

_T = TypeVar("_T")


class ConcurrentKeyedRunner(ConcurrentRunner, KeyedRunner):
    """Runs a task of a keyed bolt whose calls may run side by side."""

    def run(self, given: TrackedTuple) -> None:
        self._pool.submit(Call(self, given, (self, given.root.event[0])))

    def is_busy(self, key: bytes | None) -> bool:
        """Return whether a call of a key runs, or waits to run."""
        return self._pool.has_calls_of((self, key))

    def conclude(self, call: Call) -> None:
        super().conclude(call)
        if call.of_key is not None:
            self.keep_key(call.given, call.of_key)

    def begin(self, call: Call) -> Any:
        call.of_key = key = self.key_of(call.given)
        return self.call_with(key, call.given)


class KeyCalls:
    """The calls of a task's keyed bolts that run side by side."""

    def __init__(
        self, runners: Sequence[ConcurrentKeyedRunner], complete_some: Callable[[], None]
    ) -> None:
        """Begin with the runners, and with what waits until some call is over."""
        self._runners = runners
        self._complete_some = complete_some

    @classmethod
    def of(cls, runners: Iterable[object], complete_some: Callable[[], None]) -> KeyCalls | None:
        """Return those of a task's runners; None if all of its calls run one by one."""
        found = [one for one in runners if isinstance(one, ConcurrentKeyedRunner)]
        return cls(found, complete_some) if found else None

    def has(self, key: bytes | None) -> bool:
        return any(one.is_busy(key) for one in self._runners)

    def end(self, key: bytes | None) -> bool:
        """Wait until no call of a key runs: return whether one did."""
        waits = False
        while self.has(key):
            waits = True
            self._complete_some()
        return waits

    def before(self, key: bytes | None, order: _T, call_timers: Callable[[_T], None]) -> None:
        """Call the timers that are due before an event, also those that its key's timers set."""
        while True:
            self.end(key)
            call_timers(order)
            if not self.has(key):
                return


class ConcurrentFieldRunner(ConcurrentKeyedRunner, FieldKeyedRunner):
    """The same for a bolt by another field.

    A call that is over is not undone at once: the log has calls of other keys behind it. Its image
    stays until the verdicts.
    """

    def run(self, given: TrackedTuple) -> None:
        self._check_anchored(given)
        self._pool.submit(Call(self, given, (self, self._key_in(given)[0])))

    def begin(self, call: Call) -> Any:
        given = call.given
        if given.declared is TIMER and given.values[0] == EXPIRY:
            call.of_key = self.expired(given)
            return None
        return super().begin(call)
