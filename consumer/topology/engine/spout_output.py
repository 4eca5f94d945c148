"""What the spout emits of an event: to tasks here, to tasks elsewhere, and to outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sequitur.consumer.dead_letters import FailReason
from sequitur.consumer.topology.api.collector import TaskId
from sequitur.consumer.topology.api.failure import TreeFailure
from sequitur.consumer.topology.api.topology import EVENT_FIELDS
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM
from sequitur.consumer.topology.engine.emission import Elsewhere, Here, Output, Sent, packed
from sequitur.consumer.topology.engine.tracked import BatchEvent, TrackedEvent, TrackedTuple
from sequitur.consumer.topology.engine.user_code import detail_of
from sequitur.consumer.topology.settling.made_tuple import MadeTuple, component_of
from sequitur.errors import BoltTimeoutError, EmitError, UngroupableValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology.api.topology import Topology
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.emitting import Target
    from sequitur.consumer.topology.engine.environment import Environment
    from sequitur.consumer.topology.engine.rules import Placement
    from sequitur.consumer.topology.engine.wiring import Wiring
    from sequitur.consumer.topology.settling.root import Root


class _Source(NamedTuple):
    """Whose tuples are emitted."""

    stream: Stream
    readers: Sequence[Target]
    kind: type[TrackedTuple]
    path: tuple[str, ...]  # the components that they have come through


class SpoutOutput:
    """Emits the events of the spout's task of a process."""

    def __init__(
        self, topology: Topology, placement: Placement, environment: Environment, wiring: Wiring
    ) -> None:
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

    def emit(
        self,
        root: Root,
        values: tuple[Any, ...],
        source: _Source | None = None,
        task: int | None = None,
    ) -> None:
        """Emit an event to all its readers."""
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

    def emit_made(self, root: Root, event: tuple[Any, ...]) -> None:
        """Emit a tuple that a task made in an earlier step, as this task did."""
        try:
            made = MadeTuple.of(event)
            made.check(self._topology)
        except EmitError as error:
            path = (component_of(event),)
            self._trees.fail(root, TreeFailure(FailReason.EXCEPTION, str(error), path))
            return
        self.emit(root, made.values, self._source_of(made), made.target)

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
        """Send a tuple to other processes, or write it."""
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
        """Return the tasks that get a tuple; none if a grouping of the user's fails it."""
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
        """Write a tuple to a topic, for an output that reads it from the spout."""
        try:
            record = target.encode(values)
        except Exception as error:  # noqa: BLE001 - as if a bolt had raised it
            failure = TreeFailure(FailReason.EXCEPTION, str(error), (source.stream.component,))
            self._trees.fail(root, failure)
            return
        target.write((root,), record)
