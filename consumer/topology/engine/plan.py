"""Where the tasks of a topology run, and what a tuple becomes that they emit.

`plan` divides a topology into stages: bolts that run in one process. An emitted tuple becomes a
tuple of a task here or elsewhere, or a record of Kafka.

The ordered stream has a task for each of its partitions; equal keys are in one of them. A bolt
whose groupings keep tuples local runs there, too: tuples then go from one to the other without
leaving the process. All other bolts begin a stage of their own.

In a transactional topology, bolts that keep something of their batch begin a stage, too, and so do
the bolts that read them. Each of these can be run again by itself, from the tuples sent to it.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from sequitur.base.json_field import name_twice_in
from sequitur.base.text import named
from sequitur.consumer.topology.api.bolt import keeps_of_batch
from sequitur.consumer.topology.api.builder import MOST_KEYED_TASKS
from sequitur.consumer.topology.settling.outcomes import RetryPolicy
from sequitur.consumer.topology.settling.root import AFTER_EVENTS, BEFORE_EVENTS
from sequitur.errors import NOT_THE_USERS, EmitError, TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sequitur.consumer.topology.api.builder import Component, KafkaOutput, Topology
    from sequitur.consumer.topology.api.groupings import Chooser
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.settling.root import Root
    from sequitur.kafka.record_format import RecordLimit


_IDS_AT_ONCE: Final = 1 << 12


class Ordering(StrEnum):
    """Which events a failed event blocks."""

    KEY = "key"
    """Later events of its key."""
    NONE = "none"
    """None."""


@dataclass(frozen=True, slots=True)
class Rules:
    call_timeout_s: float = 30.0  # a call that takes longer fails
    ordering: Ordering = Ordering.KEY  # which events a failed event holds back
    # when a failed event is tried again; an event that is given up holds back no other
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    # the most open trees: at this number the batch is finished first. None: no bound
    max_spout_pending: int | None = None
    # the largest record that each output's topic takes; other outputs have a broker's default
    limits: Mapping[str, RecordLimit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """The tasks that run in this process."""

    tasks: Mapping[str, int]  # how many tasks each component has
    # the numbers of the tasks that run here, by component; only components with such tasks
    here: Mapping[str, Sequence[int]]
    number: int = 0  # number of this process among those with the same components


def random_ids(seed: Any) -> Callable[[], int]:
    """Return a function that draws random 64-bit ids. It never draws 0, which would be no edge."""
    random = np.random.default_rng(seed)

    def drawn() -> list[int]:
        ids: list[int] = random.integers(1, 1 << 64, _IDS_AT_ONCE, dtype=np.uint64).tolist()
        return ids

    return itertools.chain.from_iterable(iter(drawn, None)).__next__


STAGE_BITS: Final = 10
TASK_BITS: Final = 12
"""Records are numbered by stage and task: there are as many as fit into so many bits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Components whose tasks of one number run in one process."""

    number: int
    # the names of its components, each after those it reads; the spout is in the first stage
    components: tuple[str, ...]
    tasks: int
    # whether all its components take part in the commit phase of a transaction
    is_commit: bool = False
    # whether it is one bolt, which keeps something of a transaction's batch
    keeps_batch: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Where all tasks run."""

    stages: tuple[Stage, ...]  # the stages; the first has the spout
    tasks: Mapping[str, int]  # how many tasks each component has

    @property
    def is_local(self) -> bool:
        """Whether no tuple ever leaves its process."""
        return len(self.stages) == 1

    @property
    def places(self) -> list[tuple[Stage, int]]:
        """All tasks in the order of their results: the stage of each, and its number there."""
        return [(stage, task) for stage in self.stages for task in range(stage.tasks)]

    def placement(self, stage: Stage, task: int) -> Placement:
        return Placement(self.tasks, dict.fromkeys(stage.components, (task,)), task)


