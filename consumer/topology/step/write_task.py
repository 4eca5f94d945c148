"""A task that writes what a trial of the commit phase has computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sequitur.consumer.topology.engine.transactions import writer_of
from sequitur.consumer.topology.state.committer_states import check_session
from sequitur.consumer.topology.transactional.phase import BatchOutcome, Cause
from sequitur.errors import (
    StateConflictError,
    StateUnavailableError,
    StateValueError,
)

if TYPE_CHECKING:
    from sequitur.consumer.topology.state.committer_states import AllChanges
    from sequitur.consumer.topology.step.batch import StepBatch


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes what a committer's task has computed."""

    batch: StepBatch  # what all tasks share
    component: str
    task: int
    changes: AllChanges

    def __call__(self) -> BatchOutcome:
        """Write it, to each database in turn."""
        outcome, transaction = BatchOutcome(), self.batch.transaction
        assert transaction is not None
        writer = writer_of(self.batch.topology.name, transaction, self.component, self.task)
        try:
            for store, changes in self.changes.items():
                session = store.session(writer)
                check_session(store, session, writer)
                if session.is_repeat:
                    said = f"{writer.title}: an earlier try was committed in {store.title}"
                    outcome.fail(self.component, Cause.UNAVAILABLE, f"{said}: repeat the commit")
                    break
                session.commit(changes)
                session.close()
        except StateUnavailableError as error:
            outcome.fail(self.component, Cause.UNAVAILABLE, str(error))
        except (StateConflictError, StateValueError) as error:
            outcome.fail(self.component, Cause.RAISED, str(error))
        return outcome
