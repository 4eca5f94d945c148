"""Puts events of one key together: `join` within an interval, `join_table` with the newest row.

Both kinds of events come on one stream, and a function tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sequitur.consumer.topology.api.keyed import KeyedBolt
from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.windows.window_bolt import LATE, LATE_FIELDS, Closing
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology.api.keyed import Key, Timer
    from sequitur.consumer.topology.api.lengths import Length
    from sequitur.consumer.topology.api.tuple import Event

    Side = Callable[[Event], str | None]

_EXPIRE: Final = "expire"
_KINDS: Final = ("inner", "left", "outer")


def join(
    side: Side,
    within: Length,
    *,
    before: Length = 0,
    kind: str = "inner",
    allow_late: Length = 0,
    late: str = "stream",
) -> KeyedBolt:
    """Put out each left event with each right event of its key that is at most so far from it.

    The right event is from `before` earlier than the left one to `within` later, both included.
    The fields are `key`, the values `left` and `right`, and their event times `left_ms` and
    `right_ms`. Of a side that is missing they are None.

    Args:
        side: A function of an event, from the top of a module: "left", "right", or None for an
            event that is not of the join.
        within: Event time: seconds, a `timedelta`, or text such as "5 min".
        before: See `within`.
        kind: "inner": pairs only. "left": also a left event without a right one, once none can
            come. "outer": also a right event without a left one.
        allow_late: How much older than the watermark an event may be.
        late: What becomes of events that are older. "stream": they go to the stream `late`.
            "drop": they are dropped.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    if kind not in _KINDS:
        raise TopologyBuildError(f"join: kind = {kind!r}: expected one of {', '.join(_KINDS)}")
    after_ms = length_ms("join", "within", within, least=0)
    before_ms = length_ms("join", "before", before, least=0)
    return JoinBolt(side, before_ms, after_ms, kind, Closing.of("join", allow_late, late))


def join_table(side: Side, *, allow_late: Length = 0, late: str = "stream") -> KeyedBolt:
    """Put out each left event with the newest right event of its key that is not later than it.

    The right events are the rows of a table. One without a value deletes the row. A key keeps its
    row until then. The fields are those of `join`. Without a row, `right` and `right_ms`
    are None.

    Args:
        side: See `join`.
        allow_late: How much older than the watermark an event may be, see `join`. A key keeps the
            rows of this time.
        late: See `join`.

    Raises:
        TopologyBuildError: An argument is not valid.
    """
    return TableJoinBolt(side, Closing.of("join_table", allow_late, late))


class SidedBolt(KeyedBolt):
    """A bolt that tells two kinds of events apart."""

    takes_events = True
    must_be_read = (LATE,)

    def __init__(self, side: Side, closing: Closing) -> None:
        self._side = side
        self._allow_late_ms = closing.allow_late_ms
        self.streams = {} if closing.drops_late else {LATE: LATE_FIELDS}

    def _side_of(self, event: Event, key: Key) -> str | None:
        """Return an event's side. It has none if it is late, which is said here."""
        side = self._side(event)
        if side is None:
            return None
        if side not in {"left", "right"}:
            raise ValueError(f'an event is "left" or "right", or None: not {side!r:.100}')
        passed_ms = self.context.watermark_ms
        if passed_ms is not None and event.event_time_ms + self._allow_late_ms <= passed_ms:
            key.count_late()
            if self.streams:
                key.emit(event.values[:7], stream=LATE)
            return None
        return side


class Waiting(Struct, array_like=True):
    """An event that waits for those of the other side."""

    time_ms: int
    value: bytes | None
    is_joined: bool = False


class Sides(Struct, array_like=True):
    """What waits of a key, in the order of time."""

    left: list[Waiting]
    right: list[Waiting]
    timer_ms: int  # when it is looked at what is over; no later than anything is to be put out


