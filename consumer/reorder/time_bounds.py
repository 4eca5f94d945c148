"""Which event times are believed: none before the earliest, none after the latest.

A number in the wrong unit is off by a factor of a thousand, so it falls far outside, and in the
right unit it would not. The reason then names that unit: the mistake is in the setting, or in what
writes the events, and not in single events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sequitur.base.time_format import MAX_EVENT_TIME_MS, UNITS
from sequitur.consumer.reorder.reasons import LIKELY_UNITS, NEGATIVE, TOO_EARLY, TOO_FAR_FUTURE

if TYPE_CHECKING:
    from sequitur.base.time_format import TimeUnit


_FACTOR: Final = 1000
_PLAUSIBLE_MS: Final = 946_684_800_000
"""The year 2000: a unit is likely that makes a number a time from then on. Where times of 1970 are
believed, any number would be one in some unit."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The event times that are believed.

    Attributes:
        earliest_ms: Anything before it is a mistake, epoch ms.
        latest_ms: Now + max_future_skew; anything later is a broken clock, or a mistake.
        unit: What numbers are taken for; None, or auto, where no other unit comes into question.
    """

    earliest_ms: int = 0
    latest_ms: int = MAX_EVENT_TIME_MS
    unit: TimeUnit | None = None

    def reason(self, time_ms: int) -> str | None:
        """Return why a time is not believed; None if it is."""
        if time_ms < 0:
            return NEGATIVE
        if self.earliest_ms <= time_ms <= self.latest_ms:
            return None
        return next(name for name, first, last in self.refusals() if first <= time_ms <= last)

    def refusals(self) -> list[tuple[str, int, int]]:
        """Return why times are not believed: reason, first and last ms; the first one counts.

        Those of likely units may reach into times that are believed.
        """
        return [
            *self._likely_units(),
            (TOO_EARLY, 0, self.earliest_ms - 1),
            (TOO_FAR_FUTURE, self.latest_ms + 1, MAX_EVENT_TIME_MS),
        ]

    def _likely_units(self) -> list[tuple[str, int, int]]:
        if self.unit not in UNITS:
            return []
        own = UNITS.index(self.unit)
        plausible_ms = max(self.earliest_ms, _PLAUSIBLE_MS)
        found = []
        for place, unit in enumerate(UNITS):
            if place == own:
                continue
            if place < own:  # the true unit is coarser: the time is too small
                factor = _FACTOR ** (own - place)
                first, last = -(-plausible_ms // factor), self.latest_ms // factor
            else:
                factor = _FACTOR ** (place - own)
                first, last = plausible_ms * factor, self.latest_ms * factor + factor - 1
            if first <= MAX_EVENT_TIME_MS:
                found.append((LIKELY_UNITS[unit], first, min(last, MAX_EVENT_TIME_MS)))
        return found
