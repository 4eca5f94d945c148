"""Event-time reordering without Spark: the pure parts, run over rows in memory.

One reference for the property tests and the Spark tests: what a job must release, step by step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sequitur.consumer import (
    BEFORE_ALL_TIME_MS,
    EventClock,
    Run,
    SourcePartition,
    StepDone,
    StepEntry,
    StepKind,
    Totals,
    finish,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A row that has an event time."""

    event_time_ms: int
    source: SourcePartition
    offset: int
    key: str | None = None
    event_id: str | None = None


@dataclass(slots=True)
class ReorderModel:
    """Stage, advance and release in memory.

    Attributes:
        delay_ms: As in the settings.
        idle_timeout_ms: As in the settings.
        ends: High watermark of each source partition; rows are read up to positions below it.
        rescue: As in the settings.
        key_ttl_ms: As in the settings.
        duplicate_window_ms: As in the settings; None keeps repeats.
        is_bounded: Whether runs end when they have read what is there.
        released: Rows released, in order.
        late: Rows found late, in order of reading.
        repeats: Rows dropped as repeats.
    """

    delay_ms: int
    idle_timeout_ms: int
    ends: dict[SourcePartition, int]
    rescue: bool = False
    key_ttl_ms: int = 1 << 40
    duplicate_window_ms: int | None = None
    is_bounded: bool = False
    released: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    repeats: list[Row] = field(default_factory=list)
    clock: EventClock = field(default_factory=EventClock)
    positions: dict[SourcePartition, int] = field(default_factory=dict)
    _runs: dict[int, list[Row]] = field(default_factory=dict)
    _live: tuple[Run, ...] = ()
    _log: str | None = None
    _read: list[Row] = field(default_factory=list)
    _last_released: dict[str, int] = field(default_factory=dict)
    _horizon_ms: int = BEFORE_ALL_TIME_MS
    _done: StepDone = field(default_factory=lambda: StepDone(-1, Totals()))

    @property
    def totals(self) -> Totals:
        return self._done.totals

    @property
    def held(self) -> list[Row]:
        """Rows read and not out yet."""
        return [
            row
            for run in self._live
            for row in self._runs[run.step]
            if row.event_time_ms > self.clock.frontier_ms
        ]

    def batch(self, rows: Sequence[Row], *, now_ms: int) -> StepEntry:
        """Read rows, and release what became due."""
        frontier_ms = self.clock.frontier_ms
        behind = [row for row in rows if row.event_time_ms < frontier_ms]
        on_time = [row for row in rows if row.event_time_ms >= frontier_ms]
        for row in rows:
            self.positions[row.source] = max(self.positions.get(row.source, 0), row.offset + 1)
        times = [row.event_time_ms for row in on_time]
        run = Run(
            step=self._done.step + 1,
            rows=len(on_time),
            min_event_time_ms=min(times, default=BEFORE_ALL_TIME_MS),
            max_event_time_ms=max(times, default=BEFORE_ALL_TIME_MS),
        )
        self._runs[run.step] = on_time
        entry = self._step(StepKind.BATCH, rows, behind, (*self._live, run), now_ms=now_ms)
        self._read += rows
        return entry

    def _is_rescued(self, row: Row) -> bool:
        """Whether a row behind the frontier is not older than what is out of its key."""
        return (
            self.rescue
            and row.key is not None
            and row.event_time_ms >= self._horizon_ms
            and row.event_time_ms >= self._last_released.get(row.key, BEFORE_ALL_TIME_MS)
        )

    def restart(self) -> None:
        """Die, and begin anew with what the log of the last step holds."""
        if self._log is not None:
            entry = StepEntry.from_document(json.loads(self._log))
            self.clock, self._live = entry.clock, entry.live_runs

    def tick(self, *, now_ms: int) -> StepEntry:
        return self._step(StepKind.TICK, (), (), self._live, now_ms=now_ms)

    def drain(self) -> StepEntry:
        return self._finish(StepKind.DRAIN, self.clock.drain(), (), (), self._live)

    def _step(
        self,
        kind: StepKind,
        rows: Sequence[Row],
        behind: Sequence[Row],
        runs: tuple[Run, ...],
        *,
        now_ms: int,
    ) -> StepEntry:
        clock = self.clock
        for source, end in self.ends.items():
            times = [row.event_time_ms for row in rows if row.source == source]
            clock = clock.observe(
                source,
                max_event_time_ms=max(times, default=None),
                position=self.positions.get(source, 0),
                high_watermark=end,
                now_ms=now_ms,
            )
        clock = clock.advance(
            now_ms=now_ms,
            delay_ms=self.delay_ms,
            idle_timeout_ms=self.idle_timeout_ms,
            is_bounded=self.is_bounded,
        )
        return self._finish(kind, clock, rows, behind, runs)

    def _finish(
        self,
        kind: StepKind,
        clock: EventClock,
        rows: Sequence[Row],
        behind: Sequence[Row],
        runs: tuple[Run, ...],
    ) -> StepEntry:
        entry = StepEntry(
            step=self._done.step + 1,
            kind=kind,
            batch_id=0,
            previous_frontier_ms=self.clock.frontier_ms,
            clock=clock,
            staged=Totals(read=len(rows)),
            runs=runs,
            before=self._done.totals,
            logged_ms=0,
        )
        self._log = json.dumps(entry.to_document())
        low, high = entry.previous_frontier_ms, entry.frontier_ms
        due = [
            row
            for run in entry.releasing_earlier
            for row in self._runs[run.step]
            if low < row.event_time_ms <= high
        ]
        if entry.releasing_own:
            own = self._runs[entry.releasing_own.step]
            due += [row for row in own if low <= row.event_time_ms <= high]
        repeats = self._repeats_of([*behind, *due], low)
        self.repeats += repeats
        self._horizon_ms = max(self._horizon_ms, low - self.key_ttl_ms)
        rescued = [row for row in behind if row not in repeats and self._is_rescued(row)]
        late = [row for row in behind if row not in repeats and row not in rescued]
        self.late += late
        out = sorted([*rescued, *(row for row in due if row not in repeats)])
        self.released += out
        for row in out:
            if row.key is not None:
                last_ms = self._last_released.get(row.key, BEFORE_ALL_TIME_MS)
                self._last_released[row.key] = max(last_ms, row.event_time_ms)
        entry = replace(
            entry, staged=replace(entry.staged, late=len(late)), duplicates=len(repeats)
        )
        self._done = finish(entry, released=len(out), late=len(late), quarantined=0)
        self.clock, self._live = clock, entry.live_runs
        return entry

    def _repeats_of(self, rows: Sequence[Row], frontier_ms: int) -> list[Row]:
        """Rows of an event that was read in an earlier step, or that comes earlier in this one."""
        if self.duplicate_window_ms is None:
            return []
        oldest_ms = frontier_ms - self.duplicate_window_ms
        seen = {row.event_id for row in self._read if oldest_ms <= row.event_time_ms <= frontier_ms}
        repeats = []
        for row in sorted(rows):
            if row.event_id is not None and row.event_id in seen:
                repeats.append(row)
            seen.add(row.event_id)
        return repeats


@dataclass(slots=True)
class LatestModel:
    """Latest mode in memory.

    Attributes:
        released: Rows that passed, in order.
        stale: Rows that did not.
    """

    released: list[Row] = field(default_factory=list)
    stale: list[Row] = field(default_factory=list)
    _last: dict[str, Row] = field(default_factory=dict)

    def batch(self, rows: Sequence[Row]) -> None:
        """Read rows; those pass that are newer than what was out of their key before."""
        before = dict(self._last)
        for row in sorted(rows):
            last = None if row.key is None else before.get(row.key)
            if last is not None and row < last:
                self.stale.append(row)
                continue
            self.released.append(row)
            if row.key is not None:
                self._last[row.key] = row
