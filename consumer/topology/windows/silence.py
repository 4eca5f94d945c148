"""Tells which keys are silent: `on_silence`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sequitur.consumer.topology.api.keyed import KeyedBolt
from sequitur.consumer.topology.api.lengths import length_ms

if TYPE_CHECKING:
    from sequitur.consumer.topology.api.keyed import Key, Timer
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event

_SILENCE: Final = "silence"


def on_silence(after: Length) -> KeyedBolt:
    """Emit `key` and `last_ms` once for each silence of a key.

    An event ends the silence. The tuple is emitted when the watermark is `after` later than the
    key's last event, in event time, though no event comes.

    Args:
        after: How long a key is silent first: seconds, a `timedelta`, or text such as "10 min".

    Raises:
        TopologyBuildError: It is not a length of time.
    """
    return SilenceBolt(length_ms("on_silence", "after", after))


class Heard(Struct, array_like=True):
    """A key that is not silent."""

    last_ms: int  # of its last event


class SilenceBolt(KeyedBolt):
    """Tells which keys are silent."""

    needs_order = True

    fields = ("key", "last_ms")
    state = Heard

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms

    def process(self, event: Event, key: Key, /) -> None:
        time_ms, found = event.event_time_ms, key.state
        if found is None:
            passed_ms = self.context.watermark_ms
            due_ms = time_ms + self._after_ms
            if passed_ms is not None and due_ms <= passed_ms:
                return  # a rescued row: the silence after it was told, or is over
            key.timer(_SILENCE, at=due_ms)
            key.state = Heard(time_ms)
        elif time_ms > found.last_ms:
            key.state = Heard(time_ms)

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        """Tell of a silence. The timer is not moved at each event."""
        last_ms = key.state.last_ms
        if last_ms + self._after_ms > timer.at_ms:
            key.timer(_SILENCE, at=last_ms + self._after_ms)
        else:
            key.emit((key.value, last_ms))
            key.state = None
