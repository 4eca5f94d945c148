"""Which message is handed out next: order of each key kept, failures tried again after a backoff.

Pulsar's negative acks break the order of a key: the messages behind a failed one are long out when
it comes again (PIP-379 calls that unavoidable). Here the messages of a key of a partition stand in
a *line*, and those that are out are always the first ones of it. `OrderRule` says how many may be
out; one that fails takes those of its line that are out behind it back.

Messages leave it by an ack alone, whether they are out, wait for their next attempt, or were never
handed out. What comes in was neither acked nor given before: a cursor knows.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sequitur.producer.kafka.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.time.clock import SourcePartition

M = TypeVar("M")

_FEW: Final = 64
NEGATIVE_ACK_BACKOFF: Final = Backoff(initial_ms=1_000, maximum_ms=60_000, jitter=0.2, factor=2.0)
"""Pulsar's `MultiplierRedeliveryBackoff`, spread so that what failed together comes apart."""


class OrderRule(Enum):
    """How many messages of a key may be out at a time, and so what failures cost.

    Attributes:
        NONE: Any. Each message is by itself: Pulsar's type `Shared`.
        ONE_OUT: One: `Key_Shared`. No message of a key is seen before the ones before it are acked.
        TAKEN_BACK: Any, in order: `Exclusive` and `Failover`. When one fails, those behind it that
            are out are handed out again, behind it; acks of them that come meanwhile count.
    """

    NONE = "none"
    ONE_OUT = "one out"
    TAKEN_BACK = "taken back"


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """How much is held.

    Attributes:
        receiver_queue: Messages that are read and not out; those that were taken back count and
            are held in any case.
        unacked: Messages that are out and not acked, Pulsar's maxUnackedMessagesPerConsumer; 0 for
            no limit.
        ack_timeout_ms: A message that is out for so long has failed; 0 for never.

    Raises:
        ValueError: A limit is negative, or nothing may be read.
    """

    receiver_queue: int = 1_000
    unacked: int = 50_000
    ack_timeout_ms: float = 0

    def __post_init__(self) -> None:
        if self.receiver_queue < 1:
            raise ValueError(f"receiver_queue {self.receiver_queue}: expected at least 1")
        if self.unacked < 0 or self.ack_timeout_ms < 0:
            raise ValueError("a limit is negative")


@dataclass(frozen=True, slots=True)
class HandedOut(Generic[M]):
    """A message that is out.

    Attributes:
        message: As it came in.
        redelivery_count: How often it was out before.
    """

    message: M
    redelivery_count: int


@dataclass(slots=True)
class DispatchCounts:
    """What was counted since the start.

    Attributes:
        handed_out: Messages that were handed out; one that was so twice counts twice.
        redelivered: Those of them that had been out before.
        negative_acks: Messages that failed by a negative ack.
        timed_out: Messages that failed since no ack came in time.
        taken_back: Messages that were out behind one that failed.
    """

    handed_out: int = 0
    redelivered: int = 0
    negative_acks: int = 0
    timed_out: int = 0
    taken_back: int = 0


class _Entry(Generic[M]):
    """A message, and the line it stands in.

    `turn` is its place among all that came in. `due_ms` is the time of its next attempt.
    `times_out` is how often it was handed out, `failures` how often it failed by itself.
    """

    __slots__ = ("due_ms", "failures", "line", "message", "offset", "times_out", "turn")

    def __init__(self, offset: int, message: M, turn: int, line: _Line[M]) -> None:
        self.offset = offset
        self.message = message
        self.turn = turn
        self.line = line
        self.due_ms = 0.0
        self.times_out = 0
        self.failures = 0


class _Line(Generic[M]):
    """The messages of a key of a partition, by offset: those that are out before the others."""

    __slots__ = ("out", "place", "waiting")

    def __init__(self, place: tuple[SourcePartition, bytes] | None) -> None:
        self.place = place
        self.out: OrderedDict[int, _Entry[M]] = OrderedDict()
        self.waiting: OrderedDict[int, _Entry[M]] = OrderedDict()


