"""How disordered a topic is: how late its records are, and what each delay puts in order.

It runs the clock and the late rule of the reorder job over the records, each a batch of its own,
at the time of its timestamp. So it says what a job does that reads each record as it comes.

One clock serves all delays. It has no delay itself, and the frontier of a job with a delay is
behind that clock's frontier by the delay, but not behind what went out when all partitions were
idle: then a job releases all that it holds.

The clock is asked only where the frontier may have passed the record. A live partition holds the
frontier at its own greatest event time, so most records need no question, however many partitions
there are.

Pure: time comes in as the records' timestamps. Memory is bounded: a histogram for each partition,
and `KeyTimes`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.base.units import milliseconds
from sequitur.consumer.reorder.advice import UnusableRow, advice
from sequitur.consumer.reorder.clock import EventClock, Look
from sequitur.consumer.reorder.event_time import read_event_time
from sequitur.consumer.reorder.lateness import LateJudge, is_behind
from sequitur.consumer.reorder.learned_delay import (
    LATENESS_LIMIT_MS,
    DelayPolicy,
    LatenessHistogram,
    StepLateness,
    bin_limit_ms,
    lateness_bin,
)
from sequitur.consumer.reorder.time_bounds import TimeBounds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.partition import SourcePartition

SHOWN_DELAYS_MS: Final = (1_000, 5_000, 10_000, 60_000)
_QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.01, "p99_9_ms": 0.001}
"""Each quantile with the share of records that are later."""
_MANY: Final = 0.1
_SAMPLE: Final = 20


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late records are against the frontier of a job without delay; 0 if on time."""

    records: int
    unusable: int  # the part of these records without a usable event time
    p50_ms: int
    p99_ms: int
    p99_9_ms: int
    most_ms: int


@dataclass(frozen=True, slots=True)
class DelayOutcome:
    """What a job with a delay does to the records with a usable event time."""

    delay_ms: int
    in_order: int  # records that it releases in the order of their keys
    late: int  # all others
    rescued: int  # records in order that came too late for the delay, but not for their key

    @property
    def share(self) -> float:
        """The share of the records that are in order."""
        return self.in_order / (self.in_order + self.late)


@dataclass(frozen=True, slots=True)
class DisorderReport:
    records: int
    quarantined: Mapping[str, int]  # records without a usable event time, by reason
    first_ms: int | None  # smallest and greatest timestamp of the records; None without records
    last_ms: int | None
    partitions: Mapping[int, Lateness]
    together: Lateness
    delays: Sequence[DelayOutcome]
    proposed: DelayOutcome | None  # None if no record has a usable event time
    late_target: float  # the share of records that may come after the proposed delay
    keys_followed: int  # one key in so many was followed, so the counts of late ones are estimates
    advice: str = ""  # which event time to write, if many records have none

    @property
    def usable(self) -> int:
        """The records with a usable event time."""
        return self.records - sum(self.quarantined.values())

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "usable": self.usable,
            "delays": [_outcome(one) for one in self.delays],
            "proposed": None if self.proposed is None else _outcome(self.proposed),
        }


def _outcome(one: DelayOutcome) -> dict[str, Any]:
    return {**asdict(one), "share": one.share}


