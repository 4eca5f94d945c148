"""Transactional topologies: their builder, and the bolts that only they have.

A batch is a transaction. In each task each batch has its own copy of a `BatchBolt`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.bolt import (
    BaseBolt,
    BasicBolt,
    BatchBolt,
    FunctionBolt,
    TopologyContext,
    is_async,
    keeps_of_batch,
)
from sequitur.consumer.topology.api.builder import (
    EVENT_FIELDS,
    Topology,
    TopologyBuilder,
    check_sendable,
)
from sequitur.consumer.topology.api.groupings import FieldsGrouping
from sequitur.consumer.topology.api.keyed import KeyedBolt
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM, TRANSACTION_FIELD
from sequitur.consumer.topology.state.store import State, TransactionalState
from sequitur.consumer.topology.transactional.spouts import DeclaredSpout
from sequitur.errors import StateError, TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta

    from sequitur.consumer.topology.api.builder import ComponentDeclarer
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.tuple import Tuple
    from sequitur.consumer.topology.state.map_state import MapState
    from sequitur.consumer.topology.state.store import StateStore
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


class TransactionalTopologyBuilder(TopologyBuilder):
    """Puts a transactional topology together.

    ::

        builder = TransactionalTopologyBuilder("global-count", "spout", OrderedStreamSpout())
        builder.set_bolt("partial-count", BatchCount(), 5).shuffle_grouping("spout")
        builder.set_committer_bolt(
            "sum", UpdateGlobalCount(), states={"count": TransactionalState(store, "global_count")}
        ).global_grouping("partial-count")
        topology = builder.build()

    The first field of every tuple is the `TransactionAttempt` of its batch: that of the spout's
    tuples is called `transaction`.

    Args:
        id: Names the topology and its data in databases. With the same id and the same checkpoint,
            the topology resumes after a restart.
        spout_id: Name of the spout.
        spout: The spout. A job runs only the ordered stream, `TransactionTester` runs any.
        parallelism: How many tasks emit the tuples of a spout. The ordered stream has one for each
            partition of the output topic.
        config: See `TopologyBuilder`.
        tick_interval: See `TopologyBuilder`.

    Raises:
        TopologyBuildError: It is not a spout, or a number is out of range.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - Storm's name
        spout_id: str,
        spout: Any = None,
        parallelism: int | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        tick_interval: timedelta | float | str | None = None,
    ) -> None:
        super().__init__(id, config=config, tick_interval=tick_interval)
        spout = OrderedStreamSpout() if spout is None else spout
        fields = getattr(spout, "fields", None)
        if not isinstance(spout, OrderedStreamSpout | DeclaredSpout) or not fields:
            raise TopologyBuildError(f"spout {spout_id!r}: {spout!r} is not a transactional spout")
        are_names = isinstance(fields, list | tuple) and all(isinstance(one, str) for one in fields)
        names = (TRANSACTION_FIELD, *fields) if are_names else ()
        if len(set(names)) < len(names) or not names:
            raise TopologyBuildError(
                f"spout {spout_id!r}: fields = {fields!r}: give a list of different names. "
                f"{TRANSACTION_FIELD!r} is the field that Sequitur adds before them: leave it out"
            )
        is_ordered = isinstance(spout, OrderedStreamSpout)
        if parallelism is not None and (is_ordered or parallelism < 1):
            raise TopologyBuildError(
                f"spout {spout_id!r}: parallelism = {parallelism}: "
                + (
                    "the ordered stream has a task for each partition of the output topic"
                    if is_ordered
                    else "expected 1 or more"
                )
            )
        check_sendable(f"spout {spout_id!r}", spout)
        self._spout = spout
        self._parallelism = parallelism
        self._committers: set[str] = set()
        self._states: dict[str, dict[str, State]] = {}
        self._add_spout(spout_id, names)

    def set_spout(self, component: str, *, tracked: Any = True) -> None:
        """Refuse: the spout of a transactional topology is given to its builder.

        Raises:
            TopologyBuildError: Always.
        """
        del tracked
        raise TopologyBuildError(
            f"spout {component!r}: a transactional topology has one spout, that of its builder"
        )

    def set_bolt(
        self,
        component: str,
        bolt: BaseBolt | Callable[[Any], Any],
        parallelism: int | None = None,
        *,
        concurrency: int = 1,
        tick_interval: timedelta | float | str | None = None,
        uid: str | None = None,
        states: Mapping[str, State] | None = None,
    ) -> ComponentDeclarer:
        """Add a bolt: a `BatchBolt`, a `BasicBolt`, a `KeyedBolt` or a function.

        Args:
            component: Its name.
            bolt: The bolt. A `BatchBolt` that is a `Committer`, too, commits.
            parallelism: How many tasks it has, see `TopologyBuilder`; committers have one by
                default.
            concurrency: See `TopologyBuilder`; of a `BatchBolt` it is 1.
            tick_interval: See `TopologyBuilder`.
            uid: See `TopologyBuilder`; it is for keyed bolts.
            states: What a committer keeps, by the name it asks its context for it.

        Raises:
            TopologyBuildError: The name is taken, or the bolt does not go with transactions.
        """
        given: object = bolt
        if isinstance(given, Committer):
            self._committers.add(component)
        is_committer = component in self._committers
        if isinstance(bolt, BaseBolt):
            _check_bolt(component, bolt, concurrency, is_committer=is_committer)
        elif is_committer:
            raise TopologyBuildError(f"committer {component!r} is not a BatchBolt")
        if states and not is_committer:
            raise TopologyBuildError(f"bolt {component!r} has states, but is no committer")
        self._states[component] = dict(states or {})
        if is_committer and parallelism is None:
            parallelism = 1
        return super().set_bolt(
            component,
            bolt,
            parallelism,
            concurrency=concurrency,
            tick_interval=tick_interval,
            uid=uid,
        )

    def set_committer_bolt(
        self,
        component: str,
        bolt: BatchBolt,
        parallelism: int = 1,
        *,
        states: Mapping[str, State] | None = None,
    ) -> ComponentDeclarer:
        """Add a bolt whose `finish_batch` belongs to the commit phase.

        Args:
            component: Its name.
            bolt: The bolt.
            parallelism: How many tasks it has.
            states: What it keeps, by the name it asks its context for it.

        Raises:
            TopologyBuildError: See `set_bolt`.
        """
        self._committers.add(component)
        return self.set_bolt(component, bolt, parallelism, states=states)

    def build(self) -> TransactionalTopology:
        """Check the topology. See `TopologyBuilder`.

        Raises:
            TopologyBuildError: No bolt commits, or a state does not go with the spout.
        """
        made = super().build()
        if not self._committers:
            raise TopologyBuildError(
                f"topology {made.name!r} has no committer: none of its batches would be "
                "committed. Use a TopologyBuilder"
            )
        self._check_states(made)
        found = TransactionalTopology(
            made.name,
            made.components,
            made.config,
            made.hook,
            committers=frozenset(self._committers),
            states={one: own for one, own in self._states.items() if own},
            source=self._spout,
            parallelism=self._parallelism,
        )
        for name in found.keyed_bolts:
            if name in found.commit_phase:
                raise TopologyBuildError(
                    f"keyed bolt {name!r} reads a committer: what is kept of keys is known before "
                    "the commit. Let it read what the committer reads"
                )
        return found

    def _check_states(self, made: Topology) -> None:
        owners: dict[tuple[Any, str], str] = {}
        for component, states in self._states.items():
            for name, state in states.items():
                where = f"committer {component!r}, state {name!r}"
                if not isinstance(state, State):
                    raise TopologyBuildError(f"{where}: {state!r} is not a state")
                check_sendable(where, state)
                groupings = [one.grouping for one in made.components[component].inputs]
                if state.grouped_by is not None and not all(
                    isinstance(one, FieldsGrouping) for one in groupings
                ):
                    raise TopologyBuildError(
                        f"{where} has grouped_by: group all that {component!r} reads by "
                        "fields_grouping"
                    )
                if self._spout.is_opaque and isinstance(state, TransactionalState):
                    raise TopologyBuildError(
                        f"{where}: a TransactionalState needs the same events for the same id, "
                        "which an opaque spout does not give: use an OpaqueState"
                    )
                owner = owners.setdefault((state.store, state.name), f"{component}.{name}")
                if owner != f"{component}.{name}":
                    raise TopologyBuildError(
                        f"{where}: {state.name!r} of that store is kept by {owner} already: give "
                        "each state a table of its own"
                    )


