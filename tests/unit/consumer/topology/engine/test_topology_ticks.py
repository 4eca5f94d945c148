"""Ticks and the watermark: what bolts do while no event comes."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    Bolt,
    ProcessSettings,
    Topology,
    TopologyBuilder,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.api.bolt import next_tick_ms, ticks_due, watermark_after
from sequitur.consumer.topology.state import TransactionalState
from sequitur.errors import TopologyBuildError
from tests.support.step_runs import StepRuns, event
from tests.support.transactions import GatherAndPassOn, Journal, Noting, events, store_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Tuple


class Windows(BasicBolt):
    """Counts events by windows of 10 s; a window that the watermark has passed is closed."""

    fields = ("begin_ms", "count")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        """Take an event in; at a tick, close windows."""
        if not tuple.is_tick:
            begin_ms = tuple.event_time_ms // 10_000 * 10_000
            self.counts[begin_ms] = self.counts.get(begin_ms, 0) + 1
            return
        watermark_ms = self.context.watermark_ms
        for begin_ms in sorted(self.counts):
            if watermark_ms is not None and begin_ms + 10_000 <= watermark_ms + 1:
                collector.emit((begin_ms, self.counts.pop(begin_ms)))

    def snapshot(self) -> Any:
        return self.counts

    def restore(self, state: Any) -> None:
        self.counts = state


class Ticks(Bolt):
    """Tells of its ticks."""

    fields = ("said",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple.is_tick:
            self.collector.emit(
                ([tuple.source, tuple.stream, tuple["interval_s"], self.context.now_ms],)
            )
        self.collector.ack(tuple)


@bolt
def refuse_once(given: Any) -> Any:
    """Fail what says so, at its first attempt; and every tick."""
    if given.is_tick or (given["value"] == b"bad" and given.attempt == 1):
        raise ValueError("refused")
    yield given["value"].decode()


def _one(made: Any, tasks: int | None = None, **options: Any) -> Topology:
    builder = TopologyBuilder("ticks")
    builder.set_spout("events")
    builder.set_bolt("work", made, tasks, **options).shuffle_grouping("events")
    builder.set_output("out", key=None, value=None).local_grouping("work")
    return builder.build()


def _said(tester: TopologyTester) -> list[Any]:
    return [json.loads(value or b"")["said"] for _, value in tester.records("out")]


def test_each_task_is_given_a_tick_when_its_time_has_come() -> None:
    """From Storm's component and stream; one for each batch at most, and none with the first."""
    tester = TopologyTester(_one(Ticks(), 2, tick_interval="10 s"))
    tester.advance(25)
    tester.run()
    assert _said(tester) == []
    tester.advance(4)
    tester.run()
    assert _said(tester) == []
    tester.advance(1)
    tester.run()
    assert _said(tester) == [["__system", "__tick", 10.0, 30_000]] * 2
    tester.advance(100)
    tester.run()
    assert len(_said(tester)) == 4


def test_a_topology_says_how_often_its_bolts_are_given_ticks() -> None:
    """But for those that say so themselves."""
    builder = TopologyBuilder("ticks", tick_interval=60)
    builder.set_spout("events")
    builder.set_bolt("slow", Ticks()).local_grouping("events")
    builder.set_bolt("fast", Ticks(), tick_interval="500 ms").local_grouping("events")
    assert builder.build().tick_intervals_ms == {"slow": 60_000, "fast": 500}


@pytest.mark.parametrize("interval", ["often", 0, "0 s", -1, True])
def test_an_interval_that_is_none_is_refused(interval: Any) -> None:
    with pytest.raises(TopologyBuildError, match="bolt 'work': tick_interval = "):
        _one(Ticks(), tick_interval=interval)


@pytest.mark.promise("process-event-comes")
def test_windows_close_in_silence() -> None:
    """No event is needed for it: the watermark goes on, and a tick tells the bolt."""
    tester = TopologyTester(_one(Windows(), tick_interval=1))
    tester.run([("k", "a", 1_000), ("k", "b", 2_000), ("k", "c", 12_000)])
    tester.advance(1)
    tester.run()
    assert tester.records("out") == [(None, b'{"begin_ms":0,"count":2}')]
    tester.run(watermark_ms=19_999)
    tester.advance(1)
    tester.run()
    assert tester.records("out")[1:] == [(None, b'{"begin_ms":10000,"count":1}')]


