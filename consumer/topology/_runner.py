"""One task of a bolt: gives it tuples, and does what it says of them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
from typing import TYPE_CHECKING, Any, Final

from consumer.topology._bolt import BaseBolt, BasicBolt, Bolt, FunctionBolt, To, is_async
from consumer.topology._collector import BasicOutputCollector, OutputCollector
from consumer.topology._emission import Elsewhere, Here, Output, Sent, checked_values
from consumer.topology._errors import (
    BoltError,
    BoltTimeoutError,
    DoubleAckError,
    EmitError,
    ForeignTupleError,
)
from consumer.topology._tuple import (
    DEFAULT_STREAM,
    FailReason,
    Failure,
    Root,
    Stream,
    Tuple,
    woven,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from consumer.topology._bolt import TopologyContext
    from consumer.topology._executor import Executor

    Target: TypeAlias = Here | Elsewhere | Output
    Trees: TypeAlias = tuple[tuple[Root, int], ...]

_ACKED: Final = "acked"
_FAILED: Final = "failed"
_LONGEST_DETAIL: Final = 16 << 10


class Runner:
    """Runs a task of a bolt.

    Args:
        executor: What it runs in.
        context: Which task it is.
        bolt: The task's own copy of the bolt.
    """

    def __init__(self, executor: Executor, context: TopologyContext, bolt: BaseBolt) -> None:
        self.context = context
        self.bolt = bolt
        self._executor = executor
        self._component = context.component
        self._streams: dict[str, tuple[Stream, Sequence[Target]]] = {}
        self._send_one: Callable[[tuple[Any, ...], Tuple], None] | None = None
        self._width = -1
        self._next_id = executor.next_id
        self._trace = executor.trace
        if isinstance(bolt, FunctionBolt):
            self._call: Callable[[Tuple], Any] = bolt.function
            self._emits, self._acks = True, True
        elif isinstance(bolt, BasicBolt):
            self._call = self._basic
            self._emits, self._acks = False, True
        elif isinstance(bolt, Bolt):
            self._call = bolt.process
            self._emits, self._acks = False, False
        if is_async(bolt) and executor.runs_inline:
            self._call = _to_the_end(self._call)

    def connect(self, streams: Mapping[str, tuple[Stream, Sequence[Target]]]) -> None:
        """Say where what is emitted goes."""
        self._streams = dict(streams)
        if DEFAULT_STREAM not in self._streams:
            return
        stream, targets = self._streams[DEFAULT_STREAM]
        self._width = len(stream.fields)
        if self._trace is None and len(targets) == 1 and not stream.is_direct:
            self._send_one = self._short_way(stream, targets[0])

    def prepare(self, state: Any) -> None:
        """Have the bolt get ready, with what it kept in the batch before.

        Raises:
            BoltError: It cannot.
        """
        with self._named("prepare"):
            self.bolt.prepare(self.context, OutputCollector(self))
        if state is not None:
            with self._named("restore"):
                self.bolt.restore(state)

    def snapshot(self) -> Any:
        """What the bolt wants kept.

        Raises:
            BoltError: It cannot say.
        """
        with self._named("snapshot"):
            return self.bolt.snapshot()

    def cleanup(self) -> None:
        """Have the bolt let go of what it took; that it cannot changes nothing of the batch."""
        try:
            self.bolt.cleanup()
        except Exception:  # noqa: BLE001 - all its tuples are settled
            traceback.print_exc()

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Say whose error it is: there is no tuple that it could fail."""
        try:
            yield
        except Exception as error:
            raise BoltError(
                f"bolt {self._component!r}, task {self.context.task}: its {what} raised "
                f"{type(error).__name__}: {error}"
            ) from error

    def run(self, given: Tuple) -> None:
        """Give the bolt a tuple."""
        executor = self._executor
        executor.in_call = given
        try:
            emitted = self._call(given)
            if self._emits and emitted is not None:
                send, width = self._send_one, self._width
                for values in emitted:
                    if (
                        values.__class__ is tuple
                        and send is not None
                        and len(values) == width
                        and not given._more
                    ):
                        send(values, given)
                    else:
                        self.yielded(values, given)
            executor.in_call = None
            if self._acks:
                root = given._root
                if (  # what `ack` comes to nearly always
                    root is executor.current
                    and root.failure is None
                    and given._owner is self
                    and not given._more
                    and self._trace is None
                ):
                    given._owner = _ACKED
                    root.value ^= given._edge
                else:
                    self.ack(given)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a bolt raises fails its tuple
            executor.in_call = None
            self.raised(given, error)
        except BoltTimeoutError:
            executor.in_call = None
            self.overran(given)

    def finish_batch(self) -> None:
        """Have the bolt settle what it holds."""
        self._executor.in_call = None
        try:
            self.bolt.finish_batch()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what it holds is not acked, and fails by that
            self._executor.finish_failed(self._component, detail_of(error))
        except BoltTimeoutError:
            self._executor.finish_failed(self._component, "took longer than message_timeout")

    def yielded(self, values: Any, given: Tuple) -> None:
        """Emit what a function yielded."""
        if isinstance(values, To):
            self.emit(values.values, (given,), values.stream, values.task)
        else:
            self.emit(values, (given,), DEFAULT_STREAM, None)

    def emit(
        self, values: Any, anchors: Sequence[Tuple], stream_name: str, task: int | None
    ) -> None:
        """See `OutputCollector.emit`."""
        current = anchors[0] if anchors else self._executor.in_call
        found = self._streams.get(stream_name)
        if found is None:
            has = ", ".join(sorted(self._streams)) or "none"
            raise EmitError(
                f"bolt {self._component!r} emitted to stream {stream_name!r}, which it has not "
                f"declared; it has: {has}"
            )
        stream, targets = found
        if stream.is_direct is (task is None):
            raise EmitError(
                f"bolt {self._component!r}: stream {stream_name!r} is "
                + ("direct: say which task" if stream.is_direct else "not direct: name no task")
            )
        for anchor in anchors:
            if anchor._owner is not self:
                raise self._misuse(anchor, "anchored to")
        made = checked_values(self._component, stream, values, current)
        for target in targets:
            if isinstance(target, Output):
                self._write(target, made, anchors)
            else:
                for number in target.choose(made, task):
                    self._send(target, number, made, stream, anchors)

    def ack(self, given: Tuple) -> None:
        """See `OutputCollector.ack`."""
        if given._owner is not self:
            raise self._misuse(given, "acked")
        given._owner = _ACKED
        root = given._root
        root.value ^= given._edge
        executor = self._executor
        if root is not executor.current:
            executor.look_at_time(root, given)
        if root.failure is not None:
            executor.late_acks += 1
        for other, edge in given._more:
            other.value ^= edge
            executor.look_at_time(other, given)
            if other.failure is not None:
                executor.late_acks += 1
        if self._trace is not None:
            self._trace.acked(self.context, given)

    def fail(self, given: Tuple, reason: FailReason, detail: str) -> None:
        """See `OutputCollector.fail`."""
        if given._owner is not self:
            raise self._misuse(given, "failed")
        self._fail(given, reason, detail)

    def raised(self, given: Tuple, error: BaseException) -> None:
        """The bolt's call for a tuple ended with an exception."""
        self._fail(given, FailReason.EXCEPTION, detail_of(error))

    def overran(self, given: Tuple) -> None:
        """The bolt's call for a tuple took longer than it may, and was ended."""
        self.gave_up(given)
        self._executor.late_acks += 1

    def gave_up(self, given: Tuple) -> None:
        """The bolt's call for a tuple takes longer than it may; its ack is late, if it comes."""
        detail = f"a call of bolt {self._component!r} took longer than message_timeout"
        self._fail(given, FailReason.TIMEOUT, detail)

    def _fail(self, given: Tuple, reason: FailReason, detail: str) -> None:
        given._owner = _FAILED
        failure = Failure(reason, detail[:_LONGEST_DETAIL], (*given._path(), self._component))
        for root, _ in given._trees():
            self._executor.fail(root, failure)
        if self._trace is not None:
            self._trace.failed(self.context, given, failure)

    def _basic(self, given: Tuple) -> Any:
        bolt: Any = self.bolt
        return bolt.process(given, BasicOutputCollector(self, given))

    def _send(
        self,
        target: Here | Elsewhere,
        number: int,
        values: tuple[Any, ...],
        stream: Stream,
        anchors: Sequence[Tuple],
    ) -> None:
        trees = self._edges(anchors)
        parent = anchors[0] if anchors else self._executor.in_call
        if isinstance(target, Elsewhere):
            path = (self._component,) if parent is None else (*parent._path(), self._component)
            target.send(number, Sent(values, (stream.component, stream.name), trees, path))
            return
        made: Tuple
        owner = target.runners[number]
        if len(trees) == 1:
            made = Tuple(values, stream, *trees[0], parent, owner)
        else:
            made = woven(values, stream, trees, parent, owner)
        self._executor.queue.append(made)
        if self._trace is not None:
            self._trace.emitted(self.context, anchors, made)

    def _edges(self, anchors: Sequence[Tuple]) -> Trees:
        """The trees of a new tuple, and its edge in each of them."""
        if not anchors:
            return ((self._executor.untracked(), 0),)
        edges: dict[Root, int] = {}
        for anchor in anchors:
            edge = self._next_id()
            for root, _ in anchor._trees():
                root.value ^= edge
                edges[root] = edges.get(root, 0) ^ edge
        return tuple(edges.items())

    def _write(self, target: Output, values: tuple[Any, ...], anchors: Sequence[Tuple]) -> None:
        """An output bolt acks at once: its edge comes to nothing, and so none is made."""
        record = target.encode(values)
        roots = list(dict.fromkeys(root for anchor in anchors for root, _ in anchor._trees()))
        target.write(roots or (self._executor.untracked(),), record)
        if self._trace is not None:
            self._trace.written(self.context, anchors, target.component, record)

    def _short_way(self, stream: Stream, target: Target) -> Callable[[Any, Tuple], None] | None:
        """`emit` for what is nearly always so: one reader, one anchor, one tree."""
        next_id, append = self._next_id, self._executor.queue.append
        if isinstance(target, Output):
            encode, write_one = target.encode, target.write_one

            def output(values: tuple[Any, ...], anchor: Tuple) -> None:
                write_one(anchor._root, encode(values))

            return output
        if isinstance(target, Elsewhere):
            return None
        runners, choose = target.runners, target.choose
        if len(runners) > 1:

            def chosen(values: tuple[Any, ...], anchor: Tuple) -> None:
                root = anchor._root
                for number in choose(values, None):
                    edge = next_id()
                    root.value ^= edge
                    append(Tuple(values, stream, root, edge, anchor, runners[number]))

            return chosen
        runner = runners[0]

        def only(values: tuple[Any, ...], anchor: Tuple) -> None:
            root = anchor._root
            edge = next_id()
            root.value ^= edge
            append(Tuple(values, stream, root, edge, anchor, runner))

        return only

    def _misuse(self, given: Tuple, what: str) -> Exception:
        owner = given._owner
        if owner in {_ACKED, _FAILED}:
            return DoubleAckError(f"bolt {self._component!r} {what} {given!r}, {owner} already")
        return ForeignTupleError(
            f"bolt {self._component!r} {what} {given!r}, which was delivered to "
            f"{owner.context.component!r}, task {owner.context.task}"
            if isinstance(owner, Runner)
            else f"bolt {self._component!r} {what} {given!r}, which was not delivered to it"
        )


def _to_the_end(call: Callable[[Tuple], Any]) -> Callable[[Tuple], Any]:
    """An async call as one that returns when it is over."""

    async def collected(given: Tuple) -> Any:
        made = call(given)
        if inspect.isasyncgen(made):
            return [values async for values in made]
        return await made

    return lambda given: asyncio.run(collected(given))


def detail_of(error: BaseException) -> str:
    """An exception as text, the frames of the executor left out."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "consumer/topology/" not in frame.filename]
    shown = traceback.format_list(own) + traceback.format_exception_only(error)
    return "".join(shown)[-_LONGEST_DETAIL:]