def plan(topology: Topology, partitions: int, parallelism: Mapping[str, int] | None = None) -> Plan:
    """Divide a topology into stages."""
    asked = {one.id: one.parallelism for one in topology.bolts}
    asked |= {name: asked.get(name) or tasks for name, tasks in (parallelism or {}).items()}
    asked |= dict.fromkeys(topology.keyed_by_event)  # they run in the spout's tasks
    by_field = topology.keyed_by_field
    members: list[list[str]] = [[topology.spout.id]]
    tasks = [partitions]
    of = {topology.spout.id: 0}
    commit_phase, keeping = topology.commit_phase, _keeping(topology)
    for component in topology.bolts:
        stage = _stage_of_inputs(component, of)
        first = None if stage is None else members[stage][0]
        begins_commit = component.id in commit_phase and first not in commit_phase
        stays = stage is not None and _stays(
            component, topology.spout.id, tasks[stage], asked[component.id]
        )
        if component.id in by_field:
            tasks.append(asked[component.id] or min(partitions, MOST_KEYED_TASKS))
            stage = len(members)
            members.append([])
        elif stage is None or not stays or begins_commit or {component.id, first} & keeping:
            beside = stage if stays and not begins_commit else None
            tasks.append(asked[component.id] or partitions if beside is None else tasks[beside])
            stage = len(members)
            members.append([])
        members[stage].append(component.id)
        of[component.id] = stage
    _check_numbers(topology, members, tasks)
    stages = tuple(
        Stage(number, tuple(names), tasks[number], names[0] in commit_phase, names[0] in keeping)
        for number, names in enumerate(members)
    )
    return Plan(stages, {name: tasks[stage] for name, stage in of.items()})


def _keeping(topology: Topology) -> set[str]:
    """Return the bolts that keep something of a transaction's batch before it is committed."""
    if not topology.is_transactional:
        return set()
    by_field = topology.keyed_by_field
    return {
        one.id
        for one in topology.bolts
        if one.id not in topology.commit_phase
        and one.bolt is not None
        and (keeps_of_batch(one.bolt) or one.id in by_field)
    }


def _check_numbers(
    topology: Topology, members: Sequence[Sequence[str]], tasks: Sequence[int]
) -> None:
    stages, most = 1 << STAGE_BITS, 1 << TASK_BITS
    if len(members) > stages:
        raise TopologyError(
            f"topology {topology.name!r} has {len(members)} stages, more than {stages}: let "
            "bolts run where their input is (local_grouping), or use fewer bolts"
        )
    for names, number in zip(members, tasks, strict=True):
        if number > most:
            raise TopologyError(
                f"{names[0]!r} would have {number} tasks, which is more than {most}: give it "
                "fewer, or the ordered stream fewer partitions"
            )


def plan_apart(
    topology: Topology, partitions: int, parallelism: Mapping[str, int] | None = None
) -> Plan:
    """Divide as `plan` does in a job with more partitions than any bolt has tasks.

    In such a job most bolts are in stages of their own. So an error on the way between stages shows
    up here, too, with however few tasks.
    """
    asked = {name: tasks for name, tasks in (parallelism or {}).items() if tasks != partitions}
    declared = [one.parallelism or 1 for one in topology.bolts]
    most = 1 + max([partitions, *declared, *asked.values()])
    found = plan(topology, most, asked)
    stages = tuple(
        replace(one, tasks=partitions) if one.tasks == most else one for one in found.stages
    )
    return Plan(stages, {name: stage.tasks for stage in stages for name in stage.components})


def _stage_of_inputs(component: Component, of: Mapping[str, int]) -> int | None:
    stages = {of[one.component] for one in component.inputs}
    return stages.pop() if len(stages) == 1 else None


def _stays(component: Component, spout: str, tasks: int, asked: int | None) -> bool:
    """Return whether a bolt can run where its input is."""
    if asked not in {None, tasks}:
        return False
    return tasks == 1 or all(
        one.grouping.keeps_local(of_spout=one.component == spout) for one in component.inputs
    )


