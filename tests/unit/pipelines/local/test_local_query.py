"""The loop of the local runner on lists: each batch is planned, run and committed, once."""

from __future__ import annotations

import math
import shutil
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import CheckpointError, OwnershipError, StepFunctionError, UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.local import query
from sequitur.pipelines.local import tester as local_tester
from sequitur.pipelines.local.query import Pace
from sequitur.pipelines.store.storage import LocalStorage
from tests.support.deaths import DOCUMENTS, DiedError, deadly
from tests.support.local_runs import ListEnds, LocalTester
from tests.unit.pipelines.topology.test_step_runs import passing_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.pipelines.ordering.context import Spans
    from sequitur.pipelines.ordering.small_batches import RowsRead

_T0 = 1_700_000_000_000
_FILES = ("spark/metadata", "spark/sources/0/0", "spark/offsets/0", "spark/commits/0")


def _settings(**more: object) -> dict[str, object]:
    return {
        "input_topics": ["readings"],
        "output_topic": "ordered",
        "event_time": "json:at",
        "delay": "10 s",
        **more,
    }


def _rows(*times: int) -> Iterator[dict[str, str]]:
    for at in times:
        yield {"value": f'{{"at": {_T0 + at}}}', "key": "a"}


def _values(*times: int) -> list[bytes]:
    return [b'{"at": %d}' % (_T0 + at) for at in times]


def test_batches_are_planned_run_and_committed() -> None:
    with LocalTester(_settings()) as tester:
        tester.run(_rows(2_000, 1_000))
        tester.run(_rows(13_000))
        assert [one.value for one in tester.released] == _values(1_000, 2_000)
        tester.run()
        tester.drain()
        assert [one.value for one in tester.released] == _values(1_000, 2_000, 13_000)
        spark = tester.folder / "spark"
        assert sorted(one.name for one in (spark / "offsets").iterdir()) == ["0", "1"]
        assert sorted(one.name for one in (spark / "commits").iterdir()) == ["0", "1"]


