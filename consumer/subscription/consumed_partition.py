"""A partition as it is read and acked: its cursor, the bytes that were counted, and its end.

What Kafka holds nothing at (compaction, markers, records of aborted transactions) shows only as a
jump from one offset to a later one, and is acked here as absent; what was deleted at the log's
beginning is acked as lost.
"""

from __future__ import annotations

from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.partition_cursor import PartitionCursor
from sequitur.consumer.subscription.sizes import CountedSizes


class ConsumedPartition:
    """One thread at a time.

    Args:
        cursor: What is acked. It is read on from behind its mark-delete position.
        sizes: What was counted of the partition.
        end: The offset behind the last one, as far as is known.

    Attributes:
        cursor: What is acked.
        end: The offset behind the last one, as far as is known.
        changes: How often it changed; grows with what is read, too.
        acks: How many acks were given.
    """

    __slots__ = ("_counted", "_passed", "_sizes", "acks", "changes", "cursor", "end")

    def __init__(self, cursor: Cursor, sizes: CountedSizes, *, end: int) -> None:
        self.cursor = cursor
        self.end = max(end, cursor.committed_offset)
        self.changes = 0
        self.acks = 0
        self._sizes = sizes
        self._counted = 0
        self._passed = 0
        cursor.rewind()

    @classmethod
    def begin(cls, identity: CursorIdentity, start: int) -> ConsumedPartition:
        """Return one of which nothing is acked from an offset on."""
        return cls(Cursor(identity, start=start), CountedSizes(start), end=start)

    def copy(self) -> PartitionCursor:
        """Return its cursor and sizes as they are now."""
        return PartitionCursor(self.cursor.copy(), self.sizes)

    @property
    def sizes(self) -> CountedSizes:
        """What was counted from behind the mark-delete position on."""
        return self._sizes.behind(self.cursor.committed_offset)

    def know_end(self, end: int) -> None:
        """Note where the partition ends."""
        self.end = max(self.end, end)

    def read(self, first: int, offset: int, size: int | None, *, is_deleted: bool = False) -> bool:
        """Take note of what was read.

        Args:
            first: The offset from which on it was looked for.
            offset: That of the message; where reading has got to if there is none.
            size: Bytes of the message; None if there is none.
            is_deleted: Whether the log begins behind `first` now.

        Returns:
            Whether there is a message, and it is not acked.
        """
        stop = offset if size is None else offset + 1
        self.know_end(stop)
        # One by one: what is acked already is no repeated ack.
        ack = self.cursor.ack_lost if is_deleted else self.cursor.ack_absent
        for begin, end in list(self.cursor.unacked_ranges(first, offset)):
            ack(begin, end, end=self.end)
            self.changes += 1
        if stop > self.cursor.read_position:
            self.cursor.seek(stop, end=self.end)
            self.changes += 1
        if size is None:
            return False
        if offset >= self._sizes.stop:  # else it was counted in an earlier life
            self._counted += size
        return not self.cursor.is_acked(offset)

    def count_sizes(self) -> None:
        """Put the bytes that were read since the last call together: they are one piece."""
        if self._counted:
            self._sizes = self._sizes.behind(self.cursor.committed_offset)
            self._sizes = self._sizes.read(self.cursor.read_position, self._counted)
            self._counted = 0

    def ack(self, offset: int) -> bool:
        """Ack a message; False if it was acked before.

        Raises:
            AckBeyondEndError: The partition has no such offset yet.
        """
        added = self.cursor.ack(offset, end=self.end)
        self._acked()
        return added > 0

    def ack_cumulative(self, offset: int) -> int:
        """Ack a message and all before it; return how many were not acked before.

        Raises:
            AckBeyondEndError: The partition has no such offset yet.
            MarkDeleteBackError: It is before the mark-delete position, and not since `pass_over`
                has moved that.
        """
        if offset < min(self._passed, self.cursor.committed_offset):
            added = self.cursor.ack(offset, end=self.end)
        else:
            added = self.cursor.ack_cumulative(offset, end=self.end)
        self._acked()
        return added

    def pass_over(self, stop: int) -> None:
        """Ack all before an offset by nobody's ack: a time to live is over, or a quota evicts."""
        self.ack_cumulative(stop - 1)
        self._passed = max(self._passed, stop)

    def _acked(self) -> None:
        """Note an ack, also a repeated one: these are counted in the cursor."""
        self.acks += 1
        self.changes += 1
