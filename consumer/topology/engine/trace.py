"""Reports each step of tuple trees while they grow: emits with their anchors, acks, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.failure import TreeFailure
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.emission import Sent
    from sequitur.consumer.topology.engine.tracked import TrackedTuple
    from sequitur.consumer.topology.settling.root import Root


class Trace(Protocol):
    """Gets each step of each tree; the roots' values are those after the step.

    Each task has a root of its own for a tree, with what it knows of it.
    """

    def begun(self, root: Root, values: tuple[Any, ...]) -> None:
        """An event is about to be fed."""

    def given_out(self, root: Root, made: TrackedTuple) -> None:
        """The spout emitted a tuple to a task."""

    def emitted(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], made: TrackedTuple
    ) -> None:
        """A bolt emitted a tuple to a task."""

    def sent(  # noqa: PLR0917 - each is of a type of its own
        self,
        by: TopologyContext | None,
        anchors: Sequence[TrackedTuple],
        parent: TrackedTuple | None,
        stream: Stream,
        sent: Sent,
        to: TaskId,
    ) -> None:
        """A bolt emitted a tuple to a task that runs elsewhere; where `by` is None, the spout did.

        Its parent is the tuple that it was emitted for, also without an anchor.
        """

    def received(self, sent: Sent, made: TrackedTuple) -> None:
        """A tuple that was sent has come to its task."""

    def written(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], output: str, record: Any
    ) -> None:
        """A bolt emitted a tuple to an output."""

    def acked(self, by: TopologyContext, given: TrackedTuple) -> None:
        """A bolt acked a tuple."""

    def failed(self, by: TopologyContext, given: TrackedTuple, failure: TreeFailure) -> None:
        """A bolt failed a tuple."""
