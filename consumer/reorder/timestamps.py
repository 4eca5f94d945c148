"""Which timestamp a record of an output topic gets.

Kafka's own clients seek by it, and Kafka Streams and Flink take it for the event time. Brokers
delete a segment by its newest timestamp, and forget a producer by the last one it sent. So the
timestamp is the event time, within two bounds:

- It is never older than `now - floor`: retention would delete a backfill as soon as it is written.
- It is never newer than `now`: a broker refuses what is too far ahead (INVALID_TIMESTAMP).

The bounds keep an order: where the times of rows do not fall, neither do the timestamps. That holds
within a step, and from one step to the next, as `now` does not go back (`now_of_step`).

**No event time is lost**: a record whose timestamp is not its event time carries the event time in
the header `EVENT_TIME_HEADER`.

Pure, and the reference: `sequitur.pipelines.rows.record_layout` computes the same for columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EVENT_TIME_HEADER: Final = "sequitur-event-time"
"""Epoch milliseconds, as text."""


class OutputTimestamp(StrEnum):
    """Which time becomes the timestamp of an output record."""

    EVENT_TIME = "event-time"
    """The event time of the row."""
    SOURCE = "source"
    """The timestamp that the record had in its source topic."""
    NOW = "now"
    """When the step began to write."""


MOST_AHEAD_MS: Final = 5 * 60_000
"""A clock that is set back by more than that takes the timestamps back with it."""


def now_of_step(clock_ms: int, before_ms: int) -> int:
    """Return a step's time: no earlier than that of the step before, unless that is far ahead.

    If the previous step's time is far ahead, that step ran on a wrong clock. Brokers refuse
    timestamps far ahead of their own clock, so the job does not wait until its clock catches up.

    Args:
        clock_ms: What the machine's clock says; epoch ms.
        before_ms: What the step before took for now; epoch ms.
    """
    return before_ms if clock_ms < before_ms <= clock_ms + MOST_AHEAD_MS else clock_ms


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """The timestamps of the records that a step writes to one topic.

    Attributes:
        taken_from: What they are taken from.
        now_ms: No timestamp is newer; epoch ms.
        floor_ms: Nor older than `now_ms` less this.
        is_kept: Whether the topic keeps the timestamps it is given: one with
            `message.timestamp.type = LogAppendTime` does not.
        tells_event_time: Whether a record whose timestamp is not its event time says so in
            `EVENT_TIME_HEADER`. Dead letters have a header of their own for it.
    """

    taken_from: OutputTimestamp
    now_ms: int
    floor_ms: int
    is_kept: bool = True
    tells_event_time: bool = True

    @property
    def earliest_ms(self) -> int:
        return max(0, self.now_ms - self.floor_ms)

    def of(self, event_time_ms: int | None, source_ms: int) -> tuple[int, bool]:
        """Return a record's timestamp, and whether its event time is in a header.

        Args:
            event_time_ms: Its event time; None without one.
            source_ms: Its timestamp in the source topic.
        """
        wanted = {
            OutputTimestamp.EVENT_TIME: event_time_ms,
            OutputTimestamp.SOURCE: source_ms,
            OutputTimestamp.NOW: None,
        }[self.taken_from]
        time_ms = self.now_ms if wanted is None else wanted
        timestamp_ms = max(self.earliest_ms, min(time_ms, self.now_ms))
        is_in_header = (
            self.tells_event_time
            and event_time_ms is not None
            and (timestamp_ms != event_time_ms or not self.is_kept)
        )
        return timestamp_ms, is_in_header
