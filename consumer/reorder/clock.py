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
  missing or no job runs, nobody looks, and a producer may have had what it could not send. A run
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

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from sequitur.base.json_field import cut, documents_of, value_at, which_fields, which_names
from sequitur.base.time_format import BEFORE_ALL_TIME_MS, TimeFormat
from sequitur.consumer.reorder.event_time import (
    LIKELY_UNITS,
    NO_KEY,
    TOO_LARGE,
    EventTimeSource,
    EventTimeSpec,
)
from sequitur.errors import StateFormatError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


CLOCK_FORMAT: Final = 2
"""No release had 1. It is refused, and not used again."""
LONGEST_TICK_MS: Final = 1_000


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


@dataclass(frozen=True, slots=True)
class PartitionClock:
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
        """How far the frontier may come by this partition's leave: no row it gave is needed yet."""
        if self.max_event_time_ms is None:
            return BEFORE_ALL_TIME_MS  # it may still give any event time
        return self.max_event_time_ms - self.delay_ms

    @property
    def to_read(self) -> int:
        """Records that were there, and not read, when last looked at."""
        return max(0, self.high_watermark - self.position)

    @property
    def to_read_first(self) -> int:
        """Records of these without which it is not idle, however long it is silent."""
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
        """Return the clock once it was looked at again; see `EventClock.looked_at`."""
        time_ms, known_ms = look.max_event_time_ms, self.max_event_time_ms
        if time_ms is not None:
            greatest_ms = time_ms if known_ms is None else max(known_ms, time_ms)
            return replace(_first_look(look, now_ms), max_event_time_ms=greatest_ms)
        # Where the wall clock was set back, nothing is known of the time between.
        passed_ms = max(0, now_ms - self.seen_ms)
        is_watched = passed_ms <= longest_ms
        return replace(
            _first_look(look, now_ms),
            max_event_time_ms=known_ms,
            silent_ms=self.silent_ms + (passed_ms if is_watched or is_bounded else longest_ms),
            # Where brokers have lost records, it ends before what was seen.
            silent_end=min(self.silent_end, look.end) if is_watched or not is_bounded else look.end,
        )


def _first_look(look: Look, now_ms: int) -> PartitionClock:
    return PartitionClock(
        max_event_time_ms=look.max_event_time_ms,
        seen_ms=now_ms,
        position=look.position,
        high_watermark=look.end,
        silent_end=look.end,
    )


