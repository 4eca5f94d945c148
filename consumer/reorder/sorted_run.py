"""Sorted runs: the rows that steps staged, as the log knows them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from sequitur.base.time_format import BEFORE_ALL_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Sequence


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """One sorted run on disk: the rows a batch staged.

    Attributes:
        step: The step that staged it.
        rows: Rows that were on time.
        min_event_time_ms: Smallest event time of these; `BEFORE_ALL_TIME_MS` without any.
        max_event_time_ms: Greatest event time of these; `BEFORE_ALL_TIME_MS` without any.
        behind: Rows that were behind the frontier.
        max_behind_ms: Greatest event time of these; `BEFORE_ALL_TIME_MS` without any.
        size_bytes: Its size on disk.
        name: Its folder: that of the attempt at the step that counts.
        files: The names of its files, each with the number of all its rows. They stand beside the
            files, and not in the documents of steps: a run that is read from a document has none
            until they are looked up.
    """

    step: int
    rows: int
    min_event_time_ms: int
    max_event_time_ms: int
    behind: int = 0
    max_behind_ms: int = BEFORE_ALL_TIME_MS
    size_bytes: int = 0
    name: str = ""
    files: Mapping[str, int] = {}

    def to_stored(self) -> dict[str, Any]:
        fields = structs.asdict(self)
        del fields["files"]
        return fields

    @property
    def reach_ms(self) -> int:
        """Greatest usable event time in the run."""
        return max(self.max_event_time_ms, self.max_behind_ms)

    def held_bytes(self, frontier_ms: int) -> int:
        """Return the bytes that the run holds past a frontier: one held row keeps the whole run."""
        return self.size_bytes if self.is_live(frontier_ms) else 0

    def is_live(self, frontier_ms: int) -> bool:
        """Tell whether the run still holds rows once everything up to the frontier is out."""
        return self.rows > 0 and self.max_event_time_ms > frontier_ms

    def may_release(self, before_ms: int, frontier_ms: int) -> bool:
        """Tell whether rows of it may go out when the frontier moves from one time to another."""
        return before_ms < frontier_ms and (
            self.is_live(before_ms) and self.min_event_time_ms <= frontier_ms
        )


def least_frontier_ms(runs: Sequence[Run], most_bytes: int) -> int:
    """Return the smallest frontier past which runs hold no more bytes than may be held."""
    if sum(run.size_bytes for run in runs) <= most_bytes:
        return BEFORE_ALL_TIME_MS
    times = sorted({BEFORE_ALL_TIME_MS, *(run.max_event_time_ms for run in runs)})

    def fits(frontier_ms: int) -> bool:
        return sum(run.held_bytes(frontier_ms) for run in runs) <= most_bytes

    return times[bisect_left(times, x=True, key=fits)]
