"""Concurrent calls of a bolt: in threads, or on an event loop; calls for one key stay in order.

Only the call itself runs there. What a bolt emits, acks and fails meanwhile is recorded, and
carried out by the executor's thread when the call is over, so threads share nothing of a tree.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology.api.bolt import FunctionBolt, is_async
from sequitur.consumer.topology.api.groupings import stable_hash
from sequitur.consumer.topology.engine.runner import Runner, awaited_values, is_awaited, values_of
from sequitur.errors import NOT_THE_USERS, BoltTimeoutError, EmitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.base.copy_headers import FailReason
    from sequitur.consumer.topology.api.bolt import BaseBolt, TopologyContext
    from sequitur.consumer.topology.api.builder import Component
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.engine.runner import Instances
    from sequitur.consumer.topology.engine.task_output import Environment
    from sequitur.consumer.topology.engine.trees import TrackedTuple

_WAITING_EACH: Final = 256
"""Queued calls for each running one, at most: enough that some have a key that is free."""
_LOOK_EACH_S: Final = 0.05
_STOCK: Final = 2
"""Calls assigned to each thread: the one that runs, and the next one."""
_LONGEST_NAP_S: Final = 0.0005
_SHORTEST_NAP_S: Final = 0.0002
_THEIR_OWN_KEYS: Final = frozenset({bytes, str})
"""Types of values that need no hash to be compared by."""
_SHARE: Final = 0.05
"""Weight of a call in the moving average of call times."""

_NOTED_MOST: Final = 1 << 20
"""So many tuples a call may emit, which are kept until it is over."""

_noted: contextvars.ContextVar[list[Callable[[], Any]] | None] = contextvars.ContextVar(
    "noted", default=None
)


class Call:
    __slots__ = (
        "begun_s", "emitted", "error", "given", "is_given_up", "is_over", "key", "noted", "of_key",
        "runner",
    )  # fmt: skip

    def __init__(self, runner: ConcurrentRunner, given: TrackedTuple, key: Any) -> None:
        self.runner = runner
        self.given = given
        self.key = key
        self.of_key: Any = None  # the key of a keyed bolt, in its call
        self.noted: list[Callable[[], Any]] = []
        self.emitted: list[Any] = []
        self.error: BaseException | None = None
        self.begun_s: float | None = None
        self.is_over = False
        self.is_given_up = False


class ConcurrentRunner(Runner):
    """Runs a task whose calls may run side by side."""

    def __init__(
        self,
        environment: Environment,
        context: TopologyContext,
        bolt: BaseBolt,
        pool: CallPool,
        component: Component,
    ) -> None:
        super().__init__(environment, context, bolt)
        self.concurrency = component.concurrency
        self.is_async = is_async(bolt)
        self._pool = pool
        fields = [
            one.grouping.meets_by for one in component.inputs if one.grouping.meets_by is not None
        ]
        self._fields = fields[0] if len(component.inputs) == 1 and fields else None

    def run(self, given: TrackedTuple) -> None:
        """Call the bolt once the earlier calls of its key are over."""
        key: Any = given.root.key
        fields = self._fields
        if fields is not None:
            key = given[fields[0]]
            if len(fields) > 1 or key.__class__ not in _THEIR_OWN_KEYS:
                try:
                    key = stable_hash([given[name] for name in fields])
                except NOT_THE_USERS:
                    raise
                except BaseException as error:  # noqa: BLE001 - code of a value of the user's
                    self.raised(given, error)
                    return
        key = None if key is None else (self, key)
        self._pool.submit(Call(self, given, key))

    def emit(
        self,
        values: Any,
        anchors: Sequence[TrackedTuple],
        stream: str,
        task: int | None,
        own_time_ms: int | None = None,
    ) -> list[TaskId]:
        """Within a call, note what is emitted: tasks are chosen when the call is over."""
        noted = _noted.get()
        if noted is None:
            return Runner.emit(self, values, anchors, stream, task, own_time_ms)
        self._check_bound(noted)
        noted.append(lambda: Runner.emit(self, values, anchors, stream, task, own_time_ms))
        return []

    def ack(self, given: TrackedTuple) -> None:
        noted = _noted.get()
        if noted is None:
            super().ack(given)
        else:
            noted.append(lambda: Runner.ack(self, given))

    def fail(self, given: TrackedTuple, reason: FailReason, detail: str) -> None:
        noted = _noted.get()
        if noted is None:
            super().fail(given, reason, detail)
        else:
            noted.append(lambda: Runner.fail(self, given, reason, detail))

    def begin(self, call: Call) -> Any:
        return self._call(call.given)

    def carry_out(self, call: Call) -> None:
        """Make the call. It runs in a thread of its own."""
        token = _noted.set(call.noted)
        try:
            returned = self.begin(call)
            if returned is None:
                return
            if is_awaited(returned):
                asyncio.run(self._note_async(call, returned))
            else:
                for values in values_of(self._component, returned):
                    self._note(call, values)
        except BaseException as error:  # noqa: BLE001 - whatever a bolt raises fails its tuple
            call.error = error
        finally:
            _noted.reset(token)

    async def carry_out_async(self, call: Call) -> None:
        """Make the call. It runs as a task of an event loop."""
        _noted.set(call.noted)
        try:
            await self._note_async(call, self.begin(call))
        except BaseException as error:  # noqa: BLE001 - whatever a bolt raises fails its tuple
            # A cancellation, too: nobody but the bolt's own code cancels what it awaits.
            call.error = error

    async def _note_async(self, call: Call, returned: Any) -> None:
        async for values in awaited_values(self._component, returned):
            self._note(call, values)

    def _note(self, call: Call, values: Any) -> None:
        if call.is_given_up:
            raise BoltTimeoutError
        self._check_bound(call.emitted or call.noted)
        if isinstance(self.bolt, FunctionBolt):
            call.emitted.append(values)
        else:  # in the order of what the bolt emits and acks by itself
            call.noted.append(lambda: self._emit_yielded(values, call.given))

    def _check_bound(self, kept: Sequence[Any]) -> None:
        if len(kept) >= _NOTED_MOST:
            raise EmitError(
                f"bolt {self._component!r} emitted {_NOTED_MOST} tuples in one call, and still "
                "emits. With concurrency, memory holds them until the call ends. Emit fewer, "
                "or leave concurrency out"
            )

    def _follow(self, given: TrackedTuple) -> None:
        """Do nothing: what a call emits is followed once the call is over."""

    def conclude(self, call: Call) -> None:
        """Carry out what the bolt did in a call that is over."""
        users, given = self._users, call.given
        users.call = given
        if self._holds:
            self._unacked.add(given)
        if self._finishes:
            self._await_end(given)
        try:
            self._carry_out_recorded(call)
        except KeyboardInterrupt:
            raise
        except BoltTimeoutError:  # out of a grouping of the user's
            users.running = None
            self.overran(given)
            return
        except BaseException as error:  # noqa: BLE001 - as if the bolt had raised it
            call.error = error
        if call.error is not None:
            self.raised(given, call.error)

    def _carry_out_recorded(self, call: Call) -> None:
        for noted in call.noted:
            noted()
        if call.error is None:
            self._emit_all(call.emitted, call.given)
            self._users.running = None
            if self._acks:
                self.ack(call.given)


class CallPool:
    """Runs calls side by side, and queues the others."""

    def __init__(self, environment: Environment, instances: Instances) -> None:
        self._clock = environment.clock
        self._trees = environment.trees
        self._instances = instances
        self._timeout_s = environment.rules.call_timeout_s
        self._keys: dict[Any, deque[Call]] = {}
        self._ready: dict[ConcurrentRunner, deque[Call]] = {}
        self._running: dict[ConcurrentRunner, set[Call]] = {}
        self._over: SimpleQueue[Call] = SimpleQueue()
        self._work: dict[ConcurrentRunner, SimpleQueue[Call | None]] = {}
        self._threads: list[threading.Thread] = []
        self.has_abandoned_calls = False
        self._waiting = 0
        self._most = 0
        self._ending = threading.Lock()
        self._looked_s = self._clock()
        self._call_s = 0.0  # by any thread: it need not be exact

    def submit(self, call: Call) -> None:
        """Run a call after the earlier calls of its key."""
        self._waiting += 1
        if call.key is not None:
            behind = self._keys.get(call.key)
            if behind is not None:
                behind.append(call)
                return
            self._keys[call.key] = deque()
        self._start(call)

    def has_calls_of(self, key: Any) -> bool:
        """Return whether a call of a key runs, or waits to run."""
        return key in self._keys

    @property
    def is_full(self) -> bool:
        """Whether some calls have to end before bolts get further tuples."""
        return self._waiting > self._most

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def complete_some(self) -> None:
        """Wait for at least one call, and carry out what the finished calls did."""
        if not self._waiting:
            return
        nap_s = min(_LONGEST_NAP_S, self._call_s / 2)
        if nap_s > _SHORTEST_NAP_S and self._is_stocked():
            # Each thread has its next call: waking for each that is over would slow the others.
            time.sleep(nap_s)
        try:
            call = self._over.get(timeout=_LOOK_EACH_S)
        except Empty:
            self._give_up_overdue()
            return
        while True:
            self._end(call)
            try:
                call = self._over.get_nowait()
            except Empty:
                break
        if self._clock() - self._looked_s > _LOOK_EACH_S:
            self._give_up_overdue()

    def _is_stocked(self) -> bool:
        """Return whether each thread has its next call."""
        return all(
            not runner.is_async and len(running) >= _STOCK * runner.concurrency
            for runner, running in self._running.items()
        )

    def close(self) -> None:
        """Stop the threads; one that is still in a call is abandoned.

        The event loop is its owner's to end (`Instances`).
        """
        for runner, work in self._work.items():
            for _ in range(runner.concurrency):
                work.put(None)

    def _start(self, call: Call) -> None:
        runner = call.runner
        if runner not in self._ready:
            self._open(runner)
        running = self._running[runner]
        # More than there are threads, so that one that is done need not wait for us.
        if len(running) >= (1 if runner.is_async else _STOCK) * runner.concurrency:
            self._ready[runner].append(call)
            return
        running.add(call)
        if runner.is_async:
            loop = self._instances.loop()
            call.begun_s = self._clock()
            asyncio.run_coroutine_threadsafe(self._run_async(call), loop)
        else:
            self._work[runner].put(call)

    def _open(self, runner: ConcurrentRunner) -> None:
        self._ready[runner] = deque()
        self._running[runner] = set()
        self._most += _WAITING_EACH * runner.concurrency
        if runner.is_async:
            return
        self._work[runner] = SimpleQueue()
        for _ in range(runner.concurrency):
            self._start_thread(runner)

    def _start_thread(self, runner: ConcurrentRunner) -> None:
        name = f"bolt {runner.context.component}"
        thread = threading.Thread(target=self._run, args=(runner,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, runner: ConcurrentRunner) -> None:
        work = self._work[runner]
        while (call := work.get()) is not None:
            call.begun_s = self._clock()
            runner.carry_out(call)
            took_s = self._clock() - call.begun_s
            self._call_s += _SHARE * (took_s - self._call_s)
            self._put_over(call)
            if call.is_given_up:  # another thread has taken this one's place
                return

    async def _run_async(self, call: Call) -> None:
        await call.runner.carry_out_async(call)
        self._put_over(call)

    def _put_over(self, call: Call) -> None:
        with self._ending:  # a call is either over or given up, and it is known which
            call.is_over = True
        self._over.put(call)

    def _end(self, call: Call) -> None:
        if call.is_given_up:
            self._trees.count_late_ack()
            return
        self._waiting -= 1
        self._running[call.runner].discard(call)
        call.runner.conclude(call)
        self._go_on(call)

    def _go_on(self, call: Call) -> None:
        """Start the next call of the key, and one that waits for a thread."""
        self._start_next_of(call.key)
        ready = self._ready[call.runner]
        while ready:
            following = ready.popleft()
            if self._trees.is_wanted(following.given):
                self._start(following)
                return
            # Its event has failed meanwhile, or is held.
            self._waiting -= 1
            self._start_next_of(following.key)

    def _start_next_of(self, key: Any) -> None:
        if key is None:
            return
        behind = self._keys[key]
        while behind:
            following = behind.popleft()
            if self._trees.is_wanted(following.given):
                self._start(following)
                return
            self._waiting -= 1
        del self._keys[key]

    def _give_up_overdue(self) -> None:
        now_s = self._looked_s = self._clock()
        timeout_s = self._timeout_s
        for runner, running in self._running.items():
            for call in list(running):
                if call.begun_s is None or now_s - call.begun_s <= timeout_s:
                    continue
                with self._ending:
                    if call.is_over:
                        continue
                    call.is_given_up = True
                self.has_abandoned_calls = True
                running.discard(call)
                self._waiting -= 1
                if not runner.is_async:
                    self._start_thread(runner)
                runner.gave_up(call.given)
                self._go_on(call)
