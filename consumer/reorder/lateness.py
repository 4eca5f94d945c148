"""Late rows: the judge, the policies, and how far each key has been released.

Pure. Called by the jobs.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from sequitur.base.time_format import BEFORE_ALL_TIME_MS, MAX_EVENT_TIME_MS
from sequitur.consumer.reorder.event_time import LATE, NO_KEY, STALE, TOO_LARGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# What the reorder job is for, and what it does with a row that comes too late for it.


class ReorderMode(StrEnum):
    """Which rows the output topic gets, and when."""

    ORDERED = "ordered"
    """All rows, held until they can go out in event-time order."""

    LATEST = "latest"
    """For events that carry the full state of their key. Nothing is held: a row goes out if it is
    newer than the last released row of its key. Otherwise it is stale."""


class LatePolicy(StrEnum):
    """What the job does with late rows, in latest mode with stale ones. All count as late."""

    TOPIC = "topic"
    """Write them to the late topic, in latest mode the stale topic, with headers that say why."""

    EMIT = "emit"
    """Write them to the output topic with the same headers, before the rows that the step
    releases. Readers get rows out of order."""

    DROP = "drop"
    """Only count them."""

    FAIL = "fail"
    """End the job before a row of the step is out. A start under another policy resumes with the
    same rows."""


class Output(Enum):
    """Where rows of a step go."""

    RELEASED = auto()
    LATE = auto()
    QUARANTINE = auto()


class Route(NamedTuple):
    """What becomes of late rows."""

    output: Output | None  # None: nowhere
    ends_job: bool = False


ROUTES: Final[Mapping[LatePolicy, Route]] = MappingProxyType(
    {
        LatePolicy.TOPIC: Route(Output.LATE),
        LatePolicy.EMIT: Route(Output.RELEASED),
        LatePolicy.DROP: Route(None),
        LatePolicy.FAIL: Route(None, ends_job=True),
    }
)
"""Asked by whatever stages, accounts for and sends late rows: nobody asks for a policy itself."""


class DataLoss(StrEnum):
    """What the job does when rows are gone before it has read them."""

    FAIL = "fail"
    """End, and name them."""

    CONTINUE = "continue"
    """Count them as missing, and resume after them."""


# Sorted runs: the rows that steps staged, as the log knows them.


@dataclass(frozen=True, slots=True)
class Run:
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
        files: The names of its files, each with the number of its rows, whatever these are. They
            stand beside the files, and not in the documents of steps: a run that is read there has
            none until they are looked up.
    """

    step: int
    rows: int
    min_event_time_ms: int
    max_event_time_ms: int
    behind: int = 0
    max_behind_ms: int = BEFORE_ALL_TIME_MS
    size_bytes: int = 0
    name: str = ""
    files: Mapping[str, int] = field(default_factory=dict)

    def to_document(self) -> dict[str, int | str]:
        """Return it as a JSON document, but for its files."""
        return {
            "step": self.step,
            "rows": self.rows,
            "min_event_time_ms": self.min_event_time_ms,
            "max_event_time_ms": self.max_event_time_ms,
            "behind": self.behind,
            "max_behind_ms": self.max_behind_ms,
            "size_bytes": self.size_bytes,
            "name": self.name,
        }

    @property
    def reach_ms(self) -> int:
        """Greatest usable event time in it."""
        return max(self.max_event_time_ms, self.max_behind_ms)

    def held_bytes(self, frontier_ms: int) -> int:
        """Return its bytes if it holds rows behind a frontier: for one of them all are kept."""
        return self.size_bytes if self.is_live(frontier_ms) else 0

    def is_live(self, frontier_ms: int) -> bool:
        """Tell whether it still holds rows once everything up to the frontier is out."""
        return self.rows > 0 and self.max_event_time_ms > frontier_ms

    def may_release(self, before_ms: int, frontier_ms: int) -> bool:
        """Tell whether rows of it may go out when the frontier moves from one time to another."""
        return before_ms < frontier_ms and (
            self.is_live(before_ms) and self.min_event_time_ms <= frontier_ms
        )


def least_frontier_ms(runs: Sequence[Run], most_bytes: int) -> int:
    """Return the smallest frontier behind which runs hold no more bytes than may be held."""
    if sum(run.size_bytes for run in runs) <= most_bytes:
        return BEFORE_ALL_TIME_MS
    times = sorted({BEFORE_ALL_TIME_MS, *(run.max_event_time_ms for run in runs)})

    def fits(frontier_ms: int) -> bool:
        return sum(run.held_bytes(frontier_ms) for run in runs) <= most_bytes

    return times[bisect_left(times, x=True, key=fits)]


