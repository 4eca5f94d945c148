"""The executor: the tasks of one process, and the tuples between them.

It is given events, or tuples that other processes sent, one at a time; each is followed through all
bolts here before the next one, so what a task sees is in order, and the tree of a chain that stays
in the process is done before the next begins. Clock and random numbers are arguments.

What holds under `ordering = "key"`: once an event has failed for now, later tuples of its key are
not given to a bolt any more; their events are held.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.consumer.topology._errors import (
    NOT_THE_USERS,
    BoltStateError,
    BoltTimeoutError,
    EmitError,
)
from sequitur.consumer.topology.api.bolt import TopologyContext, is_async
from sequitur.consumer.topology.api.moment import TICK, Moment
from sequitur.consumer.topology.api.tuple import (
    DEFAULT_STREAM,
    Event,
    EventValues,
    FailReason,
    Failure,
    Root,
    Stream,
    Tuple,
    never_acked,
    woven,
)
from sequitur.consumer.topology.engine.concurrency import CallPool, ConcurrentRunner
from sequitur.consumer.topology.engine.emission import (
    Elsewhere,
    Here,
    Output,
    OutputRecord,
    Sent,
    TaskId,
    packed,
    unpacked,
)
from sequitur.consumer.topology.engine.instances import Instances, clean_up
from sequitur.consumer.topology.engine.rules import Ordering, Placement, Rules
from sequitur.consumer.topology.engine.runner import Runner, detail_of
from sequitur.consumer.topology.engine.user_code import UserCode
from sequitur.consumer.topology.engine.wiring import Wiring
from sequitur.consumer.topology.settling.pending import numbered
from sequitur.consumer.topology.settling.settlement import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.api.topology import Component, Topology
    from sequitur.consumer.topology.engine.trace import Trace

_OPEN_AT_ONCE: Final = 1 << 12


class Executor:
    """Runs tasks of a topology.

    Args:
        topology: The topology.
        placement: Which of its tasks run here.
        rules: What to keep to.
        clock: Seconds.
        next_id: Gives 64 random bits a call.
        write: Takes a record that an output wrote, by the output's name.
        send: Takes tuples for tasks that run elsewhere: component, task, tuple.
        states: What tasks kept in the batch before, by component and number, pickled.
        moment: When the batch runs; its time is that of what comes of no event.
        instances: Bolts that are ready from an earlier batch; they are put back by `keep`.
        trace: Is told of each step of each tree.
        runs_inline: Run all calls one by one, also those that might run side by side.
    """

    def __init__(
        self,
        topology: Topology,
        placement: Placement,
        rules: Rules,
        *,
        clock: Callable[[], float],
        next_id: Callable[[], int],
        write: Callable[[str, OutputRecord], None],
        send: Callable[[str, int, Sent], None] | None = None,
        states: Mapping[tuple[str, int], bytes] | None = None,
        moment: Moment | None = None,
        instances: Instances | None = None,
        trace: Trace | None = None,
        runs_inline: bool = False,
    ) -> None:
        self.next_id = next_id
        self.trace = trace
        self.clock = clock
        self.queue: deque[Tuple] = deque()
        self.current: Root | None = None
        self.users = UserCode()
        self.late_acks = 0
        self.untracked_failures = 0
        self.finish_failures: list[tuple[str, str]] = []
        self.shared: list[tuple[Root, ...]] = []
        self.together: list[tuple[Root, ...]] = []
        self.blocked: dict[bytes, tuple[int, str, int, int]] = {}
        self.acked = 0
        self.settled: list[Root] = []
        self.instances = Instances() if instances is None else instances
        self._moment = moment = moment or Moment()
        self.given: list[Root] | None = None if topology.hook is None else []
        self._states = dict(states or {})
        self._snapshots: dict[tuple[str, int], bytes] = {}
        self._kept: set[tuple[str, int]] = set()
        self._unprepared: list[tuple[str, int]] = []
        self._topology = topology
        self._placement = placement
        self._rules = rules
        self._timeout_s = rules.message_timeout_s
        self._roots: dict[int, Root] = {}
        self._open: list[Root] = []
        # What comes of no event, as at the end of a batch without any, is of this one.
        self._last_event: Any = self._no_event(moment.now_ms)
        self._keeps_order = rules.ordering is Ordering.KEY
        self.runs_inline = runs_inline
        self._pool = CallPool(self)
        self._runners = {
            (component.id, task): self._runner(component, task)
            for component in topology.bolts
            for task in placement.here.get(component.id, ())
        }
        self._wiring = Wiring(
            topology, placement, rules, self._runners,
            write=write, send=send, shared=self.shared, users=self.users, turn=moment.number,
        )  # fmt: skip
        self._spout = replace(topology.spout.streams[DEFAULT_STREAM], task=placement.number)
        self._streams: dict[tuple[str, str, int], Stream] = {}
        self._hosts_spout = topology.spout.id in placement.here
        self._from_spout = (
            self._wiring.targets(self._spout, placement.number) if self._hosts_spout else ()
        )
        self._prepare()
        self._is_whole = self._wiring.is_whole
        self._has_calls = any(isinstance(one, ConcurrentRunner) for one in self._runners.values())

    def feed(self, root: Root, values: tuple[Any, ...]) -> None:
        """Give out an event, and follow it as far as it goes here.

        Args:
            root: Its root.
            values: Its values, those of `EventValues`.
        """
        key = values[0]
        if self.trace is not None:
            self.trace.begun(root, values)
        if self.blocked and root.is_tracked and self.is_blocked(key, root.order):
            root.is_held = True
            self.settled.append(root)
            return
        self._last_event = values
        if self.given is not None:
            self.given.append(root)
        self.current = root
        root.begun_s = self.clock()
        spout, next_id, queue = self._spout, self.next_id, self.queue
        for target in self._from_spout:
            if not isinstance(target, Here):
                self._give_out(target, root, values)
                continue
            for number in self._chosen(target, root, values):
                edge = next_id()
                root.value ^= edge
                made = Event(values, spout, root, edge, None, target.runners[number])
                queue.append(made)
                if self.trace is not None:
                    self.trace.given_out(root, made)
        self.drain()
        self.current = None
        is_done = root.value == 0 and root.failure is None and not root.is_held
        if (
            is_done
            and self._is_whole
            and not (self._open or self.shared)
            and self.clock() - root.begun_s <= self._timeout_s
        ):
            self.acked += 1
        else:
            self._keep(root, values)

    def receive(self, component: str, task: int, sent: Sent) -> None:
        """Give a task a tuple that another process sent it, and follow it."""
        stream = self._stream_of(sent)
        try:
            values = unpacked(stream, sent.values)
        except EmitError as error:
            path = (*sent.path, component)
            self.give_up(sent, Failure(FailReason.EXCEPTION, str(error), path))
            return
        trees = []
        for root, edge in sent.trees:
            known = self._roots.get(root.id)
            if known is None:
                # How long it waited for its turn is nobody's fault, and not counted.
                known, root.begun_s = root, self.clock()
                if root.is_tracked:
                    self._roots[root.id] = root
            trees.append((known, edge))
        owner = self._runners[component, task]
        parent = sent.path[:-1] or None
        made: Tuple
        if len(trees) > 1:
            made = woven(values, stream, tuple(trees), parent, owner)
        elif stream.component == self._spout.component:
            made = Event(values, stream, *trees[0], parent, owner)
        else:
            made = Tuple(values, stream, *trees[0], parent, owner)
        if self.trace is not None:
            self.trace.received(sent, made)
        self._last_event = trees[0][0].event
        self.queue.append(made)
        self.drain()

    def give_up(self, sent: Sent, failure: Failure) -> None:
        """Fail a tuple that another process sent, without giving it to anyone."""
        for root, _ in sent.trees:
            self.fail(self._roots.setdefault(root.id, root) if root.is_tracked else root, failure)

    def drain(self) -> None:
        """Give out all tuples that wait, and those that come of them."""
        queue, blocked = self.queue, self.blocked
        while True:
            while queue:
                given = queue.popleft()
                if (given._root.failure is None and not blocked) or self.is_wanted(given):
                    given._owner.run(given)
            if not self._has_calls or not self._pool.is_full():
                return
            self._pool.complete_some()

    def finish(self) -> None:
        """End the batch: let bolts settle what they hold, and fail what nobody acked.

        What became of each event is then in `acked` and `settled`; where tuples went elsewhere, in
        `roots`.
        """
        self._finish_batch()
        self._finish_roots()

    @property
    def emitted(self) -> int:
        """How many records outputs were given to write."""
        return self._wiring.emitted

    def roots(self) -> list[Root]:
        """All roots of whose trees a part is elsewhere, with the XOR of what is known here."""
        return [*self._open, *self._roots.values()]

    def states(self) -> dict[tuple[str, int], Any]:
        """What tasks want kept until the next batch, pickled.

        Raises:
            BoltStateError: Something of it cannot be pickled.
        """
        kept = {}
        for (component, task), runner in self._runners.items():
            state = runner.snapshot()
            if state is None:
                continue
            try:
                kept[component, task] = pickle.dumps(state, protocol=5)
            except NOT_THE_USERS:
                raise
            except BaseException as error:
                raise BoltStateError(
                    f"bolt {component!r}, task {task}: its snapshot cannot be pickled: {error}"
                ) from error
        self._snapshots = kept
        return kept

    def tick(self, bolts: Sequence[str] | None = None) -> None:
        """Give bolts the ticks that they are due; nobody waits for what comes of a tick.

        Args:
            bolts: Which of them; None for all.
        """
        moment = self._moment
        time_ms = moment.now_ms if moment.watermark_ms is None else moment.watermark_ms
        for component in moment.ticks if bolts is None else bolts:
            interval_ms = moment.ticks[component]
            for task in self._placement.here.get(component, ()):
                root = Root(0, self._no_event(time_ms), is_tracked=False)
                owner = self._runners[component, task]
                self.queue.append(Tuple((interval_ms / 1000,), TICK, root, 0, None, owner))
        self.drain()

    def give_up_tick(self, bolt: str, failure: Failure) -> None:
        """Fail a bolt's tick without giving it to the bolt: nobody waits for it, so it is told."""
        for task in self._placement.here.get(bolt, ()):
            logger = self._runners[bolt, task].context.logger
            logger.error("a tick was given up: %s", failure.detail)
            self.untracked_failures += 1

    def keep(self) -> None:
        """Keep the bolts for another batch, which begins with what `states` gave."""
        for place, runner in self._runners.items():
            kept = runner.kept(self._snapshots.get(place))
            if kept is not None and not (self._pool.has_left_calls and is_async(kept.bolt)):
                self.instances.put(place, kept)
                self._kept.add(place)

    def close(self) -> None:
        """Let the bolts clean up that are not kept."""
        self._pool.close()
        if not any(is_async(self._runners[place].bolt) for place in self._kept):
            self.instances.close_loop()
        for place, runner in self._runners.items():
            if place not in self._kept:
                clean_up(runner.bolt)

    def fail(self, root: Root, failure: Failure) -> None:
        """A root has failed; the first failure stays."""
        if not root.is_tracked:
            self.untracked_failures += 1
            return
        if root.failure is None:
            root.failure = failure
            if self._holds_others(root):
                self._block_key(root)

    def look_at_time(self, root: Root, given: Tuple) -> None:
        """Fail a tree that is open for too long; an ack behind that is late."""
        if (
            root.is_tracked
            and root.failure is None
            and self.clock() - root.begun_s > self._rules.message_timeout_s
        ):
            path = (*given._path(), given._stream.component)
            self.fail(root, Failure(FailReason.TIMEOUT, "its tree took too long", path[:-1]))

    def is_wanted(self, given: Tuple) -> bool:
        """Whether a tuple is to be given to its bolt.

        It is not when all its trees have failed; and not when an earlier event of its key has
        failed, for then its events are held.
        """
        if all(root.failure is not None for root, _ in given._trees()):
            return False
        return not (self.blocked and self._is_held(given))

    @property
    def message_timeout_s(self) -> float:
        """A call or a tree that takes longer fails."""
        return self._rules.message_timeout_s

    def block(self, key: bytes | None, order: tuple[int, str, int, int]) -> None:
        """Hold up events of a key that are later than one which waits.

        Args:
            key: The key.
            order: Place of the event that waits in the ordered stream.
        """
        if self._keeps_order and key is not None:
            self.blocked[key] = min(order, self.blocked.get(key, order))

    def is_blocked(self, key: bytes | None, order: tuple[int, str, int, int]) -> bool:
        """Whether an event is held up by an earlier one of its key."""
        before = None if key is None else self.blocked.get(key)
        return before is not None and order > before

    def untracked(self) -> Root:
        """A root for a tuple without an anchor: it is where the tuple being processed is."""
        call = self.users.call
        event = call._root.event if isinstance(call, Tuple) else self._last_event
        return Root(0, event, is_tracked=False)

    def _runner(self, component: Component, task: int) -> Runner:
        place = (component.id, task)
        kept = self.instances.take(place, self._states.get(place))
        if kept is None:
            tasks = self._placement.tasks
            context = TopologyContext(
                topology=self._topology.name,
                component=component.id,
                task=task,
                tasks=tasks[component.id],
                config=self._topology.config,
                task_counts=tasks,
            )
            bolt = pickle.loads(pickle.dumps(component.bolt))  # noqa: S301 - a copy for each task
            self._unprepared.append(place)
        else:
            context, bolt = kept.context, kept.bolt
        context.now_ms, context.watermark_ms = self._moment.now_ms, self._moment.watermark_ms
        runner = (
            ConcurrentRunner(self, context, bolt, self._pool, component)
            if component.concurrency > 1 and not self.runs_inline
            else Runner(self, context, bolt)
        )
        if kept is not None:
            runner.go_on(kept)
        return runner

    def _prepare(self) -> None:
        """Have the bolts get ready that have not come from an earlier batch."""
        for place in self._unprepared:
            state = self._states.get(place)
            self._runners[place].prepare(
                None if state is None else pickle.loads(state)  # noqa: S301 - what `states` gave
            )

    def _no_event(self, time_ms: int) -> EventValues:
        """Stands for the event of what comes of none."""
        return EventValues(None, None, (), time_ms, "", self._placement.number, 0, time_ms)

    def _give_out(self, target: Elsewhere | Output, root: Root, values: Any) -> None:
        """Send an event to other processes, or write it."""
        if isinstance(target, Output):
            self._write_event(target, root, values)
            return
        sent, stream = packed(self._spout, values), (self._spout.component, self._spout.name)
        for number in self._chosen(target, root, values):
            edge = self.next_id()
            root.value ^= edge
            made = Sent(sent, stream, ((root, edge),), (), self._spout.task)
            if self.trace is not None:
                to = TaskId(target.component, number)
                self.trace.sent(None, (), None, self._spout, made, to)
            target.send(number, made)

    def _chosen(self, target: Here | Elsewhere, root: Root, values: Any) -> Sequence[int]:
        """The tasks that are given an event; none if a grouping of the user's fails it."""
        try:
            return target.choose(values, None)
        except KeyboardInterrupt:
            raise
        except BoltTimeoutError:
            reason, detail = FailReason.TIMEOUT, "a grouping took longer than message_timeout"
        except BaseException as error:  # noqa: BLE001 - as if a bolt had raised it
            reason, detail = FailReason.EXCEPTION, detail_of(error)
        self.users.running = None
        self.fail(root, Failure(reason, detail, (self._spout.component,)))
        return ()

    def _stream_of(self, sent: Sent) -> Stream:
        """The stream of a task that runs elsewhere."""
        place = (*sent.stream, sent.task)
        found = self._streams.get(place)
        if found is None:
            component, name = sent.stream
            declared = self._topology.components[component].streams[name]
            found = self._streams[place] = replace(declared, task=sent.task)
        return found

    def _keep(self, root: Root, values: Any) -> None:
        """Keep what is known of an event that was followed as far as it goes here."""
        if self._is_whole and (root.failure is not None or root.is_held):
            self.settled.append(root)
            return
        if root.value == 0 or not self._is_whole:
            self._look_at_time_here(root)
        if not self._is_whole:
            # What of it is elsewhere is not known here: it stays open to the end.
            root.event = (values[0], None, (), *values[3:7], 0)
            self._open.append(root)
        elif root.failure is not None:
            self.settled.append(root)
        else:
            # Should an earlier event of its key fail yet, it is held, though it be done.
            self._open.append(root)
            self._tidy()

    def _write_event(self, target: Output, root: Root, values: Any) -> None:
        """The ordered stream goes to a topic as it is, by an output that reads the spout."""
        try:
            record = target.encode(values)
        except Exception as error:  # noqa: BLE001 - as if a bolt had raised it
            failure = Failure(FailReason.EXCEPTION, str(error), (self._spout.component,))
            self.fail(root, failure)
            return
        target.write((root,), record)

    def _is_held(self, given: Tuple) -> bool:
        """Whether an earlier event of its key has failed; then all its events are held."""
        trees = given._trees()
        if not any(root.is_tracked and self.is_blocked(root.key, root.order) for root, _ in trees):
            return False
        for root, _ in trees:
            if root.failure is None and root.is_tracked:
                root.is_held = True
                self._block_key(root)
        return True

    def _block_key(self, root: Root) -> None:
        self.block(root.key, root.order)

    def _look_at_time_here(self, root: Root) -> None:
        """Fail a tree that was followed for too long, as far as it goes here."""
        took_s = self.clock() - root.begun_s
        if root.is_tracked and root.failure is None and took_s > self._timeout_s:
            self.late_acks += 1
            path = (self._spout.component,)
            self.fail(root, Failure(FailReason.TIMEOUT, "its tree took too long", path))

    def _tidy(self) -> None:
        """End the batch if too many trees are open; forget those that are done, if many are."""
        most = self._rules.max_spout_pending
        if most is not None and len(self._open) >= most:
            self._finish_batch()
            self._finish_roots()
        elif len(self._open) >= _OPEN_AT_ONCE and not self.shared and self._open[0].is_done:
            # Those behind the first that is open may yet be held by it.
            opened = (place for place, one in enumerate(self._open) if not one.is_done)
            done = next(opened, len(self._open))
            self.acked += done
            del self._open[:done]

    def _finish_batch(self) -> None:
        self._pool.complete_all()
        self.drain()
        for runner in self._runners.values():
            runner.finish_batch()
            self.drain()
            self._pool.complete_all()
            self.drain()

    def _finish_roots(self) -> None:
        """Fail what nobody acked, and hold what may not go out before others do.

        Where a part of the trees is elsewhere, or their spout, that is for the ackers to tell.
        """
        if not self._is_whole or not self._hosts_spout:
            return
        for root in self._open:
            is_open = root.value != 0 and root.failure is None and not root.is_held
            if is_open and root.is_tracked:
                self.fail(root, never_acked(self._spout.component, self.finish_failures))
        if self.shared or any(not root.is_done for root in self._open):
            self._hold_back()
        for root in self._open:
            if root.is_done or not root.is_tracked:
                self.acked += 1
            else:
                self.settled.append(root)
                if self._holds_others(root):
                    # Behind the end of a batch, others of its key may come yet.
                    self._block_key(root)
        self._open.clear()
        self.together += [
            several for several in self.shared if not all(root.is_done for root in several)
        ]
        self.shared.clear()

    def _hold_back(self) -> None:
        """Hold events whose trees are done, for the sake of others."""
        places = {root: place for place, root in enumerate(self._open)}
        for several in self.shared:
            if not all(root.is_done for root in several):
                for root in several:
                    root.is_held = root.is_held or root.is_done
        held = held_back(
            numbered(root.key if root.is_tracked else None for root in self._open),
            np.array([root.is_tracked and not root.is_done for root in self._open], np.bool_),
            np.array([not self._holds_others(root) for root in self._open], np.bool_),
            [
                np.array([places[root] for root in several if root in places], np.intp)
                for several in self.shared
            ],
            keeps_order=self._keeps_order,
        )
        for place in np.flatnonzero(held):
            self._open[place].is_held = True

    def _holds_others(self, root: Root) -> bool:
        if not self._keeps_order or root.key is None:
            return False
        failure = root.failure
        return failure is None or not self._rules.retry.gives_up(root.attempt, failure.reason)
