"""The event clock: one clock a source partition, and the frontier they agree on.

The *frontier* is the event time up to which everything on time has been released, itself included;
a row behind it is late. It is `min over live partitions of (max event time seen) - delay`.

- **One clock a partition**, and the minimum of them: in a backlog partitions are read at different
  speeds, and a maximum over all of them would call the slow one's rows late.
- **Idle** is a partition that gave no event time for `idle_timeout_ms` *and* is read up to the end
  seen at the look with which that time began. It leaves the minimum, else one quiet partition would
  hold everyone's rows for ever. The time-out alone is not enough: a partition we have not got round
  to reading is not idle. One never seen is held to the same. And the end of today is too much to
  ask: a partition with nothing but bad rows, which keep coming, would never be idle.
- **Silence** is what we have watched: the time between two looks counts, and of a long one no more
  than `longest_ms`, within which the next look was due. While brokers are away, a leader is
  missing or no job runs, there are no looks, and a producer may hold what it could not send. A run
  that ends when it has read what is there looks so seldom that all time between its looks counts;
  what came meanwhile has to be read then.
- **All idle**: nothing that we wait for can come, so the frontier is the greatest event time seen
  and everything held goes out.
- **Never backwards**: a partition that wakes up rejoins the minimum; its old rows are late, not
  lost.
- A row without a usable event time moves no clock, and does not keep a partition from being idle.

Pure: the wall clock comes in as `now_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from msgspec import Struct, structs
from msgspec.structs import replace

from sequitur.base.stored import load
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Collection


CLOCK_FORMAT: Final = 2
"""No release had 1. It is refused, and not used again."""
LONGEST_TICK_MS: Final = 1_000


class EventClock(Struct, frozen=True, tag_field="format", tag=CLOCK_FORMAT):
    """The clocks of all source partitions, and the frontier.

    Attributes:
        frontier_ms: Event time up to which everything on time may go out.
        partitions: The clock of each partition.
    """

    TITLE: ClassVar = "clock"

    frontier_ms: int = BEFORE_ALL_TIME_MS
    partitions: Mapping[SourcePartition, PartitionClock] = {}

    @property
    def seen_ms(self) -> int:
        """Wall-clock time of the last look at partitions; 0 before the first."""
        return max((clock.seen_ms for clock in self.partitions.values()), default=0)

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

    def looked_at(
        self,
        looks: Mapping[SourcePartition, Look],
        *,
        now_ms: int,
        longest_ms: int = 2 * LONGEST_TICK_MS,
        is_bounded: bool = False,
    ) -> Self:
        """Take in what a step saw of partitions.

        Args:
            looks: What it saw of each, looked up at `now_ms`.
            now_ms: Wall-clock time.
            longest_ms: How much of the time since the last look counts as silence, at most.
            is_bounded: Whether the run ends when it has read what is there: then all of it does.
        """
        partitions = dict(self.partitions)
        for partition, look in looks.items():
            before = partitions.get(partition)
            partitions[partition] = (
                _first_look(look, now_ms)
                if before is None
                else before.after(look, now_ms, longest_ms=longest_ms, is_bounded=is_bounded)
            )
        return replace(self, partitions=partitions)

    def observe(
        self,
        partition: SourcePartition,
        *,
        max_event_time_ms: int | None,
        position: int,
        high_watermark: int,
        now_ms: int,
    ) -> Self:
        look = Look(position, high_watermark, max_event_time_ms)
        return self.looked_at({partition: look}, now_ms=now_ms)

    def idle(self, *, idle_timeout_ms: int, is_bounded: bool = False) -> frozenset[SourcePartition]:
        return frozenset(
            partition
            for partition, clock in self.partitions.items()
            if clock.is_idle(idle_timeout_ms=idle_timeout_ms, is_bounded=is_bounded)
        )

    def advance(
        self,
        *,
        now_ms: int,
        delay_ms: int | Mapping[SourcePartition, int],
        idle_timeout_ms: int,
        is_bounded: bool = False,
        least_ms: int = BEFORE_ALL_TIME_MS,
    ) -> Self:
        """Move the frontier as far as the live partitions allow; never back.

        Where too much would be held for the sake of those that are furthest behind, it does
        without them, and goes no further than it has to for what is held to fit.

        Args:
            now_ms: Wall-clock time of the last look.
            delay_ms: How far behind its partition's greatest event time a row may be: for all, or
                for each partition.
            idle_timeout_ms: Silence after which a partition that is read to its end is idle.
            is_bounded: Whether the run ends when it has read what is there.
            least_ms: The smallest frontier behind which no more is held than may be.
        """
        idle = self.idle(idle_timeout_ms=idle_timeout_ms, is_bounded=is_bounded)
        partitions = {
            partition: replace(
                clock,
                delay_ms=delay_ms if isinstance(delay_ms, int) else delay_ms[partition],
                was_idle=partition in idle,
                idle_at_ms=now_ms + idle_timeout_ms - clock.silent_ms,
                was_overruled=False,
            )
            for partition, clock in self.partitions.items()
        }
        live = {where: clock for where, clock in partitions.items() if not clock.was_idle}
        allowed_ms = min(
            (clock.reach_ms for clock in live.values()), default=self.max_event_time_ms
        )
        if least_ms > self.frontier_ms:
            for where, clock in live.items():
                partitions[where] = replace(clock, was_overruled=clock.reach_ms < least_ms)
        reached_ms = max(self.frontier_ms, allowed_ms, least_ms)
        return replace(self, frontier_ms=reached_ms, partitions=partitions)

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
        there = {}
        for where, offset in first.items():
            clock = self.partitions.get(where) or _first_look(Look(offset, offset), now_ms)
            position = max(clock.position, offset)
            end = max(clock.high_watermark, position)
            there[where] = replace(clock, position=position, high_watermark=end)
        return replace(self, partitions=there)

    def drain(self) -> Self:
        """Move the frontier to the greatest event time seen, so that everything held goes out."""
        return replace(self, frontier_ms=max(self.frontier_ms, self.max_event_time_ms))

    def to_stored(self) -> dict[str, Any]:
        rows = [
            {"topic": topic, "partition": partition, **structs.asdict(clock)}
            for (topic, partition), clock in sorted(self.partitions.items())
        ]
        return {"format": CLOCK_FORMAT, "frontier_ms": self.frontier_ms, "partitions": rows}

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        rows = fields["partitions"]
        clocks = {(row["topic"], row["partition"]): load(PartitionClock, row) for row in rows}
        return {**fields, "partitions": clocks}


class PartitionClock(Struct, frozen=True):
    """What one source partition has shown us.

    Attributes:
        max_event_time_ms: Greatest event time seen, late rows included; None before the first.
        seen_ms: Wall-clock time when it was last looked at.
        position: Offset of the next record we read.
        high_watermark: Offset behind the partition's last record when last looked at.
        silent_ms: For how long it has given no event time, by what was watched of that time.
        silent_end: The high watermark when that time began.
        delay_ms: The delay when the frontier was last computed.
        was_idle: Whether it was left out then.
        idle_at_ms: When it will be, wall-clock time, if it gives nothing more and is read up to
            `silent_end`; None before it was looked at for that.
        was_overruled: Whether it was left out then, since too much was held for its sake.
    """

    max_event_time_ms: int | None
    seen_ms: int
    position: int
    high_watermark: int
    silent_ms: int = 0
    silent_end: int = 0
    delay_ms: int = 0
    was_idle: bool = False
    idle_at_ms: int | None = None
    was_overruled: bool = False

    @property
    def reach_ms(self) -> int:
        """Greatest frontier that this partition allows: no row that it gave is needed yet."""
        if self.max_event_time_ms is None:
            return BEFORE_ALL_TIME_MS  # it may still give any event time
        return self.max_event_time_ms - self.delay_ms

    @property
    def to_read(self) -> int:
        """Records that the last look saw and that were not read."""
        return max(0, self.high_watermark - self.position)

    @property
    def to_read_first(self) -> int:
        """Records that have to be read before the partition can be idle, however silent it is."""
        return max(0, self.silent_end - self.position)

    def is_idle(self, *, idle_timeout_ms: int, is_bounded: bool) -> bool:
        """Tell whether it gave nothing for the time-out, and nothing older is left to read.

        One that never gave anything is not waited for in a run that ends when it has read what is
        there: nothing of it can come.
        """
        gives_nothing = is_bounded and self.max_event_time_ms is None
        is_silent = gives_nothing or self.silent_ms >= idle_timeout_ms
        return not self.to_read_first and is_silent

    def after(
        self, look: Look, now_ms: int, *, longest_ms: int, is_bounded: bool
    ) -> PartitionClock:
        time_ms, known_ms = look.max_event_time_ms, self.max_event_time_ms
        if time_ms is not None:
            greatest_ms = time_ms if known_ms is None else max(known_ms, time_ms)
            return replace(_first_look(look, now_ms), max_event_time_ms=greatest_ms)
        # If the wall clock was set back, nothing is known of the time between.
        passed_ms = max(0, now_ms - self.seen_ms)
        is_watched = passed_ms <= longest_ms
        return replace(
            _first_look(look, now_ms),
            max_event_time_ms=known_ms,
            silent_ms=self.silent_ms + (passed_ms if is_watched or is_bounded else longest_ms),
            # If brokers have lost records, it ends before what was seen.
            silent_end=min(self.silent_end, look.end) if is_watched or not is_bounded else look.end,
        )


class Look(NamedTuple):
    """What a look at a source partition shows.

    Attributes:
        position: Offset of the next record to read, once the step is done.
        end: Offset behind the partition's last record.
        max_event_time_ms: Greatest usable event time of the rows that the step read, None without
            any.
    """

    position: int
    end: int
    max_event_time_ms: int | None = None


def _first_look(look: Look, now_ms: int) -> PartitionClock:
    return PartitionClock(
        max_event_time_ms=look.max_event_time_ms,
        seen_ms=now_ms,
        position=look.position,
        high_watermark=look.end,
        silent_end=look.end,
    )
