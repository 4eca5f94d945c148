"""Lets events pass as they are, or not: `deduplicate` and `rate_limit`."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from sequitur.consumer.topology.api.keyed import KeyedBolt
from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.windows.event_values import everything, reader
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.collector import OutputCollector
    from sequitur.consumer.topology.api.keyed import Key, Timer
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event
    from sequitur.consumer.topology.windows.event_values import Of

_FORGET: Final = "forget"
_FIELDS: Final = ("key", "value", "headers", "event_time_ms")
_OVER: Final = "over"


def deduplicate(within: Length, of: Of = None) -> KeyedBolt:
    """Let an event pass unless one with its key and id has passed less than `within` before it.

    The fields are `key`, `value`, `headers` and `event_time_ms` of the event.

    Args:
        within: Event time: seconds, a `timedelta`, or text such as "10 min".
        of: The id: a field of the event's JSON value, or a function of the event, from the top of a
            module. An event without an id passes. Without `of` the key alone is the id.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    return DuplicatesBolt(length_ms("deduplicate", "within", within), of)


def rate_limit(n: int, per: Length, *, over: str = "stream") -> KeyedBolt:
    """Let at most `n` events of a key pass in any `per` of event time.

    The fields are `key`, `value`, `headers` and `event_time_ms` of the event.

    Args:
        n: How many.
        per: Seconds, a `timedelta`, or text such as "1 min".
        over: What becomes of the others. "stream": they go to the stream `over`. "drop": they are
            dropped.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    if n < 1:
        raise TopologyBuildError(f"rate_limit: n = {n}: expected 1 or more")
    if over not in {"stream", "drop"}:
        raise TopologyBuildError(f'rate_limit: over = {over!r}: expected "stream" or "drop"')
    return RateBolt(n, length_ms("rate_limit", "per", per), drops=over == "drop")


class Passed(Struct, array_like=True):
    """The ids of a key that have passed."""

    times_ms: dict[Any, int]  # when, by id, in their order


class DuplicatesBolt(KeyedBolt):
    """Lets each id pass once."""

    needs_order = True

    fields = _FIELDS
    state = Passed

    def __init__(self, within_ms: int, of: Of) -> None:
        self._within_ms = within_ms
        self._of = everything if of is None else of
        reader(self._of)  # refuses a wrong name of a field now

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self._id = reader(self._of)  # it cannot be pickled

    def process(self, event: Event, key: Key, /) -> None:
        id_, time_ms, within_ms = self._id(event), event.event_time_ms, self._within_ms
        if id_ is not None:
            found = key.state
            if found is None:
                found = Passed({})
                key.timer(_FORGET, at=time_ms + within_ms)
            before_ms = found.times_ms.get(id_)
            if before_ms is not None and abs(time_ms - before_ms) < within_ms:
                return
            if before_ms is None or time_ms > before_ms:
                found.times_ms.pop(id_, None)
                found.times_ms[id_] = time_ms
            self._forget(time_ms, found)
            key.state = found
        key.emit(event.values[:4])

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        """Forget ids that are over. The timer is not moved at each event."""
        found = key.state
        self._forget(timer.at_ms, found)
        if found.times_ms:
            key.timer(_FORGET, at=max(found.times_ms.values()) + self._within_ms)
            key.state = found
        else:
            key.state = None

    def _forget(self, now_ms: int, found: Passed) -> None:
        over_ms, times_ms = now_ms - self._within_ms, found.times_ms
        while times_ms:
            first = next(iter(times_ms))
            if times_ms[first] > over_ms:
                return
            del times_ms[first]


class Recent(Struct, array_like=True):
    """When the latest events of a key passed."""

    times_ms: list[int]


class RateBolt(KeyedBolt):
    """Lets so many events of a key pass in a time."""

    needs_order = True

    fields = _FIELDS
    state = Recent
    must_be_read = (_OVER,)

    def __init__(self, n: int, per_ms: int, *, drops: bool) -> None:
        self._n = n
        self._per_ms = per_ms
        self.streams = {} if drops else {_OVER: _FIELDS}

    def process(self, event: Event, key: Key, /) -> None:
        found, time_ms = key.state, event.event_time_ms
        if found is None:
            key.timer(_FORGET, at=time_ms + self._per_ms)
        times_ms = [] if found is None else found.times_ms
        if times_ms and time_ms < times_ms[-1]:
            time_ms = times_ms[-1]  # a rescued row counts as of the newest
        begin = bisect_right(times_ms, time_ms - self._per_ms)
        if len(times_ms) - begin < self._n:
            key.state = Recent([*times_ms[begin:], time_ms])
            key.emit(event.values[:4])
        elif self.streams:
            key.emit(event.values[:4], stream=_OVER)

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        """Forget what is over. The timer is not moved at each event."""
        times_ms = key.state.times_ms
        if times_ms[-1] + self._per_ms > timer.at_ms:
            key.timer(_FORGET, at=times_ms[-1] + self._per_ms)
        else:
            key.state = None
