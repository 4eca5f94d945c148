"""Which offsets of a partition a subscription has acked: Pulsar's cursor, without its limits.

The mark-delete position is the last offset up to which everything is acked. After it, ranges are
acked one by one, in any order. If the first range touches the position, the position moves. Pulsar
stores 10,000 ranges of a cursor and forgets the others (apache/pulsar#25540). Here all are kept, so
memory and time grow with their number.

An ack that is refused changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.consumer.subscription.acked_ranges import AckedRanges, merge
from sequitur.errors import AckBeyondEndError, MarkDeleteBackError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sequitur.consumer.subscription.acked_ranges import Offsets


LARGEST_OFFSET: Final = (1 << 63) - 2
"""The offset behind it still fits into 64 bits."""


class Cursor:
    """The cursor of one subscription on one partition. One thread at a time.

    With each ack the caller says where the partition ends, as far as it knows. An ack beyond that
    end is a mistake, or belongs to another topic of the same name.
    """

    __slots__ = ("_committed", "_counts", "_ranges", "_read_position", "identity")

    def __init__(self, identity: CursorIdentity, *, start: int = 0) -> None:
        """Create a cursor that has acked nothing.

        Args:
            identity: Whose it is.
            start: The first offset that is to be acked; all before it count as acked.

        Raises:
            ValueError: `start` is no offset.
        """
        _check_offset("start", start)
        self.identity = identity
        self._committed = start  # always one more than the mark-delete position
        self._read_position = start
        self._ranges = AckedRanges()
        self._counts = AckCounts()

    @classmethod
    def restore(
        cls,
        identity: CursorIdentity,
        *,
        mark_delete: int,
        read_position: int,
        ranges: AckedRanges,
        counts: AckCounts,
    ) -> Cursor:
        """Make a cursor from its parts. The ranges lie behind `mark_delete` and do not touch it."""
        cursor = cls(identity, start=mark_delete + 1)
        cursor._read_position = read_position
        cursor._ranges = ranges
        cursor._counts = counts
        return cursor

    def __repr__(self) -> str:
        return f"<Cursor {self.identity}: {self.mark_delete} + {len(self._ranges)} ranges>"

    def copy(self) -> Cursor:
        return Cursor.restore(
            self.identity,
            mark_delete=self.mark_delete,
            read_position=self._read_position,
            ranges=AckedRanges.from_arrays(*self._ranges.arrays()),
            counts=replace(self._counts),
        )

    @property
    def mark_delete(self) -> int:
        """The last offset up to which everything is acked; one before the start if nothing is."""
        return self._committed - 1

    @property
    def committed_offset(self) -> int:
        """The offset that a consumer group commits: the first unacked one."""
        return self._committed

    @property
    def acked_end(self) -> int:
        """The offset behind the last acked one."""
        return self._ranges.highest_stop or self._committed

    @property
    def read_position(self) -> int:
        return self._read_position

    @property
    def counts(self) -> AckCounts:
        return self._counts

    @property
    def acked_range_count(self) -> int:
        return len(self._ranges)

    def ack(self, offset: int, *, end: int) -> int:
        """Ack one message.

        Args:
            offset: Of the message.
            end: The offset behind the partition's last one.

        Returns:
            1, or 0 if it was acked before.

        Raises:
            AckBeyondEndError: The partition has no such offset yet.
            ValueError: An offset is negative, or has more than 63 bits.
        """
        return self.ack_range(offset, offset + 1, end=end)

    def ack_range(self, first: int, stop: int, *, end: int) -> int:
        """Ack the messages from `first` to before `stop`; see `ack`.

        Returns:
            How many were not acked before.
        """
        added = self._acked(first, stop, end)
        self._counts.consumed += added
        return added

    def ack_offsets(self, offsets: Offsets, *, end: int) -> int:
        """Ack messages in any order; one that is named twice is acked once; see `ack`.

        Returns:
            How many were not acked before.
        """
        offsets = np.asarray(offsets, dtype=np.int64)
        return self.ack_ranges(offsets, offsets + 1, end=end)

    def ack_ranges(self, firsts: Offsets, stops: Offsets, *, end: int) -> int:
        """Ack ranges of messages in any order, which may overlap; see `ack`.

        Returns:
            How many were not acked before.
        """
        firsts, stops = np.asarray(firsts, dtype=np.int64), np.asarray(stops, dtype=np.int64)
        if not len(firsts):
            _check_offset("end", end)
            return 0
        self.check_range(int(firsts.min()), int(stops.max()), end=end)
        if (stops <= firsts).any():
            raise ValueError("a range of offsets to ack is empty: give a stop above its first")
        acks = int((stops - firsts).sum())
        firsts, stops = merge(firsts, stops)
        behind = stops > self._committed
        firsts = np.maximum(firsts[behind], self._committed)
        added = self._ranges.add_many(firsts, stops[behind])
        self._move(self._ranges.pop_first(self._committed))
        self._counts.consumed += added
        self._counts.repeated += acks - added
        return added

    def ack_all_but(self, held: Offsets, *, end: int, absent: int = 0, lost: int = 0) -> int:
        """Ack all messages before `end` but some: what was read, less what is held or waits.

        What is acked stays so, also among `held`. To say it again is no repeated ack.

        Args:
            held: The offsets that are not to be acked, in any order.
            end: The offset behind the last one that was read.
            absent: How many of the others Kafka does not hold.
            lost: How many of these it deleted before they were read, at most.

        Returns:
            How many were not acked before.

        Raises:
            ValueError: `end` or one of `held` is no offset.
        """
        _check_offset("end", end)
        held = np.unique(np.asarray(held, dtype=np.int64))
        held = held[(held >= self._committed) & (held < end)]
        firsts = np.concatenate([[self._committed], held + 1])
        stops = np.concatenate([held, [end]])
        some = firsts < stops
        added = self._ranges.add_many(firsts[some], stops[some])
        self._move(self._ranges.pop_first(self._committed))
        absent = min(absent, added)
        lost = min(lost, absent)
        self._counts.consumed += added - absent
        self._counts.absent += absent - lost
        self._counts.lost += lost
        return added

    def ack_cumulative(self, offset: int, *, end: int) -> int:
        """Ack a message and all before it; see `ack`.

        Returns:
            How many were not acked before.

        Raises:
            MarkDeleteBackError: All messages up to a later offset are acked already.
        """
        _check_offset("offset", offset)
        self._check_end(offset + 1, end)
        if offset < self.mark_delete:
            raise MarkDeleteBackError(
                f"{self.identity}: a cumulative ack of offset {offset} goes back: all messages "
                f"up to {self.mark_delete} are acked already. Nothing was changed"
            )
        if offset == self.mark_delete:
            self._counts.repeated += 1
            return 0
        added = self._add(self._committed, offset + 1)
        self._counts.consumed += added
        return added

    def ack_absent(self, first: int, stop: int, *, end: int) -> int:
        """Ack offsets at which Kafka holds no message: compacted, deleted, or a marker.

        They count as `absent` and not as consumed; see `ack`.

        Returns:
            How many were not acked before.
        """
        added = self._acked(first, stop, end)
        self._counts.absent += added
        return added

    def ack_lost(self, first: int, stop: int, *, end: int) -> int:
        """Ack offsets that Kafka deleted before they were acked.

        They count as `lost`: which of them held a message cannot be told any more; see `ack`.

        Returns:
            How many were not acked before.
        """
        added = self._acked(first, stop, end)
        self._counts.lost += added
        return added

    def deleted_unacked(self, start: int, *, keeps_read: bool) -> list[tuple[int, int]]:
        """Return the ranges before a log's first offset that are lost: not acked, and nowhere else.

        Args:
            start: The log's first offset.
            keeps_read: Whether the reader keeps what it has read, as a job does.
        """
        first = self._read_position if keeps_read else self._committed
        return list(self.unacked_ranges(first, start)) if first < start else []

    def pass_over(self, stop: int, *, start: int, end: int, keeps_read: bool) -> int:
        """Ack all messages before an offset by nobody's ack; what was deleted counts as lost.

        A time to live is over, a quota evicts, or a person skips them. See `deleted_unacked`.

        Returns:
            How many were not acked before.

        Raises:
            AckBeyondEndError: The offset lies beyond `end`.
        """
        lost = 0
        for first, before in self.deleted_unacked(min(start, stop), keeps_read=keeps_read):
            lost += self.ack_lost(first, before, end=end)
        if stop <= self._committed:
            return lost
        return lost + self.ack_cumulative(stop - 1, end=end)

    def seek(self, offset: int, *, end: int) -> None:
        """Read on at an offset; behind the mark-delete position if the offset is not behind it.

        Raises:
            AckBeyondEndError: The offset lies beyond `end`.
            ValueError: It is none.
        """
        _check_offset("offset", offset)
        self._check_end(offset, end)
        self._read_position = max(offset, self._committed)

    def rewind(self) -> None:
        """Read on behind the mark-delete position."""
        self._read_position = self._committed

    def is_acked(self, offset: int) -> bool:
        return offset < self._committed or offset in self._ranges

    def acked_among(self, offsets: Offsets) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return (offsets < self._committed) | self._ranges.contains(offsets)

    def acked_ranges(self) -> Iterator[tuple[int, int]]:
        """Return first offset and stop of each acked range behind the mark-delete position."""
        return iter(self._ranges)

    def acked_arrays(self) -> tuple[Offsets, Offsets]:
        return self._ranges.arrays()

    def unacked_ranges(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the unacked ranges from `first` to before `stop`, in order."""
        reached = max(first, self._committed)
        for acked_first, acked_stop in self._ranges.from_offset(reached):
            if acked_first >= stop:
                break
            if acked_first > reached:
                yield reached, acked_first
            reached = acked_stop
        if reached < stop:
            yield reached, stop

    def nth_unacked(self, count: int, *, end: int) -> int | None:
        """Return the offset of the `count`-th oldest message that is not acked.

        To skip messages as Pulsar does is a cumulative ack of it.

        Args:
            count: From 1 on.
            end: The offset behind the partition's last one.

        Returns:
            None if no more than `count - 1` are there.

        Raises:
            ValueError: `count` is not positive.
        """
        if count < 1:
            raise ValueError(f"there is no message number {count}")
        for first, stop in self.unacked_ranges(self._committed, end):
            if count <= stop - first:
                return first + count - 1
            count -= stop - first
        return None

    def backlog(self, end: int) -> int:
        """Return how many offsets before `end` are not acked: Pulsar's msgBacklog.

        Offsets at which Kafka holds nothing count until they are acked as absent.

        Raises:
            AckBeyondEndError: Offsets beyond `end` are acked: the end was asked before the cursor
                moved on, or is that of another topic.
        """
        self._check_end(self.acked_end, end)
        return end - self._committed - self._ranges.offsets

    def stats(self, end: int) -> CursorStats:
        """Return all counts; with as much text as there are ranges.

        Raises:
            AckBeyondEndError: Offsets beyond `end` are acked.
        """
        return CursorStats(
            partition=self.identity.partition,
            mark_delete=self.mark_delete,
            read_position=self._read_position,
            backlog=self.backlog(end),
            entries_since_first_not_acked=self._read_position - self.mark_delete,
            acked_ranges=len(self._ranges),
            consumed=self._counts.consumed,
            absent=self._counts.absent,
            repeated=self._counts.repeated,
            lost=self._counts.lost,
            individually_deleted=ranges_text(self.identity.partition, self._ranges),
        )

    def _acked(self, first: int, stop: int, end: int) -> int:
        """Ack a range. Offsets that are acked already count as repeated."""
        self.check_range(first, stop, end=end)
        added = self._add(first, stop)
        self._counts.repeated += stop - first - added
        return added

    def _add(self, first: int, stop: int) -> int:
        """Ack a range, before or behind the mark-delete position."""
        ranges = self._ranges
        if first <= self._committed:
            if stop <= self._committed:
                return 0
            first = self._committed
            lowest = ranges.lowest_first
            if lowest is None or lowest > stop:  # acks in order need no range
                self._move(stop)
                return stop - first
        added = ranges.add(first, stop)
        if first == self._committed:
            self._move(ranges.pop_first(first))
        return added

    def _move(self, committed: int) -> None:
        """Move the mark-delete position to just before `committed`."""
        self._committed = committed
        # A client that acks unread messages has skipped them: see Pulsar's ManagedCursorImpl.
        self._read_position = max(self._read_position, committed)

    def check_range(self, first: int, stop: int, *, end: int) -> None:
        """Raise unless the messages from `first` to before `stop` can be acked; see `ack`."""
        if 0 <= first < stop <= end <= LARGEST_OFFSET:
            return
        _check_offset("first", first)
        if stop <= first:
            raise ValueError(
                f"the offsets to ack, from {first} to before {stop}, are an empty range: give a "
                f"stop above {first}"
            )
        self._check_end(stop, end)

    def _check_end(self, stop: int, end: int) -> None:
        _check_offset("end", end)
        if stop > end:
            raise AckBeyondEndError(
                f"{self.identity}: up to before {stop}, but the partition ends before {end}"
            )


