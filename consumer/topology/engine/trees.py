"""The tuple trees of one executor: their tuples, their failures, and those that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from sequitur.consumer.topology.api.tuple import Event, Tuple
from sequitur.consumer.topology.engine.plan import Ordering
from sequitur.consumer.topology.settling.outcomes import EventOutcome, settle_roots
from sequitur.consumer.topology.settling.root import is_made, never_acked, turn_of
from sequitur.consumer.topology.settling.timer_holds import keeper_of, line_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sequitur.base.copy_headers import FailReason
    from sequitur.consumer.topology.api.builder import TreeFailure
    from sequitur.consumer.topology.api.tuple import Place, Stream
    from sequitur.consumer.topology.engine.plan import Rules
    from sequitur.consumer.topology.engine.task_output import Environment
    from sequitur.consumer.topology.settling.root import Order, Root


ACKED: Final = "acked"
FAILED: Final = "failed"


class TrackedTuple(Tuple, eq=False):
    """A tuple with its tracking: the tree it belongs to, and the task it was delivered to.

    A bolt sees it as a `Tuple`. All else is for the engine.
    """

    root: Root  # the root of its tree; for a multi-anchored tuple, that of its first tree
    edge: int
    # the tuple it was emitted for. If that tuple was another task's: its path of components. None
    # for a tuple of the spout
    parent: Any
    owner: Any  # the runner of the task it was delivered to; `ACKED` or `FAILED` from then on
    # its event time, or that of what it was made of, if a keyed bolt gave it one of its own
    own_time_ms: int | None = None

    more: ClassVar[tuple[tuple[Root, int], ...]] = ()
    """Further trees it belongs to: see `MultiAnchoredTuple`."""

    @property
    def place(self) -> Place:
        return self.root.place

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(root.place for root, _ in self.trees())

    @property
    def attempt(self) -> int:
        return max(root.attempt for root, _ in self.trees())

    @property
    def event_time_ms(self) -> int:
        if self.own_time_ms is not None:
            return self.own_time_ms
        time_ms: int
        if not self.more:
            time_ms = self.root.event[3]
            return time_ms
        time_ms = max(root.event[3] for root, _ in self.trees())
        return time_ms

    @property
    def event_key(self) -> bytes | None:
        return None if is_made(self.root.event) else self.root.key

    def trees(self) -> tuple[tuple[Root, int], ...]:
        """Return the roots of its trees, each with the tuple's edge there."""
        return ((self.root, self.edge), *self.more)

    def path(self) -> tuple[str, ...]:
        """Return the components that it came through, the spout first."""
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

    @property
    def behind(self) -> bool:
        return _is_behind(self)


class BatchEvent(TrackedTuple, Event, eq=False):
    """An event in a transactional topology. Its first value is the transaction."""

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self.values[1]
        return key

    @property
    def value(self) -> bytes | None:
        value: bytes | None = self.values[2]
        return value

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        headers: Sequence[tuple[str, bytes | None]] = self.values[3] or ()
        return headers

    @property
    def behind(self) -> bool:
        return _is_behind(self)


def _is_behind(event: TrackedTuple) -> bool:
    watermark_ms = event.owner.context.watermark_ms
    return watermark_ms is not None and event.event_time_ms <= watermark_ms


class MultiAnchoredTuple(TrackedTuple, eq=False):
    more: tuple[tuple[Root, int], ...] = ()  # type: ignore[misc]


def multi_anchored(  # noqa: PLR0917 - as a tuple of one tree takes them
    values: Any,
    stream: Stream,
    trees: Sequence[tuple[Root, int]],
    parent: Any,
    owner: Any,
    own_time_ms: int | None = None,
) -> MultiAnchoredTuple:
    (root, edge), *more = trees
    return MultiAnchoredTuple(values, stream, root, edge, parent, owner, own_time_ms, tuple(more))


def own_time_of(anchors: Sequence[TrackedTuple]) -> int | None:
    """Return the event time of a tuple with these anchors, if it is not that of its roots."""
    for one in anchors:
        if one.own_time_ms is not None:
            return max(one.event_time_ms for one in anchors)
    return None


