"""The event clock: one clock a source partition, and the frontier they agree on.

The *frontier* is the event time up to which everything on time has been released, itself included;
a row behind it is late. It is `min over live partitions of (max event time seen) - delay`.

- **One clock a partition**, and the minimum of them: in a backlog partitions are read at different
  speeds, and a maximum over all of them would call the slow one's rows late.
- **Idle** is a partition that gave no event time for `idle_timeout_ms` *and* whose end we have
  reached. It leaves the minimum, else one quiet partition would hold everyone's rows for ever. The
  time-out alone is not enough: a partition we have not got round to reading is not idle. One never
  seen is held to the same.
- **All idle**: nothing that we wait for can come, so the frontier is the greatest event time seen
  and everything held goes out.
- **Never backwards**: a partition that wakes up rejoins the minimum; its old rows are late, not
  lost.
- A row without a usable event time moves no clock, and does not keep a partition from being idle.

Pure: the wall clock comes in as `now_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from sequitur.consumer._errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

CLOCK_FORMAT: Final = 1
BEFORE_ALL_TIME_MS: Final = -1
"""The frontier before it first moves: event times are >= 0, so nothing is at it or behind it."""


class SourcePartition(NamedTuple):
    """A partition of a source topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionClock:
    """What one source partition has shown us.

    Attributes:
        max_event_time_ms: Greatest event time seen, late rows included; None before the first.
        last_event_ms: Wall-clock time when it last gave an event time; at first, when it was first
            looked at.
        position: Offset of the next record we read.
        high_watermark: Offset behind the partition's last record when last looked at.
        delay_ms: The delay when the frontier was last computed.
        was_idle: Whether it was left out then.
        idle_at_ms: When it will be, wall-clock time, if it gives nothing more and is read to its
            end; None before it was looked at for that.
        was_overruled: Whether it was left out then, since too much was held for its sake.
    """

    max_event_time_ms: int | None
    last_event_ms: int
    position: int
    high_watermark: int
    delay_ms: int = 0
    was_idle: bool = False
    idle_at_ms: int | None = None
    was_overruled: bool = False

    @property
    def reach_ms(self) -> int:
        """How far the frontier may come by this partition's leave: no row it gave is needed yet."""
        if self.max_event_time_ms is None:
            return BEFORE_ALL_TIME_MS  # it may still give any event time
        return self.max_event_time_ms - self.delay_ms

    @property
    def to_read(self) -> int:
        """Records that were there, and not read, when last looked at."""
        return max(0, self.high_watermark - self.position)

    def is_idle(self, *, now_ms: int, idle_timeout_ms: int, is_bounded: bool) -> bool:
        """Tell whether it gave nothing for the time-out, and nothing is left to read.

        One that never gave anything is not waited for in a run that ends when it has read what is
        there: nothing of it can come.
        """
        gives_nothing = is_bounded and self.max_event_time_ms is None
        is_silent = gives_nothing or now_ms - self.last_event_ms >= idle_timeout_ms
        return not self.to_read and is_silent


