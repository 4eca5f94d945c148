"""What a producer knows of the backlogs of topics: the control records it has read, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.kafka.control import PROXIMITY_FROM, BacklogState, ToDo, topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class BacklogStates:
    """The last state of each topic, as long as it counts: so long from its arrival as it says.

    Times are milliseconds of a clock that is never set.
    """

    __slots__ = ("_arrived", "_known", "limited")

    def __init__(self) -> None:
        self._arrived: dict[str, tuple[BacklogState, int]] = {}
        self._known: dict[str, BacklogState] = {}
        self.limited: dict[str, BacklogState] = {}

    def take(self, key: bytes | None, value: bytes | None, now_ms: int) -> None:
        """Take a record of the control topic; one without a value lifts what was known."""
        topic = topic_of(key)
        if topic is None:
            return
        state = None if value is None else BacklogState.decode(topic, value)
        self._known.pop(topic, None)
        self.limited.pop(topic, None)
        if state is None:
            self._arrived.pop(topic, None)
            return
        # One that is read again, as from the log's beginning, counts no longer for that.
        if topic not in self._arrived or self._arrived[topic][0] != state:
            self._arrived[topic] = state, now_ms
        if self._is_stale(topic, now_ms):
            return
        self._known[topic] = state
        if state.to_do is not ToDo.GO_ON:
            self.limited[topic] = state

    def expire(self, now_ms: int) -> None:
        """Forget what does not count any more."""
        for topic in [topic for topic in self._known if self._is_stale(topic, now_ms)]:
            del self._known[topic]
            self.limited.pop(topic, None)

    def forget(self) -> None:
        """Forget all."""
        self._arrived.clear()
        self._known.clear()
        self.limited.clear()

    def proximity(self, topics: Iterable[str]) -> float | None:
        """Return how near these topics are to their quotas: the largest share of one."""
        states = (self._known.get(topic) for topic in topics)
        shares = (state.proximity for state in states if state is not None)
        largest = max((share for share in shares if share is not None), default=0.0)
        return largest if largest >= PROXIMITY_FROM else None

    def _is_stale(self, topic: str, now_ms: int) -> bool:
        state, arrived_ms = self._arrived[topic]
        return arrived_ms + state.valid_for_ms < now_ms
