"""The runner of one task of a bolt, and the bolts that are kept from batch to batch."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sequitur.base.copy_headers import FailReason
from sequitur.base.text import named
from sequitur.consumer.topology.api.bolt import (
    TICK,
    BaseBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    FunctionBolt,
    To,
)
from sequitur.consumer.topology.api.builder import TreeFailure
from sequitur.consumer.topology.api.collector import BasicOutputCollector, OutputCollector, TaskId
from sequitur.consumer.topology.api.tuple import DEFAULT_STREAM
from sequitur.consumer.topology.engine.task_output import (
    LONGEST_DETAIL,
    TaskOutput,
    detail_of,
    finish_words,
)
from sequitur.consumer.topology.engine.trees import ACKED, FAILED, TrackedTuple
from sequitur.errors import (
    NOT_THE_USERS,
    BoltError,
    BoltTimeoutError,
    DoubleAckError,
    EmitError,
    ForeignTupleError,
    UngroupableValueError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.plan import EmitOne
    from sequitur.consumer.topology.engine.task_output import Environment, Target
    from sequitur.consumer.topology.settling.root import Root


REPEATS: Final = 7
"""So often a call is repeated that raises where its failure would cost others more calls."""
_FOLLOWED_AT: Final = 64
"""So many tuples that a call has yielded wait, and twice as many as waited before, until they are
followed through further bolts."""
FINISH_OVERRAN: Final = "took longer than call_timeout"
_USUAL: Final = frozenset({GeneratorType, list})


class Runner:
    """Runs one task of a bolt: gives it tuples, and acks, fails and emits for it."""

    def __init__(self, environment: Environment, context: TopologyContext, bolt: BaseBolt) -> None:
        self.context = context
        self.bolt = bolt
        self.collector = OutputCollector(self)
        self.is_broken = False
        self.gives_up_together = False
        # Of a transaction all fails, and not single events of it.
        self._finishes = (
            environment.transaction is None and type(bolt).finish_batch is not BaseBolt.finish_batch
        )
        self._to_finish: dict[Root, tuple[str, ...]] = {}
        self.tuple_kind: type[TrackedTuple] = TrackedTuple  # of tuples from other tasks
        self.has_to_finish = False  # whether its `finish_batch` is for something, tracked or not
        self._paths: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._unacked: set[TrackedTuple] = set()
        self._environment = environment
        self._component = context.component
        self._output = TaskOutput(environment, context)
        self._over: str | None = None  # the method in which nothing may be emitted
        self._trace = environment.trace
        self._trees = environment.trees
        self._queue = environment.queue
        self._users = environment.user_code
        self._clock, self._limit_s = environment.clock, environment.limit_s
        self._until_s = 0.0
        self.take: Callable[[TrackedTuple], None] = self.run  # the way of all tuples but ticks
        self.renew(bolt)
        self._acks = isinstance(bolt, FunctionBolt | BasicBolt)
        self._holds = not self._acks
        self._is_noted = self._holds or self._finishes or self._limit_s is not None

    def connect(self, streams: Mapping[str, tuple[Stream, Sequence[Target]]]) -> None:
        self._output.connect(streams)
        emit_one, is_usual = self._output.emit_one, type(self) is Runner and self._acks
        if is_usual and not self._is_noted and self._trace is None and emit_one is not None:
            self.take = self._short_run(emit_one)

    def renew(self, bolt: BaseBolt) -> None:
        """Go on with another copy of the bolt. It is not in the middle of anything."""
        self.bolt, self.is_broken = bolt, False
        self._unacked.clear()
        if isinstance(bolt, FunctionBolt):
            self._call: Callable[[TrackedTuple], Any] = bolt.function
        elif isinstance(bolt, BasicBolt):
            self._call = self._basic
        elif isinstance(bolt, Bolt):
            self._call = bolt.process

    def take_over(self, kept: Instance) -> None:
        """Take over a bolt from the runner of an earlier batch."""
        self.collector = kept.collector
        self.collector.hand_over(self)

    def kept(self, snapshot: bytes | None) -> Instance | None:
        """Return the bolt for another batch; None if it may be in the middle of something.

        It may be when a call of it was interrupted or left to itself, when its `finish_batch`
        raised, and when it has a tuple that it neither acked nor failed. A `BatchBolt` is one
        batch's, as in Storm: it may still have the tuples that it took.
        """
        if self.is_broken or self._unacked or isinstance(self.bolt, BatchBolt):
            return None
        return Instance(self.bolt, self.context, self.collector, snapshot, self.clean_up)

    def clean_up(self) -> None:
        """Call the bolt's `cleanup`. What it raises is printed and changes no batch."""
        try:
            with self._emitting_nothing("cleanup"):
                self.bolt.cleanup()
        except NOT_THE_USERS:
            raise
        except BaseException:  # noqa: BLE001 - all its tuples are settled
            traceback.print_exc()

    def prepare(self, state: Any) -> None:
        """Prepare the bolt, and restore its snapshot of the batch before."""
        with self._named("prepare"):
            self.bolt.prepare(self.context, self.collector)
        if state is not None:
            with self._named("restore"):
                self.bolt.restore(state)

    def snapshot(self) -> Any:
        with self._named("snapshot"), self._emitting_nothing("snapshot"):
            return self.bolt.snapshot()

    @contextlib.contextmanager
    def _emitting_nothing(self, method: str) -> Iterator[None]:
        """Refuse what the bolt emits in a method: the batch is over, and no reader would get it."""
        before, self._over = self._over, method
        try:
            yield
        finally:
            self._over = before

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Name the bolt in the error: there is no tuple that the error could fail."""
        try:
            yield
        except NOT_THE_USERS:
            raise
        except BaseException as error:
            raise BoltError(
                f"bolt {self._component!r}, task {self.context.task}: its {what} raised "
                f"{named(error)}"
            ) from error

    def run(self, given: TrackedTuple) -> None:
        users = self._users
        users.call = given
        if self._is_noted:
            self._note_call(given)
        try:
            users.running = given
            returned = self._call(given)
            if returned is not None:
                self._emit_all(returned, given)
            users.running = None
            if self._limit_s is not None:
                self._check_time()
            if self._acks:
                root = given.root
                if (  # what `ack` comes to nearly always
                    root is self._trees.current
                    and root.failure is None
                    and given.owner is self
                    and not given.more
                    and self._trace is None
                ):
                    given.owner = ACKED
                    root.value ^= given.edge
                else:
                    self.ack(given)
        except BaseException as error:  # noqa: BLE001 - whatever a bolt raises fails its tuple
            users.running = None  # before any call: a signal may come at its beginning
            self._end_by(error, given)

    def _short_run(self, emit_one: EmitOne) -> Callable[[TrackedTuple], None]:
        """Return a faster `run` for a bolt that acks by itself, where nothing notes its calls.

        It does what `run` does, with what it looks at in variables. It gets no ticks.
        """
        users, trees, queue = self._users, self._trees, self._queue
        width = self._output.width

        def run(given: TrackedTuple) -> None:
            try:
                users.call = users.running = given
                returned = self._call(given)
                if returned.__class__ is GeneratorType and not given.more:
                    most = _FOLLOWED_AT + 2 * len(queue)
                    for values in returned:
                        if (
                            values.__class__ is tuple
                            and len(values) == width
                            and given.owner is self
                        ):
                            emit_one(values, given)
                            if users.overdue is not None:
                                users.go_on(given)
                        else:
                            self._emit_yielded(values, given)
                        if len(queue) > most:
                            self._follow(given)
                            most = _FOLLOWED_AT + 2 * len(queue)
                elif returned is not None:
                    self._emit_all(returned, given)
                users.running = None
                root = given.root
                if (
                    root is trees.current
                    and root.failure is None
                    and given.owner is self
                    and not given.more
                ):
                    given.owner = ACKED
                    root.value ^= given.edge
                else:
                    self.ack(given)
            except BaseException as error:  # noqa: BLE001 - as above
                users.running = None
                self._end_by(error, given)

        return run

    def _end_by(self, error: BaseException, given: TrackedTuple) -> None:
        """Fail a tuple whose call has raised, or was ended because it took too long."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, BoltTimeoutError):
            self.overran(given)
        else:
            self.raised(given, error)

    def repeat_calls(self) -> None:
        """Repeat calls that raise, so that what fails by chance does not fail its event.

        What a call emits waits until it is over.
        """
        call, output, users = self._call, self._output, self._users

        def repeated(given: TrackedTuple) -> None:
            waiting = deque[Callable[[], Any]]()
            for left in range(0 if given.is_tick else REPEATS, -1, -1):
                output.unsent = waiting
                try:
                    returned = call(given)
                    if returned is not None:
                        self._emit_all(returned, given)
                    break
                except Exception as error:
                    if not left or given.owner is not self or isinstance(error, BoltTimeoutError):
                        raise
                    waiting.clear()
                    users.begin_again()
                finally:
                    output.unsent = None
            for give_out in waiting:
                give_out()

        self._call = repeated

    def _note_call(self, given: TrackedTuple) -> None:
        if self._holds:
            self._unacked.add(given)
        if self._finishes:
            self._await_end(given)
        if self._limit_s is not None:
            self._until_s = self._clock() + self._limit_s

    def give_out(self) -> None:
        """Give readers the emits that wait, if any. They can no longer be undone."""

    def finish_batch(self) -> None:
        """Let the bolt ack what it holds. If it fails, all events fail that it got in the batch."""
        users = self._users
        users.call = call = object()
        if self._limit_s is not None:
            self._until_s = self._clock() + self._limit_s
        try:
            users.running = call
            self.bolt.finish_batch()
            users.running = None
            if self._limit_s is not None:
                self._check_time()
        except BoltTimeoutError:
            users.running = None
            self.finish_failed(FINISH_OVERRAN, FailReason.TIMEOUT)
        except BaseException as error:
            users.running = None
            if isinstance(error, KeyboardInterrupt):
                raise
            self.finish_raised(error)
        finally:
            self._output.end_batch()
            self._to_finish.clear()
            self.has_to_finish = False

    def _check_time(self) -> None:
        """Raise `BoltTimeoutError` if the call that is over took too long."""
        if self._clock() > self._until_s:
            raise BoltTimeoutError

    def finish_raised(self, error: BaseException) -> None:
        self._end_the_job_by(error)
        self.finish_failed(detail_of(error))

    def _end_the_job_by(self, error: BaseException) -> None:
        if isinstance(error, UngroupableValueError):
            raise UngroupableValueError(
                f"bolt {self._component!r}: tuples cannot be grouped by a value: {error}"
            ) from error

    def finish_failed(self, detail: str, reason: FailReason = FailReason.EXCEPTION) -> None:
        """Fail the batch's events, because `finish_batch` raised or took too long."""
        self.is_broken = True
        self._environment.finish_failures.append((self._component, detail))
        trees, words = self._trees, finish_words(self._component, detail)
        self._output.end_batch(TreeFailure(reason, words, (self._component,)))
        if not self._to_finish:  # no event tells of it
            self.context.logger.error("%s", words)
            trees.untracked_failures += 1
        gives_up = [
            trees.gives_up(root, reason) for root in self._to_finish if root.failure is None
        ]
        self.gives_up_together |= any(gives_up) and len(self._to_finish) > 1
        for root, path in self._to_finish.items():
            trees.fail(root, TreeFailure(reason, words, (*path, self._component)))

    def _await_end(self, given: TrackedTuple) -> None:
        """Note a tuple's events: they are not done before the bolt has finished the batch."""
        self.has_to_finish = True
        path = given.path()
        path = self._paths.setdefault(path, path)
        for root, _ in given.trees():
            if root.is_tracked:
                self._to_finish[root] = path
                self._environment.awaited.add(root)

    def _emit_all(self, returned: Any, given: TrackedTuple) -> None:
        if returned.__class__ is not GeneratorType:  # a function that yields makes one
            if is_awaited(returned):
                asyncio.run(self._emit_async(returned, given))
                return
            returned = values_of(self._component, returned)
        emit_one, width, users = self._output.emit_one, self._output.width, self._users
        if given.declared is TICK or given.more:  # what is emitted at a tick has a root of its own
            emit_one = None
        queue = self._queue
        most = _FOLLOWED_AT + 2 * len(queue)
        for values in returned:
            if (
                values.__class__ is tuple
                and emit_one is not None
                and len(values) == width
                and given.owner is self
            ):
                emit_one(values, given)
                if users.overdue is not None:
                    users.go_on(given)
            else:
                self._emit_yielded(values, given)
            if len(queue) > most:
                self._follow(given)
                most = _FOLLOWED_AT + 2 * len(queue)

    def _follow(self, given: TrackedTuple) -> None:
        """Follow what the call has yielded so far, before it goes on."""
        if given.is_tick:
            return  # what is emitted there counts once the tick does
        users = self._users
        users.running = None
        users.leave()
        left_s = self._clock()
        try:
            self._environment.follow(self)
        finally:
            users.come_back()
            self._until_s += self._clock() - left_s
        users.go_on(given)

    async def _emit_async(self, returned: Any, given: TrackedTuple) -> None:
        async for values in awaited_values(self._component, returned):
            self._emit_yielded(values, given)

    def _emit_yielded(self, values: Any, given: TrackedTuple) -> None:
        if isinstance(values, To):
            self.emit(values.values, (given,), values.stream, values.task)
        else:
            self.emit(values, (given,), DEFAULT_STREAM, None)

    def emit(
        self,
        values: Any,
        anchors: Sequence[TrackedTuple],
        stream: str,
        task: int | None,
        own_time_ms: int | None = None,
    ) -> list[TaskId]:
        if self._over is not None:
            raise EmitError(
                f"bolt {self._component!r}, task {self.context.task}: it emitted in its "
                f"{self._over}(), when the batch is over. Emit in finish_batch() or on a tick"
            )
        for anchor in anchors:
            if anchor.owner is not self:
                raise self._misuse(anchor, "anchored to")
        return self._output.emit(values, anchors, stream, task, own_time_ms)

    def ack(self, given: TrackedTuple) -> None:
        if given.owner is not self:
            raise self._misuse(given, "acked")
        users = self._users
        call, users.running = users.running, None
        try:
            self._ack(given)
        finally:
            users.running = call
        if users.overdue is not None:
            users.go_on(call)

    def fail(self, given: TrackedTuple, reason: FailReason, detail: str) -> None:
        if given.owner is not self:
            raise self._misuse(given, "failed")
        users = self._users
        call, users.running = users.running, None
        try:
            self._fail(given, reason, detail)
        finally:
            users.running = call
        if users.overdue is not None:
            users.go_on(call)

    def raised(self, given: TrackedTuple, error: BaseException) -> None:
        self._end_the_job_by(error)
        self._fail(given, FailReason.EXCEPTION, detail_of(error))

    def overran(self, given: TrackedTuple) -> None:
        """Fail a tuple whose call took too long and was ended."""
        self.gave_up(given)
        self._trees.count_late_ack()

    def gave_up(self, given: TrackedTuple) -> None:
        """Fail a tuple whose call takes too long and was not ended. Its ack will be late."""
        self.is_broken = True
        detail = f"a call of bolt {self._component!r} took longer than call_timeout"
        self._fail(given, FailReason.TIMEOUT, detail)

    def _ack(self, given: TrackedTuple) -> None:
        given.owner = ACKED
        self._unacked.discard(given)
        self._trees.ack(given)
        if self._trace is not None:
            self._trace.acked(self.context, given)

    def _fail(self, given: TrackedTuple, reason: FailReason, detail: str) -> None:
        given.owner = FAILED
        self._unacked.discard(given)
        failure = TreeFailure(reason, detail[:LONGEST_DETAIL], (*given.path(), self._component))
        if given.is_tick:  # it is untracked, so this log is all that reports it
            self.context.logger.error("a tick failed: %s", failure.detail)
        for root, _ in given.trees():
            self._trees.fail(root, failure)
        if self._trace is not None:
            self._trace.failed(self.context, given, failure)

    def _basic(self, given: TrackedTuple) -> Any:
        bolt: Any = self.bolt
        return bolt.process(given, BasicOutputCollector(self, given))

    def _misuse(self, given: TrackedTuple, what: str) -> Exception:
        owner = given.owner
        if owner in {ACKED, FAILED}:
            return DoubleAckError(f"bolt {self._component!r} {what} {given!r}, {owner} already")
        return ForeignTupleError(
            f"bolt {self._component!r} {what} {given!r}, which was delivered to "
            f"{owner.context.component!r}, task {owner.context.task}"
            if isinstance(owner, Runner)
            else f"bolt {self._component!r} {what} {given!r}, which was not delivered to it"
        )