_FIRST: Final = (0,)
_TEXT: Final = frozenset({str})
_SCALARS: Final = frozenset({str, int, bool, type(None)})


class OutputRecord(NamedTuple):
    """A record that an output bolt wrote.

    Attributes:
        root: The event it came from, or the last of several in order.
        key: Its key.
        value: Its value.
        headers: Its headers.
        own_time_ms: Its event time, epoch ms; None for that of its event.
    """

    root: Root
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    own_time_ms: int | None = None


RecordValues: TypeAlias = (
    "tuple[Root, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int | None]"
)
"""The values of an `OutputRecord`. A plain tuple is made in a sixth of the time."""


class Sent(NamedTuple):
    """A tuple for a task that runs elsewhere."""

    values: bytes
    stream: tuple[str, str]  # component and name of its stream
    trees: tuple[tuple[Root, int], ...]  # the roots of its trees, each with its edge there
    path: tuple[str, ...]  # the components it came through
    task: int = 0  # number of the task that emitted it
    own_time_ms: int | None = None  # its event time, if not that of its roots


OF_TIMERS: Final = "__timer", "default"
"""The stream of timers, as `Sent` has it."""
_BEHIND: Final = {BEFORE_EVENTS: "-", AFTER_EVENTS: "}"}
"""The topic of what timers emit: behind the timers before events, or behind the events.

The names of Kafka's topics are between the two. What has a time of its own has the first one.
"""


def order_of(sent: Sent) -> tuple[int, str, int, int]:
    """Return a tuple's order among the others of its task: that of its last event.

    If it has an event time of its own it stands there, so that a timer at T comes after all that
    has an earlier time. Tuples of one such time keep their order. What a timer at T emits comes
    after the timers at T of later bolts, but before those that come after the events of T.
    """
    order = max(root.order for root, _ in sent.trees)
    if sent.own_time_ms is not None:
        return sent.own_time_ms, _BEHIND[BEFORE_EVENTS], order[0], order[3]
    if order[1] in _BEHIND and sent.stream != OF_TIMERS:
        return order[0], _BEHIND[order[1]], *order[2:]
    return order


class Here(NamedTuple):
    """A reader whose tasks all run here."""

    runners: Sequence[Any]  # what runs each task
    choose: Chooser


def the_one_here(_values: Any, _task: int | None) -> Sequence[int]:
    """Choose the only task here, whatever the values: groupings keep tuples local."""
    return _FIRST


class Elsewhere(NamedTuple):
    """A reader whose tasks run elsewhere."""

    send: Callable[[int, Sent], None]  # takes the number of a task, and a tuple for it
    choose: Chooser  # chooses among the tasks
    component: str


Encode: TypeAlias = "Callable[[Any], tuple[bytes | None, bytes | None, Any]]"
"""Makes key, value and headers of a tuple's values."""


class EmitOne(Protocol):
    """Emits a tuple of the right length with one anchor, which has one tree."""

    def __call__(
        self, values: tuple[Any, ...], anchor: Any, own_time_ms: int | None = None, /
    ) -> None:
        """Emit it; None: it has the event time of its anchor."""


class Output(NamedTuple):
    """A reader that writes to Kafka."""

    component: str
    encode: Encode
    # takes the trees that a record belongs to, the record, and its own event time if it has one
    write: Callable[[Sequence[Root], tuple[bytes | None, bytes | None, Any], int | None], None]
    emit_one: EmitOne  # encodes and writes a record


