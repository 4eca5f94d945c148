"""What a cursor is made of, so that two can be compared; and one as Pulsar's tests use it."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from sequitur.consumer.subscription.codec import decode_cursor, encode_cursor
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity

if TYPE_CHECKING:
    from sequitur.consumer.subscription.acked_ranges import AckedRanges


def state_of(cursor: Cursor) -> dict[str, Any]:
    return {
        "identity": cursor.identity,
        "mark_delete": cursor.mark_delete,
        "read_position": cursor.read_position,
        "ranges": list(cursor.acked_ranges()),
        "counts": astuple(cursor.counts),
    }


MANAGED = CursorIdentity("c1", "my_test_ledger", 0)


@dataclass
class Partition:
    """A cursor, and how many messages its partition has."""

    cursor: Cursor
    end: int

    def delete(self, *offsets: int) -> None:
        for offset in offsets:
            self.cursor.ack(offset, end=self.end)

    def mark_delete(self, offset: int) -> None:
        self.cursor.ack_cumulative(offset, end=self.end)

    def read(self, count: int) -> list[int]:
        cursor = self.cursor
        ranges = cursor.unacked_ranges(cursor.read_position, self.end)
        found = [offset for first, stop in ranges for offset in range(first, stop)][:count]
        cursor.seek(found[-1] + 1 if found else self.end, end=self.end)
        return found

    def reopen(self) -> None:
        """Store the cursor and read it, as a new life does."""
        self.cursor = decode_cursor(encode_cursor(self.cursor), MANAGED).cursor
        self.cursor.rewind()

    @property
    def counts(self) -> tuple[int, int]:
        return entries_to_read(self.cursor, self.end), self.cursor.backlog(self.end)


def partition_of(end: int) -> Partition:
    return Partition(Cursor(MANAGED), end)


def entries_to_read(cursor: Cursor, end: int) -> int:
    """Return how many offsets from the read position on are not acked."""
    unacked = cursor.unacked_ranges(cursor.read_position, end)
    return sum(stop - first for first, stop in unacked)


def block_lengths(ranges: AckedRanges) -> list[int]:
    """Return how many ranges each block has."""
    return [len(firsts) for firsts in ranges._firsts]
