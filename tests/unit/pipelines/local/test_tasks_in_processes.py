"""A job's tasks in processes of this machine: what runs there, and when processes are there."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import psutil
import pyarrow as pa
import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.local.job import running_workers
from sequitur.pipelines.local.workers import ProcessWorkers
from sequitur.pipelines.topology.surviving_tasks import SurvivingTasks
from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.local_runs import LocalTester
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import Topology

# Else each process imports this module, and pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
_T0: Final = 1_700_000_000_000
_SETTINGS: Final[dict[str, Any]] = {
    "input_topics": ["readings"],
    "output_topic": "ordered",
    "event_time": "json:at",
    "delay": "0 s",
}
_TOPOLOGY: Final = """
import json, os, signal
from sequitur import TopologyBuilder, bolt

@bolt(fields=("key", "value"))
def where(event):
    if json.loads(event.value).get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    yield event.key, str(os.getpid())

builder = TopologyBuilder("where")
builder.set_spout("events")
builder.set_bolt("where", where).local_grouping("events")
builder.set_output("out").local_grouping("where")
topology = builder.build()
"""

_DEADLY: Final = """
import json
from sequitur import KeyedBolt, TopologyBuilder, bolt

class Deadly:
    def __reduce__(self):
        return exec, ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",)

@bolt(fields=("group", "what"))
def by_group(event):
    kills = json.loads(event.value).get("kills")
    yield "all", Deadly() if kills else "fine"

class Count(KeyedBolt):
    fields = ("group", "what", "count")
    state = int

    def process(self, tup, key):
        key.state = (key.state or 0) + 1
        key.emit((tup.values[0], tup.values[1], key.state))

builder = TopologyBuilder("deadly")
builder.set_spout("events")
builder.set_bolt("by_group", by_group).local_grouping("events")
builder.set_bolt("count", Count()).fields_grouping("by_group", "group")
builder.set_output("out", key="group", value="count").local_grouping("count")
topology = builder.build()
"""


_told: Final[list[str]] = []


@pytest.fixture(scope="module")
def shared(topology: Topology, deadly: Topology) -> Iterator[ProcessWorkers]:
    """Workers that know the topologies: a driver, too, has loaded its own before the first task."""
    del topology, deadly
    with contextlib.closing(ProcessWorkers(2, tell=_told.append)) as workers:
        yield workers


@pytest.fixture
def told() -> list[str]:
    """What is told of workers from here on."""
    _told.clear()
    return _told


def _rows(numbers: range, kills: int | None = None) -> Iterator[dict[str, str]]:
    for number in numbers:
        more = {"kills": True} if number == kills else {}
        yield {"key": "a", "value": json.dumps({"at": _T0 + 1_000 * number, **more})}


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    return _loaded(tmp_path_factory, "where_bolts_run", _TOPOLOGY)


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    return _loaded(tmp_path_factory, "deadly_values", _DEADLY)


def _loaded(folders: pytest.TempPathFactory, name: str, text: str) -> Topology:
    path = folders.mktemp("topology") / f"{name}.py"
    path.write_text(text)
    return load_topology(path)


@pytest.mark.promise("process-process-dies-event")
def test_bolts_run_in_processes_and_what_kills_one_is_found_by_as_many_deaths_as_are_counted(
    topology: Topology, shared: ProcessWorkers, told: list[str]
) -> None:
    """No death is repeated by the workers: each try of the search would cost four."""
    with LocalTester(_SETTINGS, topology, workers=shared) as tester:
        tester.run(_rows(range(4), kills=2))
        tester.drain()
        pids = {int(one.value or b"") for one in tester.released}
        assert len(tester.released) == 3
        assert os.getpid() not in pids
        (dead,) = tester.records("ordered.dead-letter")
        assert json.loads(dead.value or b"")["kills"]
        processed = tester.report().processed
    assert processed is not None
    assert processed["crashes"] == len(told) > 1
    assert {line.rpartition(", ")[2] for line in told} == {"attempt 1 of 1 at its task"}


def test_a_value_that_kills_by_being_unpacked_is_found_and_left_out_of_what_is_read_ahead(
    deadly: Topology, shared: ProcessWorkers, told: list[str]
) -> None:
    """A bolt keyed by another field unpacks its tuples before their calls, for their keys."""
    with LocalTester(_SETTINGS, deadly, workers=shared) as tester:
        tester.run(_rows(range(4), kills=2))
        tester.drain()
        assert [one.value for one in tester.released] == [b"1", b"2", b"3"]
        (dead,) = tester.records("ordered.dead-letter")
        assert json.loads(dead.value or b"")["kills"]
    assert len(told) > 1


def _at_home(home: int) -> Callable[[], int]:
    def task() -> int:
        return os.getpid()

    vars(task)["home"] = home
    return task


def test_a_task_goes_to_the_process_that_had_it(shared: ProcessWorkers) -> None:
    """Each is given out first in one run, and last in the next one."""
    tasks = [_at_home(0), _at_home(1)]
    first, last = shared.run(tasks)
    assert first != last
    for _ in range(5):
        assert shared.run(tasks[::-1]) == [last, first]
        assert shared.run(tasks) == [first, last]


@pytest.mark.skipif("ARROW_DEFAULT_MEMORY_POOL" in os.environ, reason="a pool is named")
def test_processes_have_arrays_in_the_pool_that_keeps_little(shared: ProcessWorkers) -> None:
    assert shared.run([lambda: pa.default_memory_pool().backend_name]) == ["jemalloc"]


def test_a_topologys_task_collects_garbage_now_and_then(
    tmp_path: Path, shared: ProcessWorkers
) -> None:
    tasks = SurvivingTasks(shared, tmp_path, max_crashes=2)
    within = tasks.once([gc.get_threshold])
    assert within is not None
    (usual,) = shared.run([gc.get_threshold])
    assert within[0][0] > 100 * usual[0]


def _counted(path: Path) -> Callable[[], None]:
    """Return a task that notes that it was begun, and kills its process."""

    def die() -> None:
        with path.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    return die


_FORKS: Final = """\
    if json.loads(event.value).get("kills") and not os.fork():
        os.execvp("no-such-program", ["no-such-program"])
    with open({calls!r}, "a") as calls:
        calls.write("x")