def checked_values(component: str, stream: Stream, values: Any, context: object) -> tuple[Any, ...]:
    """Return values as a tuple in the order of a stream's fields."""
    fields = stream.fields
    if isinstance(values, Mapping):
        missing = [name for name in fields if name not in values]
        unknown = [name for name in values if name not in stream.index]
        if missing or unknown:
            wrong = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
            raise EmitError(
                f"bolt {component!r} emitted to {stream.title!r} {_of(context)}: {wrong}. Its "
                f"fields are: {', '.join(fields) or 'none'}"
            )
        return tuple(values[name] for name in fields)
    if isinstance(values, tuple | list):
        if len(values) != len(fields):
            raise EmitError(
                f"bolt {component!r} emitted {len(values)} values to {stream.title!r} "
                f"{_of(context)}. Its fields are: {', '.join(fields) or 'none'}"
            )
        return tuple(values)
    if len(fields) == 1:
        return (values,)
    raise EmitError(
        f"bolt {component!r} emitted {values!r} to {stream.title!r} {_of(context)}, "
        f"which has {len(fields)} fields: {', '.join(fields) or 'none'}"
    )


def packed(stream: Stream, values: Any) -> bytes:
    """Pickle values for a task that runs elsewhere, each tuple by itself."""
    try:
        return pickle.dumps(values, protocol=5)
    except NOT_THE_USERS:
        raise
    except BaseException as error:
        raise EmitError(
            f"bolt {stream.component!r} emitted to {stream.title!r} a value that cannot be "
            f"pickled, so it cannot go to a bolt of another stage: {named(error)}"
        ) from error


def unpacked(stream: Stream, values: bytes) -> Any:
    try:
        return pickle.loads(values)  # noqa: S301 - our own tasks' tuples
    except NOT_THE_USERS:
        raise
    except BaseException as error:
        raise EmitError(
            f"bolt {stream.component!r} emitted to {stream.title!r} a value that can be pickled, "
            f"but cannot be unpickled for a bolt of another stage: {named(error)}"
        ) from error


def _of(context: object) -> str:
    return f"for {context!r}" if context is not None else "at the end of a batch"


def encoder(
    component: str,
    output: KafkaOutput,
    stream: Stream,
    limit: RecordLimit,
    *,
    is_transactional: bool = False,
) -> Encode:
    """Return the function that makes a record's key, value and headers from a tuple's values."""
    surely_bytes, needs_key = limit.surely_bytes, limit.needs_key
    key_at = None if output.key is None else stream.index[output.key]
    value_at = None if output.value is None else stream.index[output.value]
    headers_at = None if output.headers is None else stream.index[output.headers]
    left_out = {key_at, headers_at, 0 if is_transactional else None}
    rest = [(name, at) for name, at in stream.index.items() if at not in left_out]

    def encode(values: Any) -> tuple[bytes | None, bytes | None, Any]:
        key = None if key_at is None else values[key_at]
        if key is not None and key.__class__ is not bytes:
            key = _encoded(component, "key", key, output.encode)
        if needs_key and key is None:
            raise EmitError(
                f"output {component!r}: a record without a key, and its topic is compacted, "
                "which takes none (cleanup.policy)"
            )
        value = {name: values[at] for name, at in rest} if value_at is None else values[value_at]
        if value is not None and value.__class__ is not bytes:
            value = _encoded(component, "value", value, output.encode)
        size = (0 if key is None else len(key)) + (0 if value is None else len(value))
        if headers_at is None:
            if size > surely_bytes:
                _check_size(component, key, value, (), limit)
            return key, value, ()
        headers = _headers(component, values[headers_at])
        _check_size(component, key, value, headers, limit)
        return key, value, headers

    return encode if headers_at is not None else _of_bytes(encode, key_at, value_at, surely_bytes)


def _of_bytes(
    encode: Encode, key_at: int | None, value_at: int | None, surely_bytes: int
) -> Encode:
    """Return an `encode` that looks less often at the usual values: two short `bytes`."""
    if key_at is None or value_at is None:
        return encode

    def encode_bytes(values: Any) -> tuple[bytes | None, bytes | None, Any]:
        key, value = values[key_at], values[value_at]
        if key.__class__ is not bytes or value.__class__ is not bytes:
            return encode(values)
        if len(key) + len(value) > surely_bytes:
            return encode(values)
        return key, value, ()

    return encode_bytes