class Dispatch(Generic[M]):
    """What is handed out to the receivers of a subscription. One thread at a time.

    Times are milliseconds of any clock that does not go back.

    Args:
        order: How many messages of a key may be out.
        limits: How much is held.
        backoff: After how long a message that failed is handed out again.
        random: Draws from [0, 1), for the backoff's jitter; by default its middle.

    Attributes:
        counts: What was counted so far.
    """

    def __init__(
        self,
        order: OrderRule,
        *,
        limits: DispatchLimits | None = None,
        backoff: Backoff = NEGATIVE_ACK_BACKOFF,
        random: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self.counts = DispatchCounts()
        self._order = order
        self._limits = limits or DispatchLimits()
        self._backoff = backoff
        self._random = random
        self._held: dict[SourcePartition, OrderedDict[int, _Entry[M]]] = {}
        self._lines: dict[tuple[SourcePartition, bytes], _Line[M]] = {}
        self._turns = 0
        self._out = 0
        self._all = 0
        # Heads of lines. Nothing is taken out of the middle of these two heaps: what no longer
        # holds is passed over at the top.
        self._ready: list[tuple[int, _Entry[M]]] = []
        self._delayed: list[tuple[float, int, _Entry[M]]] = []
        self._deadlines: OrderedDict[_Entry[M], float] = OrderedDict()
        """What is out and when it has failed, in that order: all get the same time."""

    @property
    def unacked(self) -> int:
        """How many messages are out and not acked: Pulsar's unackedMessages."""
        return self._out

    @property
    def queued(self) -> int:
        """How many messages are held and not out."""
        return self._all - self._out

    @property
    def room(self) -> int:
        """How many messages more may come in."""
        return max(self._limits.receiver_queue - self.queued, 0)

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is handed out since too much is not acked."""
        return 0 < self._limits.unacked <= self._out

    def add(self, where: SourcePartition, offset: int, key: bytes | None, message: M) -> None:
        """Take in a message; those of a partition come in the order of their offsets.

        Raises:
            ValueError: It comes behind a later one that is held.
        """
        held = self._held.setdefault(where, OrderedDict())
        if held and next(reversed(held)) >= offset:
            raise ValueError(f"offset {offset} of {where} comes behind {next(reversed(held))}")
        line: _Line[M]
        if key is None or self._order is OrderRule.NONE:
            line = _Line(None)
        else:
            line = self._lines.setdefault((where, key), _Line((where, key)))
        entry = _Entry(offset, message, self._turns, line)
        self._turns += 1
        self._all += 1
        held[offset] = line.waiting[offset] = entry
        if len(line.waiting) == 1:
            self._offer(line)

    def take(self, now_ms: float) -> HandedOut[M] | None:
        """Hand out the oldest message that may be; None if none may."""
        self.pass_time(now_ms)
        if self.is_blocked:
            return None
        while self._ready:
            _, entry = heappop(self._ready)
            line = entry.line
            if not self._is_next(entry) or entry.due_ms > now_ms:
                continue
            del line.waiting[entry.offset]
            line.out[entry.offset] = entry
            self._out += 1
            handed = HandedOut(entry.message, entry.times_out)
            entry.times_out += 1
            self.counts.handed_out += 1
            self.counts.redelivered += handed.redelivery_count > 0
            if self._limits.ack_timeout_ms:
                self._deadlines[entry] = now_ms + self._limits.ack_timeout_ms
            self._offer(line)
            return handed
        return None

    def ack(self, where: SourcePartition, offset: int) -> bool:
        """Let go of a message, whether it is out or not; False if it is not held."""
        entry = self._find(where, offset)
        if entry is None:
            return False
        self._remove(where, entry)
        return True

    def ack_cumulative(self, where: SourcePartition, offset: int) -> int:
        """Let go of a message and all before it in its partition; return how many were held."""
        held = self._held.get(where)
        removed = 0
        while held and next(iter(held)) <= offset:
            self._remove(where, next(iter(held.values())))
            removed += 1
        return removed

    def negative_ack(
        self,
        where: SourcePartition,
        offset: int,
        now_ms: float,
        *,
        redelivery_count: int | None = None,
    ) -> bool:
        """Hand a message out again after a backoff.

        Args:
            where: Its partition.
            offset: Its offset.
            now_ms: Now.
            redelivery_count: That of the handing out which has failed; None for the newest one.

        Returns:
            False if it is not out, or was handed out again since: then nothing changes.
        """
        entry = self._find(where, offset)
        if entry is None or offset not in entry.line.out:
            return False
        if redelivery_count not in {None, entry.times_out - 1}:
            return False
        self.counts.negative_acks += 1
        self._fail(entry, now_ms)
        return True

    def pass_time(self, now_ms: float) -> None:
        """Let time pass: what is due may be handed out, what got no ack in time has failed."""
        while self._deadlines:
            entry, deadline_ms = next(iter(self._deadlines.items()))
            if deadline_ms > now_ms:
                break
            self.counts.timed_out += 1
            self._fail(entry, now_ms)
        while self._delayed and self._delayed[0][0] <= now_ms:
            *_, entry = heappop(self._delayed)
            if self._is_next(entry):
                heappush(self._ready, (entry.turn, entry))

    def next_change_ms(self) -> float | None:
        """Return when time may change what `take` returns; None for never."""
        times = [self._delayed[0][0]] if self._delayed else []
        times += [next(iter(self._deadlines.values()))] if self._deadlines else []
        return min(times, default=None)

    def held(self) -> Iterator[tuple[SourcePartition, int]]:
        """Return partition and offset of all that is held."""
        return ((where, offset) for where, held in self._held.items() for offset in held)

    def _find(self, where: SourcePartition, offset: int) -> _Entry[M] | None:
        held = self._held.get(where)
        return None if held is None else held.get(offset)

    def _fail(self, entry: _Entry[M], now_ms: float) -> None:
        """Put a message that is out back into its line, and with it those behind it."""
        line = entry.line
        while (behind := next(reversed(line.out.values()))) is not entry:
            self._put_back(behind)
            self.counts.taken_back += 1
        self._put_back(entry)
        entry.failures += 1
        entry.due_ms = now_ms + self._backoff.delay_ms(entry.failures, self._random())
        self._offer(line)

    def _put_back(self, entry: _Entry[M]) -> None:
        """Put the last message of a line that is out before those that are not."""
        line = entry.line
        self._no_longer_out(entry)
        line.waiting[entry.offset] = entry
        line.waiting.move_to_end(entry.offset, last=False)

    def _no_longer_out(self, entry: _Entry[M]) -> None:
        del entry.line.out[entry.offset]
        self._deadlines.pop(entry, None)
        self._out -= 1

    def _remove(self, where: SourcePartition, entry: _Entry[M]) -> None:
        line = entry.line
        del self._held[where][entry.offset]
        self._all -= 1
        if entry.offset in line.out:
            self._no_longer_out(entry)
            makes_way = self._order is OrderRule.ONE_OUT
        else:
            makes_way = next(iter(line.waiting)) == entry.offset
            del line.waiting[entry.offset]
        if line.place is not None and not line.out and not line.waiting:
            del self._lines[line.place]
        elif makes_way:
            self._offer(line)

    def _offer(self, line: _Line[M]) -> None:
        """Have the head of a line handed out in its turn, if it may be."""
        head = next(iter(line.waiting.values()), None)
        if head is None or not self._is_next(head):
            return
        if head.due_ms:
            heappush(self._delayed, (head.due_ms, head.turn, head))
        else:
            heappush(self._ready, (head.turn, head))
        if len(self._ready) + len(self._delayed) > 2 * self._all + _FEW:
            self._clear_away()

    def _clear_away(self) -> None:
        """Drop from the heaps what no longer holds, so that they stay as small as what is held."""
        ready = {entry.turn: entry for _, entry in self._ready if self._is_next(entry)}
        delayed = {
            entry.turn: (due_ms, entry.turn, entry)
            for due_ms, _, entry in self._delayed
            if due_ms == entry.due_ms and self._is_next(entry)
        }
        self._ready = sorted(ready.items())  # a heap, too
        self._delayed = sorted(delayed.values())

    def _is_next(self, entry: _Entry[M]) -> bool:
        """Tell whether a message is the one of its line that may be handed out."""
        line = entry.line
        if self._order is OrderRule.ONE_OUT and line.out:
            return False
        return next(iter(line.waiting.values()), None) is entry
