"""Which message is handed out next: order of each key kept, failures tried again after a backoff.

Pulsar's negative acks break the order of a key: the messages behind a failed one are long out when
it comes again (PIP-379 calls that unavoidable). Here the messages of a key of a partition stand in
a *line*, and those that are out are always the first of it. `OrderRule` says how many may be out.
If one fails, those that are out after it in its line are taken back.

Lines cost time, and most messages need none: those of a partition in which nothing has failed are
handed out in spans as they came. They are lined up when the first one fails. Only with `ONE_OUT`
and ack timeouts each message has a line from the beginning.

Only an ack removes a message, whether it is out, waits for its next attempt, or was never handed
out. What comes in was not acked and did not come in before: a cursor knows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import count, repeat
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from sequitur.base.retry import Backoff
from sequitur.consumer.subscription.redeliveries import NO_REDELIVERIES, Redeliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from sequitur.kafka.partition import SourcePartition

M = TypeVar("M")

if TYPE_CHECKING:
    HandedOut: TypeAlias = tuple[SourcePartition, int, M, int]
    """A message: its partition, its offset, its object, and how often it was out before."""


_FEW: Final = 64
_LINED_FOR: Final = 20_000
"""A failure lines up at most so many messages, not all that are held."""
NEGATIVE_ACK_BACKOFF: Final = Backoff(initial_ms=1_000, maximum_ms=60_000, jitter=0.2, factor=2.0)
"""Pulsar's `MultiplierRedeliveryBackoff`, with jitter so that messages failing together spread."""


class OrderRule(Enum):
    """How many messages of a key may be out at a time. This decides the cost of failures."""

    NONE = "none"
    ONE_OUT = "one out"
    TAKEN_BACK = "taken back"


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    # messages that were read and are not out. Taken-back messages count, but are always held
    receiver_queue: int = 1_000
    # messages that are out and unacked, Pulsar's maxUnackedMessagesPerConsumer; 0 for no limit
    unacked: int = 50_000
    ack_timeout_ms: float = 0  # a message that is out for so long has failed; 0 for never
    # a message that has failed so often is dead if it fails again; None for never
    redeliveries: int | None = None

    def __post_init__(self) -> None:
        if self.receiver_queue < 1:
            raise ValueError(f"receiver_queue {self.receiver_queue}: expected at least 1")
        if self.unacked < 0 or self.ack_timeout_ms < 0 or (self.redeliveries or 0) < 0:
            raise ValueError("a limit is negative")


class FailureCause(Enum):
    NEGATIVE_ACK = "negative ack"
    ACK_TIMEOUT = "ack timeout"
    DEATH = "death"
    """It was out when the process before ended."""


class DeadMessage(NamedTuple, Generic[M]):
    where: SourcePartition
    offset: int
    message: M
    failures: int  # how often it has failed
    cause: FailureCause  # why it failed last


@dataclass(slots=True)
class DispatchCounts:
    handed_out: int = 0  # messages that were handed out, once for each time
    redelivered: int = 0  # those that had been out before
    negative_acks: int = 0  # messages that failed by a negative ack
    timed_out: int = 0  # messages that failed since no ack came in time
    taken_back: int = 0  # messages that were out behind a failed one
    dead: int = 0  # messages that have failed too often


class _Entry(Generic[M]):
    """A message, and the line it stands in.

    `turn` is its place among all that came in. `due_ms` is the time of its next attempt.
    `times_out` is how often it was handed out, `failures` how often it failed by itself, both with
    those of earlier lives. One that is dead is not handed out, and holds its line.
    """

    __slots__ = (
        "due_ms", "failures", "is_dead", "line", "message", "offset", "times_out", "turn",
    )  # fmt: skip

    def __init__(self, offset: int, message: M, turn: int, line: _Line[M]) -> None:
        self.offset = offset
        self.message = message
        self.turn = turn
        self.line = line
        self.due_ms = 0.0
        self.times_out = 0
        self.failures = 0
        self.is_dead = False


class _Line(Generic[M]):
    """The messages of one key in a partition, by offset. Those that are out come first."""

    __slots__ = ("key", "out", "part", "waiting")

    def __init__(self, part: _Part[M], key: bytes | None) -> None:
        self.part = part
        self.key = key
        self.out: OrderedDict[int, _Entry[M]] = OrderedDict()
        self.waiting: OrderedDict[int, _Entry[M]] = OrderedDict()


