"""Windows of one size, side by side or overlapping: `tumbling` and `hopping`.

A key keeps *panes*: pieces of time, the largest of which windows are whole. An event changes one
pane, however many windows it is in. A window's panes are merged when it closes.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.windows.window_bolt import Closing, WindowBolt
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology.api.keyed import Key, KeyedBolt, Timer
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event
    from sequitur.consumer.topology.windows.aggregates import Aggregate

_CLOSE: Final = "close"
_EARLY: Final = "early"


def tumbling(
    size: Length,
    *,
    allow_late: Length = 0,
    late: str = "stream",
    early: Length | None = None,
    **aggregates: Aggregate,
) -> KeyedBolt:
    """Compute aggregates of windows of one size, side by side from 1970 on.

    ::

        bolt = tumbling("1 min", mean=Mean("usage"), count=Count())
        builder.set_bolt("usage", bolt).fields_grouping("readings", "key")
        builder.set_output("means", key="key", value=None).local_grouping("usage")
        builder.set_output("late", "late-readings").local_grouping("usage", "late")

    Args:
        size: How long a window is: seconds, a `timedelta`, or text such as "1 min".
        allow_late: How long after its end a window closes, event time.
        late: What becomes of events whose window is closed. "stream": they go to the stream `late`.
            "drop": they are dropped.
        early: How often the result so far of an open window is put out if it has changed, event
            time. None: a window is put out once, when it closes.
        aggregates: What is computed, by the name of its field. Before them stand the fields `key`,
            `begin_ms` and `end_ms`, after them with `early` also `version` and `is_final`.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    return _aligned("tumbling", size, size, allow_late, late, early, aggregates)