"""


def test_a_process_that_a_bolt_forks_has_no_part_in_the_task(tmp_path: Path) -> None:
    """Where its program is not there, it would call the bolt for all events that are left."""
    calls = tmp_path / "calls"
    path = tmp_path / "bolt_that_forks.py"
    begin, end = _TOPOLOGY.index("    if json"), _TOPOLOGY.index("    yield")
    forks = _FORKS.format(calls=str(calls))
    path.write_text(f"{_TOPOLOGY[:begin]}{forks}{_TOPOLOGY[end:]}")
    loaded = load_topology(path)  # before the first task, as a driver does
    with (
        contextlib.closing(ProcessWorkers(2, tell=_told.append)) as workers,
        LocalTester(_SETTINGS, loaded, workers=workers) as tester,
    ):
        for numbers in (range(4), range(4, 8)):
            # Of other keys: those of its own key wait for an event that has failed.
            tester.run({**row, "key": str(n)} for n, row in enumerate(_rows(numbers, kills=1)))
        tester.drain()
        assert len(tester.released) == 8
    assert calls.read_text() == 8 * "x"


@pytest.mark.promise("process-process-dies-whatever")
def test_tasks_that_may_run_once_are_run_once(tmp_path: Path, shared: ProcessWorkers) -> None:
    """As commits to databases: the next try has to know of the one before."""
    tries = tmp_path / "tries"
    tasks = SurvivingTasks(shared, tmp_path, max_crashes=2)
    assert tasks.once([_counted(tries)]) is None
    assert (tries.read_text(), tasks.crashes) == ("x", 1)


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_what_is_small_is_done_in_the_driver_and_what_is_large_in_processes(
    shared: ProcessWorkers, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    counts: list[int] = []
    run = shared.run

    def counted(tasks: Sequence[Callable[[], Any]], **how: Any) -> list[Any]:
        counts.append(len(tasks))
        return run(tasks, **how)

    monkeypatch.setattr(shared, "run", counted)
    if is_large:
        monkeypatch.setattr("sequitur.pipelines.workers._SMALL_BYTES", -1)
    with LocalTester(_SETTINGS | {"duplicates": "json:at"}, workers=shared) as tester:
        tester.run(_rows(range(4)))
        tester.run(_rows(range(2, 6)))
        tester.drain()
        assert len(tester.released) == 6
    assert bool(counts) == is_large


@pytest.mark.promise("order-ctrl-sigterm-job")
@pytest.mark.parametrize(
    "has_bolts",
    [
        pytest.param(False, id="rows"),
        pytest.param(True, id="bolts", marks=pytest.mark.test_all),
    ],
)
def test_step_whose_tasks_a_stop_has_ended_is_finished_by_the_next_start(
    shared: ProcessWorkers, topology: Topology, monkeypatch: pytest.MonkeyPatch, *, has_bolts: bool
) -> None:
    """Whichever round of tasks it ends: each row is out once."""
    monkeypatch.setattr("sequitur.pipelines.workers._SMALL_BYTES", -1)
    run = shared.run
    left = ended = 0

    def counted(tasks: Sequence[Callable[[], Any]], **how: Any) -> list[Any]:
        nonlocal left
        left -= 1
        if not left:
            raise StopRequestedError
        return run(tasks, **how)

    monkeypatch.setattr(shared, "run", counted)
    stage = topology if has_bolts else None
    while left <= 0:
        left = ended = ended + 1
        with LocalTester(_SETTINGS | {"duplicates": "json:at"}, stage, workers=shared) as tester:
            for numbers in (range(4), range(2, 6)):
                tester.produce(_rows(numbers))
                try:
                    tester.run()
                except StopRequestedError:
                    tester.restart()
                    tester.run()
            with contextlib.suppress(StopRequestedError):
                tester.drain()
            tester.restart()
            tester.drain()
            assert len(tester.released) == 6
            assert tester.totals.read == 8
    assert ended > 4, "no round of tasks was ended"


@pytest.mark.promise("process-modules-beside")
def test_tasks_import_the_topology_though_a_package_of_its_name_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the driver does. Modules beside it are found behind what is installed."""
    installed, folder = tmp_path / "installed", tmp_path / "topology"
    for name in ("twice_there", "beside_it"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text("whose = 'installed'")
    folder.mkdir()
    (folder / "beside_it.py").write_text("whose = 'beside'")
    own = "import beside_it\ndef whose():\n    return 'own', beside_it.whose\n"
    path = folder / "twice_there.py"
    path.write_text(own + _TOPOLOGY)
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    load_topology(path)
    whose = sys.modules[path.stem].whose
    with contextlib.closing(ProcessWorkers(1, modules=())) as workers:
        assert workers.run([whose]) == [whose()] == [("own", "installed")]


def _children() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True)}


