"""Processes of this machine that run tasks: what ends them, what is run again, what is told."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import cloudpickle
import psutil
import pyarrow as pa
import pytest

from sequitur.errors import MissingExtraError, ReorderError, TaskDiedError, TaskFailedError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.attempts import attempt_number
from sequitur.pipelines.local import worker_process
from sequitur.pipelines.local.workers import MODULES, ProcessWorkers
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_WAIT_S = 60.0
# Else each process imports this module, and pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < until_s, "it never came to be"
        time.sleep(0.005)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _is_dead(pid: int) -> bool:
    return not _is_alive(pid)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _read_pid(path: Path) -> int:
    _wait_until(lambda: _read(path).endswith("\n"))
    return int(_read(path))


def _told_pid(path: Path) -> None:
    path.write_text(f"{os.getpid()}\n")


def _holding_the_interpreter(path: Path) -> Callable[[], None]:
    """Return a task that is in C code for good, and lets no other thread of its process run."""

    def hold() -> None:
        _told_pid(path)
        while True:
            ctypes.PyDLL(None).pause()

    return hold


def _waiting_for(path: Path, told: Path) -> Callable[[], int]:
    def wait() -> int:
        _told_pid(told)
        _wait_until(path.exists)
        return os.getpid()

    return wait


@contextlib.contextmanager
def _workers(parallelism: int = 2, **given: Any) -> Iterator[ProcessWorkers]:
    workers = ProcessWorkers(parallelism, modules=(), **given)
    with contextlib.closing(workers):
        yield workers


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessWorkers]:
    with _workers() as workers:
        yield workers


@contextlib.contextmanager
def _in_thread(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run work beside the block, which ends it; what it came to."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        thread.join(_WAIT_S)
        assert not thread.is_alive()


def test_answers_are_in_the_order_of_the_tasks(shared: ProcessWorkers) -> None:
    assert shared.run([functools.partial(pow, n, 2) for n in range(20)]) == [
        n * n for n in range(20)
    ]
    assert shared.run([]) == []


def test_processes_are_started_by_the_first_task_and_not_more_than_there_are_tasks() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with _workers(8) as workers:
        assert {one.pid for one in psutil.Process().children(recursive=True)} <= before
        (pid,) = workers.run([os.getpid])
        assert pid not in {os.getpid(), *before}
        server = psutil.Process(pid).parent()
        assert server is not None
        assert [one.pid for one in server.children()] == [pid]
    assert not _is_alive(pid)
    assert not _is_alive(server.pid)


def test_a_task_is_given_to_the_process_that_worked_last_of_those_that_are_idle() -> None:
    """Its bolts are warm."""
    with _workers(2) as workers:
        assert len({*workers.run([os.getpid, os.getpid])}) == 2
        assert workers.run([os.getpid]) == workers.run([os.getpid])


def test_processes_without_a_task_for_a_while_are_ended_and_started_again() -> None:
    """With the server that they are forked from. One that has a task meanwhile stays."""

    def told() -> tuple[int, int]:
        return os.getpid(), os.getppid()

    with _workers(idle_s=0.01) as workers:
        begun = workers.run([told, told])
        _wait_until(lambda: all(_is_dead(pid) for pids in begun for pid in pids))
        ((again, server),) = workers.run([told])
        assert again not in dict(begun)
        assert workers.run([lambda: time.sleep(0.1)]) == [None]
        _wait_until(lambda: _is_dead(again) and _is_dead(server))


def test_tasks_run_in_the_first_thread_where_signals_reach_them(shared: ProcessWorkers) -> None:
    def overrun() -> None:
        assert threading.current_thread() is threading.main_thread()

        def end(*_: object) -> None:
            raise TimeoutError("the call took too long")

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        threading.Event().wait(_WAIT_S)

    with pytest.raises(TaskFailedError, match="TimeoutError: the call took too long"):
        shared.run([overrun])


def test_arrow_has_one_thread_in_a_task(shared: ProcessWorkers) -> None:
    assert shared.run([pa.cpu_count]) == [1]


def test_modules_are_imported_once_for_all_processes() -> None:
    workers = ProcessWorkers(1, modules=["colorsys"])
    with contextlib.closing(workers):
        workers.start()
        assert not workers._slots, "a process is forked that has no task"
        assert workers.run([lambda: "colorsys" in sys.modules]) == [True]


def test_a_path_object_in_the_import_path_of_the_program_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Python's own imports: programs add their folder as it is."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [tmp_path / "other", *sys.path])
    with _workers(1) as workers:
        (found,) = workers.run([lambda: sys.path])
    assert str(tmp_path) in found


@pytest.mark.test_all
def test_no_part_of_a_task_needs_spark() -> None:
    workers = ProcessWorkers(1)
    with contextlib.closing(workers):
        (loaded,) = workers.run([lambda: {*sys.modules}])
    assert {*MODULES} <= loaded
    assert not {"pyspark", "py4j"} & loaded


def test_an_exception_is_told_with_its_traceback_and_is_no_death(shared: ProcessWorkers) -> None:
    def refuses_a_row() -> None:
        raise ValueError("row 7 \ud83d")

    with pytest.raises(TaskFailedError) as caught:
        shared.run([refuses_a_row, lambda: 1])
    assert shared.reason_of(caught.value) == r"ValueError: row 7 \ud83d"
    assert "in refuses_a_row" in caught.value.__notes__[0]
    assert not shared.is_death(caught.value)
    assert shared.run([attempt_number]) == [0], "the process goes on"


def test_an_exception_is_not_run_again(shared: ProcessWorkers, tmp_path: Path) -> None:
    def fail() -> None:
        with (tmp_path / "tries").open("a") as file:
            file.write("x")
        raise ValueError

    with pytest.raises(TaskFailedError):
        shared.run([fail])
    assert _read(tmp_path / "tries") == "x"


def test_a_result_that_cannot_be_pickled_is_an_exception(shared: ProcessWorkers) -> None:
    with pytest.raises(TaskFailedError, match="cannot pickle"):
        shared.run([threading.Lock])


def test_an_error_of_the_driver_has_no_reason_of_tasks(shared: ProcessWorkers) -> None:
    assert shared.reason_of(ValueError("no task")) is None


def test_a_task_whose_process_dies_is_run_again_three_times() -> None:
    """And learns how often: what sends rows asks then how far the attempts before came."""

    def die_thrice() -> int:
        if attempt_number() < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return attempt_number()

    told: list[str] = []
    with _workers(1, tell=told.append) as workers:
        assert workers.run([die_thrice, attempt_number]) == [3, 0]
    assert told == [
        "Python worker exited unexpectedly (SIGKILL: does it have enough memory?), "
        f"attempt {number} of 4 at its task"
        for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os._exit(3), "exit status 3"),
    ],
)
def test_a_death_is_told_apart_and_fails_its_own_run_alone(
    end: Callable[[], object], told: str, tmp_path: Path
) -> None:
    """In one run its neighbour is done to its end; another run, at work beside it, never knows."""
    done, go, at_work = (tmp_path / name for name in ("done", "go", "at_work"))
    with (
        _workers() as workers,
        _in_thread(lambda: workers.run([_waiting_for(go, at_work)])) as other,
    ):
        pid = _read_pid(at_work)
        with pytest.raises(TaskDiedError) as caught:
            workers.run([end, done.touch])
        go.touch()
        _wait_until(lambda: bool(other))
    assert workers.is_death(caught.value)
    assert workers.reason_of(caught.value) == (
        f"Python worker exited unexpectedly ({told}), in each of 4 attempts at its task"
    )
    assert done.exists()
    assert other == [[pid]]


def test_a_process_that_dies_while_it_has_no_task_costs_nothing() -> None:
    with _workers(1) as workers:
        (pid,) = workers.run([os.getpid])
        os.kill(pid, signal.SIGKILL)
        _wait_until(lambda: not _is_alive(pid))
        (other,) = workers.run([os.getpid])
    assert other != pid


def test_a_death_is_seen_though_a_program_of_the_task_lives_on(tmp_path: Path) -> None:
    """A fork of the process has its end of the channel, too."""

    def fork_and_die() -> int:
        if attempt_number():
            return attempt_number()
        if not os.fork():
            os.setpgid(0, 0)  # out of the group that is killed
            _told_pid(tmp_path / "fork")
            _wait_until((tmp_path / "go").exists)
            os._exit(0)
        _read_pid(tmp_path / "fork")
        os.kill(os.getpid(), signal.SIGKILL)
        return -1

    with _workers(1) as workers:
        assert workers.run([fork_and_die]) == [1]
        assert _is_alive(_read_pid(tmp_path / "fork"))
        (tmp_path / "go").touch()


def test_a_fork_of_a_task_that_comes_back_answers_nothing() -> None:
    """Else each task after it would get the answer of the one before."""

    def fork() -> int:
        child = os.fork()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else -1

    with _workers(1) as workers:
        assert workers.run([fork]) == [1]
        assert [workers.run([functools.partial(abs, n)]) for n in range(2)] == [[0], [1]]


def test_a_death_is_its_tasks_own_where_the_program_ignores_its_children(tmp_path: Path) -> None:
    """Processes inherit that they ignore SIGCHLD, as from a shell with `trap '' CHLD`."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with _workers() as workers:
            workers.start()
            with _in_thread(lambda: workers.run([_waiting_for(tmp_path / "go", tmp_path / "it")])):
                _read_pid(tmp_path / "it")
                with pytest.raises(TaskDiedError, match="exit status 3"):
                    workers.run([lambda: os._exit(3)], retries=False)
                assert _is_alive(_read_pid(tmp_path / "it"))
                (tmp_path / "go").touch()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_server_that_forks_is_started_again_when_it_dies(tmp_path: Path) -> None:
    """Its forks die with it, even one that holds the interpreter."""
    held, go = tmp_path / "held", tmp_path / "go"

    def hold_once() -> int:
        if not attempt_number():
            _holding_the_interpreter(held)()
        return attempt_number()

    with _workers() as workers, _in_thread(lambda: workers.run([hold_once])) as found:
        pid = _read_pid(held)
        server = psutil.Process(pid).parent()
        assert server is not None
        server.kill()
        _wait_until(lambda: not _is_alive(pid))
        _wait_until(lambda: bool(found))
        go.touch()
    assert found == [[1]]


