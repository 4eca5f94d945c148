"""Places in topics as commands name them, and the targets of a reset.

A position is Pulsar's message id with a partition where Pulsar has the ledger: `partition:offset`,
and `topic:partition:offset` where a subscription is on several topics. No topic of Kafka has a
colon in its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from sequitur.base.time_format import iso_ms
from sequitur.consumer.subscription.cursor import LARGEST_OFFSET
from sequitur.consumer.subscription.policies import parse_time_s
from sequitur.errors import PositionFormatError, PositionRangeError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.survey import Log


_POSITION: Final = re.compile(r"(?:([A-Za-z0-9._-]+):)?([0-9]{1,10}):([0-9]{1,19})", re.ASCII)
_MILLISECONDS: Final = re.compile(r"[0-9]+", re.ASCII)
_LEAST_MS: Final = 100_000_000_000
"""March 1973: what is less is meant as seconds, or as a date without hyphens."""
_MOST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""


class Position(NamedTuple):
    """A place in a partition.

    Attributes:
        partition: Number of the partition.
        offset: The offset there.
        topic: The topic. None if only one topic is possible.
    """

    partition: int
    offset: int
    topic: str | None = None

    def __str__(self) -> str:
        place = f"{self.partition}:{self.offset}"
        return place if self.topic is None else f"{self.topic}:{place}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `partition:offset` or `topic:partition:offset`.

        Raises:
            PositionFormatError: It is neither.
        """
        found = _POSITION.fullmatch(text.strip())
        if found is None or int(found[3]) > LARGEST_OFFSET:
            raise PositionFormatError(
                f"position {text!r}: expected PARTITION:OFFSET such as 0:17, or "
                "TOPIC:PARTITION:OFFSET"
            )
        return cls(int(found[2]), int(found[3]), found[1])

    def within(self, topics: Sequence[str]) -> SourcePartition:
        """Return the partition that this place is in.

        Args:
            topics: Those of the subscription.

        Raises:
            PositionRangeError: The topic is none of these, or is not named and there are several.
        """
        if self.topic is None:
            if len(topics) != 1:
                raise PositionRangeError(
                    f"position {self}: the subscription is on {len(topics)} topics, so write "
                    "TOPIC:PARTITION:OFFSET"
                )
            return SourcePartition(topics[0], self.partition)
        if self.topic not in topics:
            raise PositionRangeError(f"position {self}: the subscription is not on that topic")
        return SourcePartition(self.topic, self.partition)


class Edge(StrEnum):
    """An end of a log."""

    EARLIEST = "earliest"
    """The first message that is there."""
    LATEST = "latest"
    """After the last message."""


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first message whose timestamp is not before a time."""

    time_ms: int  # the time, epoch milliseconds


@dataclass(frozen=True, slots=True)
class ToPositions:
    """The messages at these positions; partitions that are not named stay where they are."""

    positions: tuple[Position, ...]  # at most one of each partition


ResetTarget: TypeAlias = Edge | ToTime | ToPositions
"""Where cursors begin anew."""


def parse_time_ms(text: str) -> int:
    """Read a time."""
    text = text.strip()
    if _MILLISECONDS.fullmatch(text):
        if not _LEAST_MS <= int(text) <= _MOST_MS:
            raise PositionFormatError(
                f"time {text}: expected milliseconds since 1970, such as 1763900000000. Seconds, "
                "and dates without hyphens, are not accepted"
            )
        return int(text)
    found = iso_ms(text)
    if found is None:
        raise PositionFormatError(
            f"time {text!r}: expected ISO 8601 such as 2026-04-09T13:52:46Z, or milliseconds since "
            "1970"
        )
    return found


def parse_ago_ms(text: str, *, now_ms: int) -> int:
    """Read a length of time before now, as Pulsar's `reset-cursor --time` has it."""
    ago_s = parse_time_s(text)
    if ago_s is None:
        raise PositionFormatError(f"time {text!r}: a subscription is reset to a time in the past")
    return max(now_ms - ago_s * 1000, 0)


def places_of(
    positions: Sequence[Position], topics: Sequence[str], partitions: Collection[SourcePartition]
) -> dict[SourcePartition, int]:
    """Return the offset that positions name of each partition."""
    found: dict[SourcePartition, int] = {}
    for position in positions:
        where = position.within(topics)
        if where not in partitions:
            raise PositionRangeError(f"position {position}: {where.topic} has no such partition")
        if where in found:
            raise PositionRangeError(f"position {position}: its partition is named twice")
        found[where] = position.offset
    return found


# What a reset, a skip or an expiry does to cursors, told before it is done.
#
# Counts are of offsets: where a log holds none, after compaction or for a marker of a transaction,
# a cursor knows it once a job has read on.


@dataclass(frozen=True, slots=True)
class CursorMove:
    """From where to where a cursor moves, and what that means for messages."""

    where: SourcePartition
    committed: int  # the first offset that is not acked, before
    target: int  # the first offset that is not acked, after
    end: int  # the offset behind the partition's last one
    messages: int  # how many are not acked after it: from `target` to before `end` in a reset
    acked: int = 0  # how many of these are acked before it: they are processed again
    # how many are not acked before it and acked after it: they are never processed
    skipped: int = 0
    gone: int = 0  # how many offsets Kafka does not have any more, of those that were asked for

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON; positions as partition:offset."""
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


def reset_move(cursor: Cursor, where: SourcePartition, log: Log, target: int) -> CursorMove:
    """Return what it means to begin anew at an offset, with nothing acked behind it.

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
    """Return what a cumulative ack up to before an offset means; nothing if it is acked already."""
    committed = cursor.committed_offset
    stop = max(min(stop, log.end), committed)
    target = committed
    if stop > committed:  # the ack moves on over what is acked behind it
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
    """Return the offset behind the `count`-th unacked message; the end without so many."""
    if count is None:
        return log.end
    if count < 1:
        raise ValueError(f"{count} messages cannot be skipped")
    # What retention has deleted is skipped with the first message, and is none.
    gone = _unacked(cursor, cursor.committed_offset, log.start)
    last = cursor.nth_unacked(gone + count, end=log.end)
    return log.end if last is None else last + 1


@dataclass(frozen=True, slots=True)
class MoveTotals:
    """What moves mean, over all partitions."""

    messages: int = 0  # not acked after them
    acked: int = 0  # of these, acked before
    skipped: int = 0  # never processed
    gone: int = 0  # offsets that were asked for and that Kafka does not have any more

    @classmethod
    def of(cls, moves: Iterable[CursorMove]) -> MoveTotals:
        """Add moves up."""
        found = list(moves)
        return cls(
            messages=sum(one.messages for one in found),
            acked=sum(one.acked for one in found),
            skipped=sum(one.skipped for one in found),
            gone=sum(one.gone for one in found),
        )


def _unacked(cursor: Cursor, first: int, stop: int) -> int:
    return sum(last - begin for begin, last in cursor.unacked_ranges(first, stop))
