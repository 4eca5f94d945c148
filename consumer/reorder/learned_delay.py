"""The delay that the job learns by itself: how late rows are, by source partition, and lately.

The delay `d` of a partition decides about a row with event time `t` by what was known when the
frontier last moved: with `m` the partition's greatest event time at the end of the step before, the
row is on time where `m - d <= t`. So the *lateness* of a row is `m - t`. The smallest delay that
keeps the late share under a target is a quantile of it: that is all there is to learn.

- **Late rows are counted, too**: the run holds every row read, so a delay that has become too short
  shows in the rows that it called late.
- **Bounded**: counts go into log-spaced bins, eight to each doubling. So a delay is at most 9 %
  longer than it had to be, and a histogram has some 250 bins however many rows it saw.
- **Forgetting**: all counts halve whenever the partition's event time moves on by the half-life. A
  spike in a share `s` of the rows is forgotten after `log2(s / target)` half-lives. One step
  forgets half at most: a silence says nothing of how late rows are, and the first rows after it
  have nothing to be late against.
- **Beyond help**: rows later than the longest delay allowed are late whatever the delay is. They do
  not count: else all others would wait in vain for one clock that is an hour slow.
- **Not known yet**: a partition that has shown fewer than `1 / target` rows goes by all partitions
  together, and while these have not either, by the longest delay.
- **Backlog**: while a partition's rows are read in large pieces, most rows come in one step with
  the rows that they are behind, where no delay matters. So rows in their place say nothing about
  the time after the backlog, and only rows behind are counted: in a backlog delays grow and never
  shrink.

Pure: what a step saw comes in as numbers. The state is part of the step's log entry, so a step that
is repeated has the same delays. See docs/adr/0005-adaptive-delay.md for figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from msgspec import Struct, structs
from msgspec.structs import replace

from sequitur.base.stored import load
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.reorder.clock import EventClock


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


class LearnedDelays(Struct, frozen=True, tag_field="format", tag=DELAY_FORMAT):
    """What has been learned of all source partitions.

    Attributes:
        partitions: How late the rows of each were.
        late_target: What is promised; 0 while a fixed delay is in its place.
    """

    TITLE: ClassVar = "learned delays"

    partitions: Mapping[SourcePartition, LatenessHistogram] = {}
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
        before = self.partitions.get(partition, LatenessHistogram())
        after = before.learn(
            step, reached_ms=reached_ms, half_life_ms=half_life_ms, is_backlog=is_backlog
        )
        return replace(self, partitions={**self.partitions, partition: after})

    def set_aside(self) -> Self:
        """Return a copy to keep for later, while a fixed delay is used."""
        return replace(self, late_target=0.0)

    @property
    def together(self) -> LatenessHistogram:
        whole = LatenessHistogram()
        for histogram in self.partitions.values():
            whole = whole.plus(histogram)
        return whole

    def delays_ms(
        self, partitions: Iterable[SourcePartition], policy: DelayPolicy
    ) -> dict[SourcePartition, int]:
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
        """The same share with recent rows weighing most; at most 1."""
        together = self.together
        return min(1.0, together.recent_late / together.rows) if together.rows else 0.0

    def to_stored(self) -> dict[str, Any]:
        rows = [
            {
                "topic": topic,
                "partition": partition,
                **structs.asdict(one),
                "behind": sorted(one.behind.items()),
            }
            for (topic, partition), one in sorted(self.partitions.items())
        ]
        return {"format": DELAY_FORMAT, "late_target": self.late_target, "partitions": rows}

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        found = {
            (row["topic"], row["partition"]): load(
                LatenessHistogram, {**row, "behind": dict(row["behind"])}
            )
            for row in fields["partitions"]
        }
        return {**fields, "partitions": found}


class LatenessHistogram(Struct, frozen=True):
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
    behind: Mapping[int, float] = {}

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
        """Return the shortest allowed delay that would have kept to the late share."""
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
