"""The executor of a stage that begins with a keyed bolt by another field than the events' key.

It calls timers between the tuples, up to the oldest event that waits: until that one is done or
given up, a window up to its time is not whole. What fails meanwhile in this process is undone at
once, so that later calls at its key go on without it.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.copy_headers import FailReason
from sequitur.base.portions import portions
from sequitur.consumer.topology.api.builder import TreeFailure
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.key_groups import task_of
from sequitur.consumer.topology.engine.keyed import (
    AHEAD_BYTES,
    AHEAD_EACH,
    EXPIRY,
    TIMER,
    KeyedRunner,
    is_set,
)
from sequitur.consumer.topology.engine.keyed_calls import KeyCalls
from sequitur.consumer.topology.engine.plan import OF_TIMERS, order_of, unpacked
from sequitur.consumer.topology.engine.task_output import OF_BATCH
from sequitur.consumer.topology.engine.trees import ACKED, TrackedTuple
from sequitur.consumer.topology.settling.root import (
    Root,
    TimerPlace,
    behind_turn,
    least,
    turn_of,
)
from sequitur.consumer.topology.settling.timer_holds import TimerHolds, line_of_bolt
from sequitur.errors import EmitError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from sequitur.consumer.topology.engine.keyed import StepKeys
    from sequitur.consumer.topology.engine.plan import Sent
    from sequitur.consumer.topology.settling.root import Order

MOST_IMAGES_BYTES: Final = 64 << 20
"""Once images take so much, later tuples of the step are held."""


class KeyedStageExecutor(Executor):
    """Runs the tasks of such a stage."""

    def __init__(
        self,
        *given: Any,
        component: str,
        hold: int | None = None,
        waiting: Collection[TimerPlace] = (),
        dropped: Collection[TimerPlace] = (),
        killers: Collection[tuple[str, bytes, Order]] = (),
        tell: Callable[[TimerPlace | None], None] | None = None,
        **more: Any,
    ) -> None:
        """Begin with a stage's keyed bolt.

        Args:
            given: As for `Executor`.
            component: The bolt.
            hold: The first turn of what is known to wait: no later timer is called.
            waiting: Timers that wait in the form of events.
            dropped: Timers that are given up, and are not to be called again.
            killers: Timers that are known to kill the process.
            tell: Gets the timer that is called, and None after it.
            more: As for `Executor`.
        """
        super().__init__(*given, **more)
        assert self._environment.keys is not None
        self.keys: StepKeys = self._environment.keys
        self.keys.let_wait(waiting)
        self.keys.expires_by_calls = True
        self._component = component
        self._store = self._topology.components[component].key_store
        self.keys.line_of = partial(line_of_bolt, self._store)
        self._hold_of_others = hold
        self._holds = TimerHolds.of(self._topology, component)
        self._timers: dict[int, Root] = {}
        self._killers = frozenset(killers)
        self._tell = tell
        self._runner: Any = self._runners[component, self._placement.number]
        self._calls = KeyCalls.of([self._runner], self._complete_some)
        if self._calls is not None:
            self.keys.await_key = self._calls.end
        tasks = self._placement.tasks[component]
        for place in dropped:
            is_here = task_of(place.key, tasks) == self._placement.number
            if place.component == self._store and is_here:
                self.keys.drop(place)

    @property
    def hold(self) -> int | None:
        """The first turn of all that is known to wait by now: no later timer is called."""
        return least(self._hold_of_others, self._holds.first(self._trees.waits))

    @property
    def first_left(self) -> int | None:
        """The turn of the first timer that was left, but not for what is known to wait.

        Stages that follow know of that themselves.
        """
        left, hold = self.keys.first_left(self.waiting_keys), self.hold
        if left is not None and hold is not None and left > hold and not self._has_many_images:
            left = None
        return least(left, self.keys.cut_turn)

    def loaded(
        self, tuples: Iterator[tuple[str, Sent, int]], known: Collection[int]
    ) -> Iterator[tuple[str, Sent, int]]:
        """Yield tuples, each with the bolt that it is for and its place in the task's input.

        Their keys are read before, in order. Tuples at `known` places fail, and are not unpacked:
        that may be what kills the process.
        """
        for some in portions(tuples, lambda one: AHEAD_EACH + len(one[1].values), AHEAD_BYTES):
            keys = {
                self._key_of(sent)
                for to, sent, place in some
                if to == self._component and place not in known
            }
            self.keys.read_ahead(self._store, {key for key in keys if key is not None})
            yield from some

    def receive(self, component: str, task: int, sent: Sent) -> None:
        """Call the timers that are due before a tuple, then give it to its task."""
        if self._calls is not None:
            self._calls.before(self._key_of(sent), order_of(sent), self.call_timers)
        else:
            self.call_timers(order_of(sent))
        if self._is_left(sent):
            log = self.keys.log
            if log.first_left is None and sent.stream != OF_TIMERS:
                self.keys.log = log._replace(first_left=turn_of(order_of(sent)[0]))
            for root, _ in sent.trees:
                if root.is_tracked:
                    log.left_roots.add(root.id)
                    self._trees.hold(self._received.setdefault(root.id, root))
            return
        mark = len(self.keys.log.images)
        if sent.stream == OF_TIMERS:
            self._receive_timer(task, sent)
        else:
            super().receive(component, task, sent)
        self._undo_failed(mark)

    def give_up(self, sent: Sent, failure: TreeFailure) -> None:
        """Fail a tuple without giving it to its task. A timer among them is unset if it is dead."""
        if sent.stream == OF_TIMERS:
            self._know_timer(sent)
        super().give_up(sent, failure)

    def call_timers(self, order: Order | tuple[int, str] | None) -> None:
        """Call the timers that are due before a tuple of this order; None: none."""
        if order is None or not (self.keys.coming and self.keys.coming[0] < order):
            return
        log, blocked, numbers = self.keys.log, self._trees.blocked, self._start.numbers
        hold = self.hold
        if hold is not None:  # no memory for the keys of timers that are not called
            order = min(order, behind_turn(hold))
        for place, at_ms in self.keys.timers_before(order, blocked):
            if self._is_early(place.order) or self._has_many_images:
                break  # it stays set, and so do later ones
            event = place.event(at_ms)
            root = Root(OF_BATCH | next(numbers), event)
            self._made += 1
            self._roots_made.append((root, event))
            self._timers[root.id], log.timers[root.id] = root, place
            if self._trace is not None:
                self._trace.begun(root, event)
            if (place.component, place.key, place.order) in self._killers:
                self._fail_killer(root)
                continue
            if self._tell is None or place.name == EXPIRY:  # no code of a user
                self._call(root, place.name, at_ms)
                continue
            self._complete_calls()  # one that kills the process is not the timer's
            self._tell(place)
            self._call(root, place.name, at_ms)
            self._complete_calls()
            self._tell(None)

    def call_rest(self) -> None:
        """Call the timers that are due in this step after its last tuple."""
        while True:
            self._complete_calls()
            self.call_timers(self.keys.rest)
            if self._pool.is_idle:
                return

    def drop_failed(self) -> None:
        """Unset the timers whose calls failed for the last time."""
        for number, place in self.keys.log.timers.items():
            failure = self._timers[number].failure
            if failure is not None and self._trees.gives_up(self._timers[number], failure.reason):
                self.keys.drop(place)

    @property
    def is_cut(self) -> bool:
        """Whether the rest is left to the next step for want of memory."""
        return self.keys.is_cut or self._has_many_images

    @property
    def waiting_keys(self) -> set[bytes]:
        """The keys with timers that wait in the form of events, or will."""
        tried, trees = self.keys.log.timers, self._trees
        waiting = self.keys.waiting.difference(tried.values())
        keys = {place.key for place in waiting if place.component == self._store}
        for number, place in tried.items():
            root = self._timers[number]
            failure = root.failure
            if root.is_held if failure is None else not trees.gives_up(root, failure.reason):
                keys.add(place.key)
        return keys

    def _key_of(self, sent: Sent) -> bytes | None:
        """Return the key of a tuple; None if the tuple cannot be read."""
        if sent.stream == OF_TIMERS:
            ((root, _),) = sent.trees
            return root.key
        stream = self._stream_of(sent)
        try:
            key: bytes = self._runner.stored_key(stream, unpacked(stream, sent.values))
        except EmitError:
            return None
        return key

    @property
    def _has_many_images(self) -> bool:
        return self.keys.images_bytes > self.keys.room * MOST_IMAGES_BYTES

    def _is_early(self, order: Order) -> bool:
        hold = self.hold
        return hold is not None and turn_of(*order[:2]) > hold

    def _is_left(self, sent: Sent) -> bool:
        """Return whether a tuple is left to the next step."""
        if self._has_many_images:
            return True
        if not self.keys.is_cut or sent.stream != OF_TIMERS:
            return self.keys.is_cut
        ((root, _),) = sent.trees
        return self.keys.is_behind_cut(*root.order[:2], root.event[0], self._store)

    def _receive_timer(self, task: int, sent: Sent) -> None:
        """Take a timer that waited in the form of an event."""
        ((root, edge),) = sent.trees
        place, at_ms, is_replayed = self._know_timer(sent)
        name = place.name
        runner = self._runners[self._component, task]
        made = TrackedTuple((name, at_ms), TIMER, root, edge, None, runner)
        if self._trace is not None:
            self._trace.received(sent, made)
        if self._is_early(root.order) and not is_replayed:
            self._trees.hold(root)
            return
        entry = self.keys.entry(self._store, place.key)
        if not is_set(place, entry) and not is_replayed:
            made.owner = ACKED  # an earlier event has unset it since, so it is done
            self._trees.ack(made)
            return
        self._trees.receive(root.event)
        self._queue.append(made)
        self.drain()

    def _know_timer(self, sent: Sent) -> tuple[TimerPlace, int, bool]:
        """Note a timer that waited. Return it, its time, and whether it was given up before."""
        ((root, _),) = sent.trees
        name, at_ms, is_replayed = pickle.loads(sent.values)  # noqa: S301 - our own tasks' tuples
        place = TimerPlace(self._store, root.event[0], name, root.order)
        self._received[root.id] = self._timers[root.id] = root
        self.keys.log.timers[root.id] = place
        return place, at_ms, is_replayed

    def _fail_killer(self, root: Root) -> None:
        detail = "the process died whenever this was called"
        path = (TIMER.component, self._component)
        self._trees.fail(root, TreeFailure(FailReason.CRASH, detail, path))

    def _call(self, root: Root, name: str, at_ms: int) -> None:
        trees, mark = self._trees, len(self.keys.log.images)
        runner = self._runners[self._component, self._placement.number]
        assert isinstance(runner, KeyedRunner)
        trees.begin(root, root.event)
        root.value = edge = self._environment.next_id()
        made = TrackedTuple((name, at_ms), TIMER, root, edge, None, runner)
        if self._trace is not None:
            self._trace.given_out(root, made)
        self._queue.append(made)
        self.drain()
        trees.end()
        self._undo_failed(mark)

    def _undo_failed(self, mark: int) -> None:
        """Undo the call whose images begin at a mark, if one of its events is known to fail."""
        images = self.keys.log.images
        if len(images) == mark or self._calls is not None:
            return
        roots = [
            self._timers[one.root] if one.root in self._timers else self._received[one.root]
            for one in images[mark:]
        ]
        if all(root.failure is None and not root.is_held for root in roots):
            return
        self.keys.log.undo_calls(mark)
        for root in roots:
            if root.failure is None and not root.is_held:
                self._trees.hold(root)  # it shares the call