def _check_size(
    component: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    limit: RecordLimit,
) -> None:
    parts = [part for name, said in headers for part in (name.encode(), said)]
    if not limit.takes((key, value, *parts), len(headers)):
        size = sum(len(part) for part in (key, value, *parts) if part)
        raise EmitError(
            f"output {component!r}: a record of {size} bytes is larger than its topic takes "
            f"(max.message.bytes = {limit.max_bytes})"
        )


def _encoded(
    component: str, what: str, value: Any, encode: Callable[[Any], bytes | str] | None = None
) -> bytes:
    is_plain = value.__class__ is dict  # what an output without `value` makes
    if encode is not None and not isinstance(value, str | bytes | bytearray | memoryview):
        made = encode(value)
        if not isinstance(made, str | bytes):
            raise EmitError(
                f"output {component!r}: its encode made {made!r:.200} of {what} {value!r:.200}, "
                "which is neither bytes nor text"
            )
        value, is_plain = made, False
    try:
        if not is_plain and isinstance(value, str):
            return value.encode()
        if not is_plain and isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        unsure: list[Any] = []
        lossy = _not_in_json(value, unsure)
        if lossy is None:
            made = msgspec.json.encode(value)
            twice = name_twice_in(made) if unsure else None
            if twice is None:
                return made
            raise EmitError(
                f"output {component!r}: {what} {value!r:.200} has two names that are {twice!r} in "
                "JSON, and one of them would be lost: make of them different texts"
            )
    except UnicodeEncodeError as error:
        raise _no_utf_8(component, what, value, error) from error
    except (TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise EmitError(
            f"output {component!r}: {what} {value!r} is neither bytes nor text, "
            f"and JSON has no form for it: {error}"
        ) from error
    raise EmitError(
        f"output {component!r}: JSON has no form for {lossy!r:.100} in {what} {value!r:.200}: "
        "write it as text, or give the output an encode of your own"
    )


def _no_utf_8(component: str, what: str, value: Any, error: UnicodeEncodeError) -> EmitError:
    half = error.object[error.start : error.start + 1]
    return EmitError(
        f"output {component!r}: {what} {value!r:.200} has {half!r}, half a surrogate pair, which "
        "UTF-8 cannot hold: leave it out, or emit bytes"
    )


def _not_in_json(value: Any, unsure: list[Any]) -> Any:
    """Return a part of a value that JSON would turn into something else; None without one.

    Parts in which two names may become one are added to `unsure`.
    """
    kind = value.__class__
    if kind in _SCALARS:
        return None
    if kind is float:
        return None if math.isfinite(value) else value
    if kind is dict:
        parts = value.values()
        if not _TEXT.issuperset(map(type, value)):
            unsure.append(value)
            parts = [*value, *parts]
    elif kind is list or kind is tuple:
        parts = value
    elif isinstance(value, bytes | bytearray | memoryview):
        return value
    else:
        plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))
        if isinstance(plain, dict | list | tuple):
            unsure.append(value)
        return None if plain is value else _not_in_json(plain, unsure)
    return _first_not_in_json(parts, unsure)


def _first_not_in_json(parts: Iterable[Any], unsure: list[Any]) -> Any:
    for one in parts:
        found = None if one.__class__ in _SCALARS else _not_in_json(one, unsure)
        if found is not None:
            return found
    return None


def _headers(component: str, headers: Any) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    made = []
    for pair in pairs:
        name, value = pair
        if not isinstance(name, str):
            raise EmitError(f"output {component!r}: header {name!r}: its name is not text")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise _no_utf_8(component, "header name", name, error) from error
        made.append((name, None if value is None else _encoded(component, "header", value)))
    return made
