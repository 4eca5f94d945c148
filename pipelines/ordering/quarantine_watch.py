"""Warns when many rows are quarantined: most likely `event_time` names what the rows do not have.

Without the warning such a job seems to run well, and nothing comes out of it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sequitur.consumer.reorder.advice import advice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.reorder import EventTimeSpec
    from sequitur.consumer.reorder.advice import UnusableRow
    from sequitur.consumer.reorder.step_log import Totals


_WINDOW_S: Final = 60.0
_MANY: Final = 0.1


class QuarantineWatch:
    def __init__(
        self,
        event_time: EventTimeSpec,
        tell: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._event_time = event_time
        self._tell = tell
        self._clock = clock
        self._read = 0
        self._reasons: Counter[str] = Counter()
        self._advice: dict[str, str] = {}
        self._window = _Window(clock())

    def step_is_done(self, staged: Totals, some: Callable[[str], Sequence[UnusableRow]]) -> None:
        """Count a step; warn once a minute while a reason has more than a tenth of the rows."""
        read = staged.read - staged.skipped
        self._read += read
        self._reasons.update(staged.quarantined)
        now_s = self._clock()
        if now_s - self._window.began_s >= _WINDOW_S:
            self._window = _Window(now_s)
        window = self._window
        window.read += read
        window.reasons.update(staged.quarantined)
        reason, rows = next(iter(window.reasons.most_common(1)), ("", 0))
        if window.has_warned or rows <= _MANY * window.read:
            return
        if reason in staged.quarantined:
            self._advice[reason] = advice(self._event_time, reason, some(reason))
        window.has_warned = True
        found = self._with_advice(reason)
        self._tell(f"warning: {rows:,} of {window.read:,} rows were quarantined, {found}")

    @property
    def verdict(self) -> str:
        """Say that all rows of the run were quarantined; empty if they were not."""
        if not self._read or self._reasons.total() < self._read:
            return ""
        reason, rows = self._reasons.most_common(1)[0]
        each = f"all {self._read:,} rows of this run were quarantined"
        if rows < self._read:
            return f"{each}, {rows:,} of them {self._with_advice(reason)}"
        return f"{each}, {self._with_advice(reason)}"

    def _with_advice(self, reason: str) -> str:
        found = self._advice.get(reason)
        return f"{reason}: {found}" if found else reason


@dataclass(slots=True)
class _Window:
    """A minute or more, with at most one warning."""

    began_s: float
    read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    has_warned: bool = False
