"""What a step staged, and how far it moves the frontier: all that needs nothing of the step before.

A step is written down twice. As a `StagedStep` once its rows are staged, while the step before may
still be at work: from then on the rows are the job's, whatever becomes of its input. As a
`StepEntry` once the step before is done: what is late, what is a duplicate, what is folded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sequitur.consumer.lateness.runs import Run
from sequitur.consumer.step_log.step_fields import Step, shared_fields
from sequitur.consumer.time.clock import BEFORE_ALL_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep(Step):
    """A step whose rows are staged, and of which nothing else is decided.

    Whoever creates its document decides the step's number: of two drivers one stops here. Of the
    rows that it counts those behind the frontier count as late.

    Attributes:
        run: The run its rows are in; None without new rows.
        first_behind_ms: Smallest event time of the rows behind the frontier, if there are any.
    """

    run: Run | None = None
    first_behind_ms: int = BEFORE_ALL_TIME_MS

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            **self.shared_document(),
            "run": None if self.run is None else self.run.to_document(),
            "first_behind_ms": self.first_behind_ms,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Written by something else, or by a newer version.
        """
        shared, run = shared_fields(document), document["run"]
        return cls(
            **shared,
            run=None if run is None else Run(**run),
            first_behind_ms=document["first_behind_ms"],
        )
