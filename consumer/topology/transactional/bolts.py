"""Bolts of transactional topologies: each batch has an instance of its own in each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.bolt import BatchBolt, TopologyContext
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM
from sequitur.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.tuple import Tuple
    from sequitur.consumer.topology.state.map_state import MapState
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


class Committer:
    """Marks a `BatchBolt` whose `finish_batch` is called in the commit phase.

    Commit phases of batches come one after the other, in the order of their transaction ids. A
    bolt that is added by `TransactionalTopologyBuilder.set_committer_bolt` needs no mark.
    """


class BatchOutputCollector:
    """The collector of a batch bolt: anchors to the tuple that is processed, which is then acked.

    What is emitted in `finish_batch` belongs to the batch: if it fails, this try at the batch does.

    Args:
        runner: What runs the bolt's task.
    """

    __slots__ = ("_runner",)

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def emit(
        self, values: Any, stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[TaskId]:
        """Emit a tuple.

        Args:
            values: In the order of the stream's fields, or by field; the first is the batch's
                `TransactionAttempt`.
            stream: The stream.
            task: Of a direct stream, the number of the task that is to get it.

        Returns:
            The tasks that get it; outputs are none.

        Raises:
            EmitError: The bolt has not declared the stream or the fields, or the first value is
                not the batch's `TransactionAttempt`.
        """
        found: list[TaskId] = self._runner.emit(values, self._runner.anchors(), stream, task)
        return found

    def emit_many(
        self, values: Iterable[Any], stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[list[TaskId]]:
        """Emit a tuple for each of some values; see `emit`."""
        return [self.emit(one, stream, task) for one in values]


@dataclass(slots=True)
class TransactionContext(TopologyContext):
    """Where a bolt runs in a transactional topology.

    Attributes:
        states: The states of a committer, by name, while its `finish_batch` runs; None otherwise.
    """

    states: Mapping[str, MapState] | None = None

    def state(self, name: str) -> MapState:
        """Return a state that the bolt was added with; in `finish_batch` of a committer only.

        Args:
            name: By which name it was given to the builder.

        Raises:
            StateError: There is none of that name, or this is not a committer's `finish_batch`.
        """
        where = f"bolt {self.component!r}, state {name!r}"
        if self.states is None:
            raise StateError(f"{where}: a state is used in finish_batch of a committer alone")
        if name not in self.states:
            has = ", ".join(sorted(self.states)) or "none"
            raise StateError(f"{where}: it was not added with such a state; it has: {has}")
        return self.states[name]


class BaseTransactionalBolt(BatchBolt):
    """A bolt with an instance for each batch: it gathers in `process`, and emits at the end.

    Tuples are anchored and acked for it. An exception out of `process` fails the event that the
    tuple is derived from; out of `finish_batch`, this try at the batch.
    """

    context: TransactionContext
    collector: BatchOutputCollector  # type: ignore[assignment]  # of its own kind, for batches

    def prepare(  # type: ignore[override]  # called with a batch's transaction, as Storm's is
        self,
        context: TransactionContext,
        collector: BatchOutputCollector,
        transaction: TransactionAttempt,
    ) -> None:
        """Begin a batch.

        Args:
            context: Where the bolt runs.
            collector: What to emit by.
            transaction: The try at the batch's transaction.
        """
        self.context = context
        self.collector = collector
        self.transaction = transaction

    def process(self, tuple: Tuple, /) -> Any:  # noqa: A002 - the field's word
        """Take a tuple of the batch in."""

    def finish_batch(self) -> None:
        """All tuples of the batch have been given; of a committer, it is the batch's turn."""