class Instance(NamedTuple):
    """A bolt that was prepared."""

    bolt: BaseBolt  # a task's own copy
    context: TopologyContext
    collector: OutputCollector
    snapshot: bytes | None  # what it gave when its last batch was over, pickled; None for nothing
    clean_up: Callable[[], None]  # by the runner that had it last


class Instances:
    """The bolts of a process that are ready for another batch, by component and task.

    They save a call of `prepare` in each batch. A bolt goes on only if its state is exactly what
    the batch begins with: it has finished a batch, and its snapshot of that time is known. If a
    batch begins with another snapshot, the bolt cleans up and another is made. That happens when a
    batch is repeated, and when another process had the task meanwhile.

    A bolt belongs to the run that had it last. It goes on in that run. It goes on in other runs
    only if the result of that run counted: no snapshot shows what a bolt keeps on itself.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[str, Instance]] = {}
        self._run = ""
        self._counted: Collection[str] = ()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, run: str, counted: Collection[str]) -> None:
        self._run, self._counted = run, counted

    def take(self, place: tuple[str, int], state: bytes | None) -> Instance | None:
        """Return a task's bolt; None if there is none or it may not go on: it cleans up then."""
        run, kept = self._kept.pop(place, ("", None))
        if kept is None:
            return None
        if kept.snapshot != state or (run != self._run and run not in self._counted):
            kept.clean_up()
            return None
        return kept

    def put(self, place: tuple[str, int], instance: Instance) -> None:
        self._kept[place] = self._run, instance

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of async bolts. It lives as long as they do: they may use it."""
        if self._loop is None:
            self._loop = _started_loop()
        return self._loop

    def close_loop(self) -> None:
        """Stop the loop, and cancel what still runs on it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def close(self) -> None:
        self.close_loop()
        while self._kept:
            _, (_, instance) = self._kept.popitem()
            instance.clean_up()


