"""What a step staged, and how far it moves the frontier: all that needs nothing of the step before.

A step is written down twice. As a `StagedStep` once its rows are staged, while the step before may
still be at work: from then on the rows are the job's, whatever becomes of its input. As a
`StepEntry` once the step before is done: what is late, what is a duplicate, what is folded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from sequitur.consumer.lateness.runs import Run
from sequitur.consumer.step_log.step_fields import shared_document, shared_fields
from sequitur.consumer.step_log.step_format import STEP_FORMAT, check_format
from sequitur.consumer.step_log.totals import Totals
from sequitur.consumer.time.adaptive_delay import LearnedDelays
from sequitur.consumer.time.clock import BEFORE_ALL_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.step_log.step_fields import StepKind
    from sequitur.consumer.time.clock import EventClock, SourcePartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep:
    """A step whose rows are staged, and of which nothing else is decided.

    Whoever creates its document decides the step's number: of two drivers one stops here.

    Attributes:
        step: Number of the step, from 0, without a gap.
        kind: What made it.
        batch_id: Spark's id of the newest micro-batch up to this step; -1 before the first.
        previous_frontier_ms: The frontier before; rows are late against this one.
        clock: The clocks after, with the frontier that this step releases up to.
        staged: Counts of the rows it read; those behind the frontier count as late.
        run: The run they are in; None without new rows.
        first_behind_ms: Smallest event time of the rows behind the frontier, if there are any.
        learned: What the delays of this and the following step come from; None with a fixed delay.
        owner: Owner generation of the driver's life that staged it.
        source: Name of the folder with Spark's own checkpoint.
        planned: Where `batch_id` ends in each source partition, as Spark planned it: a repeat of
            that batch has to have the same.
        topics: Ids of the input topics that have been read, by name, where brokers give them ids.
        lost: Of each source partition that lost rows before they were read, the first offset of
            these and the one behind the last.
    """

    step: int
    kind: StepKind
    batch_id: int
    previous_frontier_ms: int
    clock: EventClock
    staged: Totals = field(default_factory=Totals)
    run: Run | None = None
    first_behind_ms: int = BEFORE_ALL_TIME_MS
    learned: LearnedDelays | None = None
    owner: int = 0
    source: str = "spark"
    planned: Mapping[SourcePartition, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[SourcePartition, tuple[int, int]] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "format": STEP_FORMAT,
            **shared_document(self),
            "run": None if self.run is None else asdict(self.run),
            "first_behind_ms": self.first_behind_ms,
            "learned": None if self.learned is None else self.learned.to_document(),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        check_format(document)
        run, learned = document["run"], document["learned"]
        return cls(
            **shared_fields(document),
            run=None if run is None else Run(**run),
            first_behind_ms=document["first_behind_ms"],
            learned=None if learned is None else LearnedDelays.from_document(learned),
        )