class JoinBolt(SidedBolt):
    """Joins two kinds of events within an interval."""

    fields = ("key", "left", "right", "left_ms", "right_ms")
    state = Sides

    def __init__(
        self, side: Side, before_ms: int, after_ms: int, kind: str, closing: Closing
    ) -> None:
        super().__init__(side, closing)
        self._before_ms = before_ms
        self._after_ms = after_ms
        self.drains = kind != "inner"
        if self.drains:  # else its timers put nothing out
            self.lag_ms = max(before_ms, after_ms) + closing.allow_late_ms + 1
        # what is put out alone, too
        self._alone = {"inner": (), "left": ("left",), "outer": ("left", "right")}[kind]

    def process(self, event: Event, key: Key, /) -> None:
        side, time_ms = self._side_of(event, key), event.event_time_ms
        if side is None:
            return
        own, found = Waiting(time_ms, event.value), key.state
        over_ms = self._over_ms(side, time_ms)
        if found is None:
            found = Sides([], [], over_ms)
            key.timer(_EXPIRE, at=over_ms)
        elif side in self._alone and over_ms < found.timer_ms:
            found.timer_ms = over_ms
            key.timer(_EXPIRE, at=over_ms)
        mine, others = found.left, found.right
        earliest_ms, latest_ms = time_ms - self._before_ms, time_ms + self._after_ms
        if side == "right":
            mine, others = others, mine
            earliest_ms, latest_ms = time_ms - self._after_ms, time_ms + self._before_ms
        for other in others:
            if earliest_ms <= other.time_ms <= latest_ms:
                own.is_joined = other.is_joined = True
                self._emit(key, *((own, other) if side == "left" else (other, own)))
        at = len(mine)
        while at and mine[at - 1].time_ms > time_ms:
            at -= 1
        mine.insert(at, own)
        key.state = found

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        """Put out what stayed alone, and forget what is over."""
        found = key.state
        over = [one for one in self._in_order(found) if one[0] <= timer.at_ms]
        for _, side, one in over:
            if side in self._alone and not one.is_joined:
                self._emit(key, *((one, None) if side == "left" else (None, one)))
        found.left = found.left[sum(side == "left" for _, side, _ in over) :]
        found.right = found.right[sum(side == "right" for _, side, _ in over) :]
        left = self._in_order(found)
        if not left:
            key.state = None
            return
        awaited = (at for at, side, one in left if side in self._alone and not one.is_joined)
        found.timer_ms = next(awaited, left[-1][0])
        key.timer(_EXPIRE, at=found.timer_ms)
        key.state = found

    def _in_order(self, found: Sides) -> list[tuple[int, str, Waiting]]:
        """Return what waits, and until when, in the order in which it is over."""
        several = [(self._over_ms("left", one.time_ms), "left", one) for one in found.left]
        several += [(self._over_ms("right", one.time_ms), "right", one) for one in found.right]
        return sorted(several, key=_time_of)

    def _over_ms(self, side: str, time_ms: int) -> int:
        """Return when no event of the other side can be near enough any more."""
        later_ms = self._after_ms if side == "left" else self._before_ms
        return time_ms + later_ms + self._allow_late_ms + 1

    @staticmethod
    def _emit(key: Key, left: Waiting | None, right: Waiting | None) -> None:
        left_ms, right_ms = left and left.time_ms, right and right.time_ms
        key.emit(
            (key.value, left and left.value, right and right.value, left_ms, right_ms),
            event_time_ms=max(one.time_ms for one in (left, right) if one is not None),
        )


class Rows(Struct, array_like=True):
    """The rows of a key in the order of time: the newest, and those that late events may see."""

    rows: list[tuple[int, bytes | None]]


class TableJoinBolt(SidedBolt):
    """Joins events with the newest row of their key."""

    fields = ("key", "left", "right", "left_ms", "right_ms")
    state = Rows
    needs_order = True

    def process(self, event: Event, key: Key, /) -> None:
        side, time_ms, found = self._side_of(event, key), event.event_time_ms, key.state
        if side is None:
            return
        rows = [] if found is None else found.rows
        before = [one for one in rows if one[0] <= time_ms]
        if side == "left":
            row = before[-1] if before and before[-1][1] is not None else (None, None)
            key.emit((key.value, event.value, row[1], time_ms, row[0]))
            return
        rows = [*before, (time_ms, event.value), *rows[len(before) :]]
        # A late event may still see the newest row of the time before the watermark.
        over_ms = rows[-1][0] - self._allow_late_ms
        seen = max((at for at, one in enumerate(rows) if one[0] <= over_ms), default=0)
        rows = rows[seen:]
        if [one[1] for one in rows] == [None]:
            key.state = None
            return
        if rows[-1][1] is None:
            key.timer(_EXPIRE, at=rows[-1][0] + self._allow_late_ms + 1)
        key.state = Rows(rows)

    def on_timer(self, timer: Timer, key: Key, /) -> None:
        """Forget a row that was deleted, once no event may see it any more."""
        del timer
        if key.state is not None and key.state.rows[-1][1] is None:
            key.state = None


def _time_of(waiting: tuple[int, str, Waiting]) -> int:
    return waiting[0]