class KeyTimes:
    """The event times of each key that the job with the longest delay may hold, and one before.

    Bounded: beyond `most_keys` every second key is forgotten for good, again and again, by a hash
    of the keys; beyond `most_times` every second time of each key.

    Args:
        most_keys: So many keys are followed at most.
        most_times: So many event times are known at most.
    """

    def __init__(self, most_keys: int = 200_000, most_times: int = 4_000_000) -> None:
        self._most_keys = most_keys
        self._most_times = most_times
        self._times: dict[bytes, array[int]] = {}
        self._count = 0
        self.followed = 1  # one key in so many

    def __len__(self) -> int:
        return self._count

    def is_followed(self, key: bytes) -> bool:
        return self.followed == 1 or crc32(key) % self.followed == 0

    def of(self, key: bytes) -> array[int] | None:
        """Return a key's known event times, the smallest first."""
        return self._times.get(key)

    def add(self, key: bytes, time_ms: int, *, out_ms: int, horizon_ms: int) -> None:
        """Take in the next record of a key.

        Args:
            key: Its key.
            time_ms: Its event time.
            out_ms: Of what is not after it only the newest matters.
            horizon_ms: What is before it does not matter.
        """
        if not self.is_followed(key):
            return
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = array("q")
        place = len(times) if not times or time_ms > times[-1] else bisect_left(times, time_ms)
        if place == len(times) or times[place] != time_ms:
            times.insert(place, time_ms)
            self._count += 1
        if times[len(times) // 2] <= out_ms:
            self._drop_out(times, out_ms)
        if len(self._times) > self._most_keys or self._count > self._most_times:
            self._shrink(out_ms, horizon_ms)

    def _drop_out(self, times: array[int], out_ms: int) -> None:
        before = bisect_left(times, out_ms + 1) - 1
        if before > 0:
            del times[:before]
            self._count -= before

    def _shrink(self, out_ms: int, horizon_ms: int) -> None:
        for key, times in list(self._times.items()):
            self._drop_out(times, out_ms)
            if times[-1] < horizon_ms:
                del self._times[key]
        if len(self._times) > self._most_keys // 2:
            self.followed *= 2
            self._times = {key: of for key, of in self._times.items() if self.is_followed(key)}
        self._count = sum(map(len, self._times.values()))
        if self._count > self._most_times // 2:
            for times in self._times.values():
                del times[:-1:2]
            self._count = sum(map(len, self._times.values()))


@dataclass(slots=True)
class _Seen:
    heard_ms: int  # when its last event time came
    max_ms: int = BEFORE_ALL_TIME_MS
    is_told: bool = True  # whether the clock knows
    records: int = 0
    usable: int = 0
    most_late_ms: int = 0
    late: Counter[int] = field(default_factory=Counter)  # records by `lateness_bin`


class Disorder:
    """Takes the records of a topic in the order of their timestamps, and says how late they are.

    Args:
        settings: Those of the job, with `delay = "auto"`: what such a job may learn is proposed.
        partitions: All partitions of the topic, those without records, too.
        keys: Where the event times of keys are kept.
    """

    def __init__(
        self,
        settings: ReorderSettings,
        partitions: Iterable[SourcePartition],
        keys: KeyTimes | None = None,
    ) -> None:
        policy = settings.delay_policy
        if policy is None:
            raise ValueError('expected settings with delay = "auto"')
        self._settings = settings
        self._policy = policy
        self._bounds = settings.bounds(0)
        self._idle_timeout_ms = milliseconds(settings.idle_timeout)
        self._key_ttl_ms = milliseconds(settings.key_ttl)
        self._keys = KeyTimes() if keys is None else keys
        self._seen = {where: _Seen(0) for where in sorted(partitions)}
        self._clock = EventClock()
        self._slowest: _Seen | None = None  # the live partition that the frontier waits for
        self._flushed_ms = BEFORE_ALL_TIME_MS  # the frontier when all partitions were idle
        self._now_ms = BEFORE_ALL_TIME_MS
        self._first_ms: int | None = None
        self._reasons: Counter[str] = Counter()
        self._unusable: dict[str, list[UnusableRow]] = {}
        delays = [*SHOWN_DELAYS_MS, *_learnable(policy)]
        self._delays, self._shortest_ms, self._longest_ms = (
            np.array(delays),
            min(delays),
            max(delays),
        )
        self._late, self._behind = np.zeros((2, len(self._delays)), np.int64)

    def observe(
        self,
        where: SourcePartition,
        *,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        seen = self._seen[where]
        seen.records += 1
        self._pass_time(timestamp_ms)
        bounds = self._bounds
        found = read_event_time(
            self._settings.event_time,
            value=value,
            headers=headers,
            kafka_timestamp_ms=timestamp_ms,
            bounds=TimeBounds(bounds.earliest_ms, bounds.latest_ms + self._now_ms, bounds.unit),
        )
        if found.ms is None:
            self._quarantine(found.reason or "", UnusableRow(value, headers))
            return
        time_ms = found.ms
        frontier_ms = self._frontier(seen, time_ms)
        late_ms = frontier_ms - time_ms
        if late_ms > 0:
            seen.late[lateness_bin(late_ms)] += 1
            seen.most_late_ms = max(seen.most_late_ms, late_ms)
            if late_ms > self._shortest_ms or time_ms < self._flushed_ms:
                self._judge(key, time_ms, frontier_ms)
        if key is not None:
            out_ms = max(self._flushed_ms, frontier_ms - self._longest_ms)
            self._keys.add(key, time_ms, out_ms=out_ms, horizon_ms=out_ms - self._key_ttl_ms)
        seen.usable += 1
        seen.heard_ms, seen.max_ms = self._now_ms, max(seen.max_ms, time_ms)
        seen.is_told = False

    def report(self) -> DisorderReport:
        every = self._seen.values()
        usable = sum(one.usable for one in every)
        proposed = None
        if usable:
            proposed = self._outcome(_histogram(every).delay_ms(self._policy), usable)
        return DisorderReport(
            records=sum(one.records for one in every),
            quarantined=dict(self._reasons.most_common()),
            first_ms=self._first_ms,
            last_ms=None if self._first_ms is None else self._now_ms,
            partitions={where.partition: _lateness([one]) for where, one in self._seen.items()},
            together=_lateness(every),
            delays=[self._outcome(one, usable) for one in SHOWN_DELAYS_MS] if usable else [],
            proposed=proposed,
            late_target=self._policy.late_target,
            keys_followed=self._keys.followed,
            advice=self._advice(sum(one.records for one in every)),
        )

    def _pass_time(self, timestamp_ms: int) -> None:
        self._now_ms = max(self._now_ms, timestamp_ms)
        if self._first_ms is None:
            self._first_ms = self._now_ms
            for one in self._seen.values():
                one.heard_ms = self._now_ms
            self._look({where: Look(0, 0) for where in self._seen}, self._now_ms)

    def _frontier(self, seen: _Seen, time_ms: int) -> int:
        """Return the frontier before a record, or an older one if the record is on time anyway."""
        known_ms = self._clock.frontier_ms
        for one in (seen, self._slowest):
            if one is not None and self._is_live(one):
                limit_ms = max(known_ms, one.max_ms)
                if limit_ms == known_ms or time_ms >= limit_ms:
                    return known_ms
        return self._advanced()

    def _is_live(self, seen: _Seen) -> bool:
        return self._now_ms - seen.heard_ms < self._idle_timeout_ms

    def _advanced(self) -> int:
        """Let the clock look at all partitions, and return the frontier."""
        for where, one in self._seen.items():
            if not one.is_told:
                self._look({where: Look(0, 0, one.max_ms)}, one.heard_ms)
                one.is_told = True
        self._look({where: Look(0, 0) for where in self._seen}, self._now_ms)
        self._clock = self._clock.advance(
            now_ms=self._now_ms, delay_ms=0, idle_timeout_ms=self._idle_timeout_ms
        )
        live = [where for where, one in self._clock.partitions.items() if not one.was_idle]
        if live:
            self._slowest = min((self._seen[where] for where in live), key=lambda one: one.max_ms)
        else:
            self._slowest, self._flushed_ms = None, self._clock.frontier_ms
        return self._clock.frontier_ms

    def _look(self, looks: Mapping[SourcePartition, Look], now_ms: int) -> None:
        # A running job looks at partitions all the time, so all of it counts.
        self._clock = self._clock.looked_at(looks, now_ms=now_ms, longest_ms=LATENESS_LIMIT_MS)

    def _judge(self, key: bytes | None, time_ms: int, frontier_ms: int) -> None:
        """Count the delays that put a record behind the frontier, and those that make it late."""
        frontiers: Any = np.maximum(self._flushed_ms, frontier_ms - self._delays)
        behind = is_behind(time_ms, frontiers)
        self._behind += behind
        if key is not None and not self._keys.is_followed(key):
            return  # the followed keys stand for this one
        last, has_last = frontiers, np.zeros(len(frontiers), np.bool_)
        if key is not None and (known := self._keys.of(key)):
            times = np.frombuffer(known, np.int64)
            places = np.searchsorted(times, frontiers, side="right")
            last, has_last = times[np.maximum(places, 1) - 1], places > 0
        judge = LateJudge(horizon_ms=frontiers - self._key_ttl_ms)
        late = behind & judge.is_late(
            event_time_ms=time_ms,
            has_key=np.bool_(key is not None),
            place=time_ms,
            last=last,
            has_last=has_last,
        )
        self._late += late * (1 if key is None else self._keys.followed)

    def _outcome(self, delay_ms: int, usable: int) -> DelayOutcome:
        place = int(np.flatnonzero(self._delays == delay_ms)[0])
        behind = int(self._behind[place])
        late = min(behind, int(self._late[place]))
        return DelayOutcome(delay_ms, usable - late, late, behind - late)

    def _quarantine(self, reason: str, row: UnusableRow) -> None:
        self._reasons[reason] += 1
        some = self._unusable.setdefault(reason, [])
        if len(some) < _SAMPLE:
            some.append(row)

    def _advice(self, records: int) -> str:
        for reason, count in self._reasons.most_common(1):
            if count > _MANY * records:
                found = advice(self._settings.event_time, reason, self._unusable[reason])
                return f"{reason}: {found}" if found else reason
        return ""


def _learnable(policy: DelayPolicy) -> Iterator[int]:
    """Yield the delays that `LatenessHistogram.delay_ms` may return."""
    limits = (bin_limit_ms(number) for number in range(lateness_bin(policy.max_ms)))
    yield from (policy.min_ms, policy.max_ms)
    yield from (one for one in limits if policy.min_ms < one < policy.max_ms)


def _histogram(seen: Iterable[_Seen]) -> LatenessHistogram:
    """Return a histogram in which all records have the same weight, however old."""
    whole = LatenessHistogram()
    for one in seen:
        step = StepLateness(rows=one.usable, behind=one.late)
        own = LatenessHistogram().learn(step, reached_ms=0, half_life_ms=1, is_backlog=False)
        whole = whole.plus(own)
    return whole


def _lateness(seen: Collection[_Seen]) -> Lateness:
    usable, most_ms = sum(one.usable for one in seen), max(one.most_late_ms for one in seen)
    records, histogram = sum(one.records for one in seen), _histogram(seen)
    quantiles = {
        name: min(most_ms, histogram.delay_ms(DelayPolicy(later, 0, LATENESS_LIMIT_MS, 1)))
        for name, later in _QUANTILES.items()
    }
    return Lateness(records, records - usable, most_ms=most_ms, **quantiles)
