"""The trees of events that an executor was fed, until it is known what became of them.

Where no tuple leaves the process, that is known when the batch is finished: each tree is done, is
tried again, is held, or is dead. Elsewhere the ackers find it out, by the roots that are left here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sequitur.consumer.topology.engine.rules import Ordering
from sequitur.consumer.topology.settling.root import never_acked
from sequitur.consumer.topology.settling.settlement import EventOutcome, settle_roots

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sequitur.consumer.topology.engine.rules import Rules
    from sequitur.consumer.topology.engine.trees import TreeTracker
    from sequitur.consumer.topology.settling.root import Root

_OPEN_AT_ONCE: Final = 1 << 12


class UnfinishedEvent(NamedTuple):
    """An event that is not done, and what follows."""

    root: Root
    outcome: EventOutcome  # whether it is tried again, is held, or is dead
    attempts: int  # how often it has been tried; an attempt in which it was held does not count
    # it is not to run before; 0 for as soon as no earlier event of its key waits
    retry_at_ms: int = 0


class OpenTrees:
    """The roots that an executor was fed."""

    def __init__(
        self,
        trees: TreeTracker,
        rules: Rules,
        *,
        spout: str,
        shared: list[tuple[Root, ...]],
        is_whole: bool,
        now_ms: int,
        random: float,
        awaited: Collection[Root] = (),
    ) -> None:
        self.acked = 0
        self.unfinished: list[UnfinishedEvent] = []
        self._trees = trees
        self._rules = rules
        self._spout = spout
        self._shared = shared
        self._is_whole = is_whole
        self._now_ms = now_ms
        self._random = random
        self._awaited = awaited
        self._open: list[Root] = []
        self._failed: list[Root] = []

    @property
    def is_empty(self) -> bool:
        """Whether none is open."""
        return not (self._open or self._shared)

    @property
    def roots(self) -> Sequence[Root]:
        """The roots of open trees, with what is known of each here."""
        return self._open

    def hold(self, root: Root) -> None:
        """Hold an event that is not fed, since an earlier one of its key waits."""
        root.is_held = True
        self.unfinished.append(UnfinishedEvent(root, EventOutcome.HELD, root.attempt - 1))

    def add(self, root: Root, values: Any) -> None:
        """Add a root whose event was followed as far as it goes here for now."""
        if not self._is_whole:
            # What of it is elsewhere is not known here: it stays open to the end, without payload.
            root.event = (values[0], None, (), *values[3:7], 0)
            self._open.append(root)
            return
        if root.failure is not None or root.is_held:
            self._failed.append(root)
            return
        # Should an earlier event of its key fail yet, it is held, though it be done.
        self._open.append(root)
        if len(self._open) >= _OPEN_AT_ONCE and not self._shared and self._is_done(self._open[0]):
            # Those behind the first that is open may yet be held by it.
            opened = (place for place, one in enumerate(self._open) if not self._is_done(one))
            done = next(opened, len(self._open))
            self.acked += done
            del self._open[:done]

    def _is_done(self, root: Root) -> bool:
        return root.is_done and root not in self._awaited

    @property
    def is_full(self) -> bool:
        """Whether so many trees are open that the batch has to be finished first."""
        most = self._rules.max_spout_pending
        return self._is_whole and most is not None and len(self._open) >= most

    def settle(self) -> None:
        """Decide what becomes of each event, now that bolts hold no tuple any more."""
        for root in self._open:
            is_open = root.value != 0 and root.failure is None and not root.is_held
            if is_open and root.is_tracked:
                self._trees.fail(root, never_acked(self._spout))
        roots = [root for root in (*self._failed, *self._open) if root.is_tracked]
        self.acked += len(self._failed) + len(self._open) - len(roots)
        if all(root.is_done for root in roots):
            self.acked += len(roots)
        else:
            self._settle(sorted(roots, key=lambda root: root.order))
        self._open.clear()
        self._failed.clear()
        self._shared.clear()

    def _settle(self, roots: Sequence[Root]) -> None:
        settled = settle_roots(
            roots,
            self._shared,
            now_ms=self._now_ms,
            policy=self._rules.retry,
            random=self._random,
            keeps_order=self._rules.ordering is Ordering.KEY,
        )
        columns = settled.outcomes, settled.attempts, settled.retry_at_ms
        for root, outcome, attempts, retry_at_ms in zip(
            roots, *(column.tolist() for column in columns), strict=True
        ):
            if outcome == EventOutcome.DONE:
                self.acked += 1
                continue
            if outcome == EventOutcome.HELD:
                root.is_held = True
            if outcome != EventOutcome.DEAD:
                # Further events of its key may be fed after `max_spout_pending` cut the batch.
                self._trees.block(root.key, root.order)
            self.unfinished.append(
                UnfinishedEvent(root, EventOutcome(outcome), attempts, retry_at_ms)
            )