# How far each key has been released: what the reorder job keeps of it, and for how long.
#
# The *last released* event time of a key decides what becomes of a row behind the frontier: not
# older than it, and the row can still go out without breaking the order of its key.
#
# - **No state of its own to write.** All rows of the runs up to the frontier are out, so the last
# released event time of a key is the maximum over them. Late rows among them do no harm: they are
# older than that maximum, which is what made them late. So the runs are the newest part of the
# state, and nothing is written for it while nothing is late. - **Folds.** A run wholly behind the
# frontier is kept until there are enough such runs; then one *fold* takes the place of all of them:
# one row a key. Folds are merged with new ones while they are not much larger, as in a
# log-structured merge tree, so their number stays logarithmic. - **Horizon.** Keys silent for
# longer than a time to live (in event time, behind the frontier) are forgotten. A row behind that
# horizon is late whatever its key: so a key that was forgotten cannot be mistaken for a new one,
# and its order holds for ever. The horizon never goes back.
#
# Pure: what to fold is decided here, and done by whoever has the files.


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


@dataclass(frozen=True, slots=True)
class Fold:
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
    files: Mapping[str, int] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class KeyState:
    """The part of the state that is in folds.

    Attributes:
        horizon_ms: What was released behind it may be forgotten; rows behind it are late.
        folds: The folds, oldest first.
    """

    horizon_ms: int = BEFORE_ALL_TIME_MS
    folds: tuple[Fold, ...] = ()

    @property
    def keys(self) -> int:
        """Rows in all folds: the keys, counted once in each fold they are in."""
        return sum(fold.keys for fold in self.folds)

    @property
    def size_bytes(self) -> int:
        """Size of all folds on disk."""
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
        """Move the horizon behind the frontier, and let go of folds that lie wholly behind it."""
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
        """Return the state once a fold has taken the place of others."""
        kept = tuple(old for old in self.folds if old not in upkeep.folds)
        return replace(self, folds=(*kept, fold) if fold.keys else kept)

    def to_document(self) -> dict[str, Any]:
        """Return the state as a JSON document."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        return cls(
            horizon_ms=document["horizon_ms"],
            folds=tuple(Fold(**fold) for fold in document["folds"]),
        )


def _are_enough(waiting: Sequence[Run], limits: FoldLimits) -> bool:
    return (
        len(waiting) >= limits.runs
        or _rows_of(waiting) >= limits.rows
        or sum(run.size_bytes for run in waiting) >= limits.size_bytes
    )


def _rows_of(runs: Sequence[Run]) -> int:
    return sum(run.rows + run.behind for run in runs)


# The late judge: which rows are on time, behind the frontier, rescued, late, stale, quarantined.
#
# Every path of the job asks here, at three places on a row's way:
#
# 1. When it is staged (`staging_rules`): it is quarantined, behind the frontier, or on time.
# 2. When it is behind the frontier and how far its key is released has been looked up
#    (`LateJudge.is_late`): it is late, in latest mode stale; or it goes out after all.
# 3. When it goes to the late topic (`late_against`): what it is late against, and so by how much.
#
# The rules are written in `<`, `<=`, `&`, `|` and `~`, for whole arrays at once: the tasks that ask
# have no rules of their own. A number that is missing is never compared: a mask beside it says
# where it is known.


Numbers: TypeAlias = Any
"""A numpy array of numbers."""
Mask: TypeAlias = Any
"""A numpy array of booleans."""
Reasons: TypeAlias = Any
"""The name of a reason, or what stands for names row by row: an array of codes."""


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
    """Tell which rows are behind the frontier; one at exactly the frontier is on time."""
    return event_time_ms < frontier_ms


def late_against(frontier_ms: Numbers, last_released_ms: Numbers) -> Mapping[str, Numbers]:
    """Return what the rows of each reason are late against: they are older by the difference.

    Args:
        frontier_ms: The frontier when they were staged.
        last_released_ms: The last event time released of their keys.
    """
    return {LATE: frontier_ms, STALE: last_released_ms}


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
        """The reason of rows that do not pass."""
        return STALE if self.mode is ReorderMode.LATEST else LATE

    def behind_ms(self, frontier_ms: int) -> int:
        """Return the event time that rows are behind of: the frontier; in latest mode all rows are.

        All rows of earlier steps up to it are out.

        Args:
            frontier_ms: The frontier before the step.
        """
        return MAX_EVENT_TIME_MS if self.mode is ReorderMode.LATEST else frontier_ms

    def asks_key(self, event_time_ms: Numbers) -> Mask:
        """Tell for which rows it matters what was released of their keys; others may be unknown."""
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