@dataclass(frozen=True, slots=True)
class EventClock:
    """The clocks of all source partitions, and the frontier.

    Attributes:
        frontier_ms: Event time up to which everything on time may go out.
        partitions: The clock of each partition.
        seen_ms: Wall-clock time at which the partitions were looked at last; 0 before that.
    """

    frontier_ms: int = BEFORE_ALL_TIME_MS
    partitions: Mapping[SourcePartition, PartitionClock] = field(default_factory=dict)
    seen_ms: int = 0

    @property
    def max_event_time_ms(self) -> int:
        """Greatest event time seen in any partition, `BEFORE_ALL_TIME_MS` before the first."""
        return max(
            (
                clock.max_event_time_ms
                for clock in self.partitions.values()
                if clock.max_event_time_ms is not None
            ),
            default=BEFORE_ALL_TIME_MS,
        )

    def observe(
        self,
        partition: SourcePartition,
        *,
        max_event_time_ms: int | None,
        position: int,
        high_watermark: int,
        now_ms: int,
    ) -> Self:
        """Take in what a step saw of one partition.

        Args:
            partition: Which.
            max_event_time_ms: Greatest usable event time of the rows read in this step, None
                without any.
            position: Offset of the next record to read, once this step is done.
            high_watermark: Offset behind the partition's last record, looked up at `now_ms`.
            now_ms: Wall-clock time.
        """
        before = self.partitions.get(partition)
        known_ms = None if before is None else before.max_event_time_ms
        seen = [ms for ms in (known_ms, max_event_time_ms) if ms is not None]
        after = PartitionClock(
            max_event_time_ms=max(seen, default=None),
            # Where the wall clock was set back, it is silent since now, not since a time to come.
            last_event_ms=now_ms
            if before is None or max_event_time_ms is not None
            else min(before.last_event_ms, now_ms),
            position=position,
            high_watermark=high_watermark,
        )
        return replace(self, partitions={**self.partitions, partition: after}, seen_ms=now_ms)

    def idle(
        self, *, now_ms: int, idle_timeout_ms: int, is_bounded: bool = False
    ) -> frozenset[SourcePartition]:
        """Return the partitions that are idle now."""
        return frozenset(
            partition
            for partition, clock in self.partitions.items()
            if clock.is_idle(now_ms=now_ms, idle_timeout_ms=idle_timeout_ms, is_bounded=is_bounded)
        )

    def advance(
        self,
        *,
        now_ms: int,
        delay_ms: int | Mapping[SourcePartition, int],
        idle_timeout_ms: int,
        is_bounded: bool = False,
        fits: Callable[[int], bool] = lambda _: True,
    ) -> Self:
        """Move the frontier as far as the live partitions allow; never back.

        Where too much would be held for the sake of those that are furthest behind, it does
        without them: as few as can be, and all if need be.

        Args:
            now_ms: Wall-clock time.
            delay_ms: How far behind its partition's greatest event time a row may be: for all, or
                for each partition.
            idle_timeout_ms: Silence after which a partition that is read to its end is idle.
            is_bounded: Whether the run ends when it has read what is there.
            fits: Whether what is held behind a frontier may be held.
        """
        idle = self.idle(now_ms=now_ms, idle_timeout_ms=idle_timeout_ms, is_bounded=is_bounded)
        partitions = {
            partition: replace(
                clock,
                delay_ms=delay_ms if isinstance(delay_ms, int) else delay_ms[partition],
                was_idle=partition in idle,
                idle_at_ms=clock.last_event_ms + idle_timeout_ms,
                was_overruled=False,
            )
            for partition, clock in self.partitions.items()
        }
        live = [where for where, clock in partitions.items() if not clock.was_idle]
        live.sort(key=lambda where: partitions[where].reach_ms)
        for where in live:
            reached = max(self.frontier_ms, partitions[where].reach_ms)
            if fits(reached):
                break
            partitions[where] = replace(partitions[where], was_overruled=True)
        else:
            reached = max(self.frontier_ms, self.max_event_time_ms)
        return replace(self, frontier_ms=reached, partitions=partitions)

    def without(self, topics: Collection[str]) -> Self:
        """Forget the partitions of topics; the frontier stays where it is."""
        kept = {
            where: clock for where, clock in self.partitions.items() if where.topic not in topics
        }
        return replace(self, partitions=kept)

    def passed_over(self, first: Mapping[SourcePartition, int], *, now_ms: int) -> Self:
        """Go on behind rows that are gone, and forget partitions that are.

        Args:
            first: The first offset that is there of each partition that is, new ones included:
                these are read from there.
            now_ms: Wall-clock time.
        """
        unseen = PartitionClock(None, now_ms, position=0, high_watermark=0)
        there = {}
        for where, offset in first.items():
            clock = self.partitions.get(where, unseen)
            position = max(clock.position, offset)
            end = max(clock.high_watermark, position)
            there[where] = replace(clock, position=position, high_watermark=end)
        return replace(self, partitions=there)

    def drain(self) -> Self:
        """Move the frontier to the greatest event time seen: everything held goes out."""
        return replace(self, frontier_ms=max(self.frontier_ms, self.max_event_time_ms))

    def to_document(self) -> dict[str, Any]:
        """Return the clock as a JSON document."""
        return {
            "format": CLOCK_FORMAT,
            "frontier_ms": self.frontier_ms,
            "seen_ms": self.seen_ms,
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "max_event_time_ms": clock.max_event_time_ms,
                    "last_event_ms": clock.last_event_ms,
                    "position": clock.position,
                    "high_watermark": clock.high_watermark,
                    "delay_ms": clock.delay_ms,
                    "was_idle": clock.was_idle,
                    "idle_at_ms": clock.idle_at_ms,
                    "was_overruled": clock.was_overruled,
                }
                for partition, clock in sorted(self.partitions.items())
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        if document.get("format") != CLOCK_FORMAT:
            raise StateFormatError(
                f"clock of format {document.get('format')!r}; this version reads {CLOCK_FORMAT}"
            )
        return cls(
            frontier_ms=document["frontier_ms"],
            seen_ms=document.get("seen_ms", 0),
            partitions={
                SourcePartition(entry["topic"], entry["partition"]): PartitionClock(
                    max_event_time_ms=entry["max_event_time_ms"],
                    last_event_ms=entry["last_event_ms"],
                    position=entry["position"],
                    high_watermark=entry["high_watermark"],
                    delay_ms=entry.get("delay_ms", 0),
                    was_idle=entry.get("was_idle", False),
                    idle_at_ms=entry.get("idle_at_ms"),
                    was_overruled=entry.get("was_overruled", False),
                )
                for entry in document["partitions"]
            },
        )
