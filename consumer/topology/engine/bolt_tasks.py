"""The bolt tasks of an executor, from `prepare` to `cleanup`."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.bolt import BatchBolt, TopologyContext, is_async
from sequitur.consumer.topology.engine.concurrency import CallPool, ConcurrentRunner
from sequitur.consumer.topology.engine.instances import Instances, clean_up
from sequitur.consumer.topology.engine.runner import Runner
from sequitur.consumer.topology.engine.transactions import (
    BatchRunner,
    ConcurrentTransactionRunner,
    TransactionRunner,
)
from sequitur.consumer.topology.transactional.bolts import TransactionContext
from sequitur.consumer.topology.transactional.topology import TransactionalTopology
from sequitur.errors import NOT_THE_USERS, BoltStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.topology.api.bolt import BaseBolt
    from sequitur.consumer.topology.api.moment import Moment
    from sequitur.consumer.topology.api.topology import Component, Topology
    from sequitur.consumer.topology.engine.environment import Environment
    from sequitur.consumer.topology.engine.rules import Placement


class BoltTasks:
    """Makes bolts, or takes them over from an earlier batch; keeps them, or cleans them up."""

    def __init__(
        self,
        topology: Topology,
        placement: Placement,
        *,
        moment: Moment,
        environment: Environment,
        pool: CallPool,
        instances: Instances,
        states: Mapping[tuple[str, int], bytes],
    ) -> None:
        self._topology = topology
        self._tasks = placement.tasks
        self._moment = moment
        self._environment = environment
        self._pool = pool
        self._instances = instances
        self._states = dict(states)
        self._snapshots: dict[tuple[str, int], bytes] = {}
        self._kept: set[tuple[str, int]] = set()
        self._unprepared: list[tuple[str, int]] = []
        self.runners = {
            (component.id, task): self._runner(component, task)
            for component in topology.bolts
            for task in placement.here.get(component.id, ())
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
        context.now_ms, context.watermark_ms = self._moment.now_ms, self._moment.watermark_ms
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
