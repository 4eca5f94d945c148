"""The executor: the bolt tasks of one process, and the tuples between them.

`step.tasks` feeds it events, or gives it tuples that other processes sent, one at a time. Each is
followed through all bolts here before the next one. So what a task sees is in order, and the tree
of a chain that stays in the process is done before the next begins. Clock and random numbers are
arguments.

`BoltTasks` takes bolts from `prepare` to `cleanup`. `Wiring` says who gets what they emit.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.copy_headers import FailReason
from sequitur.consumer.topology.api.bolt import (
    BATCH_TICK,
    TICK,
    BatchBolt,
    TopologyContext,
    is_async,
)
from sequitur.consumer.topology.api.builder import TreeFailure
from sequitur.consumer.topology.api.collector import TaskId
from sequitur.consumer.topology.api.groupings import Emitter
from sequitur.consumer.topology.api.keyed import KeyedBolt
from sequitur.consumer.topology.api.tuple import EventValues, Stream
from sequitur.consumer.topology.engine import key_groups
from sequitur.consumer.topology.engine.concurrency import CallPool, ConcurrentRunner
from sequitur.consumer.topology.engine.key_store import SharedStore
from sequitur.consumer.topology.engine.keyed import TIMER, KeyedRunner, StepKeys
from sequitur.consumer.topology.engine.keyed_by_field import FieldKeyedRunner
from sequitur.consumer.topology.engine.keyed_calls import (
    ConcurrentFieldRunner,
    ConcurrentKeyedRunner,
)
from sequitur.consumer.topology.engine.keyed_transactions import TransactionKeyedRunner
from sequitur.consumer.topology.engine.plan import (
    OF_TIMERS,
    Elsewhere,
    Here,
    Output,
    Sent,
    encoder,
    packed,
    the_one_here,
    unpacked,
)
from sequitur.consumer.topology.engine.runner import Instances, Runner
from sequitur.consumer.topology.engine.task_output import OF_BATCH, Environment, SpoutOutput, Start
from sequitur.consumer.topology.engine.transactions import (
    BatchRunner,
    ConcurrentTransactionRunner,
    TransactionRunner,
)
from sequitur.consumer.topology.engine.trees import (
    FAILED,
    OpenTrees,
    TrackedTuple,
    TreeTracker,
    multi_anchored,
)
from sequitur.consumer.topology.settling.root import Root, is_own, is_replayed_timer, timer_of
from sequitur.consumer.topology.transactional.attempt import Cause, Phase
from sequitur.consumer.topology.transactional.builder import (
    TransactionalTopology,
    TransactionContext,
)
from sequitur.errors import NOT_THE_USERS, BoltStateError, EmitError
from sequitur.kafka.record_format import RecordLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.api.bolt import BaseBolt
    from sequitur.consumer.topology.api.builder import Component, Topology
    from sequitur.consumer.topology.api.groupings import Chooser, Grouping
    from sequitur.consumer.topology.engine.plan import Placement, RecordValues, Rules
    from sequitur.consumer.topology.engine.task_output import Trace, UserCode
    from sequitur.consumer.topology.engine.trees import UnfinishedEvent
    from sequitur.consumer.topology.settling.root import Order
    from sequitur.consumer.topology.transactional.attempt import BatchOutcome


class Wiring:
    """Connects the tasks of an executor with each other, with other processes and with outputs."""

    def __init__(
        self,
        environment: Environment,
        runners: Mapping[tuple[str, int], Runner],
        write: Callable[[str, RecordValues], None],
        send: Callable[[str, int, Sent], None] | None,
    ) -> None:
        self.is_whole = True
        self._environment = environment
        self._topology, self._placement = environment.topology, environment.placement
        self._runners = runners
        self._write = write
        self._send = send
        self._keyed_by_field = frozenset(self._topology.keyed_by_field)
        self._emitted: list[Callable[[], int]] = []
        for (component, task), runner in runners.items():
            streams = [
                replace(one, task=task)
                for one in self._topology.components[component].streams.values()
            ]
            runner.connect({one.name: (one, self.targets(one, task)) for one in streams})

    @property
    def emitted(self) -> int:
        return sum(count() for count in self._emitted)

    def targets(self, stream: Stream, here: int) -> list[Here | Elsewhere | Output]:
        targets: list[Here | Elsewhere | Output] = []
        for reader, grouping in self._topology.readers(stream.component, stream.name):
            if reader.output is not None:
                targets.append(self._output(reader, stream))
                continue
            tasks = self._placement.tasks[reader.id]
            emitter = Emitter(
                here,
                self._placement.tasks[stream.component],
                self._environment.start.moment.number,
                self._topology.name,
            )
            hosted = self._placement.here.get(reader.id, ())
            if hosted:
                runners = [self._runners[reader.id, task] for task in hosted]
                alone = len(hosted) < tasks
                choose = (
                    the_one_here
                    if alone
                    else self._chooser(grouping, stream, tasks, emitter, reader.id)
                )
                targets.append(Here(runners, choose))
                continue
            self.is_whole = False
            if reader.id in self._keyed_by_field:
                choose = key_groups.chooser(grouping.fields, stream, tasks)
            else:
                choose = self._chooser(grouping, stream, tasks, emitter, reader.id)
            targets.append(Elsewhere(self._sender(reader.id), choose, reader.id))
        return targets

    def send_timer(
        self, root: Root, event: tuple[Any, ...], edge: int, trace: Trace | None
    ) -> None:
        """Send a timer that waited to the task that has its key."""
        place, at_ms = timer_of(event)
        bolt = self._topology.stores_by_field[place.component]
        number = key_groups.task_of(place.key, self._placement.tasks[bolt])
        values = packed(TIMER, (place.name, at_ms, is_replayed_timer(event)))
        sent = Sent(values, OF_TIMERS, ((root, edge),), (TIMER.component,))
        root.value ^= edge
        if trace is not None:
            trace.sent(None, (), None, TIMER, sent, TaskId(bolt, number))
        self._sender(bolt)(number, sent)

    def _chooser(
        self, grouping: Grouping, stream: Stream, tasks: int, emitter: Emitter, reader: str
    ) -> Chooser:
        choose = grouping.chooser(stream, tasks, emitter, reader)
        return self._environment.user_code.bounded(choose) if grouping.is_users else choose

    def _sender(self, component: str) -> Callable[[int, Sent], None]:
        send = self._send
        if send is None:
            raise ValueError(f"tasks of {component!r} run elsewhere, but `send` is not given")
        return lambda task, sent: send(component, task, sent)

    def _output(self, reader: Component, stream: Stream) -> Output:
        write, shared, component = self._write, self._environment.shared, reader.id
        users, emitted = self._environment.user_code, 0
        assert reader.output is not None
        limit = self._environment.rules.limits.get(component, RecordLimit())
        encode = encoder(
            component,
            reader.output,
            stream,
            limit,
            is_transactional=self._topology.is_transactional,
        )

        def emit_one(
            values: tuple[Any, ...], anchor: TrackedTuple, own_time_ms: int | None = None
        ) -> None:
            nonlocal emitted
            key, value, headers = encode(values)
            users.running = None
            emitted += 1
            time_ms = anchor.own_time_ms if own_time_ms is None else own_time_ms
            write(component, (anchor.root, key, value, headers, time_ms))
            users.running = anchor

        def put_out(roots: Sequence[Root], record: Any, own_time_ms: int | None) -> None:
            nonlocal emitted
            root = roots[0]
            if len(roots) > 1:
                # The record waits for the tracked roots, if there are any.
                roots = [one for one in roots if one.is_tracked] or roots
                root = max(roots, key=lambda one: one.order)
                shared.append(tuple(roots))
            emitted += 1
            write(component, (root, *record, own_time_ms))

        self._emitted.append(lambda: emitted)
        return Output(component, encode, put_out, emit_one)


class BoltTasks:
    """Makes bolts or takes them over from an earlier batch; keeps them or cleans them up."""

    def __init__(self, environment: Environment, pool: CallPool, instances: Instances) -> None:
        self._environment = environment
        self._topology, self._tasks = environment.topology, environment.placement.tasks
        self._pool = pool
        self._instances = instances
        self._states = environment.start.states
        self._snapshots: dict[tuple[str, int], bytes] = {}
        self._kept: set[tuple[str, int]] = set()
        self._unprepared: list[tuple[str, int]] = []
        self.runners = {
            (component.id, task): self._runner(component, task)
            for component in self._topology.bolts
            for task in environment.placement.here.get(component.id, ())
        }

    @property
    def have_concurrent_calls(self) -> bool:
        return any(isinstance(one, ConcurrentRunner) for one in self.runners.values())

    def prepare(self) -> None:
        """Prepare the bolts that did not come from an earlier batch."""
        for place in self._unprepared:
            state = self._states.get(place)
            self.runners[place].prepare(
                None if state is None else pickle.loads(state)  # noqa: S301 - from `snapshots`
            )

    def renew(self, place: tuple[str, int]) -> None:
        """Replace a task's bolt by a new copy, in the state in which its batch began."""
        runner, state = self.runners[place], self._states.get(place)
        runner.clean_up()
        runner.renew(_copy_of(self._topology.components[place[0]]))
        runner.prepare(None if state is None else pickle.loads(state))  # noqa: S301 - our own

    def snapshots(self) -> dict[tuple[str, int], Any]:
        """Return the snapshots of the tasks, pickled."""
        snapshots = {}
        for (component, task), runner in self.runners.items():
            state = runner.snapshot()
            if state is None:
                continue
            try:
                snapshots[component, task] = pickle.dumps(state, protocol=5)
            except NOT_THE_USERS:
                raise
            except BaseException as error:
                raise BoltStateError(
                    f"bolt {component!r}, task {task}: its snapshot cannot be pickled: {error}"
                ) from error
        self._snapshots = snapshots
        return snapshots

    def keep(self) -> None:
        """Keep the bolts for another batch, if that begins with what `snapshots` returned."""
        for place, runner in self.runners.items():
            kept = runner.kept(self._snapshots.get(place))
            if kept is not None and not (self._pool.has_abandoned_calls and is_async(kept.bolt)):
                self._instances.put(place, kept)
                self._kept.add(place)

    def close(self) -> None:
        """Clean up the bolts that are not kept."""
        self._pool.close()
        if not any(is_async(self.runners[place].bolt) for place in self._kept):
            self._instances.close_loop()
        for place, runner in self.runners.items():
            if place not in self._kept:
                runner.clean_up()

    def _runner(self, component: Component, task: int) -> Runner:
        place = (component.id, task)
        kept = self._instances.take(place, self._states.get(place))
        if kept is None:
            made = TopologyContext if self._environment.transaction is None else TransactionContext
            context = made(
                topology=self._topology.name,
                component=component.id,
                task=task,
                tasks=self._tasks[component.id],
                config=self._topology.config,
                task_counts=self._tasks,
            )
            bolt = _copy_of(component)
            self._unprepared.append(place)
        else:
            context, bolt = kept.context, kept.bolt
        moment = self._environment.start.moment
        # What plain bolts see is the watermark itself.
        is_keyed = component.key_store in self._topology.stores_by_field
        delay_ms = self._topology.delay_ms(component.id) if is_keyed else 0
        context.now_ms = moment.now_ms
        context.watermark_ms = moment.watermark_of(component.key_store, delay_ms)
        runner = self._runner_of(component, context, bolt)
        if self._environment.start.is_again and type(runner) in _REPEATING:
            runner.repeat_calls()
        if kept is not None:
            runner.take_over(kept)
        return runner

    def _runner_of(self, component: Component, context: Any, bolt: BaseBolt) -> Runner:
        environment = self._environment
        has_calls = component.concurrency > 1 and not environment.runs_inline
        if environment.keys is not None and isinstance(bolt, KeyedBolt):
            more = (self._pool, component) if has_calls else ()
            made: type[KeyedRunner] = ConcurrentKeyedRunner if has_calls else KeyedRunner
            if environment.transaction is not None:
                made = TransactionKeyedRunner
            elif component.id in self._topology.keyed_by_field:
                made = ConcurrentFieldRunner if has_calls else FieldKeyedRunner
            return made(environment, context, bolt, *more)
        if not isinstance(self._topology, TransactionalTopology):
            if has_calls:
                return ConcurrentRunner(environment, context, bolt, self._pool, component)
            return Runner(environment, context, bolt)
        if isinstance(bolt, BatchBolt):
            topology = self._topology
            is_committer = component.id in topology.committers
            states = topology.states.get(component.id, {}) if is_committer else None
            return BatchRunner(environment, context, bolt, states)
        if has_calls:
            return ConcurrentTransactionRunner(environment, context, bolt, self._pool, component)
        return TransactionRunner(environment, context, bolt)