@dataclass(frozen=True, slots=True)
class EventClock:
    """The clocks of all source partitions, and the frontier.

    Attributes:
        frontier_ms: Event time up to which everything on time may go out.
        partitions: The clock of each partition.
    """

    frontier_ms: int = BEFORE_ALL_TIME_MS
    partitions: Mapping[SourcePartition, PartitionClock] = field(default_factory=dict)

    @property
    def seen_ms(self) -> int:
        """Wall-clock time at which partitions were looked at last; 0 before that."""
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
        """Take in what a step saw of one partition; see `looked_at`."""
        look = Look(position, high_watermark, max_event_time_ms)
        return self.looked_at({partition: look}, now_ms=now_ms)

    def idle(self, *, idle_timeout_ms: int, is_bounded: bool = False) -> frozenset[SourcePartition]:
        """Return the partitions that are idle now."""
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
        """Move the frontier to the greatest event time seen: everything held goes out."""
        return replace(self, frontier_ms=max(self.frontier_ms, self.max_event_time_ms))

    def to_document(self) -> dict[str, Any]:
        """Return the clock as a JSON document."""
        return {
            "format": CLOCK_FORMAT,
            "frontier_ms": self.frontier_ms,
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "max_event_time_ms": clock.max_event_time_ms,
                    "seen_ms": clock.seen_ms,
                    "position": clock.position,
                    "high_watermark": clock.high_watermark,
                    "silent_ms": clock.silent_ms,
                    "silent_end": clock.silent_end,
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
        found = document.get("format")
        if found != CLOCK_FORMAT:
            raise StateFormatError(f"clock of format {found!r}, this version reads {CLOCK_FORMAT}")
        return cls(
            frontier_ms=document["frontier_ms"],
            partitions={
                SourcePartition(entry["topic"], entry["partition"]): PartitionClock(
                    max_event_time_ms=entry["max_event_time_ms"],
                    seen_ms=entry["seen_ms"],
                    position=entry["position"],
                    high_watermark=entry["high_watermark"],
                    silent_ms=entry["silent_ms"],
                    silent_end=entry["silent_end"],
                    delay_ms=entry["delay_ms"],
                    was_idle=entry["was_idle"],
                    idle_at_ms=entry["idle_at_ms"],
                    was_overruled=entry["was_overruled"],
                )
                for entry in document["partitions"]
            },
        )


# The delay that the job learns by itself: how late rows are, by source partition, and lately.
#
# The delay `d` of a partition decides about a row with event time `t` by what was known when the
# frontier last moved: with `m` the partition's greatest event time at the end of the step before,
# the row is on time where `m - d <= t`. So the *lateness* of a row is `m - t`, and the smallest
# delay that keeps the late share under a target is a quantile of it: that is all there is to learn.
#
# - **Late rows are counted, too**: the run holds every row read, so a delay that has become too
# short shows in the rows that it called late. - **Bounded**: counts go into log-spaced bins, eight
# to each doubling, so that a delay is at most 9 % longer than it had to be, and a histogram has
# some 250 bins however many rows it saw. - **Forgetting**: all counts halve whenever the
# partition's event time moves on by the half-life. A spike in a share `s` of the rows is forgotten
# after `log2(s / target)` half-lives. One step forgets half at most: a silence says nothing of how
# late rows are, and the first rows after it have nothing to be late against. - **Beyond help**:
# rows later than the longest delay allowed are late whatever we do. They do not count, else one
# clock that is an hour slow would have all others wait for nothing. - **Not known yet**: a
# partition that has shown fewer than `1 / target` rows goes by all partitions together, and while
# these have not either, by the longest delay. - **Backlog**: while a partition's rows are read in
# large pieces, most come after the rows they are behind of within one step, where no delay matters.
# So rows in their place say nothing about the time after the backlog, and only rows behind are
# counted: in a backlog delays grow, not shrink.
#
# Pure: what a step saw comes in as numbers, and the state is part of the step's log entry, so that
# a step that is repeated has the same delays. See docs/adr/0005-adaptive-delay.md for figures.


DELAY_FORMAT: Final = 1
BINS_PER_DOUBLING: Final = 8
LATENESS_LIMIT_MS: Final = 1 << 31
"""About 25 days; no delay is longer, and all rows later than it are in the last bin."""
LAST_BIN: Final = 1 + BINS_PER_DOUBLING * 31
ROUNDING: Final = 1e-9
"""Taken off a logarithm, so that a power of two is in its own bin on every machine."""
_FORGOTTEN: Final = 1e-3
"""Weights below it are dropped."""
_DIGITS: Final = 4


def lateness_bin(lateness_ms: int) -> int:
    """Return the bin of a lateness: 0 for rows that are not behind, else from 1 to `LAST_BIN`."""
    if lateness_ms <= 0:
        return 0
    if lateness_ms >= LATENESS_LIMIT_MS:
        return LAST_BIN
    return 1 + math.ceil(BINS_PER_DOUBLING * math.log2(lateness_ms) - ROUNDING)


def bin_limit_ms(number: int) -> int:
    """Return the greatest lateness in a bin: a delay of that much is enough for all its rows."""
    return 0 if number <= 0 else math.floor(2 ** ((number - 1) / BINS_PER_DOUBLING))


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """What the settings ask of a learned delay.

    Attributes:
        late_target: The share of rows that may be late, above 0 and below 1.
        min_ms: Shortest delay.
        max_ms: Longest delay.
        half_life_ms: Event time in which a count loses half its weight.
    """

    late_target: float
    min_ms: int
    max_ms: int
    half_life_ms: int


@dataclass(frozen=True, slots=True)
class StepLateness:
    """What a step saw of one source partition, against its clock before the step.

    Attributes:
        rows: Rows with an event time.
        late: Rows of these that were behind the frontier.
        behind: Rows by `lateness_bin`; bin 0 is left out.
    """

    rows: int
    late: int = 0
    behind: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LatenessHistogram:
    """How late the rows of one source partition were, recent rows weighing most.

    Attributes:
        reached_ms: Greatest event time of the partition that the weights are decayed to.
        seen: Rows counted since the beginning, without decay.
        late: Rows of these that were behind the frontier.
        rows: Weight of the rows counted.
        recent_late: Weight of those behind the frontier.
        behind: Weight by bin.
    """

    reached_ms: int = 0
    seen: int = 0
    late: int = 0
    rows: float = 0.0
    recent_late: float = 0.0
    behind: Mapping[int, float] = field(default_factory=dict)

    def learn(
        self, step: StepLateness, *, reached_ms: int, half_life_ms: int, is_backlog: bool
    ) -> Self:
        """Take in a step.

        Args:
            step: What it saw.
            reached_ms: The partition's greatest event time after it.
            half_life_ms: See `DelayPolicy`.
            is_backlog: More is waiting than the step has read.
        """
        passed_ms = min(max(0, reached_ms - self.reached_ms), half_life_ms)
        kept = 0.5 ** (passed_ms / half_life_ms) if self.seen else 0.0
        behind = {number: weight * kept for number, weight in self.behind.items()}
        for number, count in step.behind.items():
            behind[number] = behind.get(number, 0.0) + count
        return replace(
            self,
            reached_ms=max(self.reached_ms, reached_ms),
            seen=self.seen + step.rows,
            late=self.late + step.late,
            rows=round(self.rows * kept + (0 if is_backlog else step.rows), _DIGITS),
            recent_late=round(self.recent_late * kept + step.late, _DIGITS),
            behind={
                number: round(weight, _DIGITS)
                for number, weight in sorted(behind.items())
                if weight >= _FORGOTTEN
            },
        )

    def plus(self, other: LatenessHistogram) -> LatenessHistogram:
        """Return both taken together."""
        return LatenessHistogram(
            reached_ms=max(self.reached_ms, other.reached_ms),
            seen=self.seen + other.seen,
            late=self.late + other.late,
            rows=self.rows + other.rows,
            recent_late=self.recent_late + other.recent_late,
            behind={
                number: self.behind.get(number, 0.0) + other.behind.get(number, 0.0)
                for number in sorted({*self.behind, *other.behind})
            },
        )

    def delay_ms(self, policy: DelayPolicy) -> int:
        """Return the shortest delay allowed that would have kept to the late share."""
        spared = policy.late_target * self.rows
        over = 0.0
        for number in sorted(self.behind, reverse=True):
            if bin_limit_ms(number - 1) >= policy.max_ms:
                continue  # beyond help
            over += self.behind[number]
            if over > spared:
                return min(max(bin_limit_ms(number), policy.min_ms), policy.max_ms)
        return policy.min_ms


@dataclass(frozen=True, slots=True)
class LearnedDelays:
    """What has been learned of all source partitions.

    Attributes:
        partitions: How late the rows of each were.
        late_target: What is promised; 0 while a fixed delay is in its place.
    """

    partitions: Mapping[SourcePartition, LatenessHistogram] = field(default_factory=dict)
    late_target: float = 0.0

    def learn(
        self,
        partition: SourcePartition,
        step: StepLateness,
        *,
        reached_ms: int,
        half_life_ms: int,
        is_backlog: bool,
    ) -> Self:
        """Take in what a step saw of one partition; see `LatenessHistogram.learn`."""
        before = self.partitions.get(partition, LatenessHistogram())
        after = before.learn(
            step, reached_ms=reached_ms, half_life_ms=half_life_ms, is_backlog=is_backlog
        )
        return replace(self, partitions={**self.partitions, partition: after})

    def set_aside(self) -> Self:
        """Return the same, kept for later while a fixed delay is in its place."""
        return replace(self, late_target=0.0)

    @property
    def together(self) -> LatenessHistogram:
        """All partitions as one."""
        whole = LatenessHistogram()
        for histogram in self.partitions.values():
            whole = whole.plus(histogram)
        return whole

    def delays_ms(
        self, partitions: Iterable[SourcePartition], policy: DelayPolicy
    ) -> dict[SourcePartition, int]:
        """Return the delay of each of these partitions."""
        enough = 1 / policy.late_target
        together = self.together
        unknown_ms = together.delay_ms(policy) if together.seen >= enough else policy.max_ms
        delays: dict[SourcePartition, int] = {}
        for partition in partitions:
            known = self.partitions.get(partition)
            is_known = known is not None and known.seen >= enough
            delays[partition] = known.delay_ms(policy) if known and is_known else unknown_ms
        return delays

    @property
    def late_share(self) -> float:
        """The share of rows that were behind the frontier since learning began."""
        together = self.together
        return together.late / together.seen if together.seen else 0.0

    @property
    def recent_late_share(self) -> float:
        """The same, recent rows weighing most; at most 1."""
        together = self.together
        return min(1.0, together.recent_late / together.rows) if together.rows else 0.0

    def to_document(self) -> dict[str, Any]:
        """Return what was learned as a JSON document."""
        return {
            "format": DELAY_FORMAT,
            "late_target": self.late_target,
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    **asdict(histogram),
                    "behind": sorted(histogram.behind.items()),
                }
                for partition, histogram in sorted(self.partitions.items())
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        if document.get("format") != DELAY_FORMAT:
            raise StateFormatError(
                f"learned delays of format {document.get('format')!r}, this version reads "
                f"{DELAY_FORMAT}"
            )
        return cls(
            {
                SourcePartition(entry["topic"], entry["partition"]): LatenessHistogram(
                    reached_ms=entry["reached_ms"],
                    seen=entry["seen"],
                    late=entry["late"],
                    rows=entry["rows"],
                    recent_late=entry["recent_late"],
                    behind=dict(entry["behind"]),
                )
                for entry in document["partitions"]
            },
            late_target=document["late_target"],
        )


def learn(
    learned: LearnedDelays,
    before: EventClock,
    after: EventClock,
    lateness: Mapping[SourcePartition, StepLateness],
    *,
    policy: DelayPolicy,
) -> LearnedDelays:
    """Learn from how late the rows of a step are.

    Args:
        learned: What was known.
        before: The clocks before the step.
        after: The clocks after it, not advanced yet.
        lateness: What the step saw, of each partition that gave rows.
        policy: What the settings ask.
    """
    for partition, step in sorted(lateness.items()):
        clock = after.partitions[partition]
        read = clock.position - before.partitions[partition].position
        learned = learned.learn(
            partition,
            step,
            reached_ms=clock.max_event_time_ms or 0,
            half_life_ms=policy.half_life_ms,
            is_backlog=clock.high_watermark - clock.position > read,
        )
    return replace(learned, late_target=policy.late_target)


# What to do where rows have no usable event time, from what some of them do have.


_UNITS: Final = {reason: unit for unit, reason in LIKELY_UNITS.items()}


class UnusableRow(NamedTuple):
    """What is looked at of a row without a usable event time."""

    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def advice(spec: EventTimeSpec, reason: str, rows: Sequence[UnusableRow]) -> str:
    """Return what to write as `event_time`, or what such rows have instead; may be empty.

    Args:
        spec: Where the event time was looked for.
        reason: Why the rows were quarantined.
        rows: Some of them.
    """
    if reason in _UNITS:
        unit = _UNITS[reason]
        return f'write `as {unit}`: event_time = "{replace(spec, format=TimeFormat.parse(unit))}"'
    if reason in {NO_KEY, TOO_LARGE} or spec.source is EventTimeSource.KAFKA_TIMESTAMP:
        return ""
    have = _headers if spec.source is EventTimeSource.HEADER else _fields
    return f"event_time = {str(spec)!r}, {have(spec, rows)}"


def _headers(spec: EventTimeSpec, rows: Sequence[UnusableRow]) -> str:
    for row in rows:
        for name, value in reversed(row.headers):
            if name == spec.path[0] and value is not None:
                return _example(value.decode(errors="replace"))
    return which_names((name for row in rows for name, _ in row.headers), "header")


def _fields(spec: EventTimeSpec, rows: Sequence[UnusableRow]) -> str:
    documents = documents_of(row.value for row in rows)
    for document in documents:
        time = value_at(document, spec.path, is_pointer=spec.is_pointer)
        if time is not None:
            return _example(time if isinstance(time, str) else json.dumps(time))
    return which_fields(documents)


def _example(text: str) -> str:
    return f"where one has {cut(text)!r}"
