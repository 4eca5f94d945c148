"""Places in topics as commands name them, and the targets of a reset.

A position is Pulsar's message id with a partition where Pulsar has the ledger: `partition:offset`,
and `topic:partition:offset` where a subscription is on several topics. No topic of Kafka has a
colon in its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

from sequitur.base.time_format import iso_ms
from sequitur.consumer.subscription.cursor import LARGEST_OFFSET
from sequitur.consumer.subscription.policies import parse_time_s
from sequitur.errors import PositionFormatError, PositionRangeError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


_POSITION: Final = re.compile(r"(?:([A-Za-z0-9._-]+):)?([0-9]{1,10}):([0-9]{1,19})", re.ASCII)
_MILLISECONDS: Final = re.compile(r"[0-9]+", re.ASCII)
_LEAST_MS: Final = 100_000_000_000
"""March 1973. A smaller number means seconds, or a date without hyphens."""
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
    """The messages at these positions. Partitions without one stay where they are."""

    positions: tuple[Position, ...]  # at most one for each partition


ResetTarget: TypeAlias = Edge | ToTime | ToPositions
"""Where cursors begin anew."""


def parse_time_ms(text: str) -> int:
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
    """Read a time before now, as Pulsar's `reset-cursor --time` takes it."""
    ago_s = parse_time_s(text)
    if ago_s is None:
        raise PositionFormatError(f"time {text!r}: a subscription is reset to a time in the past")
    return max(now_ms - ago_s * 1000, 0)


def places_of(
    positions: Sequence[Position], topics: Sequence[str], partitions: Collection[SourcePartition]
) -> dict[SourcePartition, int]:
    found: dict[SourcePartition, int] = {}
    for position in positions:
        where = position.within(topics)
        if where not in partitions:
            raise PositionRangeError(f"position {position}: {where.topic} has no such partition")
        if where in found:
            raise PositionRangeError(f"position {position}: its partition is named twice")
        found[where] = position.offset
    return found
