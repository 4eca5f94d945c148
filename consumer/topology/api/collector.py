"""The collectors by which bolts emit, ack and fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sequitur.base.copy_headers import FailReason
from sequitur.base.text import encodable
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM, Tuple
from sequitur.errors import EmitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TaskId(NamedTuple):
    """A task of a bolt.

    Attributes:
        component: The bolt's id.
        task: The task's number, from 0.
    """

    component: str
    task: int


class TaskRunner(Protocol):
    """Runs a bolt's task, and knows the tuples that it gave to the bolt."""

    def emit(
        self, values: Any, anchors: Sequence[Any], stream: str, task: int | None
    ) -> list[TaskId]:
        """Emit for the collector; see `OutputCollector.emit`."""

    def ack(self, given: Any, /) -> None:
        """Ack for the collector; see `OutputCollector.ack`."""

    def fail(self, given: Any, reason: FailReason, detail: str, /) -> None:
        """Fail for the collector; see `OutputCollector.fail`."""


class OutputCollector:
    """The collector of a `Bolt`.

    Args:
        runner: The runner of the bolt's task.
    """

    __slots__ = ("_runner",)

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def hand_over(self, runner: TaskRunner) -> None:
        """Use another runner from now on: the bolt serves another batch."""
        self._runner = runner

    def emit(
        self,
        values: Any,
        anchors: Tuple | Sequence[Tuple] = (),
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
    ) -> list[TaskId]:
        """Emit a tuple.

        Args:
            values: In the order of the stream's fields, or by field.
            anchors: The tuples it is derived from: it joins their trees, once for each time that a
                tuple is named. Without any it is not tracked.
            stream: The stream.
            task: Of a direct stream, the number of the task that is to get it.

        Returns:
            The tasks that get it; outputs are none. Nothing in a call of a bolt with `concurrency`:
            what it emits goes out when the call is over.

        Raises:
            EmitError: The bolt has not declared the stream or the fields, or a direct stream was
                emitted to without a task.
            ForeignTupleError: An anchor was not delivered to this bolt, or is acked or failed.
        """
        anchored = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        if (
            isinstance(values, Tuple)
            or not isinstance(stream, str)
            or not all(isinstance(one, Tuple) for one in anchored)
        ):
            raise EmitError(
                f"emit({values!r:.100}, {anchors!r:.100}, stream={stream!r:.100}): the order is "
                "emit(values, anchors, stream), and not Storm's emit(stream, anchors, values)"
            )
        return self._runner.emit(values, anchored, stream, task)

    def emit_many(
        self,
        values: Iterable[Any],
        anchors: Tuple | Sequence[Tuple] = (),
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
    ) -> list[list[TaskId]]:
        """Emit a tuple for each of some values. See `emit`.

        If one raises, the values after it are not emitted.
        """
        return [self.emit(one, anchors, stream, task) for one in values]

    def ack(self, tuple: Tuple) -> None:  # noqa: A002 - the field's word
        """The tuple is processed.

        Raises:
            DoubleAckError: It was acked or failed before.
            ForeignTupleError: It was not delivered to this bolt.
        """
        self._runner.ack(tuple)

    def fail(self, tuple: Tuple, detail: str = "") -> None:  # noqa: A002
        """The tuple cannot be processed. Its trees fail, and their events are tried again.

        Args:
            tuple: The tuple.
            detail: Why, for readers of the dead-letter topic.

        Raises:
            DoubleAckError: It was acked or failed before.
            ForeignTupleError: It was not delivered to this bolt.
        """
        self._runner.fail(tuple, FailReason.FAILED, encodable(str(detail)))


class BasicOutputCollector:
    """The collector of a `BasicBolt`: anchors to the input, which is acked for it.

    Args:
        runner: The runner of the bolt's task.
        anchor: The input.
    """

    __slots__ = ("_anchors", "_runner")

    def __init__(self, runner: TaskRunner, anchor: Tuple) -> None:
        self._runner = runner
        self._anchors = (anchor,)

    def emit(
        self, values: Any, stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[TaskId]:
        """Emit a tuple. See `OutputCollector.emit`."""
        if not isinstance(stream, str):
            raise EmitError(
                f"emit({values!r:.100}, {stream!r:.100}): the order is emit(values, stream), and "
                "not Storm's emit(stream, values)"
            )
        return self._runner.emit(values, self._anchors, stream, task)

    def emit_many(
        self, values: Iterable[Any], stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[list[TaskId]]:
        """Emit a tuple for each of some values. See `OutputCollector.emit_many`."""
        return [self.emit(one, stream, task) for one in values]
