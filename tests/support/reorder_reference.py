"""What the reorder job must put out, in plain Python that shares nothing with it.

Written from what the job promises and not from how it does it: no runs, no log, no engine. Both the
pure parts (tests/property) and the job on Spark (tests/spark) are held to it, row for row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class Record(NamedTuple):
    """A record of a source topic; its value is `{"at": <event time>}`, or anything else."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes


@dataclass(slots=True)
class Reference:
    """The outputs of the job, after each step.

    Attributes:
        delay_ms: As in the settings.
        idle_timeout_ms: As in the settings.
        max_future_skew_ms: As in the settings.
        rescue: As in the settings.
        is_bounded: Whether runs end when they have read what is there: then a partition that has
            given nothing, and has nothing more, is not waited for.
        released: Records in the order in which they go out; a partition of the output has its part.
        late: Records that are too late, in the order in which they were read.
        quarantined: Records without a usable event time, and why.
        frontier_ms: Event time up to which everything on time is out; -1 before any.
    """

    delay_ms: int
    idle_timeout_ms: int
    max_future_skew_ms: int
    rescue: bool
    is_bounded: bool = False
    released: list[Record] = field(default_factory=list)
    late: list[Record] = field(default_factory=list)
    quarantined: list[tuple[Record, str]] = field(default_factory=list)
    frontier_ms: int = -1
    _held: list[tuple[int, Record]] = field(default_factory=list)
    _newest_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    _heard_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    _end_then: dict[tuple[str, int], int] = field(default_factory=dict)
    _read: dict[tuple[str, int], int] = field(default_factory=dict)
    _out_ms: dict[str, int] = field(default_factory=dict)

    def step(
        self,
        records: Iterable[Record],
        partitions: Collection[tuple[str, int]],
        *,
        now_ms: int,
        unread: Collection[tuple[str, int]] = (),
    ) -> None:
        """Read records, and put out what is due.

        Args:
            records: What the step reads.
            partitions: All source partitions.
            now_ms: The wall clock.
            unread: The source partitions that have one more record than was read.
        """
        due: list[tuple[int, Record]] = []
        heard = set(partitions) - self._heard_ms.keys()
        for record in sorted(records, key=_place):
            place = (record.topic, record.partition)
            time_ms, reason = _event_time(record.value, now_ms + self.max_future_skew_ms)
            self._read[place] = record.offset + 1
            if reason:
                self.quarantined.append((record, reason))
                continue
            heard.add(place)
            self._newest_ms[place] = max(time_ms, self._newest_ms.get(place, -1))
            if time_ms >= self.frontier_ms:
                self._held.append((time_ms, record))
            elif self._is_rescued(record.key, time_ms):
                due.append((time_ms, record))
            else:
                self.late.append(record)
        for place in heard:
            self._heard_ms[place] = now_ms
            self._end_then[place] = self._read.get(place, 0) + (place in unread)
        for place in partitions:  # where brokers lost records, it ends before what was seen
            end = self._read.get(place, 0) + (place in unread)
            self._end_then[place] = min(self._end_then[place], end)
        live = [place for place in partitions if self._is_awaited(place, now_ms)]
        reached = (self._newest_ms.get(place, -1) - self.delay_ms for place in live)
        self._release(due, max(self.frontier_ms, min(reached, default=self._greatest_ms)))

    def drain(self) -> None:
        self._release([], max(self.frontier_ms, self._greatest_ms))

    def _is_awaited(self, place: tuple[str, int], now_ms: int) -> bool:
        if self._end_then[place] > self._read.get(place, 0):
            return True
        if self.is_bounded and place not in self._newest_ms:
            return False
        return now_ms - self._heard_ms[place] < self.idle_timeout_ms

    def _is_rescued(self, key: str | None, time_ms: int) -> bool:
        return self.rescue and key is not None and time_ms >= self._out_ms.get(key, -1)

    @property
    def _greatest_ms(self) -> int:
        return max(self._newest_ms.values(), default=-1)

    def _release(self, due: list[tuple[int, Record]], frontier_ms: int) -> None:
        due = due + [(ms, record) for ms, record in self._held if ms <= frontier_ms]
        self._held = [(ms, record) for ms, record in self._held if ms > frontier_ms]
        self.frontier_ms = frontier_ms
        for ms, record in sorted(due, key=lambda found: (found[0], *_place(found[1]))):
            self.released.append(record)
            if record.key is not None:
                self._out_ms[record.key] = max(ms, self._out_ms.get(record.key, -1))


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
