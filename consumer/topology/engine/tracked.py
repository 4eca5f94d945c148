"""Tuples with their tracking: the trees they belong to, and the task they were delivered to.

A bolt sees the `Tuple` that each of them is. What is added here is the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from sequitur.consumer.topology.api.tuple import Event, Tuple
from sequitur.consumer.topology.settling.made_tuple import is_made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology.api.tuple import Place, Stream
    from sequitur.consumer.topology.settling.root import Root

ACKED: Final = "acked"
FAILED: Final = "failed"


class TrackedTuple(Tuple, eq=False):
    """A tuple of one tree."""

    root: Root  # the root of its tree; of a multi-anchored tuple, of its first tree
    edge: int
    # the tuple it was emitted for; the path of components if that tuple was of another task; None
    # for the spout's
    parent: Any
    owner: Any  # the runner of the task it was delivered to; `ACKED` or `FAILED` from then on

    more: ClassVar[tuple[tuple[Root, int], ...]] = ()
    """Further trees it belongs to: see `MultiAnchoredTuple`."""

    @property
    def place(self) -> Place:
        """See `Tuple`."""
        return self.root.place

    @property
    def places(self) -> tuple[Place, ...]:
        """See `Tuple`."""
        return tuple(root.place for root, _ in self.trees())

    @property
    def attempt(self) -> int:
        """See `Tuple`."""
        return max(root.attempt for root, _ in self.trees())

    @property
    def event_time_ms(self) -> int:
        """See `Tuple`."""
        time_ms: int = max(root.event[3] for root, _ in self.trees())
        return time_ms

    @property
    def event_key(self) -> bytes | None:
        """See `Tuple`."""
        return None if is_made(self.root.event) else self.root.key

    def trees(self) -> tuple[tuple[Root, int], ...]:
        """Return the roots of its trees, each with its edge there."""
        return ((self.root, self.edge), *self.more)

    def path(self) -> tuple[str, ...]:
        """Return the components it came through, the spout first."""
        path = [self.declared.component]
        parent = self.parent
        while parent is not None:
            if isinstance(parent, tuple):  # of another task
                path.extend(reversed(parent))
                break
            path.append(parent.declared.component)
            parent = parent.parent
        return tuple(reversed(path))


class TrackedEvent(TrackedTuple, Event, eq=False):
    """A tuple of the ordered stream."""


class BatchEvent(TrackedTuple, Event, eq=False):
    """An event in a transactional topology, where it stands behind its transaction."""

    @property
    def key(self) -> bytes | None:
        """See `Event`."""
        key: bytes | None = self.values[1]
        return key

    @property
    def value(self) -> bytes | None:
        """See `Event`."""
        value: bytes | None = self.values[2]
        return value

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """See `Event`."""
        headers: Sequence[tuple[str, bytes | None]] = self.values[3] or ()
        return headers


class MultiAnchoredTuple(TrackedTuple, eq=False):
    """A tuple of several trees."""

    more: tuple[tuple[Root, int], ...] = ()  # type: ignore[misc]


def multi_anchored(
    values: Any, stream: Stream, trees: Sequence[tuple[Root, int]], parent: Any, owner: Any
) -> MultiAnchoredTuple:
    """Make a tuple of these trees."""
    root, edge = trees[0]
    return MultiAnchoredTuple(values, stream, root, edge, parent, owner, tuple(trees[1:]))