class TreeTracker:
    """Acks and fails trees, and holds back events behind those that failed."""

    __slots__ = (
        "_by_field", "_dead_block", "_keepers", "_keeps_order", "_policy", "blocked", "current",
        "event", "late_acks", "untracked_failures", "waiting_keys", "waits",
    )  # fmt: skip

    def __init__(
        self,
        rules: Rules,
        event: Any,
        *,
        dead_block: bool = False,
        keepers: Collection[str] = (),
        by_field: Collection[str] = (),
    ) -> None:
        """Begin without trees.

        Args:
            rules: When what fails is tried again, and what it holds.
            event: Values that stand for no event.
            dead_block: Whether events that are given up hold others, too: until they are undone.
            keepers: The stores of the topology's keyed bolts.
            by_field: Those of bolts that are keyed by another field than the events' key.
        """
        self._dead_block = dead_block
        self._keepers = keepers
        self._by_field = by_field
        self.current: Root | None = None
        self.event = event
        self.blocked: dict[bytes, Order] = {}
        # the first turn of those that are known to wait, by `keeper_of`; what tasks made holds back
        # no timer
        self.waits: dict[str, int] = {}
        self.waiting_keys: set[bytes | None] = set()
        self.late_acks = 0
        self.untracked_failures = 0
        self._policy = rules.retry
        self._keeps_order = rules.ordering is Ordering.KEY

    def begin(self, root: Root, values: Any) -> None:
        self.current, self.event = root, values

    def end(self) -> None:
        """End following an event. Bolts or other tasks hold what is still to be acked."""
        self.current = None

    def receive(self, event: Any) -> None:
        self.event = event

    def ack(self, given: TrackedTuple) -> None:
        """XOR a tuple's edges into its trees."""
        for root, edge in given.trees():
            root.value ^= edge
            if root.failure is not None:
                self.late_acks += 1

    def fail(self, root: Root, failure: TreeFailure) -> None:
        """Fail a tree. The first failure stays."""
        if not root.is_tracked:
            self.untracked_failures += 1
            return
        if root.failure is None:
            root.failure = failure
            gives_up = self._policy.gives_up(root.attempt, failure.reason)
            if self._dead_block or not gives_up:
                self.block(self._line_of(root), root.order)
            if not gives_up:
                self.let_wait(root.event)

    def let_wait(self, event: tuple[Any, ...]) -> None:
        """Note that an event waits, by its values."""
        if not is_made(event):
            keeper, turn = keeper_of(event, self._keepers), turn_of(event[3], event[4])
            self.waits[keeper] = min(turn, self.waits.get(keeper, turn))
            self.waiting_keys.add(event[0])

    def gives_up(self, root: Root, reason: FailReason) -> bool:
        """Return whether an event that fails now has no further attempt."""
        return self._policy.gives_up(root.attempt, reason)

    def count_late_ack(self) -> None:
        """Count the ack of a call that was ended or given up."""
        self.late_acks += 1

    def is_wanted(self, given: TrackedTuple) -> bool:
        """Return whether the bolt gets the tuple.

        It does not if all trees of the tuple have failed. It does not if an earlier event of its
        key has failed: then its events are held.
        """
        if given.root.failure is None and not self.blocked:
            return True
        trees = given.trees()
        if all(root.failure is not None for root, _ in trees):
            return False
        if not self.blocked:
            return True
        if not any(root.is_tracked and self.waits_for_another(root) for root, _ in trees):
            return True
        for root, _ in trees:
            if root.failure is None and root.is_tracked:
                self.hold(root)
        return False

    def hold(self, root: Root) -> None:
        """Hold an event, and later ones of its key."""
        root.is_held = True
        self.block(self._line_of(root), root.order)
        self.let_wait(root.event)

    def block(self, line: bytes | None, order: Order) -> None:
        """Hold the events of a line, see `line_of`, that are later than one that waits."""
        if self._keeps_order and line is not None:
            self.blocked[line] = min(order, self.blocked.get(line, order))

    def waits_for_another(self, root: Root) -> bool:
        """Return whether an event is behind an earlier one of its line that waits."""
        line = self._line_of(root)
        before = None if line is None else self.blocked.get(line)
        return before is not None and root.order > before

    def _line_of(self, root: Root) -> bytes | None:
        return line_of(root.event, self._by_field)


_OPEN_AT_ONCE: Final = 1 << 12


class UnfinishedEvent(NamedTuple):
    """An event that is not done, and what follows."""

    root: Root
    outcome: EventOutcome  # whether it is tried again, is held, or is dead
    attempts: int  # how often it has been tried; an attempt in which it was held does not count
    # when it may run again; 0: as soon as no earlier event of its key waits
    retry_at_ms: int = 0


class OpenTrees:
    """The roots that an executor was fed, until it is known what became of their trees.

    If no tuple leaves the process, that is known when the batch is finished: each tree is done, is
    tried again, is held, or is dead. Otherwise the ackers find it out, by the roots that are left
    here.
    """

    def __init__(self, environment: Environment, *, is_whole: bool) -> None:
        self.acked = 0
        self.unfinished: list[UnfinishedEvent] = []
        self._trees = environment.trees
        self._rules = environment.rules
        self._dead_block = environment.topology.is_keyed
        self._start = environment.start
        self._spout = environment.topology.spout.id
        self._shared = environment.shared
        self._is_whole = is_whole
        self._awaited = environment.awaited
        self._open: list[Root] = []
        self._failed: list[Root] = []

    @property
    def is_empty(self) -> bool:
        return not (self._open or self._shared)

    @property
    def roots(self) -> Sequence[Root]:
        return self._open

    def hold(self, root: Root) -> None:
        """Hold an event that is not fed, because an earlier one of its key waits."""
        root.is_held = True
        self._trees.let_wait(root.event)
        self.unfinished.append(UnfinishedEvent(root, EventOutcome.HELD, root.attempt - 1))

    def add(self, root: Root, values: Any) -> None:
        """Add the root of an event that was followed as far as it goes here for now."""
        if not self._is_whole:
            # Its part elsewhere is not known here: it stays open to the end, without payload.
            root.event = (values[0], None, (), *values[3:7], 0)
            self._open.append(root)
            return
        if root.failure is not None or root.is_held:
            self._failed.append(root)
            return
        # It is held if an earlier event of its key fails later, even if it is done.
        self._open.append(root)
        if len(self._open) >= _OPEN_AT_ONCE and not self._shared and self._is_done(self._open[0]):
            # The first open event may still hold those behind it.
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
        """Decide what becomes of each event. Bolts hold no tuple any more."""
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
            now_ms=self._start.moment.now_ms,
            policy=self._rules.retry,
            random=self._start.random,
            keeps_order=self._rules.ordering is Ordering.KEY,
            dead_block=self._dead_block,
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
            if outcome != EventOutcome.DEAD or self._dead_block:
                # Further events of its key may be fed after `max_spout_pending` cut the batch.
                self._trees.block(root.key, root.order)
            self.unfinished.append(
                UnfinishedEvent(root, EventOutcome(outcome), attempts, retry_at_ms)
            )