def test_a_process_outlives_the_thread_that_had_it_started() -> None:
    with _workers(1) as workers:
        with _in_thread(lambda: workers.run([os.getpid])) as found:
            pass
        assert workers.run([os.getpid]) == found[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_driver_is_the_drivers_alone(number: int, tmp_path: Path) -> None:
    """A terminal's Ctrl-C, and what a service manager sends to all processes of the service."""
    go, at_work = tmp_path / "go", tmp_path / "at_work"
    with (
        _workers() as workers,
        _in_thread(lambda: workers.run([_waiting_for(go, at_work)])) as found,
    ):
        pid = _read_pid(at_work)
        server = psutil.Process(pid).ppid()
        assert os.getsid(pid) == server != os.getsid(0), "a terminal reaches it"
        for one in (pid, server):
            os.kill(one, number)
        go.touch()
        _wait_until(lambda: bool(found))
        assert found == [[pid]]
        assert workers.run([os.getpid, os.getpid])[0], "the server forks no more"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_a_task_starts_ends_as_programs_do(
    number: int, shared: ProcessWorkers
) -> None:
    def start() -> int:
        return subprocess.run(["sh", "-c", f"kill -{int(number)} $$"], check=False).returncode

    assert shared.run([start]) == [-number]


def test_runs_of_several_threads_take_turns(tmp_path: Path) -> None:
    go, at_work, order = tmp_path / "go", tmp_path / "at_work", tmp_path / "order"

    def note(name: str) -> Callable[[], None]:
        def write() -> None:
            with order.open("a") as file:
                file.write(name)

        return write

    with _workers(1) as workers:
        large = [_waiting_for(go, at_work), *[note("a")] * 5]
        with _in_thread(lambda: workers.run(large)):
            _read_pid(at_work)  # else the small run may be over before the large one has begun
            with _in_thread(lambda: workers.run([note("b")])):
                _wait_until(lambda: len(workers._turns) == 2)
                go.touch()
    assert sorted(_read(order)) == [*"aaaaab"]
    assert "b" in _read(order)[:2], "the small run waited for the large one"


def test_what_a_block_runs_is_killed_when_the_job_is_to_stop(tmp_path: Path) -> None:
    """Though it holds the interpreter; nothing of other threads is ended."""
    held, go, at_work = (tmp_path / name for name in ("held", "go", "at_work"))
    with (
        _workers() as workers,
        _in_thread(lambda: workers.run([_waiting_for(go, at_work)])) as other,
    ):
        with pytest.raises(StopRequestedError), workers.ended_at(held.exists, 0):
            workers.run([_holding_the_interpreter(held)])
        _wait_until(lambda: not _is_alive(_read_pid(held)))
        with pytest.raises(StopRequestedError), workers.ended_at(lambda: True, 0):
            workers.run([_holding_the_interpreter(held)])
        pid = _read_pid(at_work)
        go.touch()
        _wait_until(lambda: bool(other))
        assert other == [[pid]]
        assert workers.run([attempt_number]) == [0], "no process takes the place of the killed one"


def test_a_block_that_is_done_in_time_is_not_ended(shared: ProcessWorkers) -> None:
    with shared.ended_at(lambda: True, _WAIT_S):
        assert shared.run([attempt_number]) == [0]


def test_close_gives_up_what_is_at_work_and_leaves_no_process(tmp_path: Path) -> None:
    held = tmp_path / "held"
    workers = ProcessWorkers(2, modules=())
    with _in_thread(lambda: workers.run([_holding_the_interpreter(held)])) as found:
        pid = _read_pid(held)
        server = psutil.Process(pid).ppid()
        workers.close()
    assert isinstance(found[0], StopRequestedError)
    for one in (pid, server):
        _wait_until(functools.partial(_is_dead, one))
    with pytest.raises(StopRequestedError):
        workers.run([os.getpid])


def test_close_does_not_wait_for_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "takes_forever.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(worker_process, "_END_S", 0.01)
    workers = ProcessWorkers(1, modules=["takes_forever"])
    with _in_thread(lambda: workers.run([os.getpid])) as found:
        server = _read_pid(tmp_path / "pid")
        workers.close()
        assert not _is_alive(server)
    assert isinstance(found[0], StopRequestedError)


def test_a_module_that_cannot_be_imported_is_said_and_not_tried_for_ever(
    capfd: pytest.CaptureFixture[str],
) -> None:
    workers = ProcessWorkers(1, modules=["sequitur.no_such_module"])
    with contextlib.closing(workers), pytest.raises(Exception, match=r"exit status 1\)") as caught:
        workers.run([os.getpid])
    assert workers.reason_of(caught.value) is None
    assert "No module named 'sequitur.no_such_module'" in capfd.readouterr().err


@pytest.mark.parametrize("is_reused", [False, True], ids=["closed", "reused"])
def test_tasks_run_where_the_program_has_closed_its_output(
    tmp_path: Path, *, is_reused: bool
) -> None:
    """As a service may; the next file of the program may have the descriptor by then."""
    found = tmp_path / "found"
    reuse = "files = [open('/dev/null'), open('/dev/null')]\n" if is_reused else ""
    program = (
        "import os\n"
        "from sequitur.pipelines.local.workers import ProcessWorkers\n"
        f"os.close(1)\nos.close(2)\n{reuse}"
        "workers = ProcessWorkers(1, modules=())\n"
        f"open({str(found)!r}, 'w').write(str(workers.run([lambda: print('told') or 7])))\n"
        "workers.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=_WAIT_S)
    assert found.read_text() == "[7]"


def test_why_there_can_be_no_process_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where a container limits the number of processes."""
    (tmp_path / "no_more_forks.py").write_text(
        "import errno, os\n"
        "def fork():\n"
        "    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "os.fork = fork\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    workers = ProcessWorkers(1, modules=["no_more_forks"])
    with contextlib.closing(workers), pytest.raises(ReorderError, match="exit status 1"):
        workers.run([os.getpid])
    assert os.strerror(errno.EAGAIN) in capfd.readouterr().err


def test_who_lacks_what_pickles_tasks_is_told_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MissingExtraError, match=r"\[local\]"):
        ProcessWorkers()


_PROGRAM = """
import ctypes, os, subprocess, sys, threading, time
from sequitur.pipelines.local.workers import ProcessWorkers

print("imported")


class Doubles:
    def __init__(self, number):
        self.number = number

    def __call__(self):
        print("said by a task")
        return Doubles(2 * self.number)


def hold(path):
    program = subprocess.Popen(["sleep", "600"])
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {os.getppid()} {program.pid}")
    os.rename(path + ".new", path)
    while True:
        ctypes.PyDLL(None).pause()


workers = ProcessWorkers(2, modules=())
print([one.number for one in workers.run([Doubles(1), Doubles(2)])])
if sys.argv[1:]:
    threading.Thread(
        target=lambda: workers.run([lambda path=path: hold(path) for path in sys.argv[1:]])
    ).start()
    if not os.fork():  # it has copies of all sockets of the driver
        with open("forked", "w") as file:
            file.write(f"{os.getpid()}\\n")
    time.sleep(600)
"""


def _program(folder: Path) -> Path:
    path = folder / "program.py"
    path.write_text(_PROGRAM)
    return path


def test_a_program_needs_no_guard_and_tasks_print_to_standard_error(tmp_path: Path) -> None:
    """Its own classes are tasks, and results: they are pickled by value, and it is not imported."""
    done = subprocess.run(
        [sys.executable, _program(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["imported", "[2, 4]"]
    # Where PYTHONUNBUFFERED is set, lines of two processes may mingle.
    assert done.stderr.replace("\n", "") == "said by a task" * 2


def test_no_process_is_left_when_the_driver_is_killed(tmp_path: Path) -> None:
    """Though tasks hold the interpreter, and a fork of the driver lives on with its sockets.

    Programs that tasks have started are killed with them.
    """
    paths = [tmp_path / "first", tmp_path / "second"]
    driver = subprocess.Popen(
        [sys.executable, _program(tmp_path), *map(str, paths)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for path in paths:
            _wait_until(path.exists)
        pids = [int(pid) for path in paths for pid in _read(path).split()]
        assert len({*pids}) == 5, "two tasks, a program of each, and the server"
        assert all(map(_is_alive, pids))
        fork = _read_pid(tmp_path / "forked")
    finally:
        driver.kill()
        driver.wait()
    try:
        _wait_until(lambda: not any(map(_is_alive, pids)))
        assert _is_alive(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