_REPEATING: Final = (Runner, FieldKeyedRunner)
"""Those whose calls are repeated when tasks run again."""


def _step_keys(topology: Topology, start: Start, *, runs_inline: bool) -> StepKeys:
    moment, keys = start.moment, start.keys
    bolts = (one for one in topology.bolts if isinstance(one.bolt, KeyedBolt))
    if not runs_inline and any(one.concurrency > 1 for one in bolts):
        keys = {name: SharedStore(store) for name, store in keys.items()}
    stores, reached_ms = topology.key_stores, moment.reached_ms
    if reached_ms is not None and keys:
        # Those by a field are of one bolt, and no bolt is before those by the events' key.
        reached_ms -= max(topology.delay_ms(stores[name]) for name in keys)
    draining = topology.draining if moment.closes else ()
    return StepKeys(keys, reached_ms, draining, start.room)


def _copy_of(component: Component) -> Any:
    return pickle.loads(pickle.dumps(component.bolt))  # noqa: S301 - a copy for each task


_DEEPEST: Final = 16
"""At most so many calls are in the middle of what they yield."""


@dataclass(frozen=True, slots=True)
class ExecutorResult:
    """What one executor knows after a batch of the events and tuples that it got.

    A made tuple is one that a task made by itself, without an event.
    """

    acked: int  # how many trees are done
    # events that are not done, except those whose trees left the process: ackers decide on them
    unfinished: Sequence[UnfinishedEvent]
    fed: Sequence[Root]  # roots of the events that were fed; empty without a hook
    # roots of trees that are partly elsewhere, with the XOR of the edges known here
    roots: Sequence[Root]
    # the roots of each output of several events, where ackers decide on it
    shared: Sequence[tuple[Root, ...]]
    late_acks: int  # acks of tuples whose tree had failed
    untracked_failures: int  # failures of trees that are not tracked
    finish_failures: Sequence[tuple[str, str]]  # bolts whose `finish_batch` raised, and what
    emitted: int  # how many records outputs got to write
    # ids of roots without an event whose records may not go out
    dropped: Sequence[int] = ()
    made: int = 0  # how many made tuples there are, without those in `undone`
    # the order of each task's last made tuple, by the task's key
    last_made: Mapping[bytes, Order] = field(default_factory=dict)
    # the roots of made tuples with their events, where ackers decide on them
    roots_made: Sequence[tuple[Root, Any]] = ()
    # the roots of tuples made by a `finish_batch` that then raised. They count for nothing
    undone: Sequence[Root] = ()
    # whether a `finish_batch` failed several events, one of which has no further attempt
    has_to_blame: bool = False
    # the order of the first event that waits, by key
    blocked: Mapping[bytes, Order] = field(default_factory=dict)
    # how the try at a transaction went here; None in other topologies
    batch: BatchOutcome | None = None


