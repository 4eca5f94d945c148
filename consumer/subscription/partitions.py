"""What a subscription has of a partition: as it is stored, and as it is read and acked.

Where Kafka holds nothing (compaction, markers, records of aborted transactions), reading jumps from
one offset to a later one. The offsets between are acked as absent. What was deleted at the log's
beginning is acked as lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.redeliveries import NO_REDELIVERIES, Redeliveries

if TYPE_CHECKING:
    from collections.abc import Sequence


_EACH_ALONE: Final = 8
"""Fewer acks are made one by one."""
WORTH_A_SEEK: Final = 5_000
"""Fewer offsets are read and dropped: a seek discards what was fetched ahead."""


class PartitionCursor(NamedTuple):
    cursor: Cursor
    sizes: CountedSizes = CountedSizes()  # sizes that were counted while reading
    # how often unacked messages were delivered
    redeliveries: Redeliveries = NO_REDELIVERIES

    @classmethod
    def begin(cls, identity: CursorIdentity, start: int) -> Self:
        return cls(Cursor(identity, start=start), CountedSizes(start))

    def copy(self) -> Self:
        """Return a copy of the cursor. Sizes do not change, so both share them."""
        return self._replace(cursor=self.cursor.copy())


class ConsumedPartition:
    """A partition while it is consumed: cursor, end, sizes. One thread at a time uses it."""

    __slots__ = (
        "_counted", "_passed", "_sizes", "cursor", "end", "redeliveries",
    )  # fmt: skip

    def __init__(
        self,
        cursor: Cursor,
        sizes: CountedSizes,
        *,
        end: int,
        redeliveries: Redeliveries = NO_REDELIVERIES,
    ) -> None:
        self.cursor = cursor
        self.end = max(end, cursor.committed_offset)
        self._sizes = sizes
        self.redeliveries = redeliveries
        self._counted = 0
        self._passed = 0
        cursor.rewind()

    @classmethod
    def begin(cls, identity: CursorIdentity, start: int) -> ConsumedPartition:
        return cls(Cursor(identity, start=start), CountedSizes(start), end=start)

    def copy(self, held: Redeliveries = NO_REDELIVERIES) -> PartitionCursor:
        # An earlier life's counts apply to what was not read yet.
        earlier = self.redeliveries = self.redeliveries.behind(self.cursor.read_position)
        redeliveries = held.behind(self.cursor.committed_offset).followed_by(earlier)
        return PartitionCursor(self.cursor.copy(), self.sizes, redeliveries)

    @property
    def sizes(self) -> CountedSizes:
        return self._sizes.behind(self.cursor.committed_offset)

    def know_end(self, end: int) -> None:
        self.end = max(self.end, end)

    def read(
        self, first: int, found: range, size: int = 0, *, is_deleted: bool = False
    ) -> list[range]:
        offset, stop = found.start, found.stop
        self.know_end(stop)
        # Acks go one by one: an offset that is acked already is no repeated ack.
        ack = self.cursor.ack_lost if is_deleted else self.cursor.ack_absent
        for begin, end in list(self.cursor.unacked_ranges(first, offset)):
            ack(begin, end, end=self.end)
        if stop > self.cursor.read_position:
            self.cursor.seek(stop, end=self.end)
        if not found:
            return []
        # Do not count again what an earlier life has counted.
        new = stop - max(offset, min(self._sizes.stop, stop))
        self._counted += size * new // len(found)
        return [range(*one) for one in self.cursor.unacked_ranges(offset, stop)]

    def count_sizes(self) -> None:
        """Join the bytes that were read since the last call into one piece."""
        if self._counted:
            self._sizes = self._sizes.behind(self.cursor.committed_offset)
            self._sizes = self._sizes.read(self.cursor.read_position, self._counted)
            self._counted = 0

    def pass_acked(self, reached: int) -> int | None:
        """Return where to read on, if everything is acked far beyond the last read offset."""
        first, _ = next(self.cursor.unacked_ranges(reached, self.end), (self.end, self.end))
        if first - reached < WORTH_A_SEEK:
            return None
        self._sizes = self._sizes.behind(self.cursor.committed_offset).passed(first)
        self.cursor.seek(max(first, self.cursor.read_position), end=self.end)
        return first

    def check_acks(self, offsets: Sequence[int]) -> None:
        self.cursor.check_range(min(offsets), max(offsets) + 1, end=self.end)

    def ack(self, offsets: Sequence[int]) -> int:
        """Ack messages in any order; return how many were unacked."""
        self.check_acks(offsets)
        first, stop = offsets[0], offsets[0] + len(offsets)
        if len(offsets) == 1 or list(range(first, stop)) == offsets:
            return self.cursor.ack_range(first, stop, end=self.end)
        if len(offsets) < _EACH_ALONE:
            return sum(self.cursor.ack(one, end=self.end) for one in offsets)
        return self.cursor.ack_offsets(np.array(offsets, dtype=np.int64), end=self.end)

    def ack_cumulative(self, offset: int) -> int:
        """Ack a message and all before it; return how many were unacked."""
        if offset < min(self._passed, self.cursor.committed_offset):
            return self.cursor.ack(offset, end=self.end)
        return self.cursor.ack_cumulative(offset, end=self.end)

    def pass_over(self, stop: int, *, start: int) -> int:
        """Ack all before an offset by nobody's ack; return how many of them are lost.

        What was read waits here; of the rest what is before the log's first offset is deleted.
        """
        lost = self.cursor.counts.lost
        self.cursor.pass_over(stop, start=start, end=self.end, keeps_read=True)
        self._passed = max(self._passed, stop)
        return self.cursor.counts.lost - lost