@pytest.mark.promise("order-runner-changes-between")
@pytest.mark.parametrize("is_written", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("document", [*_FILES, *DOCUMENTS])
def test_job_that_dies_between_two_files_is_taken_up_by_either_runner(
    document: str, *, is_written: bool
) -> None:
    """Before or behind each file of a first batch; nothing is lost, and nothing doubled."""
    for runs_here in (True, False):
        with LocalTester(_settings(delay="0 s")) as tester:
            with deadly(document, is_written=is_written), pytest.raises(DiedError):
                tester.run(_rows(2_000, 1_000))
            tester.runs_here = runs_here
            tester.restart()
            tester.run()
            tester.run(_rows(3_000))
            tester.drain()
            assert [one.value for one in tester.released] == _values(1_000, 2_000, 3_000)


@pytest.mark.promise("order-runner-changes-between")
def test_runners_take_turns_on_one_checkpoint() -> None:
    with LocalTester(_settings(delay="0 s")) as tester:
        for number in range(1, 9):
            tester.runs_here = bool(number % 2)
            tester.restart()
            tester.run(_rows(number * 1_000 + 500, number * 1_000))
        tester.drain()
        every = [number * 1_000 + more for number in range(1, 9) for more in (0, 500)]
        assert [one.value for one in tester.released] == _values(*every)
        commits = sorted(int(one.name) for one in (tester.folder / "spark/commits").iterdir())
        assert commits == [*range(8)]


def test_steps_are_not_made_more_often_than_the_interval_says() -> None:
    """But in a bounded run, which has nothing to wait for."""
    rows = [*_rows(1_000, 2_000, 3_000)]
    settings = _settings(delay="0 s", max_offsets_per_trigger=1, trigger_interval="200 ms")
    with LocalTester(settings) as tester:
        begun_s = time.monotonic()
        tester.run(rows)
        assert time.monotonic() - begun_s >= 0.4
        assert len([*(tester.folder / "spark/commits").iterdir()]) == 3
    with LocalTester(settings | {"trigger_interval": "1 h"}, available_now=True) as tester:
        tester.run(rows)
        assert tester.totals.read == 3


class _Clock:
    """Stands for `time`: `monotonic` goes on by itself, and `process_time` where one computes."""

    def __init__(self) -> None:
        self.now_s, self.used_s = 1_000.0, 50.0

    def monotonic(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.used_s


@pytest.mark.parametrize(
    ("interval", "used_s", "is_behind", "pause_s"),
    [
        (None, 0.0, False, 0.0),
        (None, 0.01, False, 0.04),
        (None, 3.0, False, 0.1),
        (None, 0.01, True, -math.inf),
        (timedelta(0), 3.0, False, 0.0),
        (timedelta(seconds=1), 0.01, False, 1.0),
        (timedelta(seconds=1), 0.01, True, 1.0),
    ],
)
def test_pause_between_steps_follows_from_what_they_cost(
    monkeypatch: pytest.MonkeyPatch,
    interval: timedelta | None,
    used_s: float,
    *,
    is_behind: bool,
    pause_s: float,
) -> None:
    """A job that is up to date takes a quarter of a core; one that is behind does not pause."""
    clock = _Clock()
    monkeypatch.setattr(query, "time", clock)
    pace = Pace(interval)
    assert pace.left_s == -math.inf
    clock.used_s += 9.0
    pace.is_due()
    clock.used_s += used_s  # a batch is read before it begins
    pace.begin(is_behind=is_behind)
    assert pace.left_s == pytest.approx(pause_s)
    clock.now_s += 2.0
    assert pace.left_s < 0


def test_step_that_fails_ends_the_life_and_is_finished_by_the_next() -> None:
    failing = [True]

    def once(_step: object) -> None:
        if failing:
            failing.clear()
            raise RuntimeError("not yet")

    with LocalTester(_settings(delay="0 s"), on_step=once) as tester:
        with pytest.raises(StepFunctionError, match="not yet"):
            tester.run(_rows(1_000, 2_000))
        tester.restart()
        tester.run(_rows(3_000))
        tester.drain()
        assert [one.value for one in tester.released] == _values(1_000, 2_000, 3_000)


@pytest.mark.promise("order-ctrl-sigterm-job")
@pytest.mark.parametrize("document", [*_FILES, *DOCUMENTS])
def test_stop_at_any_moment_ends_behind_the_step_at_work(
    document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is planned is committed, and its rows are out; the next start reads nothing again."""
    stopped: list[str] = []
    with LocalTester(_settings(delay="0 s")) as tester:

        def create(storage: LocalStorage, name: str, *how: Any, **named: Any) -> bool:
            if name.startswith(document) and not stopped:
                stopped.append(name)
                tester.stop.set()
            return written(storage, name, *how, **named)

        written = LocalStorage.create
        monkeypatch.setattr(LocalStorage, "create", create)
        tester.run(_rows(2_000, 1_000))
        assert stopped
        spark = tester.folder / "spark"
        numbers = [
            sorted(one.name for one in (spark / folder).iterdir())
            for folder in ("offsets", "commits")
        ]
        assert numbers[0] == numbers[1]
        out = [one.value for one in tester.released]
        assert out == (_values(1_000, 2_000) if numbers[0] else [])
        tester.restart()
        tester.run(_rows(3_000))
        tester.drain()
        assert [one.value for one in tester.released] == _values(1_000, 2_000, 3_000)
        assert tester.totals.read == 3


@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.parametrize("plans_first", [False, True], ids=["older", "newer"])
def test_driver_that_wakes_up_behind_another_writes_nothing_that_counts(
    monkeypatch: pytest.MonkeyPatch, *, plans_first: bool
) -> None:
    """It was stopped between its look at the owner and its plan; who plans first, counts."""
    monkeypatch.setattr("sequitur.pipelines.store.ownership.refuse_if_owned", lambda *_, **__: None)
    woken: list[str] = []
    with (
        LocalTester(_settings(delay="0 s")) as older,
        older.another(_settings(delay="0 s")) as newer,
    ):
        older.run(_rows(2_000, 1_000))

        def create(storage: LocalStorage, name: str, *how: Any, **named: Any) -> bool:
            if name == "spark/offsets/1" and not woken:
                woken.append(name)
                newer._opened()
                if plans_first:
                    newer.run(_rows(5_000))
            return written(storage, name, *how, **named)

        written = LocalStorage.create
        monkeypatch.setattr(LocalStorage, "create", create)
        with pytest.raises(OwnershipError):
            older.run(_rows(4_000, 3_000))
        assert woken
        newer.run(_rows(6_000))
        newer.drain()
        values = [one.value or b"" for one in newer.released]
        times = [1_000, 2_000, 3_000, 4_000, *([5_000] if plans_first else []), 6_000]
        assert sorted(values) == _values(*times)
        assert newer.totals.read == len(times)


@pytest.mark.promise("order-broker-hangs")
def test_rows_of_other_leaders_come_out_while_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has told of its rows, and does not send them. They are read once it goes on."""
    slow, hanging, told = SourcePartition("readings", 1), set[SourcePartition](), list[str]()
    read, later = local_tester._ListSource.read, ListEnds.later
    ends_of = local_tester._ListTopics.high_watermarks

    def sent(source: Any, spans: Spans, partitions: int, most_bytes: int) -> RowsRead:
        spans = {
            where: (first, first if where in hanging else end)
            for where, (first, end) in spans.items()
        }
        silence = UnansweredError("not all is read") if hanging else None
        return read(source, spans, partitions, most_bytes)._replace(silence=silence)

    def ends(topics: Any, wanted: Any, *, of_some: bool = False) -> dict[SourcePartition, int]:
        assert of_some
        return ends_of(topics, [where for where in wanted if where not in hanging])

    def more(watch: ListEnds, places: Any, wait_s: float) -> dict[SourcePartition, int]:
        if not hanging:
            return later(watch, places, wait_s)
        return later(watch, {one: at for one, at in places.items() if one not in hanging}, wait_s)

    monkeypatch.setattr(local_tester._ListSource, "read", sent)
    monkeypatch.setattr(local_tester._ListTopics, "high_watermarks", ends)
    monkeypatch.setattr(ListEnds, "later", more)
    monkeypatch.setattr(local_tester, "_refuse", told.append)
    with LocalTester(_settings(delay="0 s"), partitions=2) as tester:
        tester.run([*_rows(1_000), *({**row, "partition": 1} for row in _rows(900_000))])
        hanging.add(slow)
        tester.produce({**row, "partition": 1} for row in _rows(900_001))
        for at in (2_000, 3_000):
            tester.run(_rows(at))
        assert [one.value for one in tester.released] == _values(1_000, 2_000, 3_000)
        assert (len(told), tester.totals.read) == (2, 4)
        hanging.clear()
        tester.run()
        tester.drain()
        assert tester.totals.read == 5
        assert (tester.totals.released, tester.totals.late) == (5, 0)


def test_bounded_run_ends_where_the_input_did() -> None:
    with LocalTester(_settings(), available_now=True) as tester:
        tester.run(_rows(1_000, 20_000))
        assert [one.value for one in tester.released] == _values(1_000)
        tester.run()
        assert len(tester.released) == 1


@pytest.mark.promise("order-spark-part-checkpoint", "order-runner-changes-between")
@pytest.mark.parametrize("next_runs_here", [True, False])
def test_after_a_reset_plans_begin_again_where_the_log_ends(*, next_runs_here: bool) -> None:
    """As where `spark/` was lost; what was read before is not read again, by either runner."""
    with LocalTester(_settings(delay="0 s")) as tester:
        tester.run(_rows(2_000, 1_000))
        shutil.rmtree(tester.folder / "spark")
        with pytest.raises(CheckpointError, match="Put it back, or start the job once with"):
            tester.run(_rows(3_000))
        shutil.rmtree(tester.folder / "spark")  # else the tester's start would refuse it, too
        tester.restart()
        assert tester._opened().input.reset(lambda _: False)
        tester.runs_here = next_runs_here
        tester.run(_rows(4_000))
        tester.drain()
        assert [one.value for one in tester.released] == _values(1_000, 2_000, 3_000, 4_000)
        (spark,) = tester.folder.glob("spark*")
        assert spark.name != "spark"
        assert [one.name for one in (spark / "commits").iterdir()] == ["0"]


@pytest.mark.promise("order-local-runner-needs")
def test_topology_gets_the_ordered_rows() -> None:
    """Of a life that dies before its outputs are out they come once, too."""
    with LocalTester(_settings(delay="0 s"), passing_topology()) as tester:
        tester.run(_rows(2_000, 1_000))
        with deadly("done/"), pytest.raises(DiedError):
            tester.run(_rows(4_000, 3_000))
        tester.restart()
        tester.run(_rows(5_000))
        tester.drain()
        found = [one.value for one in tester.released]
        assert found == _values(1_000, 2_000, 3_000, 4_000, 5_000)
