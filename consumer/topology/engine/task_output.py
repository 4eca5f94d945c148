"""What bolts and the spout emit, and what the tasks of one executor share."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sequitur.base.copy_headers import FailReason
from sequitur.base.text import encodable, named, said_by
from sequitur.consumer.topology.api.bolt import Moment
from sequitur.consumer.topology.api.builder import EVENT_FIELDS, TreeFailure
from sequitur.consumer.topology.api.collector import TaskId
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM
from sequitur.consumer.topology.engine.plan import (
    Elsewhere,
    Here,
    Output,
    Sent,
    checked_values,
    packed,
    the_one_here,
    unpacked,
)
from sequitur.consumer.topology.engine.trees import (
    BatchEvent,
    TrackedEvent,
    TrackedTuple,
    multi_anchored,
    own_time_of,
)
from sequitur.consumer.topology.settling.root import MadeTuple, Root, component_of
from sequitur.consumer.topology.transactional.attempt import BatchOutcome, Phase, Transaction
from sequitur.errors import BoltTimeoutError, EmitError, UngroupableValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.builder import Topology
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.executor import Wiring
    from sequitur.consumer.topology.engine.key_store import KeyStore
    from sequitur.consumer.topology.engine.keyed import StepKeys
    from sequitur.consumer.topology.engine.plan import EmitOne, Placement, Rules
    from sequitur.consumer.topology.engine.runner import Runner
    from sequitur.consumer.topology.engine.trees import TreeTracker
    from sequitur.consumer.topology.settling.root import Order

    Target: TypeAlias = Here | Elsewhere | Output
    Trees: TypeAlias = tuple[tuple[Root, int], ...]


OF_BATCH: Final = 1 << 63
"""Ids of roots from here on are those of batches; an event's are smaller."""
LONGEST_DETAIL: Final = 16 << 10


