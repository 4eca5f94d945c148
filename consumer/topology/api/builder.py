"""Topologies: their builder, what they consist of, and the hook that is notified of events.

Components are declared with their inputs. All of them are checked when the topology is built.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.text import encodable
from sequitur.consumer.topology.api.bolt import BaseBolt, FunctionBolt, is_async, runs_later
from sequitur.consumer.topology.api.groupings import (
    AllGrouping,
    CustomGrouping,
    DirectGrouping,
    FieldsGrouping,
    GlobalGrouping,
    LocalGrouping,
    LocalOrShuffleGrouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)
from sequitur.consumer.topology.api.keyed import KeyedBolt, check_types, has_entries
from sequitur.consumer.topology.api.lengths import length_ms
from sequitur.consumer.topology.api.tuple import (
    DEFAULT_STREAM,
    SYSTEM_COMPONENT,
    TRANSACTION_FIELD,
    EventValues,
    Stream,
)
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta

    from sequitur.base.copy_headers import FailReason
    from sequitur.consumer.topology.api.groupings import CustomStreamGrouping, Grouping


_LIFECYCLE: Final = ("prepare", "finish_batch", "cleanup", "snapshot", "restore")
MOST_KEYED_TASKS: Final = 256
"""As many as groups of keys (`engine.key_groups`)."""
_logger = logging.getLogger("sequitur.topology.hook")
EVENT_FIELDS: Final = EventValues._fields
KEY_ENTRIES: Final = "/entries"
"""The maps and lists of a keyed bolt are kept under its name with this after it."""


class TopologyBuilder:
    """Puts a topology together.

    ::

        builder = TopologyBuilder("wordcount")
        builder.set_spout("sentences")
        builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("sentences")
        builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", "word")
        builder.set_output("counts", key="word", value="count").local_grouping("count")
        topology = builder.build()

    Args:
        name: The topology's name.
        config: What bolts find in their context. It is pickled.
        tick_interval: How often bolts without an interval of their own get a tick tuple: seconds, a
            `timedelta`, or text such as "10 s". None: never.

    Raises:
        TopologyBuildError: The interval is not valid.
    """

    def __init__(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        tick_interval: timedelta | float | str | None = None,
    ) -> None:
        self._name = name
        self._config = dict(config or {})
        self._tick_ms = _tick_ms(f"topology {name!r}", tick_interval)
        self._hook: EventHook | None = None
        self._drafts: dict[str, _Draft] = {}

    def set_spout(
        self, component: str, *, tracked: bool | Callable[[EventValues], bool] = True
    ) -> None:
        """Name the ordered stream, with the fields of `EventValues`.

        Args:
            component: Its name.
            tracked: Whether events have a message id, or a function that says so of each event. An
                event without one is processed once, and its outcome is not reported.

        Raises:
            TopologyBuildError: The name is taken, or there is a spout already.
        """
        for draft in self._drafts.values():
            if draft.component.kind is Kind.SPOUT:
                raise TopologyBuildError(
                    f"spout {component!r}: there is one already, {draft.component.id!r}. The "
                    "ordered stream is the only spout"
                )
        self._add_spout(component, EVENT_FIELDS, tracked=tracked)

    def set_hook(self, hook: EventHook) -> None:
        """Set the hook that is notified of acked events and of failed attempts.

        Raises:
            TopologyBuildError: It is no hook, or there is one already.
        """
        if not isinstance(hook, EventHook) or self._hook is not None:
            wrong = "there is one already" if self._hook is not None else "it is not an EventHook"
            raise TopologyBuildError(f"hook {hook!r}: {wrong}")
        self._hook = hook

    def set_bolt(
        self,
        component: str,
        bolt: BaseBolt | Callable[[Any], Any],
        parallelism: int | None = None,
        *,
        concurrency: int = 1,
        tick_interval: timedelta | float | str | None = None,
        uid: str | None = None,
    ) -> ComponentDeclarer:
        """Add a bolt.

        Args:
            component: Its name.
            bolt: The bolt, or a function (see `sequitur.consumer.topology.bolt`).
            parallelism: How many tasks it has. By default it runs in the tasks of its input if the
                groupings allow it, and otherwise has as many tasks as the ordered stream.
            concurrency: How many calls of a task may run side by side, in threads, or on an event
                loop when `process` is async. Calls for one key stay one after the other.
            tick_interval: How often each of its tasks gets a tick tuple, see `TopologyBuilder`.
            uid: For a keyed bolt, the name under which its state is kept, by default `component`. A
                bolt that is renamed keeps its state with its former name as `uid`.

        Returns:
            The declarer of its input.

        Raises:
            TopologyBuildError: The name is taken, or a number makes no sense.
        """
        made = bolt if isinstance(bolt, BaseBolt) else _function_bolt(component, bolt)
        tick_ms = _tick_ms(f"bolt {component!r}", tick_interval)
        _check_bolt(component, made, parallelism, concurrency)
        is_keyed = isinstance(made, KeyedBolt)
        if isinstance(made, KeyedBolt):
            _check_keyed(component, made, parallelism, concurrency, tick_ms)
        elif uid is not None:
            raise TopologyBuildError(f"bolt {component!r}: uid = {uid!r}: it is not a keyed bolt")
        streams = _streams_of(component, made)
        return self._add(
            Component(
                component,
                Kind.BOLT,
                bolt=made,
                parallelism=parallelism,
                concurrency=concurrency,
                streams=streams,
                tick_ms=None if is_keyed else self._tick_ms if tick_ms is None else tick_ms,
                uid=uid,
            )
        )

    def set_output(
        self,
        component: str,
        topic: str | None = None,
        *,
        key: str | None = "key",
        value: str | None = "value",
        headers: str | None = None,
        encode: Callable[[Any], bytes | str] | None = None,
    ) -> ComponentDeclarer:
        """Add an output bolt: each of its tuples becomes a record of a Kafka topic.

        Args:
            component: Its name.
            topic: The topic; by default the job's `output_topic`.
            key: Field of the key; None for records without one.
            value: Field of the value; None for all fields but those of key and headers, as a JSON
                object.
            headers: Field of the headers.
            encode: Makes bytes or text of a key or value that is neither, nor None. By default it
                becomes JSON, which refuses NaN, infinity and bytes in it.

        Raises:
            TopologyBuildError: The name is taken.
        """
        output = KafkaOutput(topic=topic, key=key, value=value, headers=headers, encode=encode)
        return self._add(Component(component, Kind.OUTPUT, output=output))

    def build(self) -> Topology:
        """Check the topology.

        Raises:
            TopologyBuildError: A component reads what is not there, is not read from the spout on,
                cannot be pickled, or components read each other in a cycle.
        """
        _check_name("the topology", self._name)
        components = {
            name: _with_inputs(draft.component, draft.inputs)
            for name, draft in self._drafts.items()
        }
        if not any(one.kind is Kind.SPOUT for one in components.values()):
            raise TopologyBuildError(f"topology {self._name!r} has no spout: call set_spout")
        for one in components.values():
            check_inputs(one, components)
            _check_keyed_inputs(one, components)
        _check_key_stores(components)
        _check_read(components)
        ordered = in_reading_order(components)
        for one in ordered:
            check_pickles(one)
        sent = [(f"config {name!r}", value) for name, value in self._config.items()]
        for what, value in [*sent, ("hook", self._hook)]:
            check_sendable(f"topology {self._name!r}: {what}", value)
        return Topology(self._name, {one.id: one for one in ordered}, self._config, self._hook)

    def _add_spout(
        self,
        component: str,
        fields: tuple[str, ...],
        *,
        tracked: bool | Callable[[EventValues], bool] = True,
    ) -> None:
        streams = {DEFAULT_STREAM: Stream(component, DEFAULT_STREAM, fields)}
        self._add(Component(component, Kind.SPOUT, streams=streams, tracked=tracked))

    def _add(self, component: Component) -> ComponentDeclarer:
        if component.id in self._drafts:
            raise TopologyBuildError(f"there are two components named {component.id!r}")
        if not component.id or not isinstance(component.id, str):
            raise TopologyBuildError(f"a component needs a name, not {component.id!r}")
        _check_name("a component", component.id)
        if component.id == SYSTEM_COMPONENT:
            raise TopologyBuildError(f"{component.id!r} is reserved: ticks come from it")
        draft = _Draft(component, [])
        self._drafts[component.id] = draft
        return ComponentDeclarer(draft.inputs)


class ComponentDeclarer:
    """Declares what a component reads: each call adds a stream and returns the declarer."""

    def __init__(self, inputs: list[Subscription]) -> None:
        self._inputs = inputs

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Distribute tuples evenly over all tasks."""
        return self.grouping(component, ShuffleGrouping(), stream)

    def fields_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Send tuples with equal values in these fields to one task."""
        return self.grouping(component, FieldsGrouping(fields), stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Send each tuple to every task."""
        return self.grouping(component, AllGrouping(), stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Send all tuples to the first task."""
        return self.grouping(component, GlobalGrouping(), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Let the emitter name the task. The stream must be one of `direct_streams`."""
        return self.grouping(component, DirectGrouping(), stream)

    def local_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> ComponentDeclarer:
        """Keep each tuple in the task where it is."""
        return self.grouping(component, LocalGrouping(), stream)

    none_grouping = local_grouping

    def local_or_shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Keep a tuple in its task if the bolt runs there, else distribute tuples evenly."""
        return self.grouping(component, LocalOrShuffleGrouping(), stream)

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Send tuples with equal values in these fields to the less loaded of two tasks."""
        return self.grouping(component, PartialKeyGrouping(fields), stream)

    def custom_grouping(
        self, component: str, grouping: CustomStreamGrouping, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        """Send tuples to the tasks that your `CustomStreamGrouping` chooses."""
        return self.grouping(component, CustomGrouping(grouping), stream)

    def grouping(
        self, component: str, grouping: Grouping, stream: str = DEFAULT_STREAM
    ) -> ComponentDeclarer:
        self._inputs.append(Subscription(component, stream, grouping))
        return self


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology that was checked.

    Attributes:
        name: Its name.
        components: Its components, each after those it reads.
        config: The configuration that bolts find in their context.
        hook: Is notified of acked and failed events. None: no hook.
    """

    name: str
    components: Mapping[str, Component]
    config: Mapping[str, Any]
    hook: EventHook | None = None

    @property
    def is_transactional(self) -> bool:
        """Whether a batch of it is a transaction (`TransactionalTopology`)."""
        return False

    @property
    def is_keyed(self) -> bool:
        """Whether it has keyed bolts: what failed trees did to their keys is undone."""
        return any(isinstance(one.bolt, KeyedBolt) for one in self.components.values())

    @property
    def keyed_bolts(self) -> tuple[str, ...]:
        """The keyed bolts: those by the key of the events, and those by another field."""
        return (*self.keyed_by_event, *self.keyed_by_field)

    @property
    def keyed_by_event(self) -> tuple[str, ...]:
        """The keyed bolts by the key of the events.

        Their outputs and their state are those of a run without failures.
        """
        spout = self.spout.id
        return tuple(
            one.id
            for one in self.bolts
            if isinstance(one.bolt, KeyedBolt) and _is_by_event(one, spout)
        )

    @property
    def keyed_by_field(self) -> tuple[str, ...]:
        """The keyed bolts by another field, which have a stage of their own.

        Failures change the order in which events come to a key. What does not depend on it is that
        of a run without failures: aggregates, and windows that are kept apart and that timers end.
        """
        by_event = self.keyed_by_event
        return tuple(
            one.id
            for one in self.bolts
            if isinstance(one.bolt, KeyedBolt) and one.id not in by_event
        )

    def delay_ms(self, bolt: str) -> int:
        """How long after the watermark a bolt's timers are called, for the bolts that it reads.

        What their timers emit may be so much earlier than these.
        """
        return delays_ms(self.components, self.spout.id)[bolt]

    @property
    def stores_by_field(self) -> dict[str, str]:
        """As `key_stores`, of the bolts that are keyed by another field."""
        by_field = self.keyed_by_field
        return {name: bolt for name, bolt in self.key_stores.items() if bolt in by_field}

    @property
    def key_stores(self) -> dict[str, str]:
        """The names under which keyed bolts keep something, and the bolt of each."""
        found = {}
        for one in self.bolts:
            if isinstance(one.bolt, KeyedBolt):
                found[one.key_store] = one.id
                if has_entries(one.bolt):
                    found[one.key_store + KEY_ENTRIES] = one.id
        return found

    @property
    def draining(self) -> tuple[str, ...]:
        """The bolts whose timers are all called when a job drains, as they keep their keys."""
        return tuple(
            one.key_store
            for one in self.bolts
            if isinstance(one.bolt, KeyedBolt) and one.bolt.drains
        )

    @property
    def commit_phase(self) -> frozenset[str]:
        """Bolts that take part in the commit phase of a transaction; none without transactions."""
        return frozenset()

    def values_of(self, event: tuple[Any, ...]) -> tuple[Any, ...]:
        return event

    @property
    def spout(self) -> Component:
        return next(one for one in self.components.values() if one.kind is Kind.SPOUT)

    @property
    def bolts(self) -> tuple[Component, ...]:
        """The bolts, each after those it reads."""
        return tuple(one for one in self.components.values() if one.kind is Kind.BOLT)

    @property
    def is_concurrent(self) -> bool:
        return any(one.concurrency > 1 for one in self.bolts)

    @property
    def tick_intervals_ms(self) -> dict[str, int]:
        return {one.id: one.tick_ms for one in self.bolts if one.tick_ms is not None}

    @property
    def outputs(self) -> tuple[Component, ...]:
        return tuple(one for one in self.components.values() if one.kind is Kind.OUTPUT)

    def topics(self, default: str) -> tuple[str, ...]:
        """Return the topics its outputs write to.

        Args:
            default: The topic of outputs without one of their own.
        """
        named = (one.output.topic or default for one in self.outputs if one.output is not None)
        return tuple(dict.fromkeys(named))

    def readers(self, component: str, stream: str) -> tuple[tuple[Component, Grouping], ...]:
        return tuple(
            (reader, one.grouping)
            for reader in self.components.values()
            for one in reader.inputs
            if (one.component, one.stream) == (component, stream)
        )


class Kind(StrEnum):
    """What a component is."""

    SPOUT = "spout"
    BOLT = "bolt"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Component:
    """A spout, a bolt or an output.

    Attributes:
        id: Its name.
        kind: What it is.
        bolt: For a bolt, the object that runs.
        output: For an output, where it writes.
        parallelism: How many tasks. None: as many as its input has if it can run there, otherwise
            as many as the spout has (`engine.plan`).
        concurrency: How many calls of a task run side by side.
        inputs: The streams that it reads.
        streams: Its streams, each under its name.
        tick_ms: For a bolt, how often it gets a tick. None: never.
        tracked: For the spout, which events have a message id, so that their trees are tracked.
        uid: For a keyed bolt, the name under which its state is kept. None: its own.
    """

    id: str
    kind: Kind
    bolt: BaseBolt | None = None
    output: KafkaOutput | None = None
    parallelism: int | None = None
    concurrency: int = 1
    inputs: tuple[Subscription, ...] = ()
    streams: Mapping[str, Stream] = field(default_factory=dict)
    tick_ms: int | None = None
    tracked: bool | Callable[[Any], bool] = True
    uid: str | None = None

    @property
    def key_store(self) -> str:
        """The name under which a keyed bolt keeps its keys."""
        return self.id if self.uid is None else self.uid


@dataclass(frozen=True, slots=True)
class Subscription:
    """A stream that a component reads."""

    component: str  # whose stream
    stream: str
    grouping: Grouping  # how its tuples are spread over the reader's tasks


@dataclass(frozen=True, slots=True)
class KafkaOutput:
    """What an output bolt makes of a tuple."""

    topic: str | None = None  # the topic; None for the job's `output_topic`
    key: str | None = None  # field of the record's key: bytes, text, None, or anything as JSON
    # field of its value, likewise; None for a JSON object of all fields but those of key and
    # headers
    value: str | None = None
    headers: str | None = None  # field of its headers, a sequence of (name, bytes, text or None)
    # makes bytes or text of keys and values that are neither; None for JSON
    encode: Callable[[Any], bytes | str] | None = None


class EventHook:
    """Is notified of the outcomes of tracked events, in the tasks of the first stage.

    It is called when the outcomes of a batch are known, before they are stored. If the batch is
    repeated, it is called again. An exception that it raises is logged, and changes nothing.

    ::

        class Notes(EventHook):
            def on_ack(self, done):
                print(done.event.key, done.latency_ms)

            def on_fail(self, failed):
                print(failed.event.key, failed.failure.reason, failed.is_dead)
    """

    def on_ack(self, done: AckedEvent, /) -> None:
        """An event's tree is done."""

    def on_fail(self, failed: FailedEvent, /) -> None:
        """An attempt of an event failed."""


@dataclass(frozen=True, slots=True)
class AckedEvent:
    """An event whose tree is done.

    Attributes:
        event: The event.
        attempt: Number of that attempt. The first is 1.
        latency_ms: Time from the batch's time to this outcome.
    """

    event: EventValues
    attempt: int
    latency_ms: int


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An attempt of an event that failed.

    Attributes:
        event: The event.
        attempt: Number of that attempt. The first is 1.
        latency_ms: Time from the batch's time to this outcome.
        failure: Why.
        is_dead: Whether it was the last: the event is a dead letter.
    """

    event: EventValues
    attempt: int
    latency_ms: int
    failure: TreeFailure
    is_dead: bool


@dataclass(frozen=True, slots=True)
class TreeFailure:
    """Why a tuple tree failed.

    Attributes:
        reason: The reason.
        detail: A traceback, or another description.
        path: The components that the failed tuple had passed, the spout first.
    """

    reason: FailReason
    detail: str = ""
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # It is kept, sent and printed, and quotes what anybody has written.
        object.__setattr__(self, "detail", encodable(self.detail))


def notify(hook: EventHook, what: AckedEvent | FailedEvent) -> None:
    """Call a hook; log what it raises."""
    try:
        if isinstance(what, AckedEvent):
            hook.on_ack(what)
        else:
            hook.on_fail(what)
    except Exception:
        _logger.exception("the topology's hook raised for %r", what.event[4:7])


def check_inputs(one: Component, components: Mapping[str, Component]) -> None:
    """Check that everything a component reads is there and fits its groupings."""
    if one.kind is Kind.SPOUT:
        return
    if not one.inputs:
        raise TopologyBuildError(f"{one.kind} {one.id!r} reads nothing: give it a grouping")
    for given in one.inputs:
        read = components.get(given.component)
        if read is None:
            raise TopologyBuildError(
                f"{one.kind} {one.id!r} reads {given.component!r}, which is not there"
            )
        stream = read.streams.get(given.stream)
        if stream is None:
            has = ", ".join(sorted(read.streams)) or "none"
            raise TopologyBuildError(
                f"{one.kind} {one.id!r} reads stream {given.stream!r} of {read.id!r}, "
                f"which has: {has}"
            )
        given.grouping.check(f"{one.kind} {one.id!r}", stream)
        if one.output is not None:
            _check_output(one, one.output, stream)
    given_twice = {(given.component, given.stream) for given in one.inputs}
    if len(given_twice) < len(one.inputs):
        raise TopologyBuildError(f"{one.kind} {one.id!r} reads a stream twice")


def delays_ms(components: Mapping[str, Component], first: str) -> dict[str, int]:
    """Return how much earlier than a component's timers what comes of them may be, by reader."""
    found = {first: 0}
    for one in components.values():
        lags_ms = [
            found[read.id] + (read.bolt.lag_ms if isinstance(read.bolt, KeyedBolt) else 0)
            for read in (components[given.component] for given in one.inputs)
            if read.id in found
        ]
        if lags_ms:
            found[one.id] = max(lags_ms)
    return found


def in_reading_order(components: Mapping[str, Component]) -> Sequence[Component]:
    """Return the components, each after those it reads."""
    done: dict[str, Component] = {}
    waiting = dict(components)
    while waiting:
        ready = [
            one for one in waiting.values() if all(given.component in done for given in one.inputs)
        ]
        if not ready:
            raise TopologyBuildError(f"components read each other in a cycle: {_cycle(waiting)}")
        for one in ready:
            done[one.id] = waiting.pop(one.id)
    return tuple(done.values())


def check_pickles(one: Component) -> None:
    groupings = [given.grouping for given in one.inputs]
    what: Any = (one.bolt if one.kind is Kind.BOLT else one.tracked, one.output, groupings)
    try:
        pickle.loads(pickle.dumps(what))  # noqa: S301 - what was just made
    except Exception as error:
        raise TopologyBuildError(
            f"{one.kind} {one.id!r} cannot be pickled, so it cannot be sent to tasks: {error} "
            "(define functions and classes at the top of a module)"
        ) from error


def check_sendable(what: str, value: Any) -> None:
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - what was just made
    except Exception as error:
        raise TopologyBuildError(
            f"{what} cannot be pickled, so it cannot be sent to tasks: {error}"
        ) from error


@dataclass(slots=True)
class _Draft:
    component: Component
    inputs: list[Subscription]


def _check_bolt(component: str, made: BaseBolt, parallelism: int | None, concurrency: int) -> None:
    for name, number in (("parallelism", parallelism), ("concurrency", concurrency)):
        if number is not None and number < 1:
            raise TopologyBuildError(f"bolt {component!r}: {name} = {number}: expected 1 or more")
    for method in _LIFECYCLE:
        if runs_later(getattr(made, method)):
            raise TopologyBuildError(
                f"bolt {component!r}: its {method} is a coroutine or a generator, and would "
                "never run: make it a plain method"
            )
    if is_async(made) and concurrency == 1:
        raise TopologyBuildError(
            f"bolt {component!r} is async: say how many calls may run side by side, "
            "with concurrency = 2 or more"
        )


def _check_keyed(
    component: str,
    made: KeyedBolt,
    parallelism: int | None,
    concurrency: int,
    tick_ms: int | None,
) -> None:
    whose = f"keyed bolt {component!r}"
    try:
        check_types(made)
    except ValueError as error:
        raise TopologyBuildError(f"{whose}: {error}") from error
    if made.ttl is not None:
        length_ms(whose, "ttl", made.ttl)
    if parallelism is not None and parallelism > MOST_KEYED_TASKS:
        raise TopologyBuildError(
            f"{whose}: parallelism = {parallelism}: its keys are of {MOST_KEYED_TASKS} groups, so "
            "it has at most as many tasks"
        )
    if concurrency > 1 and not is_async(made):
        raise TopologyBuildError(
            f"{whose}: concurrency = {concurrency}: its calls run one by one unless `process` is "
            "async. Leave concurrency out, and make slow calls in a bolt that reads it"
        )
    if tick_ms is not None:
        raise TopologyBuildError(
            f"{whose}: a tick has no key: set timers with key.timer(), and leave tick_interval out"
        )


def _check_key_stores(components: Mapping[str, Component]) -> None:
    """Refuse keyed bolts that would keep their keys under one name."""
    found: dict[str, str] = {}
    for one in components.values():
        if not isinstance(one.bolt, KeyedBolt):
            continue
        name = one.key_store
        whose = f"keyed bolt {one.id!r}"
        _check_name(f"the uid of {whose}", name)
        if name.endswith(KEY_ENTRIES):
            raise TopologyBuildError(
                f"{whose}: its state cannot be kept as {name!r}: names that end in "
                f"{KEY_ENTRIES!r} are those of maps and lists"
            )
        other = found.setdefault(name, one.id if name == one.id or name not in components else name)
        if other != one.id:
            raise TopologyBuildError(
                f"{whose}: its uid {name!r} is that of {other!r}, too: give it another one"
            )


def _is_by_event(one: Component, spout: str) -> bool:
    """Return whether a keyed bolt is keyed by the key of the events, and by nothing else."""
    by_key = FieldsGrouping(("key",))
    return all(given.component == spout and given.grouping == by_key for given in one.inputs)


def _check_keyed_inputs(one: Component, components: Mapping[str, Component]) -> None:
    if not isinstance(one.bolt, KeyedBolt):
        return
    whose = f"keyed bolt {one.id!r}"
    for given in one.inputs:
        if not isinstance(given.grouping, FieldsGrouping):
            raise TopologyBuildError(
                f"{whose} reads {given.component!r} by {given.grouping} grouping: its key is the "
                "value of a field, so read it by fields_grouping"
            )
    if len({len(given.grouping.fields) for given in one.inputs}) > 1:
        raise TopologyBuildError(
            f"{whose} reads its inputs by different numbers of fields: none of its keys would be "
            "in both"
        )
    spout = next(read for read in components.values() if read.kind is Kind.SPOUT)
    is_transactional = spout.streams[DEFAULT_STREAM].fields[:1] == (TRANSACTION_FIELD,)
    if spout.tracked is not True:
        raise TopologyBuildError(
            f"{whose}: spout {spout.id!r} leaves events untracked, and what they did could not "
            "be undone: leave `tracked` out"
        )
    is_by_event = not is_transactional and _is_by_event(one, spout.id)
    if one.bolt.needs_order and not is_by_event:
        raise TopologyBuildError(
            f"{whose}: it takes the events of a key in their order: read the spout by "
            f'fields_grouping({spout.id!r}, "key"), and nothing else'
        )
    if one.bolt.takes_events:
        _check_events(whose, one, components)
    if one.parallelism is not None and is_by_event:
        raise TopologyBuildError(
            f"{whose}: parallelism = {one.parallelism}: it runs in the tasks of the spout, which "
            "have the events of its keys. Leave parallelism out"
        )


def _check_events(whose: str, one: Component, components: Mapping[str, Component]) -> None:
    for given in one.inputs:
        declared = components[given.component].streams[given.stream]
        if declared.fields[: len(EVENT_FIELDS)] != EVENT_FIELDS:
            raise TopologyBuildError(
                f"{whose} takes events, and {declared.title!r} has the fields "
                f"{', '.join(declared.fields)}: let it emit those of the spout, "
                f"{', '.join(EVENT_FIELDS)}"
            )


def _check_name(what: str, name: str) -> None:
    """Refuse a name with half a surrogate pair: no file or log can hold it."""
    if isinstance(name, str) and encodable(name) != name:
        raise TopologyBuildError(
            f"{what} is named {name!r}: half a surrogate pair is no character, so leave it out"
        )


def _check_read(components: Mapping[str, Component]) -> None:
    """Refuse a stream that nobody reads, if its bolt says that this would lose something."""
    read = {(given.component, given.stream) for one in components.values() for given in one.inputs}
    for one in components.values():
        for name in () if one.bolt is None else one.bolt.must_be_read:
            if name in one.streams and (one.id, name) not in read:
                raise TopologyBuildError(
                    f"bolt {one.id!r}: nothing reads its stream {name!r}, so what it emits there "
                    f'would be lost: read it, or say that it is dropped: {name}="drop"'
                )


def _check_output(one: Component, output: KafkaOutput, stream: Stream) -> None:
    for name in (output.key, output.value, output.headers):
        if name is not None and name not in stream.index:
            raise TopologyBuildError(
                f"output {one.id!r} writes field {name!r} of {stream.title!r}, "
                f"whose fields are: {', '.join(stream.fields)}"
            )


def _cycle(waiting: Mapping[str, Component]) -> str:
    """Return one of the cycles, as text."""
    path: list[str] = []
    name = next(iter(waiting))
    while name not in path:
        path.append(name)
        name = next(one.component for one in waiting[name].inputs if one.component in waiting)
    return " reads ".join([*path[path.index(name) :], name])


def _streams_of(component: str, made: BaseBolt) -> dict[str, Stream]:
    streams = {
        name: Stream(component, name, fields, name in made.direct_streams)
        for name, fields in made.declared().items()
    }
    unknown = [name for name in made.direct_streams if name not in streams]
    if unknown:
        raise TopologyBuildError(
            f"bolt {component!r}: direct stream {unknown[0]!r} is not among its streams"
        )
    for stream in streams.values():
        for name in (stream.name, *stream.fields):
            _check_name(f"bolt {component!r}: a stream or a field", name)
        if len(set(stream.fields)) < len(stream.fields):
            raise TopologyBuildError(
                f"bolt {component!r}: stream {stream.name!r} has a field twice: {stream.fields}"
            )
    return streams


def _function_bolt(component: str, function: Any) -> FunctionBolt:
    if not callable(function) or isinstance(function, type):
        raise TopologyBuildError(
            f"bolt {component!r}: {function!r} is neither a Bolt nor a function"
            + (": give an instance of it" if isinstance(function, type) else "")
        )
    return FunctionBolt(function)


def _with_inputs(component: Component, inputs: Iterable[Subscription]) -> Component:
    return replace(component, inputs=tuple(inputs))


def _tick_ms(whose: str, interval: timedelta | float | str | None) -> int | None:
    return None if interval is None else length_ms(whose, "tick_interval", interval)
