"""What a reset, a skip or an expiry does to cursors, told before it is done.

Counts are of offsets. Where a log holds none, after compaction or for a marker of a transaction, a
cursor knows it once a job has read on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sequitur.consumer.subscription.position import Position
from sequitur.errors import PositionRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.survey import Log
    from sequitur.kafka.partition import SourcePartition


@dataclass(frozen=True, slots=True)
class CursorMove:
    where: SourcePartition
    committed: int  # the first unacked offset before the move
    target: int  # the first unacked offset after the move
    end: int  # the offset behind the partition's last one
    messages: int  # messages unacked after the move: from `target` to before `end` in a reset
    acked: int = 0  # those that were acked before: they are processed again
    # messages that were unacked before and are acked after: they are never processed
    skipped: int = 0
    gone: int = 0  # wanted offsets that Kafka no longer has

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON, with positions as partition:offset."""
        topic, partition = self.where
        return {
            "topic": topic,
            "partition": partition,
            "from": str(Position(partition, self.committed)),
            "to": str(Position(partition, self.target)),
            "messages": self.messages,
            "acked": self.acked,
            "skipped": self.skipped,
            "gone": self.gone,
        }


@dataclass(frozen=True, slots=True)
class MoveTotals:
    messages: int = 0  # unacked after the moves
    acked: int = 0  # those that were acked before
    skipped: int = 0  # never processed
    gone: int = 0  # wanted offsets that Kafka no longer has

    @classmethod
    def of(cls, moves: Iterable[CursorMove]) -> MoveTotals:
        found = list(moves)
        return cls(
            messages=sum(one.messages for one in found),
            acked=sum(one.acked for one in found),
            skipped=sum(one.skipped for one in found),
            gone=sum(one.gone for one in found),
        )


def reset_move(cursor: Cursor, where: SourcePartition, log: Log, target: int) -> CursorMove:
    """Return what it means to begin again at an offset, with nothing acked after it.

    An offset that Kafka does not have any more is taken as the first that it has.
    """
    if target > log.end:
        raise PositionRangeError(
            f"position {Position(where.partition, target, where.topic)}: the partition ends before "
            f"{log.end}"
        )
    begin = max(target, log.start)
    messages = log.end - begin
    return CursorMove(
        where=where,
        committed=cursor.committed_offset,
        target=begin,
        end=log.end,
        messages=messages,
        acked=messages - _unacked(cursor, begin, log.end),
        skipped=_unacked(cursor, max(cursor.committed_offset, log.start), begin),
        gone=begin - target,
    )


def forward_move(cursor: Cursor, where: SourcePartition, log: Log, stop: int) -> CursorMove:
    """Return a cumulative ack up to before an offset; it does nothing if all is acked already."""
    committed = cursor.committed_offset
    stop = max(min(stop, log.end), committed)
    target = committed
    if stop > committed:  # the ack moves on over acked messages behind it
        behind = cursor.unacked_ranges(stop, log.end)
        target = next((begin for begin, _ in behind), log.end)
    return CursorMove(
        where=where,
        committed=committed,
        target=target,
        end=log.end,
        messages=_unacked(cursor, max(stop, log.start), log.end),
        skipped=_unacked(cursor, max(committed, log.start), stop),
    )


def skip_stop(cursor: Cursor, log: Log, count: int | None) -> int:
    """Return the offset behind the `count`-th unacked message, or the end if there are fewer."""
    if count is None:
        return log.end
    if count < 1:
        raise ValueError(f"{count} messages cannot be skipped")
    # Messages that retention deleted are skipped with the first message, and do not count.
    gone = _unacked(cursor, cursor.committed_offset, log.start)
    last = cursor.nth_unacked(gone + count, end=log.end)
    return log.end if last is None else last + 1


def _unacked(cursor: Cursor, first: int, stop: int) -> int:
    return sum(last - begin for begin, last in cursor.unacked_ranges(first, stop))