class _Part(Generic[M]):
    """What is held of a partition: in lines (`entries`), and in none (`plain`), by offset.

    Of a plain one its turn, key and message are kept. Those before `handed` are out for the first
    time, the others never were. `waiting` is how many in lines are not out, `last` the offset that
    came in last. What comes in before the turn `lined_until` gets a line.
    """

    __slots__ = (
        "entries", "handed", "last", "lined_until", "lines", "plain", "waiting", "where",
    )  # fmt: skip

    def __init__(self, where: SourcePartition) -> None:
        self.where = where
        self.entries: OrderedDict[int, _Entry[M]] = OrderedDict()
        self.lines: dict[bytes, _Line[M]] = {}
        self.plain: dict[int, tuple[int, bytes | None, M]] = {}
        self.handed = 0
        self.waiting = 0
        self.last = -1
        self.lined_until = 0


class _Span(Generic[M]):
    """Plain messages that came in together: the turn of the first, and those that were not out."""

    __slots__ = ("left", "part", "turn")

    def __init__(self, part: _Part[M], left: range, turn: int) -> None:
        self.part = part
        self.left = left
        self.turn = turn


class Dispatch(Generic[M]):
    """What is handed out to the receivers of a subscription. One thread at a time.

    Times are milliseconds of any clock that does not go back.
    """

    def __init__(
        self,
        order: OrderRule,
        *,
        limits: DispatchLimits | None = None,
        backoff: Backoff = NEGATIVE_ACK_BACKOFF,
        random: Callable[[], float] = lambda: 0.5,
        lined_for: int = _LINED_FOR,
    ) -> None:
        self.counts = DispatchCounts()
        self.touched: set[SourcePartition] = set()
        self._order = order
        self._limits = limits or DispatchLimits()
        self._backoff = backoff
        self._random = random
        self._lined_for = lined_for
        self._parts: dict[SourcePartition, _Part[M]] = {}
        self._turns = 0
        self._out = 0
        self._all = 0
        self._fresh: deque[_Span[M]] = deque()
        # Heads of lines. Nothing is removed from the middle of these two heaps: outdated entries
        # are skipped at the top.
        self._ready: list[tuple[int, _Entry[M]]] = []
        self._delayed: list[tuple[float, int, _Entry[M]]] = []
        self._deadlines: OrderedDict[_Entry[M], float] = OrderedDict()
        """What is out, and when it fails, in that order: all messages get the same time."""
        self._dead: dict[_Entry[M], FailureCause] = {}

    @property
    def unacked(self) -> int:
        """How many messages are out and not acked: Pulsar's unackedMessages."""
        return self._out

    @property
    def queued(self) -> int:
        return self._all - self._out

    @property
    def room(self) -> int:
        return max(self._limits.receiver_queue - self.queued, 0)

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is handed out because too much is unacked."""
        return 0 < self._limits.unacked <= self._out

    def add(
        self,
        where: SourcePartition,
        offsets: range,
        keys: Sequence[bytes | None],
        messages: Sequence[M],
        *,
        redeliveries: Redeliveries = NO_REDELIVERIES,
    ) -> None:
        """Take in neighbouring messages. Those of a partition come in order."""
        part = self._parts.get(where)
        if part is None:
            part = self._parts[where] = _Part(where)
        if offsets.start <= part.last:
            raise ValueError(f"offset {offsets.start} of {where} comes after {part.last}")
        part.last = offsets[-1]
        turn = self._turns
        self._turns += len(offsets)
        self._all += len(offsets)
        counts = redeliveries.among(offsets)
        if counts or self._needs_lines(part):
            self._line_up(part)
            for offset, key, message in zip(offsets, keys, messages, strict=True):
                self._stand(part, offset, (turn, key, message), counts.get(offset, 0))
                turn += 1
        else:
            part.plain.update(
                zip(offsets, zip(count(turn), keys, messages, strict=False), strict=True)
            )
            self._fresh.append(_Span(part, offsets, turn))

    def take(self, now_ms: float, most: int = 1) -> list[HandedOut[M]]:
        """Hand out the oldest messages that may go out, at most `most`."""
        self.pass_time(now_ms)
        if self._limits.unacked:
            most = min(most, self._limits.unacked - self._out)
        handed: list[HandedOut[M]] = []
        ready, fresh = self._ready, self._fresh
        while len(handed) < most and (ready or fresh):
            if ready and not (fresh and fresh[0].turn < ready[0][0]):
                _, entry = heappop(ready)
                if self._is_next(entry) and entry.due_ms <= now_ms:
                    handed.append(self._hand_out(entry, now_ms))
            else:
                self._hand_out_plain(handed, most)
        self.counts.handed_out += len(handed)
        return handed

    def ack(self, where: SourcePartition, offsets: Iterable[int]) -> int:
        """Let go of messages, out or not; return how many were held."""
        part = self._parts.get(where)
        if part is None:
            return 0
        pop, entries, handed = part.plain.pop, part.entries, part.handed
        out = waited = lined = 0
        for offset in offsets:
            if pop(offset, None) is not None:
                if offset < handed:
                    out += 1
                else:
                    waited += 1
            elif entries and (entry := entries.get(offset)) is not None:
                self._remove(entry)
                lined += 1
        self._out -= out
        self._all -= out + waited
        return out + waited + lined

    def ack_cumulative(self, where: SourcePartition, offset: int) -> int:
        """Let go of a message and all before it in its partition; return how many were held."""
        part = self._parts.get(where)
        if part is None:
            return 0
        found = []
        for held in (part.entries, part.plain):
            for one in held:
                if one <= offset:
                    found.append(one)
                elif self._order is not OrderRule.NONE:  # else lines have only failures
                    break
        return self.ack(where, found)

    def negative_ack(
        self,
        where: SourcePartition,
        offset: int,
        now_ms: float,
        *,
        redelivery_count: int | None = None,
    ) -> bool:
        """Hand a message out again after a backoff."""
        part = self._parts.get(where)
        if part is None:
            return False
        if offset in part.plain and offset < part.handed and redelivery_count in {None, 0}:
            self._line_up(part, offset)
        entry = part.entries.get(offset)
        if entry is None or offset not in entry.line.out:
            return False
        if redelivery_count not in {None, entry.times_out - 1}:
            return False
        self.counts.negative_acks += 1
        self._fail(entry, now_ms, FailureCause.NEGATIVE_ACK)
        return True

    def pass_time(self, now_ms: float) -> None:
        """Let time pass: due messages may be handed out, unacked ones fail after their time."""
        while self._deadlines:
            entry, deadline_ms = next(iter(self._deadlines.items()))
            if deadline_ms > now_ms:
                break
            self.counts.timed_out += 1
            self._fail(entry, now_ms, FailureCause.ACK_TIMEOUT)
        while self._delayed and self._delayed[0][0] <= now_ms:
            *_, entry = heappop(self._delayed)
            if self._is_next(entry):
                heappush(self._ready, (entry.turn, entry))

    def next_change_ms(self) -> float | None:
        """Return when time may change the result of `take`; None for never."""
        times = [self._delayed[0][0]] if self._delayed else []
        times += [next(iter(self._deadlines.values()))] if self._deadlines else []
        return min(times, default=None)

    def held(self) -> Iterator[tuple[SourcePartition, int]]:
        """Yield partition and offset of all that is held."""
        for where, part in self._parts.items():
            for offsets in (part.entries, part.plain):
                yield from ((where, offset) for offset in offsets)

    def dead(self) -> list[DeadMessage[M]]:
        """Return the messages that have failed too often. Each holds its line until it is acked."""
        return [
            DeadMessage(one.line.part.where, one.offset, one.message, one.failures, cause)
            for one, cause in self._dead.items()
        ]

    def redeliveries(self, where: SourcePartition) -> Redeliveries:
        """Return how often a partition's held messages failed, or may fail since they are out."""
        part = self._parts.get(where)
        if part is None:
            return NO_REDELIVERIES
        counts = {
            offset: entry.failures + (offset in entry.line.out)
            for offset, entry in part.entries.items()
        }
        # If there is an order, all plain messages come after all others.
        begin = 0
        if counts and self._order is not OrderRule.NONE:
            begin = next(reversed(counts)) + 1
        fresh = range(max(begin, part.handed), part.last + 1) if part.plain else range(0)
        return Redeliveries.of(counts, out=range(begin, part.handed), fresh=fresh)

    def _needs_lines(self, part: _Part[M]) -> bool:
        if self._order is OrderRule.ONE_OUT or self._limits.ack_timeout_ms:
            return True
        is_lined = part.waiting > 0 or self._turns <= part.lined_until
        return self._order is OrderRule.TAKEN_BACK and is_lined

    def _line_up(self, part: _Part[M], failed: int | None = None) -> None:
        """Put plain messages in lines: all if there is an order, else only the failing one."""
        if self._order is not OrderRule.NONE:
            plain, part.plain = part.plain, {}
        else:
            plain = {} if failed is None else {failed: part.plain.pop(failed)}
        for offset, kept in plain.items():
            if offset >= part.handed:
                self._stand(part, offset, kept)
                continue
            entry = self._entry(part, offset, kept)
            entry.times_out = 1
            entry.line.out[offset] = entry

    def _entry(self, part: _Part[M], offset: int, kept: tuple[int, bytes | None, M]) -> _Entry[M]:
        turn, key, message = kept
        line: _Line[M] | None
        if key is None or self._order is OrderRule.NONE:
            line = _Line(part, None)
        elif (line := part.lines.get(key)) is None:
            line = part.lines[key] = _Line(part, key)
        entry = part.entries[offset] = _Entry(offset, message, turn, line)
        return entry

    def _stand(
        self, part: _Part[M], offset: int, kept: tuple[int, bytes | None, M], failures: int = 0
    ) -> None:
        """Put a message that is not out at the end of its line."""
        entry = self._entry(part, offset, kept)
        entry.times_out = entry.failures = failures
        waiting = entry.line.waiting
        waiting[offset] = entry
        part.waiting += 1
        if failures:
            self._judge(entry, FailureCause.DEATH)
        if len(waiting) == 1:
            self._offer(entry.line)

    def _hand_out(self, entry: _Entry[M], now_ms: float) -> HandedOut[M]:
        line, offset, redelivered = entry.line, entry.offset, entry.times_out
        del line.waiting[offset]
        line.out[offset] = entry
        line.part.waiting -= 1
        self.touched.add(line.part.where)
        self._out += 1
        entry.times_out += 1
        self.counts.redelivered += redelivered > 0
        if self._limits.ack_timeout_ms:
            self._deadlines[entry] = now_ms + self._limits.ack_timeout_ms
        self._offer(line)
        return line.part.where, offset, entry.message, redelivered

    def _hand_out_plain(self, handed: list[HandedOut[M]], most: int) -> None:
        span = self._fresh[0]
        part, plain, before = span.part, span.part.plain, len(handed)
        these = span.left[: most - before]
        messages = [kept[2] for kept in map(plain.get, these) if kept is not None]
        if len(messages) == len(these):
            handed += zip(repeat(part.where), these, messages, repeat(0))
        else:
            found = [one for one in these if one in plain]
            handed += zip(repeat(part.where), found, messages, repeat(0))
        span.left = span.left[len(these) :]
        span.turn += len(these)
        if not span.left:
            self._fresh.popleft()
        if len(handed) > before:
            part.handed = these[-1] + 1
            self._out += len(handed) - before
            self.touched.add(part.where)

    def _fail(self, entry: _Entry[M], now_ms: float, cause: FailureCause) -> None:
        """Put a message that is out back into its line, with those after it."""
        line = entry.line
        self._line_up(line.part)
        while (behind := next(reversed(line.out.values()))) is not entry:
            self._put_back(behind)
            self.counts.taken_back += 1
        self._put_back(entry)
        entry.failures += 1
        entry.due_ms = now_ms + self._backoff.delay_ms(entry.failures, self._random())
        line.part.lined_until = self._turns + self._lined_for
        self.touched.add(line.part.where)
        self._judge(entry, cause)
        self._offer(line)

    def _judge(self, entry: _Entry[M], cause: FailureCause) -> None:
        most = self._limits.redeliveries
        if most is not None and entry.failures > most:
            entry.is_dead = True
            self._dead[entry] = cause
            self.counts.dead += 1

    def _put_back(self, entry: _Entry[M]) -> None:
        """Put the last message of a line that is out before those that are not."""
        line = entry.line
        self._no_longer_out(entry)
        line.waiting[entry.offset] = entry
        line.waiting.move_to_end(entry.offset, last=False)
        line.part.waiting += 1

    def _no_longer_out(self, entry: _Entry[M]) -> None:
        del entry.line.out[entry.offset]
        self._deadlines.pop(entry, None)
        self._out -= 1

    def _remove(self, entry: _Entry[M]) -> None:
        line, part = entry.line, entry.line.part
        del part.entries[entry.offset]
        self._all -= 1
        self._dead.pop(entry, None)
        if entry.offset in line.out:
            self._no_longer_out(entry)
            makes_way = self._order is OrderRule.ONE_OUT
        else:
            makes_way = next(iter(line.waiting)) == entry.offset
            del line.waiting[entry.offset]
            part.waiting -= 1
        if line.key is not None and not line.out and not line.waiting:
            del part.lines[line.key]
        elif makes_way:
            self._offer(line)

    def _offer(self, line: _Line[M]) -> None:
        """Offer the head of a line for its turn, if it may be handed out."""
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
        """Drop outdated entries, so that the heaps stay as small as what is held."""
        ready = {entry.turn: entry for _, entry in self._ready if self._is_next(entry)}
        delayed = {
            entry.turn: (due_ms, entry.turn, entry)
            for due_ms, _, entry in self._delayed
            if due_ms == entry.due_ms and self._is_next(entry)
        }
        self._ready[:] = sorted(ready.items())  # a heap, too
        self._delayed[:] = sorted(delayed.values())

    def _is_next(self, entry: _Entry[M]) -> bool:
        line = entry.line
        if entry.is_dead or (self._order is OrderRule.ONE_OUT and line.out):
            return False
        return next(iter(line.waiting.values()), None) is entry
