"""The late judge: which rows are on time, behind the frontier, rescued, late, stale, quarantined.

Every path of the job asks here, at three places on a row's way:

1. When it is staged (`staging_rules`): it is quarantined, behind the frontier, or on time.
2. When it is behind the frontier and how far its key is released has been looked up
   (`LateJudge.is_late`): it is late, in latest mode stale; or it goes out after all.
3. When it goes to the late topic (`late_against`): what it is late against, and so by how much.

The rules are written in `<`, `<=`, `&`, `|` and `~`, for whole arrays at once: the tasks that ask
have no rules of their own. A number that is missing is never compared: a mask beside it says where
it is known.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sequitur.base.time_format import BEFORE_ALL_TIME_MS, MAX_EVENT_TIME_MS
from sequitur.consumer.reorder.late_policy import ReorderMode
from sequitur.consumer.reorder.reasons import LATE, NO_KEY, STALE, TOO_LARGE

if TYPE_CHECKING:
    from collections.abc import Mapping


Numbers: TypeAlias = Any
"""A numpy array of numbers."""
Mask: TypeAlias = Any
"""A numpy array of booleans."""
Reasons: TypeAlias = Any
"""The name of a reason, or what stands for names row by row: an array of codes."""


@dataclass(frozen=True, slots=True)
class LateJudge:
    """Judges the rows behind the frontier by what was released of their keys.

    Several rows of one key need no regard for each other: those that pass go out in event-time
    order, each as new as the one before it.

    Attributes:
        mode: What the output topic is to be.
        horizon_ms: What was released before it may be forgotten (`KeyState`).
    """

    mode: ReorderMode = ReorderMode.ORDERED
    horizon_ms: int = BEFORE_ALL_TIME_MS

    @property
    def reason(self) -> str:
        return STALE if self.mode is ReorderMode.LATEST else LATE

    def behind_ms(self, frontier_ms: int) -> int:
        """Return the event time that rows are behind of: the frontier; in latest mode all rows are.

        All rows of earlier steps up to it are out.

        Args:
            frontier_ms: The frontier before the step.
        """
        return MAX_EVENT_TIME_MS if self.mode is ReorderMode.LATEST else frontier_ms

    def asks_key(self, event_time_ms: Numbers) -> Mask:
        """Tell for which rows the last release of their key matters; others need not know it."""
        return event_time_ms >= self.horizon_ms

    def is_late(
        self,
        *,
        event_time_ms: Numbers,
        has_key: Mask,
        place: Numbers,
        last: Numbers,
        has_last: Mask,
    ) -> Mask:
        """Tell which rows behind the frontier do not go out.

        Ordered: those without a key, those behind the horizon, and those older than the last
        released of their key. Latest: of those with a key, those behind the horizon, and those not
        newer than the last of their key; places in the source break ties.

        Args:
            event_time_ms: The rows' event times.
            has_key: Where they have a key.
            place: What is compared: event times; in latest mode event time, topic, partition and
                offset.
            last: The same of the last row released of their keys.
            has_last: Where that is known.
        """
        is_forgotten = event_time_ms < self.horizon_ms
        if self.mode is ReorderMode.LATEST:
            return has_key & (is_forgotten | (has_last & (place <= last)))
        return ~has_key | is_forgotten | (has_last & (place < last))


def staging_rules(
    event_time_ms: Numbers,
    behind_ms: Numbers,
    *,
    is_disbelieved: Mask,
    disbelief: Reasons,
    is_too_large: Mask,
    is_keyless: Mask,
) -> tuple[tuple[Mask, Reasons], ...]:
    """Return the reasons of rows with an event time; the first that holds counts.

    Args:
        event_time_ms: Their event times.
        behind_ms: Rows older than this are behind the frontier, see `LateJudge.behind_ms`.
        is_disbelieved: Where the event time lies outside the `TimeBounds`.
        disbelief: The bounds' reason there.
        is_too_large: Where the output topic does not take the row for its size.
        is_keyless: Where it does not take the row since it has no key.

    Returns:
        Where a reason holds, and the reason. `LATE` marks the rows behind the frontier; a row of
        which none holds is on time.
    """
    return (
        (is_disbelieved, disbelief),
        (is_too_large, TOO_LARGE),
        (is_keyless, NO_KEY),
        (is_behind(event_time_ms, behind_ms), LATE),
    )


def is_behind(event_time_ms: Numbers, frontier_ms: Numbers) -> Mask:
    """Tell which rows are behind the frontier; a row at exactly the frontier is on time."""
    return event_time_ms < frontier_ms


def late_against(frontier_ms: Numbers, last_released_ms: Numbers) -> Mapping[str, Numbers]:
    """Return what the rows of each reason are late against: they are older by the difference.

    Args:
        frontier_ms: The frontier when they were staged.
        last_released_ms: The last event time released of their keys.
    """
    return {LATE: frontier_ms, STALE: last_released_ms}
