"""Windows that end at each event: `sliding`."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.windows.window_bolt import Closing, WindowBolt

if TYPE_CHECKING:
    from sequitur.consumer.topology.api.keyed import Key, KeyedBolt, Timer
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event
    from sequitur.consumer.topology.windows.aggregates import Aggregate

_FORGET: Final = "forget"


def sliding(
    size: Length, *, allow_late: Length = 0, late: str = "stream", **aggregates: Aggregate
) -> KeyedBolt:
    """Compute at each event aggregates of the events within (t - size, t] before and with it.

    The result is put out with the event: `begin_ms` and `end_ms` are t - size and t. Events of the
    same time count from the one after them on.

    Args:
        size: How long a window is: seconds, a `timedelta`, or text such as "1 min".
        allow_late: How much older than the watermark an event may be to have a window, event time.
            Results that were put out before do not change.
        late: What becomes of events that are older. "stream": they go to the stream `late`.
            "drop": they are dropped.
        aggregates: What is computed, by the name of its field. Before them stand the fields `key`,
            `begin_ms` and `end_ms`.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    size_ms = length_ms("sliding", "size", size)
    return SlidingWindows(size_ms, Closing.of("sliding", allow_late, late), aggregates)


class Latest(Struct, array_like=True):
    """The latest events of a key, in their order."""

    times_ms: list[int]
    values: list[list[Any]]  # what each aggregate is of, in the order of the aggregates


class SlidingWindows(WindowBolt):
    """Windows that end at each event."""

    state = Latest
    needs_order = True

    def __init__(self, size_ms: int, closing: Closing, aggregates: dict[str, Aggregate]) -> None:
        super().__init__("sliding", closing, aggregates)
        self._size_ms = size_ms
        self._kept_ms = size_ms + closing.allow_late_ms

    def process(self, event: Event, key: Key, /) -> None:
        time_ms, passed_ms = event.event_time_ms, self.context.watermark_ms
        if passed_ms is not None and time_ms + self._allow_late_ms <= passed_ms:
            self._put_aside(event, key)
            return
        values, found = self._read(event), key.state
        if found is None:
            found = Latest([], [[] for _ in self._aggregates])
            key.timer(_FORGET, at=time_ms + self._kept_ms)
        times_ms, at = found.times_ms, len(found.times_ms)
        if times_ms and time_ms < times_ms[-1]:
            at = bisect_right(times_ms, time_ms)
        times_ms.insert(at, time_ms)
        for kept, value in zip(found.values, values, strict=True):
            kept.insert(at, value)
        begin = bisect_right(times_ms, time_ms - self._size_ms)
        results = [
            one.of_all(kept[begin : at + 1])
            for one, kept in zip(self._aggregates, found.values, strict=True)
        ]
        self._forget(times_ms[-1], found)
        key.state = found
        key.emit((key.value, time_ms - self._size_ms, time_ms, *results))

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        """Forget what no window can be of any more. The timer is not moved at each event."""
        found = key.state
        last_ms = found.times_ms[-1] + self._kept_ms
        if last_ms <= timer.at_ms:
            key.state = None
            return
        self._forget(timer.at_ms, found)
        key.state = found
        key.timer(_FORGET, at=last_ms)

    def _forget(self, now_ms: int, found: Latest) -> None:
        gone = bisect_right(found.times_ms, now_ms - self._kept_ms)
        if gone:
            del found.times_ms[:gone]
            for kept in found.values:
                del kept[:gone]