@dataclass(frozen=True, slots=True)
class TransactionalTopology(Topology):
    """A transactional topology that was checked.

    Attributes:
        committers: The bolts whose `finish_batch` belongs to the commit phase.
        states: The states of each committer, each under its name.
        source: The spout. In a job, an `OrderedStreamSpout`.
        parallelism: How many tasks the spout has, if that was declared.
    """

    committers: frozenset[str] = frozenset()
    states: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    source: Any = None
    parallelism: int | None = None

    @property
    def is_transactional(self) -> bool:
        return True

    @property
    def keyed_by_event(self) -> tuple[str, ...]:
        """None: in a transactional topology each keyed bolt has a stage of its own."""
        return ()

    @property
    def commit_phase(self) -> frozenset[str]:
        """The committers and their readers, which get their whole batch when it is committed.

        See `Topology`.
        """
        found = set(self.committers)
        for bolt in self.bolts:  # each stands after those it reads
            if any(one.component in found for one in bolt.inputs):
                found.add(bolt.id)
        return frozenset(found)

    @property
    def commit_signature(self) -> dict[str, list[str]]:
        """What the commit phase assumes of the prepared batch, as name and value."""
        found = {}
        for bolt in self.bolts:
            if bolt.id not in self.commit_phase:
                continue
            for one in bolt.inputs:
                name = f"stream {one.stream!r} of {one.component!r}, read by {bolt.id!r}"
                found[name] = list(self.components[one.component].streams[one.stream].fields)
        for component, states in self.states.items():
            for name, state in states.items():
                types = (state.key.__name__, state.value.__name__)
                found[f"state {name!r} of {component!r}"] = [state.name, state.kind.value, *types]
        return found

    def values_of(self, event: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return an event's values. A user's spout has its tuple in the event's value."""
        values: tuple[Any, ...] = event if self.is_of_ordered_stream else event[1]
        return values

    @property
    def is_of_ordered_stream(self) -> bool:
        return isinstance(self.source, OrderedStreamSpout)


class OrderedStreamSpout:
    """The spout of a job: the ordered stream of its input topics, step by step.

    It is a transactional spout: a step's events are on disk before bolts are given any, so a
    transaction has the same events in each try.
    """

    fields = EVENT_FIELDS
    is_opaque = False


class Committer:
    """Marks a `BatchBolt` whose `finish_batch` is called in the commit phase.

    Commit phases of batches come one after the other, in the order of their transaction ids. A
    bolt that is added by `TransactionalTopologyBuilder.set_committer_bolt` needs no mark.

    ::

        class UpdateGlobalCount(BaseTransactionalBolt, Committer):
            fields = ("transaction", "count")

            def __init__(self):
                self.sum = 0

            def process(self, tuple):
                self.sum += tuple["count"]

            def finish_batch(self):
                count = self.context.state("count")
                _, total = count.update("all", lambda key, before: (before or 0) + self.sum)
                self.collector.emit((self.transaction, total))
    """


class BaseTransactionalBolt(BatchBolt):
    """A bolt with an instance for each batch: it gathers in `process` and emits at the end.

    The engine anchors and acks its tuples. An exception from `process` fails the event of the
    tuple. An exception from `finish_batch` fails this attempt of the batch.

    ::

        class BatchCount(BaseTransactionalBolt):
            fields = ("transaction", "count")

            def __init__(self):
                self.count = 0

            def process(self, tuple):
                self.count += 1

            def finish_batch(self):
                self.collector.emit((self.transaction, self.count))
    """

    context: TransactionContext
    collector: BatchOutputCollector  # type: ignore[assignment]  # of its own kind, for batches

    def prepare(  # type: ignore[override]  # called with a batch's transaction, as Storm's is
        self,
        context: TransactionContext,
        collector: BatchOutputCollector,
        transaction: TransactionAttempt,
    ) -> None:
        """Begin a batch.

        Args:
            context: Where the bolt runs.
            collector: What to emit by.
            transaction: The try at the batch's transaction.
        """
        self.context = context
        self.collector = collector
        self.transaction = transaction

    def process(self, tuple: Tuple, /) -> Any:  # noqa: A002 - the field's word
        """Take a tuple of the batch in."""

    def finish_batch(self) -> None:
        """Called after the batch's last tuple. A committer does it when the batch commits."""


@dataclass(slots=True)
class TransactionContext(TopologyContext):
    """Where a bolt runs in a transactional topology.

    Attributes:
        states: The committer's states, each under its name, while its `finish_batch` runs.
            Otherwise None.
    """

    states: Mapping[str, MapState] | None = None

    def state(self, name: str) -> MapState:
        """Return a state of the bolt. Only in `finish_batch` of a committer.

        Args:
            name: By which name it was given to the builder.

        Raises:
            StateError: There is none of that name, or this is not a committer's `finish_batch`.
        """
        where = f"bolt {self.component!r}, state {name!r}"
        if self.states is None:
            raise StateError(f"{where}: a state is used in finish_batch of a committer alone")
        if name not in self.states:
            has = ", ".join(sorted(self.states)) or "none"
            raise StateError(f"{where}: it was not added with such a state. It has: {has}")
        return self.states[name]


class BatchOutputCollector:
    """The collector of a batch bolt: it anchors to the tuple in work, which is then acked.

    Tuples emitted in `finish_batch` belong to the batch. If one fails, this attempt of the batch
    fails.

    Args:
        runner: The runner of the bolt's task.
    """

    __slots__ = ("_runner",)

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def emit(
        self, values: Any, stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[TaskId]:
        """Emit a tuple.

        Args:
            values: In the order of the stream's fields, or by field; the first is the batch's
                `TransactionAttempt`.
            stream: The stream.
            task: Of a direct stream, the number of the task that is to get it.

        Returns:
            The tasks that get it; outputs are none.

        Raises:
            EmitError: The bolt has not declared the stream or the fields, or the first value is
                not the batch's `TransactionAttempt`.
        """
        found: list[TaskId] = self._runner.emit(values, self._runner.anchors(), stream, task)
        return found

    def emit_many(
        self, values: Iterable[Any], stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[list[TaskId]]:
        """Emit a tuple for each of some values. See `emit`."""
        return [self.emit(one, stream, task) for one in values]


def create_states(topology: TransactionalTopology, epoch: str, least_attempt: int = 0) -> None:
    """Make the tables of a topology's states, or check that they are there."""
    for store, owners in _states_by_store(topology).items():
        store.create(owners, topology.name, epoch, least_attempt)


def give_up(topology: TransactionalTopology, epoch: str, last: TransactionAttempt) -> bool:
    """Have databases refuse later commits by tries up to this one; return whether all did.

    If a database has committed something of the transaction, the others are not asked.
    """
    stores = _states_by_store(topology)
    return not any(store.give_up(topology.name, epoch, last) for store in stores)


def writes_states_only(topology: TransactionalTopology) -> bool:
    """Return whether each committer keeps `State`s only: what others write is not known here."""
    return all(topology.states.get(one) for one in topology.committers)


def _states_by_store(
    topology: TransactionalTopology,
) -> dict[StateStore, dict[str, list[State]]]:
    by_store: dict[StateStore, dict[str, list[State]]] = {}
    for component, states in topology.states.items():
        for state in states.values():
            by_store.setdefault(state.store, {}).setdefault(component, []).append(state)
    return by_store


def _check_bolt(component: str, bolt: BaseBolt, concurrency: int, *, is_committer: bool) -> None:
    if isinstance(bolt, BatchBolt):
        if concurrency > 1:
            raise TopologyBuildError(
                f"bolt {component!r}: concurrency = {concurrency}: a BatchBolt gathers in one "
                "instance. Give it a larger parallelism"
            )
        taken = inspect.signature(bolt.prepare)
        try:
            taken.bind(None, None, None)
        except TypeError as error:
            raise TopologyBuildError(
                f"bolt {component!r}: in a transactional topology prepare(context, collector, "
                f"transaction) is called, and its own is prepare{taken}"
            ) from error
    elif is_committer:
        raise TopologyBuildError(f"committer {component!r} is not a BatchBolt")
    elif isinstance(bolt, KeyedBolt):
        _check_keyed(component, bolt, concurrency)
    elif not isinstance(bolt, BasicBolt | FunctionBolt):
        raise TopologyBuildError(
            f"bolt {component!r} is neither a BatchBolt nor a BasicBolt nor a function: in a "
            "transactional topology tuples are anchored and acked for bolts"
        )


def _check_keyed(component: str, bolt: KeyedBolt, concurrency: int) -> None:
    kind = type(bolt)
    wrong = {
        "on_timer": kind.on_timer is not KeyedBolt.on_timer,
        "lag_ms": bolt.lag_ms != 0,
        "drains": bolt.drains,
        "ttl": bolt.ttl is not None,
        "an async process": is_async(bolt),
        "concurrency": concurrency > 1,
        "needs_order": bolt.needs_order,
        "finish_batch or snapshot": keeps_of_batch(bolt),
    }
    for name in (one for one, is_there in wrong.items() if is_there):
        raise TopologyBuildError(
            f"keyed bolt {component!r}: {name}: a keyed bolt of a transactional topology has none. "
            "Use a TopologyBuilder, or a committer with states"
        )
