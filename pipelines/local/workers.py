"""Tasks in processes of this machine; see `sequitur.pipelines.workers`."""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
from collections import deque
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sequitur.base.extras import load
from sequitur.errors import TaskDiedError, TaskFailedError
from sequitur.pipelines._stop import StopRequestedError, calling_at_stop
from sequitur.pipelines.local.cores import cores
from sequitur.pipelines.local.worker_process import (
    ProcessDiedError,
    ServerProcess,
    WorkerProcess,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

MOST_ATTEMPTS: Final = 4
"""At a task whose process dies, as by Spark's `spark.task.maxFailures`."""
MODULES: Final = (
    "sequitur.pipelines.ordering.key_tasks",
    "sequitur.pipelines.ordering.source",
    "sequitur.pipelines.rows.run_writer",
    "sequitur.pipelines.rows.selection",
    "sequitur.pipelines.sink.sink",
    "sequitur.pipelines.topology.batch",
)
"""What tasks are made of."""
_GRACE_S: Final = 5.0
"""A commit takes less; one that a database holds up is repeated by the next start."""


class ProcessWorkers:
    """Runs tasks in processes that the first task starts.

    Any thread may run tasks. Those of several threads take turns, so none waits for all of another.

    Args:
        parallelism: How many processes; by default the cores that this process may use.
        modules: What is imported once for all processes.
        tell: Takes a line for the log.
        idle_s: After so long without a task a process is ended; None: it waits for ever.
    """

    def __init__(
        self,
        parallelism: int | None = None,
        modules: Sequence[str] = MODULES,
        tell: Callable[[str], object] = lambda _: None,
        *,
        idle_s: float | None = None,
    ) -> None:
        self.parallelism = parallelism or cores()
        self.processes_a_host = self.parallelism
        self.master = f"local[{self.parallelism}]"
        self._pickled = load("cloudpickle", "a job without Spark").dumps
        # Arrow loads pandas at the first array, where it is installed.
        pandas = ["pandas"] if modules and find_spec("pandas") else []
        self._server = ServerProcess(["cloudpickle", *modules, *pandas])
        self._tell = tell
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._runs: set[_Run] = set()  # those that a thread waits for
        self._turns: deque[_Run] = deque()  # runs with tasks that wait, in turn
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []
        self._homes: dict[object, _Slot] = {}  # the process that had a task last, by its home
        self._blocks = _Blocks()
        self._is_closed = False

    def start(self) -> None:
        """Import now, so that the first task need not wait."""
        self._server.start()

    def close(self) -> None:
        """Kill all processes, with the tasks that they run."""
        with self._lock:
            self._is_closed = True
            self._give_up([*self._runs])
            slots = [*self._slots]
        self._server.close()
        for slot in slots:
            slot.tasks.put(None)
        for slot in slots:
            slot.thread.join()

    def run(
        self, tasks: Sequence[Callable[[], T]], *, retries: bool = True, title: str | None = None
    ) -> list[T]:
        """See `Workers`.

        Raises:
            TaskFailedError: A task has raised an exception.
            TaskDiedError: The process of a task has died in each attempt.
            StopRequestedError: `ended_at` or `close` has ended it.
        """
        del title
        if not tasks:
            return []
        most_attempts = MOST_ATTEMPTS if retries else 1
        pickled = [(getattr(task, "home", None), self._pickled(task)) for task in tasks]
        run = _Run(pickled, self._blocks.entered, most_attempts)
        with self._lock:
            if self._is_closed or any(block.is_ended for block in run.blocks):
                raise StopRequestedError
            self._runs.add(run)
            self._turns.append(run)
            self._dispatch()
        try:
            run.is_over.wait()
        finally:
            with self._lock:
                self._runs.discard(run)
                self._give_up([run])  # an interrupt ends the wait
        if run.error is not None:
            raise run.error
        return run.results

    def reason_of(self, error: Exception) -> str | None:
        return str(error) if isinstance(error, TaskFailedError | TaskDiedError) else None

    def is_death(self, error: Exception) -> bool:
        return isinstance(error, TaskDiedError)

    def beside_reading(self) -> contextlib.AbstractContextManager[None]:
        """Share nothing: threads that run tasks at the same time take turns."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def ended_at(
        self, is_stopping: Callable[[], bool], grace_s: float = _GRACE_S
    ) -> Iterator[None]:
        """End what this thread runs by killing its processes."""
        block = _Block()

        def end() -> None:
            with self._lock:
                block.is_ended = True
                self._give_up([run for run in self._runs if block in run.blocks])

        self._blocks.entered.append(block)
        try:
            with calling_at_stop(is_stopping, grace_s, end):
                yield
        finally:
            self._blocks.entered.remove(block)

    def _dispatch(self) -> None:
        """Hand waiting tasks to idle processes. The caller holds the lock."""
        while self._turns and (self._idle or len(self._slots) < self.parallelism):
            run = self._turns.popleft()
            slot, task = self._next_of(run)
            slot.task = task
            run.at_work += 1
            if run.waiting:
                self._turns.append(run)
            slot.tasks.put(slot.task)

    def _next_of(self, run: _Run) -> tuple[_Slot, _Task]:
        """Take a run's next task, and a process that is idle: the one that had this task last.

        That one has in memory what bolts keep of the task.
        """
        homes = self._homes
        task = next((one for one in run.waiting if homes.get(one.home) in self._idle), None)
        if task is not None:
            slot = homes[task.home]
            self._idle.remove(slot)
        else:
            # Another process may still come for its own.
            task = next((one for one in run.waiting if one.home not in homes), run.waiting[0])
            slot = self._free_slot()
        run.waiting.remove(task)
        if task.home is not None:
            homes[task.home] = slot
        return slot, task

    def _free_slot(self) -> _Slot:
        if self._idle:
            return self._idle.pop()  # the one that worked last: its bolts are warm
        self._slots.append(_Slot(self._serve))
        return self._slots[-1]

    def _serve(self, slot: _Slot) -> None:
        """Run a slot's tasks, in its thread."""
        while (task := self._next(slot)) is not None:
            outcome = self._outcome(slot, task)
            with self._lock:
                self._take(task, outcome)
                slot.task = None
                self._idle.append(slot)
                self._dispatch()

    def _next(self, slot: _Slot) -> _Task | None:
        """Wait for a slot's next task; after a while without one, end its process."""
        while True:
            try:
                return slot.tasks.get(timeout=None if slot.process is None else self._idle_s)
            except queue.Empty:
                self._rest(slot)

    def _rest(self, slot: _Slot) -> None:
        """End the process of a slot without a task, and after the last one the server."""
        with self._lock:
            if slot.task is not None or slot.process is None:
                return
            process, slot.process = slot.process, None
        process.end()
        self._server.rest()

    def _outcome(self, slot: _Slot, task: _Task) -> tuple[bool, Any] | Exception:
        """Have a task done; return the answer of `fork_server.work`, or why there is none."""
        try:
            if slot.process is None:
                slot.process = WorkerProcess(self._server)
            with self._lock:
                if task.run.is_over.is_set():
                    return StopRequestedError()
            answer = slot.process.answer(task.deaths, task.pickled)
            outcome: tuple[bool, Any] = pickle.loads(answer)  # noqa: S301 - our own
        except ProcessDiedError as died:
            slot.process = None
            if not task.run.is_over.is_set():
                most = task.run.most_attempts
                self._tell(f"{died}, attempt {task.deaths + 1} of {most} at its task")
            return died
        except Exception as error:  # noqa: BLE001 - raised where the task's result is waited for
            return error
        return outcome

    def _take(self, task: _Task, outcome: tuple[bool, Any] | Exception) -> None:
        """Record how a task ended. The caller holds the lock."""
        run = task.run
        run.at_work -= 1
        if run.is_over.is_set():
            return
        if isinstance(outcome, ProcessDiedError):
            task.deaths += 1
            if task.deaths < run.most_attempts and run.error is None:
                run.waiting.append(task)
                if run not in self._turns:
                    self._turns.append(run)
                return
            again = f", in each of {task.deaths} attempts at its task" if task.deaths > 1 else ""
            outcome = TaskDiedError(f"{outcome}{again}")
        if isinstance(outcome, Exception):
            self._fail(run, outcome)
        elif not outcome[0]:
            self._fail(run, _failure(*outcome[1]))
        else:
            run.results[task.place] = outcome[1]
        if not run.at_work and not run.waiting:
            run.is_over.set()

    def _fail(self, run: _Run, error: Exception) -> None:
        """Begin no other task of a run; running tasks are waited for."""
        run.error = run.error or error
        run.waiting.clear()
        if run in self._turns:
            self._turns.remove(run)

    def _give_up(self, runs: Iterable[_Run]) -> None:
        """End runs that are not over, and kill their processes. The caller holds the lock."""
        for run in runs:
            if run.is_over.is_set():
                continue
            self._fail(run, StopRequestedError())
            run.is_over.set()
            for slot in self._slots:
                if slot.task is not None and slot.task.run is run and slot.process is not None:
                    slot.process.kill()


def _failure(reason: str, where: str) -> TaskFailedError:
    error = TaskFailedError(reason)
    error.add_note(where)
    return error


class _Run:
    def __init__(
        self,
        tasks: Sequence[tuple[object, bytes]],
        blocks: Iterable[_Block],
        most_attempts: int,
    ) -> None:
        self.most_attempts = most_attempts
        self.blocks = tuple(blocks)
        self.waiting = deque(_Task(self, place, *task) for place, task in enumerate(tasks))
        self.results: list[Any] = [None] * len(tasks)
        self.at_work = 0
        self.error: Exception | None = None
        self.is_over = threading.Event()


@dataclass(slots=True, eq=False)
class _Task:
    run: _Run
    place: int  # among those of its run
    home: object  # names the task in runs of later steps; None: it is of one run alone
    pickled: bytes
    deaths: int = 0  # how many processes died at it


class _Slot:
    """A process, which may not be started yet, and the thread that waits for it."""

    def __init__(self, serve: Callable[[_Slot], None]) -> None:
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.task: _Task | None = None
        self.process: WorkerProcess | None = None
        self.thread = threading.Thread(target=serve, args=(self,), name="task", daemon=True)
        self.thread.start()


@dataclass(slots=True, eq=False)
class _Block:
    is_ended: bool = False


class _Blocks(threading.local):
    """The blocks that a thread is in."""

    def __init__(self) -> None:
        self.entered: list[_Block] = []
