"""The bolt tasks of an executor, from `prepare` to `cleanup`, and where what they emit goes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.bolt import BatchBolt, TopologyContext, is_async
from sequitur.consumer.topology.api.groupings import Emitter
from sequitur.consumer.topology.engine.concurrency import CallPool, ConcurrentRunner
from sequitur.consumer.topology.engine.runner import Instances, Runner, clean_up
from sequitur.consumer.topology.engine.targets import (
    Elsewhere,
    Here,
    Output,
    OutputRecord,
    Sent,
    encoder,
)
from sequitur.consumer.topology.engine.transactions import (
    BatchRunner,
    ConcurrentTransactionRunner,
    TransactionRunner,
)
from sequitur.consumer.topology.transactional.bolts import TransactionContext
from sequitur.consumer.topology.transactional.builder import TransactionalTopology
from sequitur.errors import NOT_THE_USERS, BoltStateError
from sequitur.kafka.record_format import RecordLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.api.bolt import BaseBolt
    from sequitur.consumer.topology.api.groupings import Chooser, Grouping
    from sequitur.consumer.topology.api.topology import Component
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.environment import Environment
    from sequitur.consumer.topology.settling.root import Root


class Wiring:
    """Connects the tasks of an executor with each other, with other processes, and with outputs."""

    def __init__(
        self,
        environment: Environment,
        runners: Mapping[tuple[str, int], Runner],
        write: Callable[[str, OutputRecord], None],
        send: Callable[[str, int, Sent], None] | None,
    ) -> None:
        self.is_whole = True
        self._environment = environment
        self._topology, self._placement = environment.topology, environment.placement
        self._runners = runners
        self._write = write
        self._send = send
        self._emitted: list[Callable[[], int]] = []
        for (component, task), runner in runners.items():
            streams = [
                replace(one, task=task)
                for one in self._topology.components[component].streams.values()
            ]
            runner.connect({one.name: (one, self.targets(one, task)) for one in streams})

    @property
    def emitted(self) -> int:
        """How many records outputs were given to write."""
        return sum(count() for count in self._emitted)

    def targets(self, stream: Stream, here: int) -> list[Here | Elsewhere | Output]:
        """Return the readers of a stream."""
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
                self._environment.hashed,
            )
            hosted = self._placement.here.get(reader.id, ())
            if hosted:
                runners = [self._runners[reader.id, task] for task in hosted]
                alone = len(hosted) < tasks
                choose = (
                    (lambda _v, _t: (0,))
                    if alone
                    else self._chooser(grouping, stream, tasks, emitter, reader.id)
                )
                targets.append(Here(runners, choose))
                continue
            self.is_whole = False
            choose = self._chooser(grouping, stream, tasks, emitter, reader.id)
            targets.append(Elsewhere(self._sender(reader.id), choose, reader.id))
        return targets

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
        # As `OutputRecord(root, *record)`, which goes through a function in Python.
        made, emitted = tuple.__new__, 0

        def put_out_one(root: Root, record: Any) -> None:
            nonlocal emitted
            emitted += 1
            write(component, made(OutputRecord, (root, *record)))

        def put_out(roots: Sequence[Root], record: Any) -> None:
            root = roots[0]
            if len(roots) > 1:
                # It waits for those that somebody waits for.
                roots = [one for one in roots if one.is_tracked] or roots
                root = max(roots, key=lambda one: one.order)
                shared.append(tuple(roots))
            put_out_one(root, record)

        self._emitted.append(lambda: emitted)
        assert reader.output is not None
        limit = self._environment.rules.limits.get(component, RecordLimit())
        encode = encoder(
            component,
            reader.output,
            stream,
            limit,
            is_transactional=self._topology.is_transactional,
        )
        return Output(component, encode, put_out, put_out_one)


class BoltTasks:
    """Makes bolts, or takes them over from an earlier batch; keeps them, or cleans them up."""

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
        """Whether any of them makes calls side by side."""
        return any(isinstance(one, ConcurrentRunner) for one in self.runners.values())

    def prepare(self) -> None:
        """Prepare the bolts that have not come from an earlier batch."""
        for place in self._unprepared:
            state = self._states.get(place)
            self.runners[place].prepare(
                None if state is None else pickle.loads(state)  # noqa: S301 - from `snapshots`
            )

    def renew(self, place: tuple[str, int]) -> None:
        """Have a task go on with another copy of its bolt, as its batch began."""
        runner, state = self.runners[place], self._states.get(place)
        clean_up(runner.bolt)
        runner.renew(_copy_of(self._topology.components[place[0]]))
        runner.prepare(None if state is None else pickle.loads(state))  # noqa: S301 - our own

    def snapshots(self) -> dict[tuple[str, int], Any]:
        """Return what tasks want kept until the next batch, pickled."""
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
        """Keep the bolts for another batch, which begins with what `snapshots` gave."""
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
                clean_up(runner.bolt)

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
        context.now_ms, context.watermark_ms = moment.now_ms, moment.watermark_ms
        runner = self._runner_of(component, context, bolt)
        if kept is not None:
            runner.take_over(kept)
        return runner

    def _runner_of(self, component: Component, context: Any, bolt: BaseBolt) -> Runner:
        """Return what runs a task, after the kind of its bolt and of its topology."""
        environment = self._environment
        has_calls = component.concurrency > 1 and not environment.runs_inline
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


def _copy_of(component: Component) -> Any:
    return pickle.loads(pickle.dumps(component.bolt))  # noqa: S301 - a copy for each task