class TaskOutput:
    """Emits a task's tuples: to tasks here, to tasks elsewhere and to outputs."""

    def __init__(self, environment: Environment, context: TopologyContext) -> None:
        # the short way of `emit`, set by `connect`; None: only the long way
        self.emit_one: EmitOne | None = None
        self.width = -1
        # the tasks that get what is emitted the short way; None: they are chosen each time
        self.given_to: tuple[TaskId, ...] | None = None
        self.unsent: deque[Callable[[], Any]] | None = None  # where what is emitted waits
        self._context = context
        self._component = context.component
        self._streams: dict[str, tuple[Stream, Sequence[Target]]] = {}
        self._next_id = environment.next_id
        self._queue = environment.queue
        self._trace = environment.trace
        self._trees = environment.trees
        self._users = environment.user_code
        self._dropped = environment.dropped
        self._numbers = environment.start.numbers
        self._offsets = environment.start.offsets
        self._is_again = environment.start.is_again
        self._tracks_made = environment.start.tracks_made
        self._made = environment.made
        self._last_made = environment.last_made
        self._undone = environment.undone
        self._of_batch: Root | None = None
        self._written: tuple[Any, Root] | None = None  # the last call that wrote, and its root
        transaction = environment.transaction
        self._attempt = None if transaction is None else transaction.attempt

    def connect(self, streams: Mapping[str, tuple[Stream, Sequence[Target]]]) -> None:
        self._streams = dict(streams)
        if DEFAULT_STREAM not in self._streams:
            return
        stream, targets = self._streams[DEFAULT_STREAM]
        self.width = len(stream.fields)
        # The short way cannot wait for the end of a call.
        is_checked = self._trace is not None or self._attempt is not None or self._is_again
        if not is_checked and len(targets) == 1 and not stream.is_direct:
            self.emit_one = self._fast_path(stream, targets[0])
            if isinstance(targets[0], Output):
                self.given_to = ()
            elif isinstance(targets[0], Here) and len(targets[0].runners) == 1:
                self.given_to = (_task_of(targets[0], 0),)

    def emit(
        self,
        values: Any,
        anchors: Sequence[TrackedTuple],
        stream_name: str,
        task: int | None,
        own_time_ms: int | None = None,
    ) -> list[TaskId]:
        """Emit a tuple. All its anchors belong to this task."""
        stream, targets = self._declared(stream_name, task)
        current = anchors[0] if anchors else self._current()
        if own_time_ms is None and current is not None:
            own_time_ms = own_time_of(anchors or (current,))
        made = checked_values(self._component, stream, values, current)
        if self._attempt is not None and not self._is_of_batch(made):
            raise EmitError(
                f"bolt {self._component!r} emitted {made[:1]} as the first value to "
                f"{stream.title!r}: in a transactional topology that is the TransactionAttempt "
                f"of the batch, {self._attempt}"
            )
        # What may raise or run user code comes first: then either all is done or nothing.
        chosen = [self._chosen(target, stream, made, task) for target in targets]
        own = self._root_of_its_own(stream, made, anchors, task, targets)
        if self.unsent is not None:
            kept = [_as_it_is(stream, *one) for one in chosen]
            self.unsent.append(partial(self._give_out, kept, stream, anchors, own, own_time_ms))
            return [
                _task_of(target, number)
                for target, numbers, _ in chosen
                if not isinstance(target, Output)
                for number in numbers
            ]
        return self._give_out(chosen, stream, anchors, own, own_time_ms)

    def _give_out(
        self,
        chosen: Sequence[tuple[Target, Sequence[int], Any]],
        stream: Stream,
        anchors: Sequence[TrackedTuple],
        own: Root | None,
        own_time_ms: int | None,
    ) -> list[TaskId]:
        users = self._users
        given_to: list[TaskId] = []
        call, users.running = users.running, None
        try:
            if own is not None and self._waits(own):
                chosen = []
            for target, numbers, what in chosen:
                if isinstance(target, Output):
                    self._write(target, what, anchors, own, own_time_ms)
                    continue
                given_to.extend(
                    self._send(target, number, what, stream, anchors, own, own_time_ms)
                    for number in numbers
                )
        finally:
            users.running = call
        if users.overdue is not None:
            users.go_on(call)
        return given_to

    def end_batch(self, failure: TreeFailure | None = None) -> None:
        """End the batch. On a failure, drop what the task emitted for no event."""
        root, self._of_batch = self._of_batch, None
        if root is not None and failure is not None:
            root.failure = failure
            self._dropped.append(root.id)
        if failure is not None:
            for root in self._made:
                root.failure = failure
                self._dropped.append(root.id)
            self._undone += [root for root in self._made if root.is_tracked]
            self._made.clear()

    def _root_of_its_own(
        self,
        stream: Stream,
        values: tuple[Any, ...],
        anchors: Sequence[TrackedTuple],
        task: int | None,
        targets: Sequence[Target],
    ) -> Root | None:
        """Return the root of a tuple that the task makes by itself; None for other tuples.

        The task makes it at a tick or at the end of a batch: no event could make it again. Tuples
        that a call only writes share one root. It is not tracked, as nothing can fail after it.
        """
        if self._offsets is None:
            return None
        made_at = anchors or [one for one in (self._current(),) if one is not None]
        if not all(one.is_tick for one in made_at):
            return None
        is_tracked = self._tracks_made and not all(isinstance(one, Output) for one in targets)
        by = made_at[0] if made_at else self._users.call
        if not is_tracked and self._written is not None and self._written[0] is by:
            return self._written[1]
        context = self._context
        time_ms = (made_at[0].root.event if made_at else self._trees.event)[3]
        made = MadeTuple(self._component, context.task, stream.name, values, task)
        # Events that are tried again are older, but what they make stands behind all the same.
        last = self._last_made.get(made.key)
        time_ms = time_ms if last is None else max(time_ms, last[0])
        event = made.event(next(self._offsets), time_ms, is_kept=is_tracked)
        root = Root(OF_BATCH | next(self._numbers), event, is_tracked=is_tracked)
        self._last_made[made.key] = root.order
        self._made.append(root)
        self._written = None if is_tracked else (by, root)
        if is_tracked and self._trace is not None:
            self._trace.begun(root, event)
        return root

    def _waits(self, root: Root) -> bool:
        """Return whether a tuple waits, not given out, for an earlier one that its task made."""
        trees = self._trees
        if root.is_tracked and trees.blocked and trees.waits_for_another(root):
            root.is_held = True
        return root.is_held

    def _is_of_batch(self, values: tuple[Any, ...]) -> bool:
        """Return whether the first value is the attempt. An equal plain tuple has no names."""
        first = values[0] if values else None
        return first.__class__ is self._attempt.__class__ and bool(first == self._attempt)

    def _declared(self, stream_name: str, task: int | None) -> tuple[Stream, Sequence[Target]]:
        found = self._streams.get(stream_name)
        if found is None:
            has = ", ".join(sorted(self._streams)) or "none"
            raise EmitError(
                f"bolt {self._component!r} emitted to stream {stream_name!r}, which it has not "
                f"declared. It has: {has}"
            )
        stream, targets = found
        if stream.is_direct is (task is None):
            raise EmitError(
                f"bolt {self._component!r}: stream {stream_name!r} is "
                + ("direct: say which task" if stream.is_direct else "not direct: name no task")
            )
        return stream, targets

    def _current(self) -> TrackedTuple | None:
        """Return the tuple in process; None at the end of a batch."""
        call = self._users.call
        return call if isinstance(call, TrackedTuple) else None

    def _untracked(self) -> Root:
        """Return a root for an unanchored tuple. It has the event of the tuple in process.

        All tuples emitted at the end of a batch share one root, as they count together.
        """
        current = self._current()
        if current is not None:
            return Root(0, current.root.event, is_tracked=False)
        if self._of_batch is None:
            number = next(self._numbers)
            self._of_batch = Root(OF_BATCH | number, self._trees.event, is_tracked=False)
        return self._of_batch

    @staticmethod
    def _chosen(
        target: Target, stream: Stream, values: tuple[Any, ...], task: int | None
    ) -> tuple[Target, Sequence[int], Any]:
        """Return a reader, its chosen tasks, and what they get or what is written."""
        if isinstance(target, Output):
            return target, (), target.encode(values)
        numbers = target.choose(values, task)
        if isinstance(target, Elsewhere):
            return target, numbers, packed(stream, values)
        return target, numbers, values

    def _send(  # noqa: PLR0917 - likewise
        self,
        target: Here | Elsewhere,
        number: int,
        values: Any,
        stream: Stream,
        anchors: Sequence[TrackedTuple],
        own: Root | None,
        own_time_ms: int | None,
    ) -> TaskId:
        trees: Trees
        if own is None:
            trees = self._edges(anchors)
            parent = anchors[0] if anchors else self._current()
        else:
            edge, parent = self._next_id(), None
            own.value ^= edge
            trees = ((own, edge),)
        if isinstance(target, Elsewhere):
            path = (self._component,) if parent is None else (*parent.path(), self._component)
            name = stream.component, stream.name
            sent = Sent(values, name, trees, path, stream.task, own_time_ms)
            to = TaskId(target.component, number)
            if self._trace is not None:
                self._trace.sent(self._context, anchors, parent, stream, sent, to)
            target.send(number, sent)
            return to
        made: TrackedTuple
        owner = target.runners[number]
        if len(trees) == 1:
            made = TrackedTuple(values, stream, *trees[0], parent, owner, own_time_ms)
        else:
            made = multi_anchored(values, stream, trees, parent, owner, own_time_ms)
        self._queue.append(made)
        if self._trace is not None:
            self._trace.emitted(self._context, anchors, made)
        return TaskId(owner.context.component, owner.context.task)

    def _edges(self, anchors: Sequence[TrackedTuple]) -> Trees:
        """Return the trees of a new tuple, with its edge in each."""
        if not anchors:
            return ((self._untracked(), 0),)
        edges: dict[Root, int] = {}
        for anchor in anchors:
            edge = self._next_id()
            for root, _ in anchor.trees():
                root.value ^= edge
                edges[root] = edges.get(root, 0) ^ edge
        return tuple(edges.items())

    def _write(
        self,
        target: Output,
        record: Any,
        anchors: Sequence[TrackedTuple],
        own: Root | None,
        own_time_ms: int | None,
    ) -> None:
        """Write to an output. It acks at once, which would cancel an edge, so it gets none."""
        if own is None:
            roots = list(dict.fromkeys(root for anchor in anchors for root, _ in anchor.trees()))
            target.write(roots or (self._untracked(),), record, own_time_ms)
        else:
            target.write((own,), record, own_time_ms)
        if self._trace is not None:
            self._trace.written(self._context, anchors, target.component, record)

    def _fast_path(self, stream: Stream, target: Target) -> EmitOne | None:
        """Return a faster `emit` for the usual case: one reader, one anchor, one tree."""
        next_id, append, users = self._next_id, self._queue.append, self._users
        if isinstance(target, Output):
            return target.emit_one
        if isinstance(target, Elsewhere):
            return None
        runners, choose = target.runners, target.choose
        if len(runners) > 1:

            def chosen(
                values: tuple[Any, ...], anchor: TrackedTuple, own_time_ms: int | None = None
            ) -> None:
                root, numbers = anchor.root, choose(values, None)
                users.running = None
                time_ms = anchor.own_time_ms if own_time_ms is None else own_time_ms
                for number in numbers:
                    edge = next_id()
                    root.value ^= edge
                    runner = runners[number]
                    append(TrackedTuple(values, stream, root, edge, anchor, runner, time_ms))
                users.running = anchor

            return chosen
        runner = runners[0]

        def only(
            values: tuple[Any, ...], anchor: TrackedTuple, own_time_ms: int | None = None
        ) -> None:
            users.running = None
            root = anchor.root
            edge = next_id()
            root.value ^= edge
            time_ms = anchor.own_time_ms if own_time_ms is None else own_time_ms
            append(TrackedTuple(values, stream, root, edge, anchor, runner, time_ms))
            users.running = anchor

        return only


