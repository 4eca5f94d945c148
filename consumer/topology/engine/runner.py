"""One task of a bolt: gives it tuples, and does what it says of them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology._errors import (
    NOT_THE_USERS,
    BoltError,
    BoltTimeoutError,
    DoubleAckError,
    EmitError,
    ForeignTupleError,
)
from sequitur.consumer.topology.api.bolt import (
    BaseBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    FunctionBolt,
    To,
    is_async,
)
from sequitur.consumer.topology.api.collector import BasicOutputCollector, OutputCollector
from sequitur.consumer.topology.api.tuple import (
    DEFAULT_STREAM,
    FailReason,
    Failure,
    Root,
    Stream,
    Tuple,
    woven,
)
from sequitur.consumer.topology.engine.emission import (
    Elsewhere,
    Here,
    Output,
    Sent,
    TaskId,
    checked_values,
    packed,
)
from sequitur.consumer.topology.engine.instances import Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.engine.executor import Executor

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
        self.collector = OutputCollector(self)
        self.is_broken = False
        self._open = 0
        self._executor = executor
        self._component = context.component
        self._streams: dict[str, tuple[Stream, Sequence[Target]]] = {}
        self._send_one: Callable[[tuple[Any, ...], Tuple], None] | None = None
        self._width = -1
        self._next_id = executor.next_id
        self._trace = executor.trace
        self._users = executor.users
        if isinstance(bolt, FunctionBolt):
            self._call: Callable[[Tuple], Any] = bolt.function
            self._emits, self._acks = True, True
        elif isinstance(bolt, BasicBolt):
            self._call = self._basic
            self._emits, self._acks = False, True
        elif isinstance(bolt, Bolt):
            self._call = bolt.process
            self._emits, self._acks = False, False
        self._holds = not self._acks
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

    def go_on(self, kept: Instance) -> None:
        """Take up a bolt where another runner has left it."""
        self.collector = kept.collector
        self.collector.hand_over(self)

    def kept(self, snapshot: bytes | None) -> Instance | None:
        """The bolt for another batch, unless it may be halfway through something.

        It may be when a call of it was interrupted or left to itself, when its `finish_batch`
        raised, and when it has a tuple that it neither acked nor failed. A `BatchBolt` is one
        batch's, as in Storm: it may still have the tuples that it took.

        Args:
            snapshot: What it gave, pickled.
        """
        if self.is_broken or self._open > 0 or isinstance(self.bolt, BatchBolt):
            return None
        return Instance(self.bolt, self.context, self.collector, snapshot)

    def prepare(self, state: Any) -> None:
        """Have the bolt get ready, with what it kept in the batch before.

        Raises:
            BoltError: It cannot.
        """
        with self._named("prepare"):
            self.bolt.prepare(self.context, self.collector)
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

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Say whose error it is: there is no tuple that it could fail."""
        try:
            yield
        except NOT_THE_USERS:
            raise
        except BaseException as error:
            raise BoltError(
                f"bolt {self._component!r}, task {self.context.task}: its {what} raised "
                f"{type(error).__name__}: {error}"
            ) from error

    def run(self, given: Tuple) -> None:
        """Give the bolt a tuple."""
        users = self._users
        users.call = given
        self._open += self._holds
        try:
            users.running = given
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
                        if users.overdue is not None:
                            users.go_on(given)
                    else:
                        self.yielded(values, given)
            users.running = None
            if self._acks:
                root = given._root
                if (  # what `ack` comes to nearly always
                    root is self._executor.current
                    and root.failure is None
                    and given._owner is self
                    and not given._more
                    and self._trace is None
                ):
                    given._owner = _ACKED
                    root.value ^= given._edge
                else:
                    self.ack(given)
        except BoltTimeoutError:
            users.running = None
            self.overran(given)
        except BaseException as error:  # whatever a bolt raises fails its tuple
            users.running = None
            if isinstance(error, KeyboardInterrupt):
                raise
            self.raised(given, error)

    def finish_batch(self) -> None:
        """Have the bolt settle what it holds."""
        users = self._users
        users.call = call = object()
        try:
            users.running = call
            self.bolt.finish_batch()
            users.running = None
        except BoltTimeoutError:
            users.running = None
            self.finish_failed("took longer than message_timeout")
        except BaseException as error:  # what it holds is not acked, and fails by that
            users.running = None
            if isinstance(error, KeyboardInterrupt):
                raise
            self.finish_failed(detail_of(error))

    def finish_failed(self, detail: str) -> None:
        """The bolt's `finish_batch` raised."""
        self.is_broken = True
        self._executor.finish_failures.append((self._component, detail))

    def yielded(self, values: Any, given: Tuple) -> None:
        """Emit what a function yielded."""
        if isinstance(values, To):
            self.emit(values.values, (given,), values.stream, values.task)
        else:
            self.emit(values, (given,), DEFAULT_STREAM, None)

    def emit(
        self, values: Any, anchors: Sequence[Tuple], stream_name: str, task: int | None
    ) -> list[TaskId]:
        """See `OutputCollector.emit`."""
        users = self._users
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
        current = anchors[0] if anchors else self._current()
        made = checked_values(self._component, stream, values, current)
        # What may raise, or run code of the user's, comes first: then all of it is done or nothing.
        ways = [self._way(target, stream, made, task) for target in targets]
        given_to: list[TaskId] = []
        call, users.running = users.running, None
        try:
            for target, numbers, what in ways:
                if isinstance(target, Output):
                    self._write(target, what, anchors)
                    continue
                given_to.extend(
                    self._send(target, number, what, stream, anchors) for number in numbers
                )
        finally:
            users.running = call
        if users.overdue is not None:
            users.go_on(call)
        return given_to

    def ack(self, given: Tuple) -> None:
        """See `OutputCollector.ack`."""
        if given._owner is not self:
            raise self._misuse(given, "acked")
        users = self._users
        call, users.running = users.running, None
        try:
            self._ack(given)
        finally:
            users.running = call
        if users.overdue is not None:
            users.go_on(call)

    def fail(self, given: Tuple, reason: FailReason, detail: str) -> None:
        """See `OutputCollector.fail`."""
        if given._owner is not self:
            raise self._misuse(given, "failed")
        users = self._users
        call, users.running = users.running, None
        try:
            self._fail(given, reason, detail)
        finally:
            users.running = call
        if users.overdue is not None:
            users.go_on(call)

    def raised(self, given: Tuple, error: BaseException) -> None:
        """The bolt's call for a tuple ended with an exception."""
        self._fail(given, FailReason.EXCEPTION, detail_of(error))

    def overran(self, given: Tuple) -> None:
        """The bolt's call for a tuple took longer than it may, and was ended."""
        self.gave_up(given)
        self._executor.late_acks += 1

    def gave_up(self, given: Tuple) -> None:
        """The bolt's call for a tuple takes longer than it may; its ack is late, if it comes."""
        self.is_broken = True
        detail = f"a call of bolt {self._component!r} took longer than message_timeout"
        self._fail(given, FailReason.TIMEOUT, detail)

    def _current(self) -> Tuple | None:
        """The tuple that is being processed; None at the end of a batch."""
        call = self._users.call
        return call if isinstance(call, Tuple) else None

    def _ack(self, given: Tuple) -> None:
        given._owner = _ACKED
        self._open -= 1
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

    def _fail(self, given: Tuple, reason: FailReason, detail: str) -> None:
        given._owner = _FAILED
        self._open -= 1
        failure = Failure(reason, detail[:_LONGEST_DETAIL], (*given._path(), self._component))
        if given.is_tick:  # nobody waits for it, so nobody else would tell
            self.context.logger.error("a tick failed: %s", failure.detail)
        for root, _ in given._trees():
            self._executor.fail(root, failure)
        if self._trace is not None:
            self._trace.failed(self.context, given, failure)

    def _basic(self, given: Tuple) -> Any:
        bolt: Any = self.bolt
        return bolt.process(given, BasicOutputCollector(self, given))

    @staticmethod
    def _way(
        target: Target, stream: Stream, values: tuple[Any, ...], task: int | None
    ) -> tuple[Target, Sequence[int], Any]:
        """A reader, which of its tasks are meant, and what they are given; or what is written."""
        if isinstance(target, Output):
            return target, (), target.encode(values)
        numbers = target.choose(values, task)
        if isinstance(target, Elsewhere):
            return target, numbers, packed(stream, values)
        return target, numbers, values

    def _send(
        self,
        target: Here | Elsewhere,
        number: int,
        values: Any,
        stream: Stream,
        anchors: Sequence[Tuple],
    ) -> TaskId:
        trees = self._edges(anchors)
        parent = anchors[0] if anchors else self._current()
        if isinstance(target, Elsewhere):
            path = (self._component,) if parent is None else (*parent._path(), self._component)
            sent = Sent(values, (stream.component, stream.name), trees, path, stream.task)
            to = TaskId(target.component, number)
            if self._trace is not None:
                self._trace.sent(self.context, anchors, parent, stream, sent, to)
            target.send(number, sent)
            return to
        made: Tuple
        owner = target.runners[number]
        if len(trees) == 1:
            made = Tuple(values, stream, *trees[0], parent, owner)
        else:
            made = woven(values, stream, trees, parent, owner)
        self._executor.queue.append(made)
        if self._trace is not None:
            self._trace.emitted(self.context, anchors, made)
        return TaskId(owner.context.component, owner.context.task)

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

    def _write(self, target: Output, record: Any, anchors: Sequence[Tuple]) -> None:
        """An output bolt acks at once: its edge comes to nothing, and so none is made."""
        roots = list(dict.fromkeys(root for anchor in anchors for root, _ in anchor._trees()))
        target.write(roots or (self._executor.untracked(),), record)
        if self._trace is not None:
            self._trace.written(self.context, anchors, target.component, record)

    def _short_way(self, stream: Stream, target: Target) -> Callable[[Any, Tuple], None] | None:
        """`emit` for what is nearly always so: one reader, one anchor, one tree."""
        next_id, append, users = self._next_id, self._executor.queue.append, self._users
        if isinstance(target, Output):
            encode, write_one = target.encode, target.write_one

            def output(values: tuple[Any, ...], anchor: Tuple) -> None:
                record = encode(values)
                users.running = None
                write_one(anchor._root, record)
                users.running = anchor

            return output
        if isinstance(target, Elsewhere):
            return None
        runners, choose = target.runners, target.choose
        if len(runners) > 1:

            def chosen(values: tuple[Any, ...], anchor: Tuple) -> None:
                root, numbers = anchor._root, choose(values, None)
                users.running = None
                for number in numbers:
                    edge = next_id()
                    root.value ^= edge
                    append(Tuple(values, stream, root, edge, anchor, runners[number]))
                users.running = anchor

            return chosen
        runner = runners[0]

        def only(values: tuple[Any, ...], anchor: Tuple) -> None:
            users.running = None
            root = anchor._root
            edge = next_id()
            root.value ^= edge
            append(Tuple(values, stream, root, edge, anchor, runner))
            users.running = anchor

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
