"""What the reorder job must put out, in plain Python that shares nothing with it.

Written from what the job promises and not from how it does it: no runs, no log, no engine. The job
on lists (tests/property) and that on Spark (tests/spark) are held to it, row for row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_NONE: Final[Mapping[tuple[str, int], int]] = {}


class Record(NamedTuple):
    """A record of a source topic; its value is `{"at": <event time>}`, or anything else."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes
    event_id: str | None = None


@dataclass(slots=True)
class Reference:
    """The outputs of the job, after each step.

    Attributes:
        delay_ms: As in the settings.
        idle_timeout_ms: As in the settings.
        max_future_skew_ms: As in the settings.
        rescue: As in the settings.
        key_ttl_ms: As in the settings; None keeps all keys.
        duplicate_window_ms: As in the settings; None keeps repeats.
        is_bounded: Whether runs end when they have read what is there: then a partition that has
            given nothing, and has nothing more, is not waited for.
        released: Records in the order in which they go out; a partition of the output has its part.
        late: Records that are too late, in the order in which they were read.
        repeats: Records of an event of which another is out or goes out, in order.
        quarantined: Records without a usable event time, and why.
        frontier_ms: Event time up to which everything on time is out; -1 before any.
    """

    delay_ms: int
    idle_timeout_ms: int
    max_future_skew_ms: int
    rescue: bool
    key_ttl_ms: int | None = None
    duplicate_window_ms: int | None = None
    is_bounded: bool = False
    released: list[Record] = field(default_factory=list)
    late: list[Record] = field(default_factory=list)
    repeats: list[Record] = field(default_factory=list)
    quarantined: list[tuple[Record, str]] = field(default_factory=list)
    frontier_ms: int = -1
    _held: list[tuple[int, Record]] = field(default_factory=list)
    _newest_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    _heard_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    _end_then: dict[tuple[str, int], int] = field(default_factory=dict)
    _read: dict[tuple[str, int], int] = field(default_factory=dict)
    _out_ms: dict[str, int] = field(default_factory=dict)
    _forgotten_ms: int = -1
    _looked_ms: int = -1
    _ids: list[tuple[int, str | None]] = field(default_factory=list)

    def step(
        self,
        records: Iterable[Record],
        partitions: Collection[tuple[str, int]],
        *,
        now_ms: int,
        unread: Collection[tuple[str, int]] = (),
        ends: Mapping[tuple[str, int], int] = _NONE,
        begins: bool = False,
    ) -> None:
        """Read records, and put out what is due.

        Args:
            records: What the step reads.
            partitions: All source partitions.
            now_ms: The wall clock.
            unread: The source partitions that have one more record than was read.
            ends: Where source partitions end, if that is known.
            begins: Whether a life of the job begins with it. Nobody watched the time before: a run
                that ends when it has read what is there reads that before a partition is silent.
        """
        behind: list[tuple[int, Record]] = []
        times: list[tuple[int, str | None]] = []
        heard = set(partitions) - self._heard_ms.keys()
        for record in sorted(records, key=_place):
            place = (record.topic, record.partition)
            time_ms, reason = _event_time(record.value, now_ms + self.max_future_skew_ms)
            self._read[place] = record.offset + 1
            if reason:
                self.quarantined.append((record, reason))
                continue
            heard.add(place)
            times.append((time_ms, record.event_id))
            self._newest_ms[place] = max(time_ms, self._newest_ms.get(place, -1))
            if time_ms >= self.frontier_ms:
                self._held.append((time_ms, record))
            else:
                behind.append((time_ms, record))
        for place in heard:
            self._heard_ms[place] = now_ms
            self._end_then[place] = self._end(place, unread, ends)
        for place in partitions:  # where brokers lost records, it ends before what was seen
            end = self._end(place, unread, ends)
            is_new = begins and self.is_bounded and now_ms > self._looked_ms
            self._end_then[place] = end if is_new else min(self._end_then[place], end)
        self._looked_ms = now_ms
        live = [place for place in partitions if self._is_awaited(place, now_ms)]
        reached = (self._newest_ms.get(place, -1) - self.delay_ms for place in live)
        self._release(behind, max(self.frontier_ms, min(reached, default=self._greatest_ms)))
        self._ids += times

    def _end(
        self,
        place: tuple[str, int],
        unread: Collection[tuple[str, int]],
        ends: Mapping[tuple[str, int], int],
    ) -> int:
        return ends.get(place, self._read.get(place, 0) + (place in unread))

    def drain(self) -> None:
        self._release([], max(self.frontier_ms, self._greatest_ms))

    def _is_awaited(self, place: tuple[str, int], now_ms: int) -> bool:
        if self._end_then[place] > self._read.get(place, 0):
            return True
        if self.is_bounded and place not in self._newest_ms:
            return False
        return now_ms - self._heard_ms[place] < self.idle_timeout_ms

    def _is_rescued(self, key: str | None, time_ms: int) -> bool:
        if not self.rescue or key is None:
            return False
        return time_ms >= max(self._forgotten_ms, self._out_ms.get(key, -1))

    def _repeats_of(self, rows: Iterable[tuple[int, Record]]) -> list[Record]:
        if self.duplicate_window_ms is None:
            return []
        oldest_ms = self.frontier_ms - self.duplicate_window_ms
        seen = {name for ms, name in self._ids if oldest_ms <= ms <= self.frontier_ms}
        repeats = []
        for _, record in sorted(rows, key=_in_order):
            if record.event_id is not None and record.event_id in seen:
                repeats.append(record)
            seen.add(record.event_id)
        return repeats

    @property
    def _greatest_ms(self) -> int:
        return max(self._newest_ms.values(), default=-1)

    def _release(self, behind: list[tuple[int, Record]], frontier_ms: int) -> None:
        due = [(ms, record) for ms, record in self._held if ms <= frontier_ms]
        self._held = [(ms, record) for ms, record in self._held if ms > frontier_ms]
        repeats = self._repeats_of([*behind, *due])
        self.repeats += repeats
        if self.key_ttl_ms is not None:
            self._forgotten_ms = max(self._forgotten_ms, self.frontier_ms - self.key_ttl_ms)
        due = [(ms, record) for ms, record in due if record not in repeats]
        for ms, record in behind:
            if record in repeats:
                continue
            if self._is_rescued(record.key, ms):
                due.append((ms, record))
            else:
                self.late.append(record)
        self.frontier_ms = frontier_ms
        for ms, record in sorted(due, key=_in_order):
            self.released.append(record)
            if record.key is not None:
                self._out_ms[record.key] = max(ms, self._out_ms.get(record.key, -1))


def _in_order(row: tuple[int, Record]) -> tuple[int, str, int, int]:
    return row[0], *_place(row[1])


def _place(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


_EARLIEST_MS: Final = 946_684_800_000


def _event_time(value: bytes, latest_ms: int) -> tuple[int, str]:
    document = json.loads(value)
    if "at" not in document:
        return -1, "event-time-missing"
    time_ms = document["at"]
    if not isinstance(time_ms, int):
        return -1, "event-time-unparsable"
    if _EARLIEST_MS <= time_ms <= latest_ms:
        return time_ms, ""
    return -1, _refused(time_ms, latest_ms)


def _refused(time_ms: int, latest_ms: int) -> str:
    if time_ms < 0:
        return "event-time-negative"
    for unit, in_ms in (
        ("seconds", time_ms * 1_000),
        ("microseconds", time_ms // 1_000),
        ("nanoseconds", time_ms // 1_000_000),
    ):
        if _EARLIEST_MS <= in_ms <= latest_ms:
            return f"event-time-likely-{unit}"
    return "event-time-too-early" if time_ms < _EARLIEST_MS else "event-time-too-far-future"
