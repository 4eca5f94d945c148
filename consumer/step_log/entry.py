"""The log of the reorder job: what each step staged, how far it moved the frontier, what is held.

A *step* is a micro-batch, a tick (no new rows, but time has passed), a drain, or a reset of Spark's
own part (which reads nothing, and begins batches anew behind what was read). It is written as a
`StagedStep` once its rows are staged, which may be while the step before is still at work. Its
`StepEntry` is written once the step before is done, and before anything of the step goes out; a
repeat of the step reads it back instead of computing anew: so a restart never reopens released
time, and a repeat gives the same rows. What went out is written afterwards as `StepDone`.

Which rows a step releases, with F the frontier before and G after it:

- of runs staged by earlier steps: F < t <= G. Rows at F went out when F was reached.
- of the run staged by this step: F <= t <= G. A row at F that comes later is on time, and no row
  after F is out yet, so it goes out now without breaking the order.

A row of this step with t < F is *behind the frontier*. With `keys` in the entry it is judged by the
last released event time of its key (`sequitur.consumer.lateness.key_state`), and either rescued,
which releases it in this step, before everything else, or late. Without, it is late. What was
judged stands in a file of the step, written before the entry.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from sequitur.consumer.lateness.key_state import KeyState
from sequitur.consumer.lateness.policy import ROUTES, LatePolicy
from sequitur.consumer.lateness.runs import Run
from sequitur.consumer.step_log.step_fields import Step, shared_fields
from sequitur.consumer.step_log.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.lateness.policy import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntry(Step):
    """What a step decided, written before it acts.

    Attributes:
        runs: The runs that hold rows to release now or later, this step's own last.
        before: Counts of all earlier steps.
        logged_ms: Wall-clock time at which that was decided.
        late_policy: What becomes of its late rows.
        rescued: Rows behind the frontier that go out after all, None when none were judged: then
            all of them are late.
        keys: How far keys have been released, None when that is not kept.
        deduplicated_ms: Rows not older than this are searched for the originals of duplicates; None
            when duplicates are not looked for.
        duplicates: Rows that this step drops as duplicates, whichever step read them.
        judged: Files of the rows behind the frontier, judged, and the rows of each.
        repeats: Files of the places of the duplicates, likewise.
        name: Name of the folders that this attempt at deciding has written.
    """

    runs: tuple[Run, ...]
    before: Totals
    logged_ms: int
    late_policy: LatePolicy = LatePolicy.TOPIC
    rescued: int | None = None
    keys: KeyState | None = None
    deduplicated_ms: int | None = None
    duplicates: int = 0
    judged: Mapping[str, int] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def of(cls, staged: Step, **decided: Any) -> Self:
        """Return the entry of a step that was staged, with what was decided since."""
        shared = {one.name: getattr(staged, one.name) for one in fields(Step)}
        return cls(**{**shared, **decided})

    @property
    def frontier_ms(self) -> int:
        """The frontier this step releases up to, itself included."""
        return self.clock.frontier_ms

    @property
    def reach_ms(self) -> int:
        """Greatest event time that was staged up to this step."""
        folds = () if self.keys is None else self.keys.folds
        return max(
            self.frontier_ms,
            self.clock.max_event_time_ms,
            *(run.reach_ms for run in self.runs),
            *(fold.max_event_time_ms for fold in folds),
        )

    @property
    def live_runs(self) -> tuple[Run, ...]:
        """The runs that still hold rows once this step is done."""
        return tuple(run for run in self.runs if run.is_live(self.frontier_ms))

    @property
    def folding_runs(self) -> tuple[Run, ...]:
        """The runs without rows to release that still say how far their keys have been."""
        keys = self.keys
        if keys is None:
            return ()
        return tuple(
            run
            for run in self.runs
            if not run.is_live(self.frontier_ms)
            and run.rows + run.behind
            and run.reach_ms >= keys.horizon_ms
            and not self._holds_originals(run)
        )

    @property
    def kept_runs(self) -> tuple[Run, ...]:
        """The runs that later steps need."""
        folding = self.folding_runs
        return tuple(
            run
            for run in self.runs
            if run.is_live(self.frontier_ms) or run in folding or self._holds_originals(run)
        )

    def _holds_originals(self, run: Run) -> bool:
        """Tell whether a duplicate may still come of a row in this run."""
        return self.deduplicated_ms is not None and run.reach_ms >= self.deduplicated_ms

    @property
    def releasing_earlier(self) -> tuple[Run, ...]:
        """Runs of earlier steps that may have rows in previous frontier < t <= frontier."""
        return tuple(
            run
            for run in self.runs
            if run.step != self.step
            and run.may_release(self.previous_frontier_ms, self.frontier_ms)
        )

    @property
    def releasing_own(self) -> Run | None:
        """This step's run if it has rows in previous frontier <= t <= frontier."""
        for run in self.runs:
            if run.step == self.step and run.rows and run.min_event_time_ms <= self.frontier_ms:
                return run
        return None

    def to_document(self) -> dict[str, Any]:
        """Return the entry as a JSON document."""
        return {
            **self.shared_document(),
            "frontier_ms": self.frontier_ms,
            "runs": [run.to_document() for run in self.runs],
            "before": asdict(self.before),
            "logged_ms": self.logged_ms,
            "late_policy": self.late_policy.value,
            "rescued": self.rescued,
            "keys": None if self.keys is None else self.keys.to_document(),
            "deduplicated_ms": self.deduplicated_ms,
            "duplicates": self.duplicates,
            "judged": dict(self.judged),
            "repeats": dict(self.repeats),
            "name": self.name,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        shared, keys = shared_fields(document), document["keys"]
        return cls(
            **shared,
            runs=tuple(Run(**run) for run in document["runs"]),
            before=Totals(**document["before"]),
            logged_ms=document["logged_ms"],
            late_policy=LatePolicy(document["late_policy"]),
            rescued=document["rescued"],
            keys=None if keys is None else KeyState.from_document(keys),
            deduplicated_ms=document["deduplicated_ms"],
            duplicates=document["duplicates"],
            judged=document["judged"],
            repeats=document["repeats"],
            name=document["name"],
        )


def late_rows_to(output: Output, entry: StepEntry) -> int:
    """Return how many of a step's late rows go there."""
    return entry.staged.late if ROUTES[entry.late_policy].output is output else 0