def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run() -> None:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    threading.Thread(target=run, name="bolts", daemon=True).start()
    return loop


def is_awaited(returned: Any) -> bool:
    """Return whether it takes an event loop to read what a call returned."""
    return returned.__class__ not in _USUAL and (
        inspect.isawaitable(returned) or inspect.isasyncgen(returned)
    )


def values_of(component: str, returned: Any) -> Iterable[Any]:
    """Return the values to emit from a call's result, which is not None and needs no event loop.

    The rule is the same for functions and for all bolts, async ones included (`awaited_values`):

    - What a generator, an async generator or another iterator yields is emitted.
    - Each item of a list is emitted.
    - A coroutine is awaited first.
    - Anything else is an error. A string or a tuple is one value as well as several: which of the
      two was meant is not guessed.
    """
    if isinstance(returned, Iterator):
        return returned
    if isinstance(returned, list):
        return () if _is_of_emit(returned) else returned
    raise EmitError(
        f"bolt {component!r} returned {returned!r:.200}: yield the values to emit, or return a "
        "list of them"
    )


async def awaited_values(component: str, returned: Any) -> AsyncIterator[Any]:
    """Yield the values to emit from a coroutine or an async generator."""
    while inspect.isawaitable(returned):
        returned = await returned
    if inspect.isasyncgen(returned):
        async for values in returned:
            yield values
    elif returned is not None:
        for values in values_of(component, returned):
            yield values


def _is_of_emit(returned: list[Any]) -> bool:
    """Return whether the list came from `emit` or `emit_many`: these values are out already."""
    return all(
        isinstance(one, TaskId) or (isinstance(one, list) and _is_of_emit(one)) for one in returned
    )
