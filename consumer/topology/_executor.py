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
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from consumer.topology._bolt import TopologyContext
from consumer.topology._concurrency import CallPool, ConcurrentRunner
from consumer.topology._emission import Elsewhere, Here, Output, OutputRecord, Sent, encoder
from consumer.topology._errors import BoltStateError
from consumer.topology._rules import Ordering, Placement, Rules
from consumer.topology._runner import Runner
from consumer.topology._settlement import held_back
from consumer.topology._tuple import (
    DEFAULT_STREAM,
    Event,
    FailReason,
    Failure,
    Root,
    Stream,
    Tuple,
    woven,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from consumer.topology._topology import Component, Topology
    from consumer.topology._trace import Trace

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
        states: What tasks kept in the batch before, by component and number; not pickled any more.
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
        states: Mapping[tuple[str, int], Any] | None = None,
        trace: Trace | None = None,
        runs_inline: bool = False,
    ) -> None:
        self.next_id = next_id
        self.trace = trace
        self.clock = clock
        self.queue: deque[Tuple] = deque()
        self.current: Root | None = None
        self.in_call: Tuple | None = None
        self.late_acks = 0
        self.untracked_failures = 0
        self.finish_failures: list[tuple[str, str]] = []
        self.shared: list[tuple[Root, ...]] = []
        self.together: list[tuple[Root, ...]] = []
        self.finishing: Runner | None = None
        self.blocked: dict[bytes, tuple[int, str, int, int]] = {}
        self.acked = 0
        self.settled: list[Root] = []
        self._topology = topology
        self._placement = placement
        self._rules = rules
        self._write = write
        self._send = send
        self._roots: dict[int, Root] = {}
        self._open: list[Root] = []
        self._last_event: Any = None
        self._keeps_order = rules.ordering is Ordering.KEY
        self._is_whole = True
        self.runs_inline = runs_inline
        self._pool = CallPool(self)
        self._runners: dict[tuple[str, int], Runner] = {}
        for component in topology.bolts:
            for task in placement.here.get(component.id, ()):
                self._runners[component.id, task] = self._runner(component, task)
        for component in topology.bolts:
            for task in placement.here.get(component.id, ()):
                targets = {
                    stream.name: (stream, self._targets(stream, task))
                    for stream in component.streams.values()
                }
                self._runners[component.id, task].connect(targets)
        self._spout = topology.spout.streams[DEFAULT_STREAM]
        self._hosts_spout = topology.spout.id in placement.here
        self._from_spout = self._targets(self._spout, placement.number) if self._hosts_spout else ()
        self._has_calls = any(isinstance(one, ConcurrentRunner) for one in self._runners.values())
        for place, runner in self._runners.items():
            runner.prepare((states or {}).get(place))

    def feed(self, root: Root, values: tuple[Any, ...]) -> None:
        """Give out an event, and follow it as far as it goes here.

        Args:
            root: Its root.
            values: Its values, those of `EventValues`.
        """
        key = values[0]
        if self.blocked and root.is_tracked and self.is_blocked(key, root.order):
            root.is_held = True
            self.settled.append(root)
            return
        self._last_event = values
        self.current = root
        root.begun_s = self.clock()
        spout, next_id, queue = self._spout, self.next_id, self.queue
        for target in self._from_spout:
            if isinstance(target, Output):
                self._write_event(target, root, values)
                continue
            for number in target.choose(values, None):
                edge = next_id()
                root.value ^= edge
                if isinstance(target, Here):
                    made = Event(values, spout, root, edge, None, target.runners[number])
                    queue.append(made)
                    if self.trace is not None:
                        self.trace.given_out(root, made)
                else:
                    trees = ((root, edge),)
                    target.send(number, Sent(values, (spout.component, spout.name), trees, ()))
        self.drain()
        self.current = None
        if not self._is_whole:
            # What of it is elsewhere is not known here: it stays open to the end.
            self._look_at_time_here(root)
            root.event = (key, None, (), *values[3:7], 0)
            self._open.append(root)
        elif root.failure is not None or root.is_held:
            self.settled.append(root)
        elif root.value == 0:
            self._done_in_time(root)
        else:
            self._open.append(root)
            self._tidy()

    def receive(self, component: str, task: int, sent: Sent) -> None:
        """Give a task a tuple that another process sent it, and follow it."""
        trees = []
        for root, edge in sent.trees:
            known = self._roots.get(root.id)
            if known is None:
                # How long it waited for its turn is nobody's fault, and not counted.
                known, root.begun_s = root, self.clock()
                if root.is_tracked:
                    self._roots[root.id] = root
            trees.append((known, edge))
        stream = self._topology.components[sent.stream[0]].streams[sent.stream[1]]
        owner = self._runners[component, task]
        parent = sent.path[:-1] or None
        made: Tuple
        if len(trees) > 1:
            made = woven(sent.values, stream, tuple(trees), parent, owner)
        elif stream is self._spout:
            made = Event(sent.values, stream, *trees[0], parent, owner)
        else:
            made = Tuple(sent.values, stream, *trees[0], parent, owner)
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
            except Exception as error:
                raise BoltStateError(
                    f"bolt {component!r}, task {task}: its snapshot cannot be pickled: {error}"
                ) from error
        return kept

    def close(self) -> None:
        """Let the bolts clean up."""
        self._pool.close()
        for runner in self._runners.values():
            runner.cleanup()

    def fail(self, root: Root, failure: Failure) -> None:
        """A root has failed; the first failure stays."""
        if not root.is_tracked:
            self.untracked_failures += 1
            return
        if root.failure is None:
            root.failure = failure
            if self._holds_others(root):
                self._block_key(root)

    def finish_failed(self, component: str, detail: str) -> None:
        """`finish_batch` of a bolt raised."""
        self.finish_failures.append((component, detail))

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
        event = self._last_event if self.in_call is None else self.in_call._root.event
        return Root(0, event, is_tracked=False)

    def _runner(self, component: Component, task: int) -> Runner:
        context = TopologyContext(
            topology=self._topology.name,
            component=component.id,
            task=task,
            tasks=self._placement.tasks[component.id],
            config=self._topology.config,
        )
        bolt = pickle.loads(pickle.dumps(component.bolt))  # noqa: S301 - a copy for each task
        if component.concurrency > 1 and not self.runs_inline:
            return ConcurrentRunner(self, context, bolt, self._pool, component)
        return Runner(self, context, bolt)

    def _targets(self, stream: Stream, here: int) -> list[Here | Elsewhere | Output]:
        targets: list[Here | Elsewhere | Output] = []
        for reader, grouping in self._topology.readers(stream.component, stream.name):
            if reader.output is not None:
                targets.append(self._output(reader, stream))
                continue
            tasks = self._placement.tasks[reader.id]
            hosted = self._placement.here.get(reader.id, ())
            if hosted:
                runners = [self._runners[reader.id, task] for task in hosted]
                alone = len(hosted) < tasks
                choose = (lambda _v, _t: (0,)) if alone else grouping.chooser(stream, tasks, here)
                targets.append(Here(runners, choose))
                continue
            self._is_whole = False
            choose = grouping.chooser(stream, tasks, here)
            targets.append(Elsewhere(self._sender(reader.id), choose))
        return targets

    def _sender(self, component: str) -> Callable[[int, Sent], None]:
        send = self._send
        if send is None:
            raise ValueError(f"tasks of {component!r} run elsewhere, and there is no way to them")
        return lambda task, sent: send(component, task, sent)

    def _output(self, reader: Component, stream: Stream) -> Output:
        write, shared, component = self._write, self.shared, reader.id

        def put_out_one(root: Root, record: Any) -> None:
            # As `OutputRecord(root, *record)`, which goes through a function in Python.
            write(component, tuple.__new__(OutputRecord, (root, *record)))

        def put_out(roots: Sequence[Root], record: Any) -> None:
            root = roots[0]
            if len(roots) > 1:
                # It waits for those that somebody waits for.
                roots = [one for one in roots if one.is_tracked] or roots
                root = max(roots, key=lambda one: one.order)
                shared.append(tuple(roots))
            put_out_one(root, record)

        assert reader.output is not None
        encode = encoder(component, reader.output, stream)
        return Output(component, encode, put_out, put_out_one)

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

    def _done_in_time(self, root: Root) -> None:
        if self.clock() - root.begun_s > self._rules.message_timeout_s:
            self._look_at_time_here(root)
            if root.failure is not None:
                self.settled.append(root)
                return
        if not self._open and not self.shared:
            self.acked += 1
            return
        # Should an earlier event of its key fail yet, it is held after all.
        self._open.append(root)
        self._tidy()

    def _look_at_time_here(self, root: Root) -> None:
        """Fail a tree that was followed for too long, as far as it goes here."""
        took_s = self.clock() - root.begun_s
        if root.is_tracked and root.failure is None and took_s > self._rules.message_timeout_s:
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
            self.finishing = runner
            runner.finish_batch()
            self.finishing = None
            self.drain()
            self._pool.complete_all()
            self.drain()

    def _finish_roots(self) -> None:
        """Fail what nobody acked, and hold what may not go out before others do.

        Where a part of the trees is elsewhere, or their spout, that is for the ackers to tell.
        """
        if not self._is_whole or not self._hosts_spout:
            return
        detail = "; ".join(f"finish_batch of {who!r}: {why}" for who, why in self.finish_failures)
        for root in self._open:
            is_open = root.value != 0 and root.failure is None and not root.is_held
            if is_open and root.is_tracked:
                where = (self._spout.component,)
                self.fail(root, Failure(FailReason.NEVER_ACKED, detail, where))
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
        keys: dict[bytes | None, int] = {None: -1}
        held = held_back(
            np.array(
                [
                    keys.setdefault(root.key, len(keys)) if root.is_tracked else -1
                    for root in self._open
                ],
                np.int64,
            ),
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
        attempts = self._rules.max_attempts
        exhausted = attempts is not None and root.attempt >= attempts and root.failure is not None
        return self._keeps_order and root.key is not None and not exhausted