@pytest.mark.promise("process-event-waits-attempt")
def test_the_watermark_waits_for_events_that_are_tried_again() -> None:
    """An event that failed will come with its time, and no window is to be closed before it."""
    builder = TopologyBuilder("ticks")
    builder.set_spout("events")
    builder.set_bolt("check", refuse_once).local_grouping("events")
    builder.set_bolt("count", Windows(), tick_interval=1).local_grouping("check")
    builder.set_output("out", key=None, value="count").local_grouping("count")
    tester = TopologyTester(builder.build(), ProcessSettings(retry_jitter=0))
    tester.run([("a", "good", 1_000), ("b", "bad", 2_000), ("c", "good", 30_000)])
    assert tester.watermark_ms == 1_999
    tester.retry_all()
    assert tester.watermark_ms == 30_000
    tester.advance(1)
    tester.run()
    assert tester.records("out") == [(None, b"2")]


@pytest.mark.promise("process-bolt-raises-tick")
def test_a_tick_that_a_bolt_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each time of two: nobody waits for it, so nobody else would hear of it."""
    tester = TopologyTester(_one(refuse_once, tick_interval=1))
    tester.run()
    tester.advance(1)
    tester.run([("k", "v")])
    assert tester.untracked_failures == 2
    assert len(tester.acked) == 1
    assert [one.name for one in caplog.records] == ["sequitur.topology.ticks.work.0"] * 2
    assert all("ValueError: refused" in one.getMessage() for one in caplog.records)


@pytest.mark.promise("process-event-comes")
@pytest.mark.parametrize("tasks", [None, 2], ids=["one stage", "several"])
def test_a_step_that_is_repeated_has_the_same_ticks(tmp_path: Path, tasks: int | None) -> None:
    """Each task once, whatever the waves; and what comes of it has the watermark for its time."""
    found = []
    for folder in ("first", "again"):
        runs = StepRuns(
            _one(Ticks(), tasks, tick_interval=1),
            tmp_path / folder,
            ProcessSettings(max_spout_pending=1),
            ticks={"work": 1_000},
            watermark_ms=7,
        )
        runs.step([event(8), event(9)])
        found.append(runs.records("out"))
        assert runs.counts["acked"] == 2
        assert runs.counts["emitted"] == runs.counts["outputs"] == (tasks or 1)
    assert found[0] == found[1]


def test_when_ticks_are_due() -> None:
    """At multiples of the interval, however late; never of the first batch."""
    assert ticks_due({"a": 10, "b": 25}, None, 100) == {}
    assert ticks_due({"a": 10, "b": 25}, 49, 50) == {"a": 10, "b": 25}
    assert ticks_due({"a": 10, "b": 25}, 50, 69) == {"a": 10}
    assert ticks_due({"a": 10, "b": 25}, 50, 59) == {}
    assert ticks_due({"a": 10}, 50, 20) == {}
    assert next_tick_ms({"a": 10, "b": 25}, 50) == 60
    assert next_tick_ms({"a": 10}, None) is None
    assert next_tick_ms({}, 50) is None


def test_the_watermark_never_goes_back() -> None:
    assert watermark_after(None, None, None) is None
    assert watermark_after(None, 10, None) == 10
    assert watermark_after(5, 10, 8) == 7
    assert watermark_after(9, 10, 8) == 9


class DiesOfTicks(Bolt):
    """Acks events; a tick ends its process."""

    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple.is_tick:
            raise KeyboardInterrupt
        self.collector.emit((tuple["key"], tuple["value"]), tuple)
        self.collector.ack(tuple)


@pytest.mark.promise("process-tick-kills-process")
@pytest.mark.parametrize("tasks", [None, 2], ids=["one stage", "several"])
def test_a_tick_that_kills_its_process_is_given_up_by_name(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    tasks: int | None,
) -> None:
    """In each step anew; events go on, and so do the ticks of other bolts."""
    builder = TopologyBuilder("dies")
    builder.set_spout("events")
    for name, made in (("before", Ticks()), ("dies", DiesOfTicks()), ("behind", Ticks())):
        builder.set_bolt(name, made, tasks, tick_interval=10).shuffle_grouping("events")
    builder.set_output("out").local_grouping("dies")
    for name in ("before", "behind"):
        builder.set_output(f"ticks of {name}", key=None, value="said").local_grouping(name)
    ticks = dict.fromkeys(("before", "dies", "behind"), 10_000)
    runs = StepRuns(builder.build(), tmp_path, ticks=ticks)
    for number in range(2):
        runs.step([event(number, b"%d" % number, key=b"k")])
    assert runs.records("out") == [(b"k", b"0"), (b"k", b"1")]
    each = 2 * (tasks or 1)
    assert len(runs.records("ticks of before")) == len(runs.records("ticks of behind")) == each
    assert (runs.counts["acked"], runs.counts["untracked_failures"]) == (2, each)
    told = {one.name for one in caplog.records if "a tick was not processed" in one.getMessage()}
    assert told == {f"sequitur.topology.dies.dies.{task}" for task in range(tasks or 1)}
    assert runs.counts["crashes"] > 0


_refused: list[int] = []


@pytest.fixture(autouse=True)
def refused() -> Iterator[list[int]]:
    """How many calls are to be refused yet, behind the first value that is emitted."""
    _refused[:] = [0]
    yield _refused
    _refused.clear()


class Gathering(BasicBolt):
    """Emits and forgets at a tick what it was given; between two of these it may raise."""

    fields = ("value",)

    def __init__(self) -> None:
        self.values: list[str] = []

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        if not tuple.is_tick:
            self.values.append(tuple["value"].decode())
            return
        while self.values:
            collector.emit((self.values.pop(0),))
            if _refused[0]:
                _refused[0] -= 1
                raise ConnectionError("503")

    def snapshot(self) -> Any:
        return self.values

    def restore(self, state: Any) -> None:
        self.values = state


class Seen(BasicBolt):
    """Passes on what it is given, with its number."""

    fields = ("value",)
    count = 0

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        self.count += 1
        collector.emit((f"{self.count}.{tuple['value']}",))


def _topology(*, tasks: int | None, concurrency: int = 1) -> Topology:
    builder = TopologyBuilder("windows")
    builder.set_spout("events")
    made = builder.set_bolt("windows", Gathering(), tick_interval="1 s", concurrency=concurrency)
    made.local_grouping("events")
    builder.set_bolt("seen", Seen(), tasks).global_grouping("windows")
    builder.set_output("out", key=None, value="value").local_grouping("seen")
    builder.set_output("raw", key=None, value="value").local_grouping("windows")
    return builder.build()


def _values(records: list[tuple[bytes | None, bytes | None]]) -> list[str]:
    return [(value or b"").decode() for _, value in records]


@pytest.mark.promise("process-bolt-raises-tick")
@pytest.mark.parametrize("tasks", [None, 2])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_refused_tick_loses_and_repeats_nothing(
    tasks: int | None, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is repeated at once, as the batch began; what the second call does counts."""
    tester = TopologyTester(_topology(tasks=tasks), partitions=1)
    tester.run([("k", value) for value in "abc"])
    _refused[0] = times
    tester.advance(2)
    with caplog.at_level(logging.ERROR, "sequitur.topology.windows.windows.0"):
        tester.run([("k", "d")])
    assert caplog.text.count("a tick failed") == min(times, 2)
    assert tester.untracked_failures == min(times, 2)
    assert _values(tester.records("raw")) == (list("abc") if times == 1 else ["a"])
    tester.advance(2)
    tester.run()
    assert _refused == [0]
    assert _values(tester.records("raw")) == list("abcd")
    assert _values(tester.records("out")) == ["1.a", "2.b", "3.c", "4.d"]


