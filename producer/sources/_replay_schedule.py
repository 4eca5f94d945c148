"""When each event of a recording is sent: pure, and the same for the same seed, everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy as np

    Int64s: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
    Bools: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

NO_TIME: Final = -(2**63)
"""Stands for an event without a time."""
_LIKELY_MS: Final = (946_684_800_000, 4_102_444_800_000)
"""The years 2000 to 2099."""
_LIKELY_SHARE: Final = 0.1
_NEVER_MS: Final = 1 << 61
"""No clock gets there; and the time between two events that are within it has 63 bits."""
_FAR_MS: Final = 365 * 24 * 3_600_000
_FAR_SPREADS: Final = 10
"""A time that is further than a year, and than so many times the usual distance, from the middle of
a recording is not believed."""


@dataclass(frozen=True, slots=True)
class Disorder:
    """How the order of a recording is disturbed. All times are in the recording's time."""

    up_to_ms: int = 0  # each event is delayed by a random time below this
    late_share: float = 0.0  # the share of events, 0 to 1, that are delayed by `late_by_ms` on top
    late_by_ms: int = 0
    seed: int = 0  # chooses the delays


@dataclass(frozen=True, slots=True, eq=False)
class ReplaySchedule:
    """The order in which a recording's events are sent."""

    order: Int64s  # their places in the recording, in the order of sending
    # when each is due, in the recording's time since its first event; in that order, never falling
    due_ms: Int64s


def replay_schedule(times_ms: Sequence[int] | array[int], disorder: Disorder) -> ReplaySchedule:
    """Plan a replay.

    An event is due when the recording had first reached its time: so a recording that is itself
    out of order keeps its order, unless `disorder` changes it. One with `NO_TIME` is due with the
    event before it, and is not delayed.

    The random numbers are the raw stream of PCG64, which numpy promises not to change.
    """
    import numpy as np  # noqa: PLC0415 - large, and only a replay needs it

    times = np.asarray(times_ms, dtype=np.int64)
    if not len(times):
        return ReplaySchedule(times, times)
    has_time = times != NO_TIME
    reached = np.maximum.accumulate(times)
    first = times[np.argmax(has_time)] if has_time.any() else np.int64(0)
    due = np.where(reached == NO_TIME, 0, reached - np.where(reached == NO_TIME, 0, first))
    chances = _chances(disorder.seed, 2 * len(times)).reshape(-1, 2)
    delay = (chances[:, 0] * disorder.up_to_ms).astype(np.int64)
    delay += np.where(chances[:, 1] < disorder.late_share, disorder.late_by_ms, 0)
    due = due + np.where(has_time, delay, 0)
    order = np.argsort(due, kind="stable")
    return ReplaySchedule(order, due[order])


def astray(times_ms: Sequence[int] | array[int]) -> Bools:
    """Tell which events have a time that cannot be one of this recording.

    Devices without a clock send the year 1 or 1970, others 9999: the pause before it, or behind it,
    would never end. The middle of a recording is the median of its times between 2000 and 2100, and
    of all times where few are among these: of a simulation that begins at 0.
    """
    import numpy as np  # noqa: PLC0415 - as above

    times = np.asarray(times_ms, dtype=np.int64)
    known = times[times != NO_TIME].astype(np.float64)
    if not len(known):
        return np.zeros(len(times), np.bool_)
    likely = known[(known >= _LIKELY_MS[0]) & (known < _LIKELY_MS[1])]
    among = likely if len(likely) >= _LIKELY_SHARE * len(known) else known
    middle = np.median(among)
    far = max(_FAR_MS, _FAR_SPREADS * np.median(np.abs(among - middle)))
    exact = times.astype(np.float64)
    is_far = (np.abs(exact - middle) > far) | (np.abs(exact) > _NEVER_MS)
    found: Bools = (times != NO_TIME) & is_far
    return found


def _chances(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Random numbers from 0 to below 1."""
    import numpy as np  # noqa: PLC0415

    raw = np.random.PCG64(seed).random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
