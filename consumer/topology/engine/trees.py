"""What holds for the tuple trees of one executor while they grow.

A tree fails once, by the first failure that is reported, and late acks of it are counted. Under
`ordering = "key"` an event that will be tried again blocks its key: later tuples of that key are
not given to bolts any more, and their events are held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.engine.rules import Ordering

if TYPE_CHECKING:
    from sequitur.consumer.dead_letters import FailReason
    from sequitur.consumer.topology.api.failure import TreeFailure
    from sequitur.consumer.topology.engine.rules import Rules
    from sequitur.consumer.topology.engine.tracked import TrackedTuple
    from sequitur.consumer.topology.settling.root import Order, Root


class TreeTracker:
    """Fails trees, and holds back events behind those that failed."""

    __slots__ = (
        "_keeps_order", "_policy", "blocked", "current", "event", "late_acks",
        "untracked_failures",
    )  # fmt: skip

    def __init__(self, rules: Rules, event: Any) -> None:
        self.current: Root | None = None
        self.event = event
        self.blocked: dict[bytes, Order] = {}
        self.late_acks = 0
        self.untracked_failures = 0
        self._policy = rules.retry
        self._keeps_order = rules.ordering is Ordering.KEY

    def begin(self, root: Root, values: Any) -> None:
        """Begin to follow an event."""
        self.current, self.event = root, values

    def end(self) -> None:
        """End following it: what is still to be acked, bolts or other tasks hold."""
        self.current = None

    def receive(self, event: Any) -> None:
        """Begin to follow a tuple of another process."""
        self.event = event

    def ack(self, given: TrackedTuple) -> None:
        """Ack a tuple: XOR its edges into its trees."""
        for root, edge in given.trees():
            root.value ^= edge
            if root.failure is not None:
                self.late_acks += 1

    def fail(self, root: Root, failure: TreeFailure) -> None:
        """Fail a tree; the first failure stays."""
        if not root.is_tracked:
            self.untracked_failures += 1
            return
        if root.failure is None:
            root.failure = failure
            if not self._policy.gives_up(root.attempt, failure.reason):
                self.block(root.key, root.order)

    def gives_up(self, root: Root, reason: FailReason) -> bool:
        """Return whether an event that fails now has no further attempt."""
        return self._policy.gives_up(root.attempt, reason)

    def count_late_ack(self) -> None:
        """Count the ack of a call that was ended or given up."""
        self.late_acks += 1

    def is_wanted(self, given: TrackedTuple) -> bool:
        """Return whether a tuple is to be given to its bolt.

        It is not when all its trees have failed; and not when an earlier event of its key has
        failed, for then its events are held.
        """
        if given.root.failure is None and not self.blocked:
            return True
        trees = given.trees()
        if all(root.failure is not None for root, _ in trees):
            return False
        if not self.blocked:
            return True
        if not any(root.is_tracked and self.is_blocked(root.key, root.order) for root, _ in trees):
            return True
        for root, _ in trees:
            if root.failure is None and root.is_tracked:
                root.is_held = True
                self.block(root.key, root.order)
        return False

    def block(self, key: bytes | None, order: Order) -> None:
        """Hold events of a key that are later than one which waits."""
        if self._keeps_order and key is not None:
            self.blocked[key] = min(order, self.blocked.get(key, order))

    def is_blocked(self, key: bytes | None, order: Order) -> bool:
        """Return whether an event is behind an earlier one of its key that waits."""
        before = None if key is None else self.blocked.get(key)
        return before is not None and order > before
