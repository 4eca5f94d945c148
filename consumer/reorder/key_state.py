"""How far each key has been released: what the reorder job keeps of it, and for how long.

The *last released* event time of a key decides about a row behind the frontier. If the row is not
older, it can still go out without breaking the order of its key.

- **No state of its own to write.** All rows of the runs up to the frontier are out, so the last
  released event time of a key is the maximum over them. Late rows among them do no harm: they are
  older than that maximum, which is what made them late. So the runs are the newest part of the
  state, and nothing is written for it while nothing is late.
- **Folds.** A run wholly behind the frontier is kept until there are enough such runs. Then one
  *fold* takes the place of all of them: one row a key. Folds are merged with new ones while they
  are not much larger, as in a log-structured merge tree, so their number stays logarithmic.
- **Horizon.** Keys silent for longer than a time to live (in event time, behind the frontier) are
  forgotten. A row behind that horizon is late whatever its key. So a key that was forgotten cannot
  be mistaken for a new one, and its order holds for ever. The horizon never goes back.

Pure: what to fold is decided here; `sequitur.pipelines.ordering.key_history` has the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from sequitur.base.time_format import BEFORE_ALL_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.reorder.sorted_run import Run


_MERGE_RATIO: Final = 2
"""A fold is merged with new ones that are at least this part of its size, one half."""


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """When runs are folded: once they are so many, or so large together.

    What folding costs is then spread over many steps, and what waits is bounded. Small runs are
    folded while the driver still does so by itself, of rows that it has in memory.

    Attributes:
        runs: Number of runs.
        rows: Rows of all of them.
        size_bytes: Bytes of all of them.
        small_bytes: Bytes of all those that are smaller than this each.
    """

    runs: int = 64
    rows: int = 8_000_000
    size_bytes: int = 1 << 30
    small_bytes: int = 16 << 20


FOLD_LIMITS: Final = FoldLimits()
"""Those of a job."""


class KeyState(Struct, frozen=True):
    """The part of the state that is in folds.

    Attributes:
        horizon_ms: What was released behind it may be forgotten; rows behind it are late.
        folds: The folds, oldest first.
    """

    horizon_ms: int = BEFORE_ALL_TIME_MS
    folds: tuple[Fold, ...] = ()

    @property
    def keys(self) -> int:
        """Number of rows in all folds; a key in several folds counts once in each."""
        return sum(fold.keys for fold in self.folds)

    @property
    def size_bytes(self) -> int:
        return sum(fold.size_bytes for fold in self.folds)

    def lookup(self, earlier: Sequence[Run], *, first_behind_ms: int) -> KeyLookup:
        """Return what to read to judge the rows that a step found behind the frontier.

        Args:
            earlier: The runs of earlier steps.
            first_behind_ms: The smallest event time of these rows.
        """
        after_ms = max(first_behind_ms, self.horizon_ms)
        return KeyLookup(
            runs=tuple(run for run in earlier if run.reach_ms >= after_ms),
            folds=tuple(fold for fold in self.folds if fold.max_event_time_ms >= after_ms),
            after_ms=after_ms,
            horizon_ms=self.horizon_ms,
        )

    def expire(self, *, frontier_ms: int, ttl_ms: int) -> Self:
        """Move the horizon behind the frontier, and drop folds that lie wholly behind it."""
        horizon_ms = max(self.horizon_ms, frontier_ms - ttl_ms)
        kept = tuple(fold for fold in self.folds if fold.max_event_time_ms >= horizon_ms)
        return replace(self, horizon_ms=horizon_ms, folds=kept)

    def upkeep(self, waiting: Sequence[Run], limits: FoldLimits = FOLD_LIMITS) -> Upkeep | None:
        """Return what to fold now, None when it is too early.

        Args:
            waiting: The runs that lie wholly behind the frontier.
            limits: When it is time.
        """
        if not _are_enough(waiting, limits):
            waiting = [run for run in waiting if run.size_bytes < limits.small_bytes]
            if sum(run.size_bytes for run in waiting) < limits.small_bytes:
                return None
        rows = _rows_of(waiting)
        merged: list[Fold] = []
        for fold in reversed(self.folds):
            if fold.keys > _MERGE_RATIO * rows:
                break
            merged.append(fold)
            rows += fold.keys
        return Upkeep(tuple(waiting), tuple(reversed(merged)))

    def with_fold(self, fold: Fold, upkeep: Upkeep) -> Self:
        kept = tuple(old for old in self.folds if old not in upkeep.folds)
        return replace(self, folds=(*kept, fold) if fold.keys else kept)


class Fold(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of keys, each with its last released event time.

    Attributes:
        step: The step that wrote it.
        keys: Number of keys in it.
        size_bytes: Its size on disk.
        max_event_time_ms: The greatest event time in it.
        name: Its folder: that of the attempt at the step that counts.
        files: The names of its files, each with the number of its keys.
    """

    step: int
    keys: int
    size_bytes: int
    max_event_time_ms: int
    name: str = ""
    files: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """What has to be read to judge rows behind the frontier: nothing older than all of them.

    Attributes:
        runs: Runs of earlier steps.
        folds: Folds.
        after_ms: Of both, only rows from this event time on matter.
        horizon_ms: What was released before it may be forgotten.
    """

    runs: tuple[Run, ...]
    folds: tuple[Fold, ...]
    after_ms: int
    horizon_ms: int


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What to put into one new fold.

    Attributes:
        runs: Runs wholly behind the frontier.
        folds: Earlier folds.
    """

    runs: tuple[Run, ...]
    folds: tuple[Fold, ...]


def _are_enough(waiting: Sequence[Run], limits: FoldLimits) -> bool:
    return (
        len(waiting) >= limits.runs
        or _rows_of(waiting) >= limits.rows
        or sum(run.size_bytes for run in waiting) >= limits.size_bytes
    )


def _rows_of(runs: Sequence[Run]) -> int:
    return sum(run.rows + run.behind for run in runs)
