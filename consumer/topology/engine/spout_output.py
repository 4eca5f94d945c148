"""What the spout emits of an event: to tasks here, to tasks elsewhere, and to outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology._errors import BoltTimeoutError, UngroupableValueError
from sequitur.consumer.topology.api.collector import TaskId
from sequitur.consumer.topology.api.failure import FailReason, TreeFailure
from sequitur.consumer.topology.api.topology import EVENT_FIELDS
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM
from sequitur.consumer.topology.engine.emission import Elsewhere, Here, Output, Sent, packed
from sequitur.consumer.topology.engine.runner import detail_of
from sequitur.consumer.topology.engine.tracked import BatchEvent, TrackedEvent, TrackedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology.api.topology import Topology
    from sequitur.consumer.topology.engine.environment import Environment
    from sequitur.consumer.topology.engine.rules import Placement
    from sequitur.consumer.topology.engine.wiring import Wiring
    from sequitur.consumer.topology.settling.root import Root


class SpoutOutput:
    """Emits the events of the spout's task of a process.

    Args:
        topology: The topology.
        placement: Which of its tasks run here.
        environment: What the tasks share.
        wiring: Knows the readers.

    Attributes:
        is_here: Whether the spout's task runs here.
        kind: The type of the spout's tuples.
    """

    def __init__(
        self, topology: Topology, placement: Placement, environment: Environment, wiring: Wiring
    ) -> None:
        spout = topology.spout
        self.is_here = spout.id in placement.here
        self._spout = replace(spout.streams[DEFAULT_STREAM], task=placement.number)
        self._readers = wiring.targets(self._spout, placement.number) if self.is_here else ()
        self._values_of = topology.values_of
        transaction = environment.transaction
        self._attempt = None if transaction is None else transaction.attempt
        self.kind: type[TrackedTuple] = TrackedEvent
        if transaction is not None:  # whose batches may be of a spout of the user's
            self.kind = BatchEvent if self._spout.fields[1:] == EVENT_FIELDS else TrackedTuple
        self._next_id = environment.next_id
        self._queue = environment.queue
        self._trace = environment.trace
        self._trees = environment.trees
        self._users = environment.user_code

    def emit(self, root: Root, values: tuple[Any, ...]) -> None:
        """Emit an event to all its readers.

        Args:
            root: Its root.
            values: Its values.
        """
        if self._attempt is not None:
            values = (self._attempt, *self._values_of(values))
        kind, spout, next_id, queue = self.kind, self._spout, self._next_id, self._queue
        for target in self._readers:
            if not isinstance(target, Here):
                self._emit_away(target, root, values)
                continue
            for number in self._chosen(target, root, values):
                edge = next_id()
                root.value ^= edge
                made = kind(values, spout, root, edge, None, target.runners[number])
                queue.append(made)
                if self._trace is not None:
                    self._trace.given_out(root, made)

    def _emit_away(self, target: Elsewhere | Output, root: Root, values: Any) -> None:
        """Send an event to other processes, or write it."""
        if isinstance(target, Output):
            self._write(target, root, values)
            return
        sent, stream = packed(self._spout, values), (self._spout.component, self._spout.name)
        for number in self._chosen(target, root, values):
            edge = self._next_id()
            root.value ^= edge
            made = Sent(sent, stream, ((root, edge),), (), self._spout.task)
            if self._trace is not None:
                to = TaskId(target.component, number)
                self._trace.sent(None, (), None, self._spout, made, to)
            target.send(number, made)

    def _chosen(self, target: Here | Elsewhere, root: Root, values: Any) -> Sequence[int]:
        """Return the tasks that get an event; none if a grouping of the user's fails it."""
        try:
            return target.choose(values, None)
        except (KeyboardInterrupt, UngroupableValueError):
            raise
        except BoltTimeoutError:
            reason, detail = FailReason.TIMEOUT, "a grouping took longer than message_timeout"
        except BaseException as error:  # noqa: BLE001 - as if a bolt had raised it
            reason, detail = FailReason.EXCEPTION, detail_of(error)
        self._users.running = None
        self._trees.fail(root, TreeFailure(reason, detail, (self._spout.component,)))
        return ()

    def _write(self, target: Output, root: Root, values: Any) -> None:
        """Write an event to a topic as it is, for an output that reads the spout."""
        try:
            record = target.encode(values)
        except Exception as error:  # noqa: BLE001 - as if a bolt had raised it
            failure = TreeFailure(FailReason.EXCEPTION, str(error), (self._spout.component,))
            self._trees.fail(root, failure)
            return
        target.write((root,), record)