class Executor:
    """Runs the bolt tasks of one process, and passes the tuples between them.

    It gets events, or tuples from other processes, one at a time. It follows each through all bolts
    here before the next one. So a task sees tuples in order, and the tree of a chain that stays in
    the process is done before the next begins. Clock and random numbers are arguments.
    """

    def __init__(
        self,
        topology: Topology,
        placement: Placement,
        rules: Rules,
        *,
        clock: Callable[[], float],
        next_id: Callable[[], int],
        write: Callable[[str, RecordValues], None],
        send: Callable[[str, int, Sent], None] | None = None,
        start: Start | None = None,
        instances: Instances | None = None,
        trace: Trace | None = None,
        runs_inline: bool = False,
    ) -> None:
        self._start = start = start or Start()
        self._topology, self._placement, self._trace = topology, placement, trace
        # In a batch without events, unanchored tuples get a placeholder event of the batch's time.
        no_event = self._no_event(start.moment.now_ms)
        self._trees = TreeTracker(
            rules,
            no_event,
            dead_block=topology.is_keyed,
            keepers=topology.key_stores,
            by_field=topology.stores_by_field,
        )
        self._environment = environment = Environment(
            topology,
            placement,
            rules,
            start,
            clock,
            next_id,
            self._trees,
            self._follow,
            trace,
            runs_inline,
            last_made=dict(start.last_made),
            keys=_step_keys(topology, start, runs_inline=runs_inline) if start.keys else None,
        )
        self._queue = environment.queue
        self._busy: list[Runner] = []  # in the middle of a call, while others get its tuples
        self._fed: list[Root] | None = None if topology.hook is None else []
        self._unsent: list[Callable[[], None]] | None = None
        self._acked = 0  # trees that were done at once
        self._received: dict[int, Root] = {}
        self._made = 0
        self._roots_made: list[tuple[Root, Any]] = []
        self._streams: dict[tuple[str, str, int], Stream] = {}
        instances = Instances() if instances is None else instances
        self._pool = CallPool(environment, instances)
        self._tasks = BoltTasks(environment, self._pool, instances)
        self._runners = self._tasks.runners
        self._wiring = Wiring(environment, self._runners, write, self._sends(send))
        self._from_spout = SpoutOutput(environment, self._wiring)
        self._tasks.prepare()
        self._has_calls = self._tasks.have_concurrent_calls
        self._is_whole = self._wiring.is_whole
        self._open = OpenTrees(environment, is_whole=self._is_whole)
        # What `feed` looks at for each event.
        self._emit = self._from_spout.give or self._from_spout.emit
        self._is_told = trace is not None or self._fed is not None
        self._opened, self._shared = self._open.roots, environment.shared
        self._awaited = environment.awaited

    @property
    def user_code(self) -> UserCode:
        """The user code that runs. A watchdog looks at it."""
        return self._environment.user_code

    @property
    def waits(self) -> Mapping[str, int]:
        """The first turn of what is known to wait, by `keeper_of`."""
        return self._trees.waits

    @property
    def has_to_blame(self) -> bool:
        """Whether a `finish_batch` failed several events, one of which has no further attempt."""
        return any(runner.gives_up_together for runner in self._runners.values())

    def feed(self, root: Root, values: tuple[Any, ...], *, is_own: bool = False) -> None:
        """Emit an event from the spout, and follow it as far as it goes here."""
        trees, queue = self._trees, self._queue
        if (self._is_told or trees.blocked) and not self._begins(root, values):
            return
        trees.current, trees.event = root, values  # `TreeTracker.begin`, inline
        if is_own:
            self._from_spout.emit_made(root, values)
        elif queue:  # with what bolts emitted in `prepare`, which comes first
            self._from_spout.emit(root, values)
        else:
            self._emit(root, values)
        if queue or self._has_calls:
            self.drain()
        trees.current = None
        # `Root.is_done` and `OpenTrees.is_empty`, inline
        is_done = root.value == 0 and root.failure is None and not root.is_held
        if (
            is_done
            and not self._opened
            and not self._shared
            and self._is_whole
            and root not in self._awaited
        ):
            self._acked += 1  # the tree is done
            return
        self._open.add(root, root.event)
        if self._open.is_full:
            self.finish()

    def feed_timer(self, root: Root, event: tuple[Any, ...]) -> None:
        """Give a timer that waited in the form of an event back to the stage of its bolt."""
        if not self._begins(root, event):
            return
        component = timer_of(event)[0].component
        if component in self._topology.stores_by_field:
            self._from_spout.emit_timer(root, event)
        else:
            path = (TIMER.component,)
            failure = TreeFailure(FailReason.EXCEPTION, f"no keyed bolt {component!r}", path)
            self._trees.fail(root, failure)
        self._open.add(root, root.event)

    def refuse(self, root: Root, values: tuple[Any, ...], failure: TreeFailure) -> None:
        if self._begins(root, values):
            self._trees.fail(root, failure)
            self._open.add(root, root.event)

    def _begins(self, root: Root, values: tuple[Any, ...]) -> bool:
        """Return whether the event is fed. It is held if an earlier event of its key waits."""
        trees = self._trees
        if self._trace is not None:
            self._trace.begun(root, values)
        if trees.blocked and root.is_tracked and trees.waits_for_another(root):
            self._open.hold(root)
            return False
        if self._fed is not None and not is_own(values):
            self._fed.append(root)
        return True

    def receive(self, component: str, task: int, sent: Sent) -> None:
        """Give a task a tuple from another process, and follow it."""
        stream = self._stream_of(sent)
        try:
            values = unpacked(stream, sent.values)
        except EmitError as error:
            path = (*sent.path, component)
            self.give_up(sent, TreeFailure(FailReason.EXCEPTION, str(error), path))
            return
        if self._start.transaction is not None:  # prepared tuples may be an earlier try's
            values = (self._start.transaction.attempt, *values[1:])
        trees = []
        for root, edge in sent.trees:
            known = self._received.get(root.id)
            if known is None:
                known = root
                if root.is_tracked:
                    self._received[root.id] = root
            trees.append((known, edge))
        owner = self._runners[component, task]
        parent = sent.path[:-1] or None
        made: TrackedTuple
        if len(trees) > 1:
            made = multi_anchored(values, stream, trees, parent, owner, sent.own_time_ms)
        else:
            is_of_spout = stream.component == self._topology.spout.id
            kind = self._from_spout.kind if is_of_spout else owner.tuple_kind
            made = kind(values, stream, *trees[0], parent, owner, sent.own_time_ms)
        if self._trace is not None:
            self._trace.received(sent, made)
        self._trees.receive(trees[0][0].event)
        self._queue.append(made)
        self.drain()

    def give_up(self, sent: Sent, failure: TreeFailure) -> None:
        """Fail a tuple from another process without giving it to its task."""
        environment = self._environment
        for root, _ in sent.trees:
            known = self._received.setdefault(root.id, root) if root.is_tracked else root
            self._trees.fail(known, failure)
            if environment.transaction and (environment.is_commit or not root.is_tracked):
                environment.outcome.fail(failure.path[-1], Cause.RAISED, failure.detail)

    def hold_back(self, line: bytes | None, order: Order) -> None:
        """Hold the events of a line, see `line_of`, later than one that waits and is not fed."""
        self._trees.block(line, order)

    def make_behind(self, orders: Mapping[bytes, Order]) -> None:
        """Hold what tasks make from now on behind the waiting tuples that they made before."""
        last = self._environment.last_made
        for key, order in orders.items():
            self.hold_back(key, order)
            last[key] = max(order, last.get(key, order))

    def tick(self, bolts: Sequence[str] | None = None) -> None:
        """Give bolts the ticks that are due, before anything else. Ticks belong to no tree.

        If a bolt refuses a tick, nothing that it did counts. It gets the tick once more, in the
        state in which its batch began. What it does then counts, even if it refuses again.
        """
        moment = self._start.moment
        time_ms = moment.now_ms if moment.watermark_ms is None else moment.watermark_ms
        for component in moment.ticks if bolts is None else bolts:
            interval_ms = moment.ticks[component]
            for task in self._placement.here.get(component, ()):
                place = component, task
                if not self._takes_tick(place, interval_ms, time_ms):
                    self._takes_tick(place, interval_ms, time_ms, is_last=True)
        self.drain()
        self._take_in_made()

    def _takes_tick(
        self, place: tuple[str, int], interval_ms: int, time_ms: int, *, is_last: bool = False
    ) -> bool:
        """Return whether a call at a tick counts. What it emits waits until all had their tick."""
        environment, queue, pool = self._environment, self._queue, self._pool
        root = Root(OF_BATCH | next(self._start.numbers), self._no_event(time_ms), is_tracked=False)
        stream: Stream = TICK
        values: tuple[Any, ...] = (interval_ms / 1000,)
        if self._start.transaction is not None:
            stream, values = BATCH_TICK, (self._start.transaction.attempt, *values)
        tick = TrackedTuple(values, stream, root, 0, None, self._runners[place])
        before, made, self._unsent = len(queue), len(environment.made), []
        self._runners[place].run(tick)
        while not pool.is_idle:
            pool.complete_some()
        unsent, self._unsent = self._unsent, None
        if tick.owner is FAILED and not is_last:
            while len(queue) > before:
                queue.pop()
            environment.dropped.append(root.id)
            environment.dropped.extend(one.id for one in environment.made[made:])
            del environment.made[made:]
            self._tasks.renew(place)
            return False
        for send in unsent:
            send()
        return True

    def give_up_tick(self, bolt: str, failure: TreeFailure) -> None:
        """Fail a bolt's tick without giving it to the bolt. It has no tree, so it is logged."""
        for task in self._placement.here.get(bolt, ()):
            logger = self._runners[bolt, task].context.logger
            logger.error("a tick was not processed: %s", failure.detail)
            self._trees.fail(Root(0, None, is_tracked=False), failure)

    def drain(self) -> None:
        """Give all queued tuples to their tasks, and the tuples that these emit."""
        queue, trees = self._queue, self._trees
        blocked = trees.blocked
        while True:
            while queue:
                given = queue.popleft()
                if (given.root.failure is None and not blocked) or trees.is_wanted(given):
                    given.owner.take(given)
            if not self._has_calls or not self._pool.is_full:
                return
            self._pool.complete_some()

    def _follow(self, runner: Runner) -> None:
        """Give queued tuples to their tasks while one task is in the middle of a call.

        Tuples for tasks that are in the middle of a call wait, in their order.
        """
        queue, busy, waiting = self._queue, self._busy, deque[TrackedTuple]()
        if len(busy) == _DEEPEST:
            return  # Python's stack has an end
        busy.append(runner)
        try:
            while queue:
                given = queue.popleft()
                if given.owner in busy:
                    waiting.append(given)
                elif self._trees.is_wanted(given):
                    given.owner.take(given)
                while self._has_calls and self._pool.is_full:
                    self._pool.complete_some()
        finally:
            busy.pop()
            queue.extendleft(reversed(waiting))

    def finish(self) -> None:
        """Finish the batch: let bolts ack what they hold, and decide what becomes of its trees.

        If a part of the trees or their spout is elsewhere, the ackers decide.
        """
        self._complete_calls()
        self._take_in_made()
        for runner in self._runners.values():
            if self._environment.outcome.failures:
                break  # nothing of the batch will be committed
            runner.give_out()
            self._complete_calls()
            if self._is_rehearsal:
                continue
            if self._start.moment.only_retries and not runner.has_to_finish:
                continue  # what it would make may fail, and the run would never end
            runner.finish_batch()
            self._complete_calls()
            self._take_in_made()
        self._environment.awaited.clear()
        if self._settles:
            self._open.settle()

    @property
    def _settles(self) -> bool:
        """Whether this executor knows all of its trees."""
        return self._is_whole and self._from_spout.is_here

    def _take_in_made(self) -> None:
        """Follow the tuples that tasks made by themselves as far as they go here."""
        awaited = self._environment.awaited
        made = [root for root in self._environment.made if root.is_tracked]
        self._made += len(made)
        if not self._settles:
            self._roots_made += [(root, root.event) for root in made]
        elif self._open.is_empty and all(one.is_done and one not in awaited for one in made):
            self._acked += len(made)
        else:  # a done one may stand behind an unfinished one
            for root in made:
                self._open.add(root, root.event)
        self._environment.made.clear()

    def result(self) -> ExecutorResult:
        """Return what became of the input. It is final once the batch is finished."""
        return ExecutorResult(
            acked=self._acked + self._open.acked,
            unfinished=self._open.unfinished,
            fed=self._fed or (),
            roots=[*self._open.roots, *self._received.values()],
            shared=self._environment.shared,
            late_acks=self._trees.late_acks,
            untracked_failures=self._trees.untracked_failures,
            finish_failures=self._environment.finish_failures,
            emitted=self._wiring.emitted,
            dropped=self._environment.dropped,
            made=self._made,
            last_made=self._environment.last_made,
            roots_made=self._roots_made,
            undone=self._environment.undone,
            has_to_blame=self.has_to_blame,
            blocked=self._trees.blocked,
            batch=self._environment.outcome if self._start.transaction else None,
        )

    def snapshots(self) -> dict[tuple[str, int], Any]:
        return self._tasks.snapshots()

    def keep(self) -> None:
        self._tasks.keep()

    def close(self) -> None:
        self._tasks.close()

    @property
    def _is_rehearsal(self) -> bool:
        """Whether bolts of the commit phase get tuples before their batch is complete."""
        transaction, commit_phase = self._start.transaction, self._topology.commit_phase
        return (
            transaction is not None
            and transaction.phase is Phase.PROCESSING
            and any(component in commit_phase for component in self._placement.here)
        )

    def _sends(
        self, send: Callable[[str, int, Sent], None] | None
    ) -> Callable[[str, int, Sent], None] | None:
        """Return a `send` that waits while a bolt has its tick."""
        if send is None or not self._start.moment.ticks:
            return send

        def held(component: str, task: int, sent: Sent) -> None:
            if self._unsent is None:
                send(component, task, sent)
            else:
                self._unsent.append(partial(send, component, task, sent))

        return held

    def _complete_calls(self) -> None:
        """Wait for all concurrent calls, and for those that follow from them."""
        self.drain()
        while not self._pool.is_idle:
            self._complete_some()

    def _complete_some(self) -> None:
        self._pool.complete_some()
        self.drain()

    def _no_event(self, time_ms: int) -> EventValues:
        """Return the placeholder event of tuples that come from no event."""
        return EventValues(None, None, (), time_ms, "", self._placement.number, 0, time_ms)

    def _stream_of(self, sent: Sent) -> Stream:
        place = (*sent.stream, sent.task)
        found = self._streams.get(place)
        if found is None:
            component, name = sent.stream
            declared = self._topology.components[component].streams[name]
            found = self._streams[place] = replace(declared, task=sent.task)
        return found