def _settings(**more: object) -> ReorderSettings:
    return ReorderSettings.model_validate({**_SETTINGS, "checkpoint": "x", **more})


def test_processes_are_begun_ahead_of_the_first_task_only_where_there_are_bolts() -> None:
    before, stop = _children(), threading.Event()
    with running_workers(_settings(), stop, has_bolts=False) as workers:
        assert _children() == before
        assert not workers._slots
    with running_workers(_settings(workers=3), stop, has_bolts=True) as workers:
        assert len(_children() - before) == 1
        assert workers.parallelism == 3
    assert _children() == before


@pytest.mark.promise("order-ctrl-sigterm-job")
def test_tasks_that_go_on_after_a_stop_are_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at_work, stop = tmp_path / "at-work", threading.Event()

    def hang() -> None:
        at_work.touch()
        threading.Event().wait()

    def stop_it() -> None:
        wait_until(at_work.exists)
        stop.set()

    stopping = threading.Thread(target=stop_it)
    before = _children()
    with running_workers(_settings(stop_timeout="10 ms"), stop, has_bolts=False) as workers:
        stopping.start()
        with pytest.raises(StopRequestedError):
            workers.run([hang])
        stopping.join()
    assert at_work.exists()
    assert _children() == before
    assert "tasks are ended: the job was to stop 10 ms ago" in capsys.readouterr().err