@pytest.mark.promise("process-bolt-raises-tick")
@pytest.mark.parametrize(("tasks", "concurrency"), [(None, 1), (2, 1), (2, 4)])
def test_a_job_repeats_a_refused_tick(tasks: int | None, concurrency: int, tmp_path: Path) -> None:
    """By its files, and where calls run side by side."""
    topology = _topology(tasks=tasks, concurrency=concurrency)
    runs = StepRuns(topology, tmp_path, life="one")
    runs.step([event(at, b"v%d" % at, key=b"k") for at in range(3)])
    _refused[0] = 1
    runs.ticks = {"windows": 1_000}
    runs.step([event(3, b"v3", key=b"k")])
    assert _refused == [0]
    assert _values(runs.records("raw")) == ["v0", "v1", "v2"]
    assert _values(runs.records("out")) == ["1.v0", "2.v1", "3.v2"]
    runs.step()
    assert _values(runs.records("raw")) == ["v0", "v1", "v2", "v3"]


class AtTicks(Noting):
    """Behind a committer: emits at a tick, and may raise then."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if tuple.is_tick:
            self.pass_on("tick")
            self.journal.pass_through("tick")


@pytest.mark.promise("process-bolt-raises-tick")
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_refused_tick_of_a_commit_puts_nothing_out(times: int, tmp_path: Path) -> None:
    """What a commit adds to a step is left out as the rest of the step is."""
    journal = Journal()
    journal.faults["tick"] = [ConnectionError("503")] * times
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder = TransactionalTopologyBuilder("ticks", "spout")
    builder.set_bolt("sum", GatherAndPassOn(journal), states=states).global_grouping("spout")
    made = builder.set_bolt("after", AtTicks(journal), tick_interval="1 s")
    made.global_grouping("sum")
    builder.set_output("out", key=None, value="value").local_grouping("after")
    # Its processing phase is a rehearsal, in which each tick is given as well.
    journal.faults["tick"] = [None, *journal.faults["tick"]]
    tester = TransactionTester(builder.build())
    tester.run(events("a"))
    tester.advance(2)
    tester.run(events("b"))
    assert journal.faults["tick"] == []
    assert _values(tester.records("out")) == ["tick"]
