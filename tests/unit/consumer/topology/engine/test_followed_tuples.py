"""What a call yields is followed through further bolts before the call is over."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    EventValues,
    FailReason,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine import concurrency, executor
from sequitur.consumer.topology.engine.plan import Placement, Rules, random_ids
from sequitur.consumer.topology.settling.root import Root
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import BasicOutputCollector, Event, Tuple

_MANY = 20_000
_FEW = 300
_made: list[int] = []
_seen: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    _made.clear()
    _seen.clear()


@bolt
def count_up(event: Event) -> Iterator[tuple[int]]:
    del event
    for number in range(_MANY):
        _made.append(number)
        yield (number,)


@bolt(fields=())
def look(given: Tuple) -> None:
    """Note how far ahead the call is by then, and which one this is."""
    _seen.append((_made[-1] - given["value"], given["value"]))


@pytest.mark.promise("process-call-yields-end")
def test_few_wait_of_what_a_call_yields() -> None:
    """However many there are: they come in order, and as many as were yielded."""
    builder = TopologyBuilder("followed")
    builder.set_spout("events")
    builder.set_bolt("count", count_up).local_grouping("events")
    builder.set_bolt("look", look).local_grouping("count")
    tester = TopologyTester(builder.build())
    tester.run([("k", "v")])
    assert [value for _, value in _seen] == list(range(_MANY))
    assert 0 < max(ahead for ahead, _ in _seen) < 200
    assert len(tester.acked) == 1


@bolt(fields=("source", "value"))
def twice(event: Event) -> Iterator[tuple[str, int]]:
    """Yield two, so that one waits while the other is processed."""
    del event
    yield "twice", 0
    yield "twice", 1


class Numbers(BasicBolt):
    """Emits a few numbers of each tuple, by `yield`."""

    fields = ("source", "value")

    def process(self, given: Tuple, collector: BasicOutputCollector) -> Any:
        del collector
        for number in range(_FEW):
            yield f"{self.context.component} {given['value']}", number


@bolt(fields=())
def note(given: Tuple) -> None:
    _seen.append((given["source"], given["value"]))


@pytest.mark.promise("process-call-yields-end")
@pytest.mark.parametrize("deepest", [0, 1, 16])
def test_tuples_of_a_task_stay_in_order(monkeypatch: pytest.MonkeyPatch, deepest: int) -> None:
    """Over several bolts that yield many, also where a task reads two of them."""
    monkeypatch.setattr(executor, "_DEEPEST", deepest)
    builder = TopologyBuilder("ordered")
    builder.set_spout("events")
    builder.set_bolt("twice", twice).local_grouping("events")
    builder.set_bolt("first", Numbers()).local_grouping("twice")
    builder.set_bolt("second", Numbers()).local_grouping("twice")
    noted = builder.set_bolt("note", note)
    for source in ("twice", "first", "second"):
        noted.local_grouping(source)
    tester = TopologyTester(builder.build())
    tester.run([("k", "v")])
    assert len(tester.acked) == 1
    for source in ("first 0", "first 1", "second 0", "second 1"):
        assert [value for name, value in _seen if name == source] == list(range(_FEW))
    for component in ("first", "second"):
        of_it = [name for name, _ in _seen if name.startswith(component)]
        assert of_it == sorted(of_it)  # no call has begun in the middle of another


@bolt(fields=("value",))
def explode(event: Event) -> Iterator[tuple[int]]:
    del event
    for number in itertools.count():
        yield (number,)


def _run_concurrently(made: Any, rules: Rules) -> tuple[Root, list[Any]]:
    """Give one event to a bolt whose calls run side by side; return its root, and the records."""
    builder = TopologyBuilder("concurrent")
    builder.set_spout("events")
    builder.set_bolt("made", made, concurrency=2).local_grouping("events")
    builder.set_output("out", key=None, value="value").local_grouping("made")
    records: list[Any] = []
    tasks = dict.fromkeys(("events", "made", "out"), 1)
    runs = executor.Executor(
        builder.build(),
        Placement(tasks, dict.fromkeys(tasks, (0,))),
        rules,
        clock=time.monotonic,
        next_id=random_ids(0),
        write=lambda _name, record: records.append(record),
    )
    root = Root(1, EventValues(b"k", b"v", (), 0, "t", 0, 0, 0))
    runs.feed(root, root.event)
    runs.finish()
    runs.close()
    return root, records


@pytest.mark.promise("process-call-yields-end")
def test_a_concurrent_call_without_end_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it emits is kept until it is over, so there is a limit."""
    monkeypatch.setattr(concurrency, "_NOTED_MOST", 1_000)
    root, records = _run_concurrently(explode, Rules())
    assert root.failure is not None
    assert root.failure.reason is FailReason.EXCEPTION
    assert "bolt 'made' emitted 1000 tuples in one call, and still emits" in root.failure.detail
    assert records == []


@bolt(fields=("value",))
def trickle(event: Event) -> Iterator[tuple[int]]:
    """Yield without end, slowly."""
    del event
    while True:
        time.sleep(0.001)
        yield (0,)


@pytest.mark.promise("process-call-yields-end")
def test_a_concurrent_call_that_is_given_up_yields_no_more() -> None:
    """Its thread ends, and keeps nothing more of what it emits."""
    root, records = _run_concurrently(trickle, Rules(call_timeout_s=0.1))
    assert root.failure is not None
    assert root.failure.reason is FailReason.TIMEOUT
    for thread in threading.enumerate():
        if thread.name == "bolt made":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert records == []
