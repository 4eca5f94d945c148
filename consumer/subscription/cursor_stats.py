"""What a cursor shows of itself, under Pulsar's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class CursorStats:
    """Counts of a cursor at one moment.

    Attributes:
        partition: Number of the partition.
        mark_delete: The last offset up to which everything is acked.
        read_position: The offset that is read next.
        backlog: How many offsets before the end are not acked.
        entries_since_first_not_acked: From behind the mark-delete position up to the read position,
            that one included: 1 for a cursor that has caught up, as in Pulsar.
        acked_ranges: How many ranges behind the mark-delete position are acked.
        consumed: How many messages were acked.
        absent: How many offsets were acked because Kafka holds nothing there.
        repeated: How many acks were of what was acked.
        lost: How many offsets Kafka deleted before they were acked: at most so many messages.
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
        """Return the fields that Pulsar has under its names; positions as partition:offset.

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
