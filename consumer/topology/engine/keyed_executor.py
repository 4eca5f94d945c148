"""The executor of a topology with keyed bolts: it calls their timers between the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.keyed import (
    TIMER,
    KeyedRunner,
    StepKeys,
    is_current,
)
from sequitur.consumer.topology.engine.keyed_calls import KeyCalls
from sequitur.consumer.topology.engine.task_output import OF_BATCH
from sequitur.consumer.topology.engine.trees import TrackedTuple
from sequitur.consumer.topology.settling.root import (
    Root,
    is_replayed_timer,
    is_timer,
    least,
    timer_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sequitur.consumer.topology.api.builder import TreeFailure
    from sequitur.consumer.topology.settling.root import Order, TimerPlace


class KeyedExecutor(Executor):
    """Runs the tasks of the first stage of a topology with keyed bolts."""

    def __init__(
        self,
        *given: Any,
        killers: Collection[tuple[str, bytes, Order]] = (),
        tell: Callable[[TimerPlace | None], None] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        assert self._environment.keys is not None
        self.keys: StepKeys = self._environment.keys
        # ids and events of the timers that were called, if ackers decide on them
        self.called: list[tuple[int, tuple[Any, ...]]] = []
        self._timers: list[tuple[Root, tuple[Any, ...]]] = []
        self.killed: list[tuple[TimerPlace, int]] = []
        self._settled = 0, 0  # how many images, and unfinished roots, earlier parts have left
        self._killers = frozenset(killers)
        self._tell = tell
        self._names = self._topology.key_stores
        self._calls = KeyCalls.of(self._runners.values(), self._complete_some)
        if self._calls is not None:
            self.keys.await_key = self._calls.end

    def feed(self, root: Root, values: tuple[Any, ...], *, is_own: bool = False) -> None:
        """Call the timers that are due before an event, then emit it."""
        keys = self.keys
        if self._calls is not None:
            self._calls.before(values[0], values[3:7], self.call_timers)
        elif keys.coming and keys.coming[0].time_ms <= values[3]:
            self.call_timers(values[3:7])
        if keys.is_cut:
            self._leave(root, values)
            return
        images = keys.log.images
        mark = len(images)
        super().feed(root, values, is_own=is_own)
        # `Root.is_done` and `OpenTrees.is_empty`, inline
        is_done = root.value == 0 and root.failure is None and not root.is_held
        is_alone = self._is_whole and not self._opened and not self._shared
        if is_done and is_alone and self._calls is None:
            # Nothing can undo it any more. If calls run side by side, those of other events may
            # have ended meanwhile: see `finish`.
            del images[mark:]

    def feed_timer(self, root: Root, event: tuple[Any, ...]) -> None:
        """Call a timer that waited in the form of an event."""
        place, at_ms = timer_of(event)
        runner = self._runner_of(place.component)
        if runner is None:
            super().feed_timer(root, event)
            return
        if self._calls is not None:
            self._calls.before(event[0], event[3:7], self.call_timers)
        else:
            self.call_timers(event[3:7])
        if self.keys.is_behind_cut(event[3], event[4], event[0], place.component):
            self._leave(root, event)
            return
        if not self._begins(root, event):
            return
        entry = self.keys.entry(place.component, place.key)
        if is_current(place, entry.timers) or is_replayed_timer(event):
            self._call(root, event, place.name, at_ms, runner)
            return
        # An earlier event of its key has unset it since, so it is done.
        self._end(root, len(self.keys.log.images))

    def _leave(self, root: Root, values: tuple[Any, ...]) -> None:
        """Hold an event: timers that come before it are left to the next step."""
        if self._trace is not None:
            self._trace.begun(root, values)
        self._open.hold(root)

    def refuse(self, root: Root, values: tuple[Any, ...], failure: TreeFailure) -> None:
        super().refuse(root, values, failure)
        if is_timer(values) and not self._is_whole:
            self._timers.append((root, values))

    def call_timers(self, order: Order | tuple[int, str] | None) -> None:
        """Call the timers that are due before an event of this order; None: none."""
        if order is None:
            return
        blocked, numbers = self._trees.blocked, self._start.numbers
        for place, at_ms in self.keys.timers_before(order, blocked):
            if self._killers and (place.component, place.key, place.order) in self._killers:
                self._made += 1
                self.killed.append((place, at_ms))
                self.keys.drop_killer(place)
                continue
            event = place.event(at_ms)
            root = Root(OF_BATCH | next(numbers), event)
            self._made += 1
            if not self._is_whole:
                self.called.append((root.id, event))
            if self._trace is not None:
                self._trace.begun(root, event)
            runner = self._runner_of(place.component)
            assert runner is not None
            if self._tell is None:
                self._call(root, event, place.name, at_ms, runner)
                continue
            self._complete_calls()  # one that kills the process is not the timer's
            self._tell(place)
            self._call(root, event, place.name, at_ms, runner)
            self._complete_calls()
            self._tell(None)

    def call_rest(self) -> None:
        """Call the timers that are due in this step after its last event."""
        while True:
            self._complete_calls()
            self.call_timers(self.keys.rest)
            if self._pool.is_idle:
                return

    def first_left(self, skipped: Collection[bytes]) -> int | None:
        """Return the turn of the first timer that was left, but not for what is known to wait.

        Args:
            skipped: Keys of which something waits that was not tried.
        """
        blocked = {one for one in self._trees.waiting_keys if one is not None}
        return least(self.keys.first_left(blocked.union(skipped)), self.keys.cut_turn)

    def finish(self) -> None:
        super().finish()
        if self._settles:
            log, unfinished = self.keys.log, self._open.unfinished
            images, roots = self._settled
            log.forget(images, {one.root.id for one in unfinished[roots:]})
            self._settled = len(log.images), len(unfinished)

    def drop_failed(self) -> None:
        """Unset the timers whose calls failed for the last time. Ackers learn of others."""
        for root, event in self._timers:
            failure = root.failure
            if failure is not None and self._trees.gives_up(root, failure.reason):
                self.keys.drop(timer_of(event)[0])

    def _call(
        self, root: Root, event: tuple[Any, ...], name: str, at_ms: int, runner: KeyedRunner
    ) -> None:
        trees, mark = self._trees, len(self.keys.log.images)
        if not self._is_whole:
            self._timers.append((root, event))
        trees.begin(root, event)
        root.value = edge = self._environment.next_id()
        made = TrackedTuple((name, at_ms), TIMER, root, edge, None, runner)
        if self._trace is not None:
            self._trace.given_out(root, made)
        self._queue.append(made)
        self.drain()
        trees.end()
        self._end(root, mark)

    def _end(self, root: Root, mark: int) -> None:
        if (
            root.is_done
            and root not in self._environment.awaited
            and self._is_whole
            and self._open.is_empty
        ):
            self._acked += 1
            del self.keys.log.images[mark:]
            return
        self._open.add(root, root.event)
        if self._open.is_full:
            self.finish()

    def _runner_of(self, component: str) -> KeyedRunner | None:
        name = self._names.get(component)
        found = None if name is None else self._runners.get((name, self._placement.number))
        return found if isinstance(found, KeyedRunner) else None