def _task_of(target: Here | Elsewhere, number: int) -> TaskId:
    if isinstance(target, Elsewhere):
        return TaskId(target.component, number)
    context = target.runners[number].context
    return TaskId(context.component, context.task)


def _as_it_is(
    stream: Stream, target: Target, numbers: Sequence[int], what: Any
) -> tuple[Target, Sequence[int], Any]:
    """Return what a reader gets later, as it is now: the bolt may change its values until then."""
    if isinstance(target, Here):
        with contextlib.suppress(EmitError):  # what cannot be pickled is given as it is by then
            what = unpacked(stream, packed(stream, what))
    return target, numbers, what


class _Source(NamedTuple):
    stream: Stream
    readers: Sequence[Target]
    kind: type[TrackedTuple]
    path: tuple[str, ...]  # the components that they have come through


class SpoutOutput:
    """Emits the events of this process's spout task."""

    def __init__(self, environment: Environment, wiring: Wiring) -> None:
        topology, placement = environment.topology, environment.placement
        spout = topology.spout
        self.is_here = spout.id in placement.here
        self._topology, self._wiring = topology, wiring
        self._made: dict[tuple[str, int, str], _Source] = {}
        self._values_of = topology.values_of
        transaction = environment.transaction
        self._attempt = None if transaction is None else transaction.attempt
        self.kind: type[TrackedTuple] = TrackedEvent
        stream = replace(spout.streams[DEFAULT_STREAM], task=placement.number)
        if transaction is not None:  # whose batches may be of a spout of the user's
            self.kind = BatchEvent if stream.fields[1:] == EVENT_FIELDS else TrackedTuple
        readers = wiring.targets(stream, placement.number) if self.is_here else ()
        self._spout = _Source(stream, readers, self.kind, ())
        self._next_id = environment.next_id
        self._queue = environment.queue
        self._trace = environment.trace
        self._trees = environment.trees
        self._users = environment.user_code
        # the short way of `emit`, past the queue, which has to be empty; None: only the long way
        self.give = self._short_way()

    def emit(
        self,
        root: Root,
        values: tuple[Any, ...],
        source: _Source | None = None,
        task: int | None = None,
    ) -> None:
        if source is None:
            source = self._spout
            if self._attempt is not None:
                values = (self._attempt, *self._values_of(values))
        stream, readers, kind, _ = source
        next_id, queue = self._next_id, self._queue
        for target in readers:
            if not isinstance(target, Here):
                self._emit_away(source, target, root, values, task)
                continue
            for number in self._chosen(source, target, root, values, task):
                edge = next_id()
                root.value ^= edge
                made = kind(values, stream, root, edge, None, target.runners[number])
                queue.append(made)
                if self._trace is not None:
                    self._trace.given_out(root, made)

    def _short_way(self) -> Callable[[Root, tuple[Any, ...]], None] | None:
        """Return a faster `emit` for the usual case: one reader, whose only task here it is for."""
        stream, readers, kind, _ = self._spout
        if len(readers) != 1 or self._attempt is not None or self._trace is not None:
            return None
        (reader,) = readers
        if not isinstance(reader, Here) or reader.choose is not the_one_here:
            return None
        next_id, runner = self._next_id, reader.runners[0]

        def give(root: Root, values: tuple[Any, ...]) -> None:
            root.value = edge = next_id()
            runner.take(kind(values, stream, root, edge, None, runner))

        return give

    def emit_made(self, root: Root, event: tuple[Any, ...]) -> None:
        """Emit a tuple that a task made in an earlier step, in the name of that task."""
        try:
            made = MadeTuple.of(event)
            made.check(self._topology)
        except EmitError as error:
            path = (component_of(event),)
            self._trees.fail(root, TreeFailure(FailReason.EXCEPTION, str(error), path))
            return
        self.emit(root, made.values, self._source_of(made), made.target)

    def emit_timer(self, root: Root, event: tuple[Any, ...]) -> None:
        """Give a timer that waited back to the stage of its bolt."""
        self._wiring.send_timer(root, event, self._next_id(), self._trace)

    def _source_of(self, made: MadeTuple) -> _Source:
        place = made.component, made.task, made.stream
        found = self._made.get(place)
        if found is None:
            declared = self._topology.components[made.component].streams[made.stream]
            stream = replace(declared, task=made.task)
            readers = self._wiring.targets(stream, made.task)
            found = self._made[place] = _Source(stream, readers, TrackedTuple, (made.component,))
        return found

    def _emit_away(
        self,
        source: _Source,
        target: Elsewhere | Output,
        root: Root,
        values: Any,
        task: int | None,
    ) -> None:
        if isinstance(target, Output):
            self._write(source, target, root, values)
            return
        stream = source.stream
        sent, name = packed(stream, values), (stream.component, stream.name)
        for number in self._chosen(source, target, root, values, task):
            edge = self._next_id()
            root.value ^= edge
            made = Sent(sent, name, ((root, edge),), source.path, stream.task)
            if self._trace is not None:
                to = TaskId(target.component, number)
                self._trace.sent(None, (), None, stream, made, to)
            target.send(number, made)

    def _chosen(
        self,
        source: _Source,
        target: Here | Elsewhere,
        root: Root,
        values: Any,
        task: int | None,
    ) -> Sequence[int]:
        """Return the tasks that get a tuple; none if a user's grouping fails it."""
        try:
            return target.choose(values, task)
        except (KeyboardInterrupt, UngroupableValueError):
            raise
        except BoltTimeoutError:
            reason, detail = FailReason.TIMEOUT, "a grouping took longer than call_timeout"
        except BaseException as error:  # noqa: BLE001 - as if a bolt had raised it
            reason, detail = FailReason.EXCEPTION, detail_of(error)
        self._users.running = None
        self._trees.fail(root, TreeFailure(reason, detail, (source.stream.component,)))
        return ()

    def _write(self, source: _Source, target: Output, root: Root, values: Any) -> None:
        try:
            record = target.encode(values)
        except Exception as error:  # noqa: BLE001 - as if a bolt had raised it
            failure = TreeFailure(FailReason.EXCEPTION, said_by(error), (source.stream.component,))
            self._trees.fail(root, failure)
            return
        target.write((root,), record, None)


