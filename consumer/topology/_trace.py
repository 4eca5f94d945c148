"""What is told of trees while they grow: who emitted what, anchors, acks, the value after each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.topology._bolt import TopologyContext
    from consumer.topology._tuple import Failure, Root, Tuple


class Trace(Protocol):
    """Is told of each step of each tree; the roots' values are those after it."""

    def given_out(self, root: Root, made: Tuple) -> None:
        """The spout gave a tuple to a task."""

    def emitted(self, by: TopologyContext, anchors: Sequence[Tuple], made: Tuple) -> None:
        """A bolt emitted a tuple to a task."""

    def written(
        self, by: TopologyContext, anchors: Sequence[Tuple], output: str, record: Any
    ) -> None:
        """A bolt emitted a tuple to an output."""

    def acked(self, by: TopologyContext, given: Tuple) -> None:
        """A bolt acked a tuple."""

    def failed(self, by: TopologyContext, given: Tuple, failure: Failure) -> None:
        """A bolt failed a tuple."""