def hopping(
    size: Length,
    advance: Length,
    *,
    allow_late: Length = 0,
    late: str = "stream",
    early: Length | None = None,
    **aggregates: Aggregate,
) -> KeyedBolt:
    """Compute aggregates of windows of one size that begin at each multiple of `advance`.

    An event is in several windows. If some of them are closed, it goes to the stream `late` once,
    and counts in the others.

    Args:
        size: How long a window is, see `tumbling`.
        advance: How far apart windows begin, at most `size`.
        allow_late: See `tumbling`.
        late: See `tumbling`.
        early: See `tumbling`.
        aggregates: See `tumbling`.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    return _aligned("hopping", size, advance, allow_late, late, early, aggregates)


class Panes(Struct, array_like=True):
    """The panes of a key whose windows are open."""

    panes: dict[int, list[Any]]  # states of the aggregates, by the pane's begin
    close_ms: int  # when the first window closes
    early: Early | None = None


class Early(Struct, array_like=True):
    """Results that were put out before their windows closed."""

    changed: list[int]  # panes since the last such result, by their begin
    versions: dict[int, int]  # how many results of a window there were, by its end


class AlignedWindows(WindowBolt):
    """Windows that begin at multiples of a length of time."""

    state = Panes
    drains = True

    def __init__(
        self,
        title: str,
        size_ms: int,
        advance_ms: int,
        closing: Closing,
        aggregates: dict[str, Aggregate],
    ) -> None:
        super().__init__(title, closing, aggregates)
        self._size_ms = size_ms
        self._advance_ms = advance_ms
        self._pane_ms = gcd(size_ms, advance_ms)

    def process(self, event: Event, key: Key, /) -> None:
        time_ms, found = event.event_time_ms, key.state
        begin_ms = time_ms - time_ms % self._pane_ms
        pane = None if found is None else found.panes.get(begin_ms)
        passed_ms = self.context.watermark_ms
        is_older = passed_ms is not None and time_ms <= passed_ms
        values = self._read(event)
        if pane is None or is_older:
            open_ms = self._first_open_end(begin_ms, found, passed_ms if is_older else None)
            if open_ms != self._first_end(begin_ms):
                self._put_aside(event, key)
                if open_ms > self._last_end(begin_ms):
                    return
            close_ms = open_ms + self._allow_late_ms
            if found is None or close_ms < found.close_ms:
                found = found or Panes({}, close_ms)
                found.close_ms = close_ms
                key.timer(_CLOSE, at=close_ms)
            if pane is None:
                pane = found.panes[begin_ms] = self._begin()
        assert found is not None
        self._add(pane, values)
        if self._closing.early_ms is not None:
            self._note_change(begin_ms, time_ms, found, key)
        key.state = found

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        found = key.state
        if timer.name == _EARLY:
            self._emit_early(timer.at_ms, found, key)
        else:
            self._close(timer.at_ms - self._allow_late_ms, found, key)

    def _close(self, end_ms: int, found: Panes, key: Key) -> None:
        self._emit(end_ms, found, key, is_final=True)
        for begin_ms in [one for one in found.panes if self._last_end(one) <= end_ms]:
            del found.panes[begin_ms]
        if not found.panes:
            key.state = None
            key.cancel(_EARLY)
            return
        following_ms = max(end_ms + self._advance_ms, self._first_end(min(found.panes)))
        found.close_ms = following_ms + self._allow_late_ms
        key.timer(_CLOSE, at=found.close_ms)
        key.state = found

    def _emit(self, end_ms: int, found: Panes, key: Key, *, is_final: bool) -> None:
        begin_ms = end_ms - self._size_ms
        within = sorted(one for one in found.panes if begin_ms <= one < end_ms)
        states = found.panes[within[0]]
        if len(within) > 1:
            states = self._begin()
            for one in within:
                self._merge(states, found.panes[one])
        values = (key.value, begin_ms, end_ms, *self._results(states))
        if self._closing.early_ms is not None:
            values += self._version(end_ms, found, is_final=is_final)
        key.emit(values, event_time_ms=end_ms - 1)

    def _note_change(self, begin_ms: int, time_ms: int, found: Panes, key: Key) -> None:
        early_ms = self._closing.early_ms
        assert early_ms is not None
        early = found.early = found.early or Early([], {})
        if not early.changed:
            key.timer(_EARLY, at=(time_ms // early_ms + 1) * early_ms)
        if begin_ms not in early.changed:
            early.changed.append(begin_ms)

    def _emit_early(self, now_ms: int, found: Panes, key: Key) -> None:
        early = found.early
        assert early is not None
        for end_ms in sorted({one for pane in early.changed for one in self._ends(pane)}):
            close_ms = end_ms + self._allow_late_ms
            if close_ms > now_ms and close_ms >= found.close_ms:
                self._emit(end_ms, found, key, is_final=False)
        early.changed = []
        key.state = found

    @staticmethod
    def _version(end_ms: int, found: Panes, *, is_final: bool) -> tuple[int, bool]:
        early = found.early
        assert early is not None
        version = early.versions.pop(end_ms, 0) + 1
        if not is_final:
            early.versions[end_ms] = version
        return version, is_final

    def _first_open_end(self, begin_ms: int, found: Panes | None, passed_ms: int | None) -> int:
        """Return the end of a pane's first window that is open; later than its last if none is."""
        end_ms = self._first_end(begin_ms)
        if passed_ms is None:
            return end_ms
        if found is not None:  # its windows are open until its timer was called
            passed_ms = min(passed_ms, found.close_ms - 1)
        return max(end_ms, self._aligned_end(passed_ms - self._allow_late_ms + 1))

    def _ends(self, begin_ms: int) -> Iterator[int]:
        """Yield the ends of the windows that a pane is in."""
        first_ms, last_ms = self._first_end(begin_ms), self._last_end(begin_ms)
        return iter(range(first_ms, last_ms + 1, self._advance_ms))

    def _first_end(self, begin_ms: int) -> int:
        return self._aligned_end(begin_ms + self._pane_ms)

    def _last_end(self, begin_ms: int) -> int:
        return begin_ms - begin_ms % self._advance_ms + self._size_ms

    def _aligned_end(self, least_ms: int) -> int:
        """Return the first end of a window that is not before a time."""
        return least_ms + (self._size_ms - least_ms) % self._advance_ms


def _aligned(  # noqa: PLR0917 - private, and as the public functions take them
    title: str,
    size: Length,
    advance: Length,
    allow_late: Length,
    late: str,
    early: Length | None,
    aggregates: dict[str, Aggregate],
) -> KeyedBolt:
    size_ms, advance_ms = length_ms(title, "size", size), length_ms(title, "advance", advance)
    if advance_ms > size_ms:
        raise TopologyBuildError(
            f"{title}: advance = {advance!r} is more than size = {size!r}, so that some events "
            "would be in no window"
        )
    closing = Closing.of(title, allow_late, late, early)
    return AlignedWindows(title, size_ms, advance_ms, closing, aggregates)