class UserCode:
    """The call of user code that runs: the last one, if several are in the middle.

    It tells user code from engine code: only user code is ever interrupted. A timer's signal ends a
    call that overruns: its handler raises an exception. Python runs a handler between any two
    instructions of the first thread, so the exception may come out of any line. Out of a line of
    the engine it would leave work half done: records taken from a list and not yet written, or an
    edge that is in no tree. What a bolt calls of the engine (`emit`, `ack`, `fail`) is engine code:
    a call that overruns there is ended on the way back to the bolt.

    A call overruns by its own time. While other calls run, it is left, and its time stands still.
    Each look counts the time since the look before for the call that it finds.
    """

    __slots__ = ("_left", "_looked_s", "_own_s", "_seen", "again", "call", "overdue", "running")

    def __init__(self) -> None:
        self.call: Any = None
        self.again = 0  # how often a call was made again for what it was made for before
        self.running: Any = None
        self.overdue: Any = None
        self._seen: Any = None
        self._own_s = 0.0  # of the call that was seen last, since it was first seen
        self._looked_s = 0.0
        self._left: list[tuple[Any, float]] = []

    def look(self, now_s: float, timeout_s: float) -> None:
        """End a call that overruns: at once in user code, otherwise on the way back to it."""
        call, passed_s = self.call, now_s - self._looked_s
        self._looked_s = now_s
        if call is not self._seen:
            self._seen, self._own_s = call, 0.0
            return
        self._own_s += passed_s
        if call is not None and self._own_s >= timeout_s:
            if self.running is None:
                self.overdue = call
                return
            # A bolt that goes on all the same is interrupted again.
            self._own_s = 0.0
            raise BoltTimeoutError

    def begin_again(self) -> None:
        """Give a call that is made again its whole time."""
        self.again += 1
        self._seen = self.overdue = None

    def leave(self) -> None:
        """Leave the call for others that end before it goes on."""
        self._left.append((self.call, self._own_s if self._seen is self.call else 0.0))

    def come_back(self) -> None:
        """Come back to the call that was left last. Engine code still runs."""
        self.call, self._own_s = self._left.pop()
        self._seen, self.running = self.call, None

    def bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Bound a user's function by the time-out, also outside of a call of user code.

        Within a call of user code, the function is a part of that call.
        """

        def call(*given: Any) -> Any:
            if self.running is not None:
                return function(*given)
            before = self.call
            self.call = self.running = object()
            try:
                return function(*given)
            finally:
                self.running, self.call = None, before

        return call

    def go_on(self, call: Any) -> None:
        """Return to user code. End its call if it overran meanwhile."""
        overdue, self.overdue = self.overdue, None
        self.running = call
        if call is not None and overdue is call:
            self._seen = None
            raise BoltTimeoutError


def finish_words(component: str, detail: str) -> str:
    return f"finish_batch of {component!r}: {detail}"[:LONGEST_DETAIL]


def detail_of(error: BaseException) -> str:
    """Return an exception as text, without the frames of the engine."""
    try:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "consumer/topology/" not in frame.filename]
        shown = traceback.format_list(own) + traceback.format_exception_only(error)
    except Exception:  # noqa: BLE001 - an exception is an object of the user's, too
        shown = [named(error)]
    return encodable("".join(shown))[-LONGEST_DETAIL:]


class Trace(Protocol):
    """Gets each step of each tree; the roots' values are those after the step.

    Each task has a root of its own for a tree, with what it knows of it.
    """

    def begun(self, root: Root, values: tuple[Any, ...]) -> None:
        """An event is about to be fed."""

    def given_out(self, root: Root, made: TrackedTuple) -> None:
        """The spout emitted a tuple to a task."""

    def emitted(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], made: TrackedTuple
    ) -> None:
        """A bolt emitted a tuple to a task."""

    def sent(  # noqa: PLR0917 - each is of a type of its own
        self,
        by: TopologyContext | None,
        anchors: Sequence[TrackedTuple],
        parent: TrackedTuple | None,
        stream: Stream,
        sent: Sent,
        to: TaskId,
    ) -> None:
        """A bolt emitted a tuple to a task that runs elsewhere. The spout did if `by` is None.

        `parent` is the tuple that it was emitted for, also without an anchor.
        """

    def received(self, sent: Sent, made: TrackedTuple) -> None:
        """A tuple from another process has come to its task."""

    def written(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], output: str, record: Any
    ) -> None:
        """A bolt emitted a tuple to an output."""

    def acked(self, by: TopologyContext, given: TrackedTuple) -> None:
        """A bolt acked a tuple."""

    def failed(self, by: TopologyContext, given: TrackedTuple, failure: TreeFailure) -> None:
        """A bolt failed a tuple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What an executor's batch begins with."""

    moment: Moment = field(default_factory=Moment)
    # the snapshots of bolts from the batch before, pickled, by component and task
    states: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    transaction: Transaction | None = None  # the try at a transaction; None in other topologies
    random: float = 0.5  # drawn from [0, 1): it spreads the retries of the batch
    # numbers roots without an event: 63 bits, each number once in a step
    numbers: Iterator[int] = field(default_factory=itertools.count)
    # numbers made tuples, which tasks make without an event. None in a transaction: its batch has
    # these tuples
    offsets: Iterator[int] | None = None
    tracks_made: bool = True  # whether made tuples are tracked
    # the order of each task's last made tuple, by the task's key: later ones stand behind it
    last_made: Mapping[bytes, Order] = field(default_factory=dict)
    # what the keyed bolts here keep, by component
    keys: Mapping[str, KeyStore] = field(default_factory=dict)
    room: int = 1  # how many times the usual memory these may take: see `step.room`
    # whether tasks run once more without events that are not done: calls are repeated then
    is_again: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    topology: Topology
    placement: Placement
    rules: Rules
    start: Start
    clock: Callable[[], float]
    next_id: Callable[[], int]  # gives 64 random bits a call
    trees: TreeTracker  # acks and fails tuples
    # gives queued tuples to their tasks while a task is in the middle of a call
    follow: Callable[[Runner], None]
    trace: Trace | None = None  # gets each step of each tree
    runs_inline: bool = False  # whether calls that might run side by side are run one by one
    # tuples that go to their tasks next
    queue: deque[TrackedTuple] = field(default_factory=deque)
    # the roots of each output of several events, where ackers decide on it
    shared: list[tuple[Root, ...]] = field(default_factory=list)
    user_code: UserCode = field(default_factory=UserCode)  # tells user code from engine code
    # bolts whose `finish_batch` raised, and what
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    # roots of the tuples that bolts got and whose `finish_batch` is still to come
    awaited: set[Root] = field(default_factory=set)
    # ids of the roots of unanchored tuples that count for nothing: their `finish_batch` raised, or
    # their tick was refused
    dropped: list[int] = field(default_factory=list)
    # roots of made tuples, until the executor takes them in
    made: list[Root] = field(default_factory=list)
    # the order of each task's last made tuple, by the task's key: later ones stand behind it
    last_made: dict[bytes, Order] = field(default_factory=dict)
    # roots of tuples made by a `finish_batch` that then raised. They count for nothing
    undone: list[Root] = field(default_factory=list)
    outcome: BatchOutcome = field(default_factory=BatchOutcome)  # how a try at a transaction went
    keys: StepKeys | None = None  # the keys of keyed bolts; None if there are none here

    @property
    def transaction(self) -> Transaction | None:
        """The try at a transaction; None in other topologies."""
        return self.start.transaction

    @property
    def is_commit(self) -> bool:
        return self.transaction is not None and self.transaction.phase is Phase.COMMIT

    @property
    def limit_s(self) -> float | None:
        """How long a call may take, in seconds, if calls that overrun are not ended.

        They fail once they are over. A commit may take any time. None: no limit here.
        """
        return None if self.is_commit or not self.runs_inline else self.rules.call_timeout_s