@dataclass(frozen=True, slots=True)
class CursorIdentity:
    """Whose cursor it is.

    Raises:
        ValueError: A name is empty, or the partition negative.
    """

    subscription: str
    topic: str
    partition: int

    def __post_init__(self) -> None:
        if not self.subscription or not self.topic:
            raise ValueError("a cursor's subscription and topic have names")
        if self.partition < 0:
            raise ValueError(f"partition {self.partition} is negative")

    def __str__(self) -> str:
        return f"{self.subscription} on {self.topic}-{self.partition}"


@dataclass(slots=True)
class AckCounts:
    """What a cursor has counted since it was created.

    Attributes:
        consumed: Messages that were acked.
        absent: Offsets that were acked because Kafka holds nothing there.
        repeated: Acks of offsets that were acked.
        lost: Offsets that Kafka deleted before they were acked: at most so many messages.
    """

    consumed: int = 0
    absent: int = 0
    repeated: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class CursorStats:
    """Counts of a cursor at one moment.

    Attributes:
        partition: Number of the partition.
        mark_delete: The last offset up to which everything is acked.
        read_position: The offset that is read next.
        backlog: How many offsets before the end are not acked.
        entries_since_first_not_acked: Number of offsets after the mark-delete position, up to and
            including the read position. 1 for a cursor that has caught up, as in Pulsar.
        acked_ranges: How many ranges after the mark-delete position are acked.
        consumed: How many messages were acked.
        absent: How many offsets were acked because Kafka holds nothing there.
        repeated: How many acks were of messages that had been acked.
        lost: How many offsets Kafka deleted before they were acked. They had at most this many
            messages.
        individually_deleted: The ranges, as `ranges_text` writes them.
    """

    partition: int
    mark_delete: int
    read_position: int
    backlog: int
    entries_since_first_not_acked: int
    acked_ranges: int
    consumed: int
    absent: int
    repeated: int
    lost: int
    individually_deleted: str

    def to_document(self) -> dict[str, Any]:
        """Return the fields that Pulsar has, under its names, with positions as partition:offset.

        Four have no counterpart there: `committedOffset`, as Kafka's groups count it,
        `absentOffsets`, `repeatedAcks` and `lostAtMost`.
        """
        return {
            "markDeletePosition": f"{self.partition}:{self.mark_delete}",
            "readPosition": f"{self.partition}:{self.read_position}",
            "msgBacklog": self.backlog,
            "messagesConsumedCounter": self.consumed,
            "individuallyDeletedMessages": self.individually_deleted,
            "numberOfEntriesSinceFirstNotAckedMessage": self.entries_since_first_not_acked,
            "totalNonContiguousDeletedMessagesRange": self.acked_ranges,
            "committedOffset": self.mark_delete + 1,
            "absentOffsets": self.absent,
            "repeatedAcks": self.repeated,
            "lostAtMost": self.lost,
        }


def ranges_text(partition: int, ranges: Iterable[tuple[int, int]]) -> str:
    """Return acked ranges as Pulsar prints them."""
    texts = (f"({partition}:{first - 1}..{partition}:{stop - 1}]" for first, stop in ranges)
    return f"[{', '.join(texts)}]"


def _check_offset(name: str, offset: int) -> None:
    if not 0 <= offset <= LARGEST_OFFSET:
        raise ValueError(f"{name} {offset} is not an offset")
