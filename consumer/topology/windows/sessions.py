"""Windows that end when a key is silent: `session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.windows.window_bolt import Closing, WindowBolt

if TYPE_CHECKING:
    from sequitur.consumer.topology.api.keyed import Key, KeyedBolt, Timer
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event
    from sequitur.consumer.topology.windows.aggregates import Aggregate

_CLOSE: Final = "close"
_EARLY: Final = "early"


def session(
    gap: Length,
    *,
    allow_late: Length = 0,
    late: str = "stream",
    early: Length | None = None,
    **aggregates: Aggregate,
) -> KeyedBolt:
    """Compute aggregates of sessions: events of a key with less than `gap` between two of them.

    A session begins at its first event, and ends `gap` after its last.

    Args:
        gap: How long a key is silent between two sessions: seconds, a `timedelta`, or text such as
            "30 min".
        allow_late: How long after its end a session closes, event time. A late event may join two
            sessions that are open.
        late: What becomes of events whose session would be closed. "stream": they go to the stream
            `late`. "drop": they are dropped.
        early: How often the result so far of an open session is put out if it has changed, event
            time. None: a session is put out once, when it closes.
        aggregates: What is computed, by the name of its field. Before them stand the fields `key`,
            `begin_ms` and `end_ms`, after them with `early` also `version` and `is_final`.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    gap_ms = length_ms("session", "gap", gap)
    return SessionWindows(gap_ms, Closing.of("session", allow_late, late, early), aggregates)


class Session(Struct, array_like=True):
    """A session that is open."""

    begin_ms: int  # of its first event
    last_ms: int  # of its last event
    states: list[Any]  # of the aggregates
    version: int = 0  # of its last result
    is_changed: bool = True  # since its last result


class Sessions(Struct, array_like=True):
    """The open sessions of a key, in their order; more than one only where events may be late."""

    several: list[Session]
    timer_ms: int  # when it is looked at which are to be closed; no later than the first is
    is_early_set: bool = False


class SessionWindows(WindowBolt):
    """Windows that end when their key is silent."""

    state = Sessions
    drains = True

    def __init__(self, gap_ms: int, closing: Closing, aggregates: dict[str, Aggregate]) -> None:
        super().__init__("session", closing, aggregates)
        self._gap_ms = gap_ms
        self._closes_after_ms = gap_ms + closing.allow_late_ms

    def process(self, event: Event, key: Key, /) -> None:
        time_ms, found, gap_ms = event.event_time_ms, key.state, self._gap_ms
        values = self._read(event)
        joined: list[Session] = []
        if found is not None:
            joined = [
                one
                for one in found.several
                if one.begin_ms - gap_ms < time_ms < one.last_ms + gap_ms
            ]
        if not joined:
            close_ms = time_ms + self._closes_after_ms
            passed_ms = self.context.watermark_ms
            if passed_ms is not None and close_ms <= passed_ms:
                self._put_aside(event, key)
                return
            joined = [Session(time_ms, time_ms, self._begin())]
            found = found or Sessions([], close_ms + 1)
            found.several.append(joined[0])
            found.several.sort(key=_begin_ms)
            if close_ms < found.timer_ms:
                found.timer_ms = close_ms
                key.timer(_CLOSE, at=close_ms)
        one = joined[0]
        self._add(one.states, values)
        one.begin_ms, one.last_ms = min(one.begin_ms, time_ms), max(one.last_ms, time_ms)
        for later in joined[1:]:
            self._merge(one.states, later.states)
            one.last_ms = later.last_ms
            found.several.remove(later)
        one.is_changed = True
        early_ms = self._closing.early_ms
        if early_ms is not None and not found.is_early_set:
            found.is_early_set = True
            key.timer(_EARLY, at=(time_ms // early_ms + 1) * early_ms)
        key.state = found

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        found = key.state
        if timer.name == _EARLY:
            for one in found.several:
                if one.is_changed and one.last_ms + self._closes_after_ms > timer.at_ms:
                    self._emit(one, key, is_final=False)
            found.is_early_set = False
            key.state = found
        else:
            self._close(timer.at_ms, found, key)

    def _close(self, now_ms: int, found: Sessions, key: Key) -> None:
        """Close the sessions that are over. The timer is not moved at each event."""
        left: list[Session] = []
        for one in found.several:
            if one.last_ms + self._closes_after_ms <= now_ms:
                self._emit(one, key, is_final=True)
            else:
                left.append(one)
        if not left:
            key.state = None
            key.cancel(_EARLY)
            return
        found.several = left
        found.timer_ms = left[0].last_ms + self._closes_after_ms
        key.timer(_CLOSE, at=found.timer_ms)
        key.state = found

    def _emit(self, one: Session, key: Key, *, is_final: bool) -> None:
        end_ms = one.last_ms + self._gap_ms
        values = (key.value, one.begin_ms, end_ms, *self._results(one.states))
        if self._closing.early_ms is not None:
            one.version, one.is_changed = one.version + 1, False
            values += (one.version, is_final)
        key.emit(values, event_time_ms=end_ms - 1)


def _begin_ms(one: Session) -> int:
    return one.begin_ms
