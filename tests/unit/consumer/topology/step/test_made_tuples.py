"""What bolts emit at ticks and at ends of batches is tried again, in order, until it is done."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    AckedEvent,
    BaseTransactionalBolt,
    BasicBolt,
    Bolt,
    Committer,
    EventHook,
    FailedEvent,
    FailReason,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.settling.root import MadeTuple, is_made, readable
from sequitur.consumer.topology.state import TransactionalState
from tests.support.step_runs import StepRuns, event
from tests.support.transactions import store_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Topology, Tuple

_plan: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def plan() -> Iterator[dict[str, Any]]:
    """Which numbers fail, in how many attempts; and what was called."""
    _plan.clear()
    _plan.update(fails={}, seen=[], dies=set())
    yield _plan
    _plan.clear()


class Numbers(BasicBolt):
    """Emits the next of its numbers at each tick, and forgets them at once."""

    fields = ("task", "number")
    each = 2

    def __init__(self) -> None:
        self.next = 0

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        if tuple.is_tick:
            for _ in range(self.each):
                self._make(collector)

    def _make(self, collector: Any) -> None:
        self.next += 1
        collector.emit((self.context.task, self.next))

    def snapshot(self) -> int:
        return self.next

    def restore(self, state: int) -> None:
        self.next = state


class NumbersAtTheEnd(Numbers):
    """Likewise at the end of each batch in which it was given something."""

    is_given = False

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        del collector
        self.is_given |= not tuple.is_tick

    def finish_batch(self) -> None:
        if self.is_given:
            self.is_given = False
            for _ in range(self.each):
                self._make(self.collector)
            if _plan.get("raises"):
                _plan["raises"] -= 1
                raise ConnectionError("no end")


class Post(Bolt):
    """Passes numbers on, but those that fail."""

    fields = ("task", "number")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        task, number = tuple.values
        _plan["seen"].append((task, number, tuple.attempt, tuple.event_key, tuple.place))
        if number in _plan["dies"]:
            raise KeyboardInterrupt
        if tuple.attempt <= _plan["fails"].get(number, 0):
            raise ConnectionError("503")
        self.collector.emit((task, number), tuple)
        self.collector.ack(tuple)


def _topology(
    made: BasicBolt,
    *,
    tasks: int | None = None,
    hook: Any = None,
    behind: int | None = None,
) -> Topology:
    """Return one in which so many tasks make numbers in a stage behind the first; None for there.

    Likewise so many pass them on in a stage behind that.
    """
    builder = TopologyBuilder("numbers")
    builder.set_spout("events")
    numbers = builder.set_bolt("numbers", made, behind, tick_interval="1 s")
    numbers.local_grouping("events") if behind is None else numbers.shuffle_grouping("events")
    post = builder.set_bolt("post", Post(), tasks)
    post.local_grouping("numbers") if tasks is None else post.fields_grouping("numbers", "task")
    builder.set_output("out", key=None, value="number").local_grouping("post")
    if hook is not None:
        builder.set_hook(hook)
    return builder.build()


_SETTINGS = ProcessSettings.model_validate(
    {"retry_jitter": 0, "retry_delay": "100 ms", "max_attempts": 3}
)
_EVERYWHERE = pytest.mark.parametrize("tasks", [None, 2], ids=["one stage", "several"])
_BEHIND = pytest.mark.parametrize("behind", [None, 2], ids=["first", "later"])
_MADE = pytest.mark.parametrize("made", [Numbers(), NumbersAtTheEnd()], ids=["ticks", "ends"])


def _out(tester: TopologyTester) -> list[int]:
    return [int(value or b"") for _, value in tester.records("out")]


def _ticked(tester: TopologyTester, steps: int = 1) -> None:
    for _ in range(steps):
        tester.advance(2)
        tester.run([("k", "v")])


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
@_MADE
def test_what_fails_behind_a_tick_or_an_end_is_tried_again(
    made: BasicBolt, tasks: int | None
) -> None:
    """From what is kept, though the bolt has forgotten it; and no event waits for it."""
    _plan["fails"] = {1: 2, 2: 1}
    tester = TopologyTester(_topology(made, tasks=tasks), _SETTINGS)
    tester.run()
    _ticked(tester)
    assert (len(tester.acked), _out(tester), tester.made, tester.made_acked) == (1, [], 2, 0)
    assert [(one.topic, one.key, one.value) for one in (*tester.failed, *tester.held)] == [
        ("numbers/0", b"numbers/0", b'{"task":0,"number":%d}' % number) for number in (1, 2)
    ]
    tester.retry_all()
    assert _out(tester) == [1, 2]
    assert (tester.made, tester.made_acked, tester.untracked_failures) == (2, 2, 0)
    assert [seen[2] for seen in _plan["seen"] if seen[1] == 1] == [1, 2, 3]
    assert {seen[3] for seen in _plan["seen"]} == {None}
    assert len({(seen[1], seen[4]) for seen in _plan["seen"]}) == 2
    assert {seen[4].topic for seen in _plan["seen"]} == {"numbers/0"}


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
@_BEHIND
@_MADE
def test_what_one_task_makes_keeps_its_order(
    made: BasicBolt, tasks: int | None, behind: int | None
) -> None:
    """Over steps: what is made meanwhile waits for what was made before; other tasks go on."""
    _plan["fails"] = {2: 2, 5: 1}
    topology = _topology(made, tasks=tasks, behind=behind)
    tester = TopologyTester(topology, _SETTINGS, partitions=2)
    tester.run()
    for _ in range(4):
        tester.advance(0.99)
        tester.run([(key, "v") for key in "abcdef"])
    tester.retry_all()
    written = [seen for seen in _plan["seen"] if seen[2] > _plan["fails"].get(seen[1], 0)]
    assert sorted(_out(tester)) == sorted(list(range(1, _most(written) + 1)) * 2)
    for task in (0, 1):
        numbers = [number for by, number, *_ in written if by == task]
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    assert tester.made == tester.made_acked == 2 * _most(written)


def _most(seen: list[Any]) -> int:
    return max(int(number) for _, number, *_ in seen)


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
@pytest.mark.parametrize("behind", [None, 1], ids=["first", "later"])
def test_what_is_held_is_not_seen_before_what_it_waits_for(
    tasks: int | None, behind: int | None
) -> None:
    """One task's numbers come to the next bolt in their order, repeats aside."""
    _plan["fails"] = {1: 2}
    tester = TopologyTester(_topology(Numbers(), tasks=tasks, behind=behind), _SETTINGS)
    tester.run()
    _ticked(tester)
    tester.advance(0.05)
    seen = len(_plan["seen"])
    tester.advance(1)
    tester.run()  # 1 is due, and fails again; 3 and 4 are made
    assert [number for _, number, *_ in _plan["seen"][seen:]] == [1]
    tester.retry_all()
    assert _out(tester) == [1, 2, 3, 4]


class NumbersAtBoth(NumbersAtTheEnd):
    """Makes some at each tick, too."""

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        super().process(tuple, collector)
        if tuple.is_tick:
            self._make(collector)


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
@pytest.mark.parametrize("made", [NumbersAtTheEnd(), NumbersAtBoth()], ids=["ends", "both"])
def test_what_is_made_of_older_events_stands_behind_what_was_made_before(
    tmp_path: Path, made: NumbersAtTheEnd, tasks: int | None
) -> None:
    """One task has one order, whatever the time of an event that is tried again or of a tick."""
    _plan["fails"] = {1: 1}
    runs = _ticking(StepRuns(_topology(made, tasks=tasks), tmp_path, _SETTINGS))
    runs.step([event(10)])
    assert runs.counts["made_acked"] < runs.counts["made"]
    runs.watermark_ms = 20
    runs.step([event(5)])
    runs.ticks = {}
    runs.to_the_end()
    assert _written(runs) == list(range(1, runs.counts["made"] + 1))
    assert runs.counts["made_acked"] == runs.counts["made"] >= 4


@pytest.mark.promise("process-bolt-fails-behind")
@pytest.mark.parametrize("behind", [None, 1], ids=["first", "later"])
def test_one_task_has_one_order_in_all_waves(tmp_path: Path, behind: int | None) -> None:
    """Though the tick before them had the time of the batch, and the ends have those of events."""
    settings = _SETTINGS.model_copy(update={"max_spout_pending": 1})
    topology = _topology(NumbersAtBoth(), tasks=2, behind=behind)
    runs = _ticking(StepRuns(topology, tmp_path, settings, partitions=1 if behind is None else 2))
    runs.step([event(10), event(11), event(12)])
    assert _written(runs) == list(range(1, 8))


@pytest.mark.promise("process-bolt-fails-behind")
@pytest.mark.parametrize("most", [None, 1], ids=["at once", "in waves"])
@pytest.mark.parametrize("behind", [None, 2], ids=["one stage", "several"])
@pytest.mark.parametrize("ackers", [1, 0])
def test_what_is_written_at_once_stands_in_its_tasks_order(
    tmp_path: Path, behind: int | None, most: int | None, ackers: int
) -> None:
    """Nothing can fail behind it, and what a tick makes may have a later time than an end."""
    builder = TopologyBuilder("numbers")
    builder.set_spout("events")
    numbers = builder.set_bolt("numbers", NumbersAtBoth(), behind, tick_interval="1 s")
    numbers.local_grouping("events") if behind is None else numbers.fields_grouping("events", "key")
    builder.set_output("out", key="task", value="number").local_grouping("numbers")
    settings = _SETTINGS.model_copy(update={"max_spout_pending": most, "ackers": ackers})
    runs = _ticking(StepRuns(builder.build(), tmp_path, settings))
    runs.watermark_ms = 20
    runs.step([event(5), event(6), event(7)])
    runs.step([event(4), event(8)])
    for task in (b"0", b"1"):
        numbers_of = [int(value or b"") for key, value in runs.records("out") if key == task]
        assert numbers_of == list(range(1, len(numbers_of) + 1))
    assert len(_written(runs)) >= 6


@bolt(fields=("number",))
def pass_far(given: Tuple) -> Iterator[Any]:
    """Note what comes so far."""
    _plan.setdefault("far", []).append(given["number"])
    yield given["number"]


@pytest.mark.promise("process-bolt-fails-behind")
def test_what_waits_already_is_sent_to_no_other_stage() -> None:
    """A reader beside it has failed an earlier one by then."""
    _plan["fails"] = {1: 1}
    builder = TopologyBuilder("beside")
    builder.set_spout("events")
    numbers = builder.set_bolt("numbers", NumbersAtBoth(), tick_interval="1 s")
    numbers.local_grouping("events")
    builder.set_bolt("near", Post()).local_grouping("numbers")
    builder.set_bolt("far", pass_far, 2).fields_grouping("numbers", "task")
    builder.set_output("out", key=None, value="number").local_grouping("far")
    tester = TopologyTester(builder.build(), _SETTINGS)
    tester.run()
    _ticked(tester)
    assert tester.made == 3
    assert _plan["far"] == [1]
    tester.retry_all()
    assert _out(tester) == [1, 2, 3]


class PostLate(Post):
    """Fails the first number when an event comes, or the third one."""

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.held: list[Tuple] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple.source == "events" or tuple["number"] == 3:
            while self.held:
                self.collector.fail(self.held.pop())
        if tuple.source == "events":
            self.collector.ack(tuple)
        elif tuple["number"] == tuple.attempt == 1:
            self.held.append(tuple)
        else:
            super().process(tuple)


@pytest.mark.promise("process-bolt-fails-behind")
@pytest.mark.parametrize("each", [2, 3])
@pytest.mark.parametrize("kind", [Numbers, NumbersAtTheEnd])
def test_what_is_done_waits_for_an_earlier_one_that_fails_late(
    kind: type[Numbers], each: int
) -> None:
    made = kind()
    made.each = each
    builder = TopologyBuilder("late")
    builder.set_spout("events")
    builder.set_bolt("numbers", made, tick_interval="1 s").local_grouping("events")
    builder.set_bolt("post", PostLate()).local_grouping("numbers").local_grouping("events")
    builder.set_output("out", key=None, value="number").local_grouping("post")
    tester = TopologyTester(builder.build(), _SETTINGS)
    tester.run()
    _ticked(tester, 2)
    tester.retry_all()
    assert _out(tester) == list(range(1, 2 * each + 1))
    assert tester.made == tester.made_acked == 2 * each


class Doubtful(Numbers):
    """Yields its numbers, and then raises as often as is planned."""

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> Iterator[Any]:  # type: ignore[override]  # noqa: A002
        del collector
        for _ in range(self.each if tuple.is_tick else 0):
            self.next += 1
            yield self.context.task, self.next
        if tuple.is_tick and _plan["raises"]:
            _plan["raises"] -= 1
            raise ConnectionError("no tick")


class Beside(Post):
    """Notes whose tuples come to which task."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        _plan.setdefault("beside", set()).add((self.context.task, tuple["task"]))
        super().process(tuple)


@_EVERYWHERE
@pytest.mark.parametrize("most", [None, 1], ids=["at once", "in waves"])
def test_what_a_repeated_tick_made_counts_once(
    tmp_path: Path, *, tasks: int | None, most: int | None
) -> None:
    """In outputs beside its readers, too, and though events are not tracked."""
    _plan.update(raises=1, fails={1: 2})
    builder = TopologyBuilder("doubtful")
    builder.set_spout("events", tracked=False)
    made = Doubtful()
    made.each = 100
    builder.set_bolt("numbers", made, tick_interval="1 s").local_grouping("events")
    builder.set_bolt("near", Beside()).local_grouping("numbers")
    post = builder.set_bolt("post", Post(), tasks)
    post.local_grouping("numbers") if tasks is None else post.fields_grouping("numbers", "task")
    for name, source in (("out", "post"), ("beside", "numbers")):
        builder.set_output(name, key="task", value="number").local_grouping(source)
    settings = _SETTINGS.model_copy(update={"max_spout_pending": most})
    runs = _ticking(StepRuns(builder.build(), tmp_path, settings, partitions=2))
    runs.step([event(at, partition=at % 2) for at in range(4)])
    assert _plan["raises"] == 0
    assert runs.counts["made"] == runs.counts["made_waiting"] == len(runs.pending()) == 200
    runs.ticks = {}
    runs.to_the_end()
    assert runs.counts["made_acked"] == 200
    numbers = sorted((b"%d" % by, b"%d" % number) for by in (0, 1) for number in range(1, 101))
    assert sorted(runs.records("out")) == sorted(runs.records("beside")) == numbers
    assert _plan["beside"] == {(0, 0), (1, 1)}


class DoubtfulWriter(Bolt):
    """Writes a number at each tick without an anchor, and raises as often as is planned."""

    fields = ("number",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple.is_tick:
            self.collector.emit((1,))
            if _plan["raises"]:
                _plan["raises"] -= 1
                raise ConnectionError("no tick")
        self.collector.ack(tuple)


@pytest.mark.promise("process-bolt-fails-behind")
def test_what_a_repeated_tick_wrote_counts_once(tmp_path: Path) -> None:
    """Without an anchor, and with no reader but the output."""
    _plan["raises"] = 1
    builder = TopologyBuilder("doubtful")
    builder.set_spout("events")
    builder.set_bolt("numbers", DoubtfulWriter(), tick_interval="1 s").local_grouping("events")
    builder.set_output("out", key=None, value="number").local_grouping("numbers")
    runs = _ticking(StepRuns(builder.build(), tmp_path, _SETTINGS))
    runs.step([event(1)])
    assert (_written(runs), _plan["raises"]) == ([1], 0)


class MakesAndRaises(NumbersAtTheEnd):
    """Makes some in the first end of a batch alone, and raises then."""

    def finish_batch(self) -> None:
        if _plan.get("raises"):
            super().finish_batch()


@pytest.mark.promise("process-bolt-fails-behind")
def test_no_place_is_given_twice_in_a_step(tmp_path: Path) -> None:
    """Nor an earlier one than before, whatever was made in a wave, and counts for nothing."""
    _plan.update(raises=1, fails={1: 9, 2: 9})
    settings = _SETTINGS.model_copy(update={"max_spout_pending": 1, "max_attempts": 1})
    builder = TopologyBuilder("numbers")
    builder.set_spout("events")
    numbers = NumbersAtTheEnd()
    numbers.each = 1
    raising = MakesAndRaises()
    raising.each = 1
    for name, made in (("raises", raising), ("numbers", numbers)):
        builder.set_bolt(name, made).local_grouping("events")
        builder.set_bolt(f"post {name}", Post(), 2).fields_grouping(name, "task")
        builder.set_output(f"out of {name}", key=None, value="number").local_grouping(
            f"post {name}"
        )
    runs = StepRuns(builder.build(), tmp_path, settings)
    runs.step([event(10), event(11)])
    places = [
        headers["sequitur-source-offset"]
        for headers in runs.dead_headers()
        if headers["sequitur-source-topic"] == b"numbers/0"
    ]
    assert len(places) == len(set(places)) == 2
    assert _plan["raises"] == 0


class Heard(EventHook):
    """What a hook is told of."""

    def on_ack(self, done: AckedEvent, /) -> None:
        _plan.setdefault("told", []).append(done.event.topic)

    def on_fail(self, failed: FailedEvent, /) -> None:
        _plan.setdefault("told", []).append(failed.event.topic)


@_EVERYWHERE
def test_neither_hook_nor_watermark_knows_of_what_is_made(tasks: int | None) -> None:
    _plan["fails"] = {1: 9}
    topology = _topology(Numbers(), tasks=tasks, hook=Heard())
    tester = TopologyTester(topology, _SETTINGS)
    tester.run([("k", "v", 10)])
    _ticked(tester)
    tester.run([("k", "v", 9_000)])
    assert tester.failed
    assert tester.watermark_ms == 9_000
    tester.retry_all()
    assert set(_plan["told"]) == {"events"}
    verdicts = [tree.verdict for tree in tester.trees if is_made(tree.event)]
    assert {"held", "failed (exception), dead-lettered", "acked"} <= set(verdicts)


@_EVERYWHERE
@pytest.mark.parametrize("attempts", [1, 3])
def test_what_fails_as_often_as_it_may_is_a_dead_letter(tasks: int | None, attempts: int) -> None:
    """With its bolt and its values; then the next one goes on."""
    _plan["fails"] = {1: 9}
    settings = _SETTINGS.model_copy(update={"max_attempts": attempts})
    tester = TopologyTester(_topology(Numbers(), tasks=tasks), settings)
    tester.run()
    _ticked(tester)
    tester.retry_all()
    (letter,) = tester.dead_letters
    assert (letter.event.topic, letter.event.value) == ("numbers/0", b'{"task":0,"number":1}')
    assert (letter.attempts, letter.reason) == (attempts, FailReason.EXCEPTION)
    assert letter.path == ("numbers", "post")
    assert _out(tester) == [2]
    assert (tester.made, tester.made_acked) == (2, 1)


@_EVERYWHERE
def test_what_an_end_made_that_raised_counts_for_nothing(tasks: int | None) -> None:
    """It is made again, as its events are tried again; nothing of the first time goes out."""
    _plan["raises"] = 1
    tester = TopologyTester(_topology(NumbersAtTheEnd(), tasks=tasks), _SETTINGS)
    tester.run([("k", "v")])
    assert (tester.made, _out(tester), len(tester.failed)) == (0, [], 1)
    tester.retry_all()
    assert (tester.made, tester.made_acked, len(tester.acked)) == (2, 2, 1)
    assert len(_out(tester)) == 2


@_EVERYWHERE
def test_without_ackers_what_fails_is_only_counted(tasks: int | None) -> None:
    _plan["fails"] = {1: 9}
    settings = _SETTINGS.model_copy(update={"ackers": 0})
    tester = TopologyTester(_topology(Numbers(), tasks=tasks), settings)
    tester.run()
    _ticked(tester)
    assert (_out(tester), tester.made, tester.untracked_failures) == ([2], 0, 1)


class Directs(Numbers):
    """Emits to a direct stream, from which values do not come back."""

    streams: Any = {"to": ("number",), "odd": ("value",)}  # noqa: RUF012 - as users write it
    direct_streams = ("to",)

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        if tuple.is_tick:
            if _plan.get("odd"):
                collector.emit((lambda: None,), stream="odd")
            collector.emit((1,), stream="to", task=1)


@bolt(fields=("number",))
def receive(given: Tuple) -> Iterator[Any]:
    """Fail the first time; tell the stream."""
    _plan["seen"].append((given.source, given.stream, given.attempt))
    if given.attempt <= _plan["fails"].get(1, 0):
        raise ConnectionError("503")
    yield given["number"]


def _direct_topology(*, has_stream: bool = True) -> Topology:
    builder = TopologyBuilder("direct")
    builder.set_spout("events")
    made = Directs() if has_stream else Numbers()
    builder.set_bolt("numbers", made, tick_interval="1 s").local_grouping("events")
    if has_stream:
        receiver = builder.set_bolt("receive", receive, 2)
        receiver.direct_grouping("numbers", "to")
        builder.set_output("out", key=None, value="number").local_grouping("receive")
        builder.set_bolt("strange", receive).local_grouping("numbers", "odd")
    else:
        builder.set_output("out", key=None, value="number").local_grouping("numbers")
    return builder.build()


def test_a_tuple_for_one_task_goes_there_again() -> None:
    _plan["fails"] = {1: 1}
    tester = TopologyTester(_direct_topology(), _SETTINGS)
    tester.run()
    _ticked(tester)
    tester.retry_all()
    assert _out(tester) == [1]
    assert _plan["seen"] == [("numbers", "to", 1), ("numbers", "to", 2)]


def test_what_cannot_be_kept_is_told_by_name(caplog: pytest.LogCaptureFixture) -> None:
    _plan["odd"] = True
    tester = TopologyTester(_direct_topology(), _SETTINGS)
    tester.run()
    _ticked(tester)
    assert "bolt 'numbers' emitted a value that cannot be pickled" in caplog.text
    assert (_plan["seen"], tester.made) == ([], 0)


def test_a_stream_that_is_gone_fails_what_was_made_for_it(tmp_path: Path) -> None:
    """A topology may change between two runs: it becomes a dead letter that says so."""
    _plan["fails"] = {1: 9}
    runs = _ticking(StepRuns(_direct_topology(), tmp_path, _SETTINGS))
    runs.step()
    assert runs.counts["made"] == 1
    runs.ticks, runs.topology = {}, _direct_topology(has_stream=False)
    runs.to_the_end()
    (headers,) = runs.dead_headers()
    assert b"no such stream any more" in headers["sequitur-dlq-traceback"]
    assert runs.counts["made_dead"] == 1


def _ticking(runs: StepRuns) -> StepRuns:
    runs.ticks = {"numbers": 1_000}
    return runs


def _written(runs: StepRuns) -> list[int]:
    return [int(value or b"") for _, value in runs.records("out")]


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
@pytest.mark.parametrize("most", [None, 1], ids=["at once", "in waves"])
def test_a_job_keeps_what_is_made_in_its_files(
    tmp_path: Path, *, tasks: int | None, most: int | None
) -> None:
    """Ticks and ends, step after step, with events between them; and counts add up."""
    _plan["fails"] = {1: 1, 2: 2, 6: 1, 9: 9}
    settings = _SETTINGS.model_copy(update={"max_spout_pending": most})
    builder = TopologyBuilder("numbers")
    builder.set_spout("events")
    builder.set_bolt("numbers", Numbers(), tick_interval="1 s").local_grouping("events")
    builder.set_bolt("ends", NumbersAtTheEnd(), tasks).local_grouping("events")
    for name in ("numbers", "ends"):
        post = builder.set_bolt(f"post {name}", Post(), tasks)
        post.local_grouping(name) if tasks is None else post.fields_grouping(name, "task")
        builder.set_output(f"out of {name}", key="task", value="number").local_grouping(
            f"post {name}"
        )
    runs = _ticking(StepRuns(builder.build(), tmp_path, settings, partitions=2))
    for at in range(5):
        given = [
            event(10 * at + place, b"v", key=b"k%d" % place, partition=place) for place in (0, 1)
        ]
        runs.step(given)
        runs.now_ms += 60
    runs.ticks = {}
    runs.to_the_end()
    assert runs.counts["acked"] == 10
    for name in ("numbers", "ends"):
        records = runs.records(f"out of {name}")
        assert len(records) > 12
        for task in {key for key, _ in records}:
            numbers = [int(value or b"") for key, value in records if key == task]
            assert numbers == [one for one in range(1, max(numbers) + 1) if one != 9]
    counts = runs.counts
    assert counts["made_dead"] == len(runs.dead()) > 0
    assert counts["made"] == counts["made_acked"] + counts["made_dead"]


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
def test_a_dead_letter_is_given_back_to_the_readers_of_its_stream(
    tmp_path: Path, tasks: int | None
) -> None:
    """As it waited: its values stand in a file of the checkpoint, and as text in the topic."""
    _plan["fails"] = {1: 9}
    runs = _ticking(StepRuns(_topology(Numbers(), tasks=tasks), tmp_path, _SETTINGS))
    runs.step()
    runs.ticks = {}
    runs.to_the_end()
    assert runs.dead() == [(b"numbers/0", b'{"task":0,"number":1}')]
    (headers,) = runs.dead_headers()
    assert headers["sequitur-dlq-component"] == b"numbers"
    assert headers["sequitur-dlq-stream"] == b"default"
    assert headers["sequitur-dlq-path"] == b"numbers > post"
    _plan["fails"] = {}
    runs.give_back_dead()
    runs.step()
    assert _written(runs) == [2, 1]
    assert runs.counts["made_acked"] == 2


@pytest.mark.parametrize("where", ["post", "numbers"])
def test_what_kills_the_process_of_a_later_stage_is_given_up(tmp_path: Path, where: str) -> None:
    """It is found by the search that finds events, and those beside it go on."""
    _plan["dies"] = {2}
    runs = _ticking(StepRuns(_topology(Numbers(), tasks=2), tmp_path, _SETTINGS))
    runs.step()
    assert runs.counts["crashes"] > 0
    assert (_written(runs), runs.counts["made_dead"]) == ([1], 1)
    (headers,) = runs.dead_headers()
    assert headers["sequitur-dlq-reason"] == b"crash"
    assert where in headers["sequitur-dlq-path"].decode()


@_EVERYWHERE
def test_what_waits_and_kills_its_process_is_given_up(tmp_path: Path, tasks: int | None) -> None:
    """When it is tried again, it is an item of its task's input, as events are."""
    _plan["fails"] = {2: 1}
    runs = _ticking(StepRuns(_topology(Numbers(), tasks=tasks), tmp_path, _SETTINGS))
    runs.step()
    _plan["dies"], runs.ticks = {2}, {}
    runs.to_the_end()
    assert runs.counts["crashes"] > 0
    assert (_written(runs), runs.counts["made_dead"]) == ([1], 1)
    assert runs.counts["made"] == runs.counts["made_acked"] + runs.counts["made_dead"] == 2


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
def test_a_step_that_dies_between_two_writes_makes_nothing_twice(
    tmp_path: Path, tasks: int | None
) -> None:
    """Whichever they are: the next life begins with what the step before has left."""
    expected = None
    for dies_at in range(100):
        _plan.update(fails={1: 1, 4: 2}, seen=[])
        runs = _ticking(
            StepRuns(_topology(Numbers(), tasks=tasks), tmp_path / str(dies_at), _SETTINGS)
        )
        runs.step()
        has_died = runs.step_that_dies(after=dies_at)
        runs.step()
        runs.ticks = {}
        runs.to_the_end()
        found = _written(runs), sorted(runs.counts.items() - {("crashes", 0)})
        expected = expected or found
        assert found == expected
        assert found[0] == [1, 2, 3, 4]
        if not has_died:
            break
    assert dies_at >= (2 if tasks is None else 8)


def test_values_are_those_that_were_emitted() -> None:
    values: list[int] = [1]
    event_of = MadeTuple("a/b", 3, "s", (values,), None).event(7, 9)
    values.append(2)
    assert MadeTuple.of(event_of) == ("a/b", 3, "s", ([1],), None)
    assert event_of[3:] == (9, "a/b/3", 3, 7, 9)
    assert pickle.loads(event_of[1] or b"") == ("s", ([1],), None)


class AttemptsAndNumbers(BasicBolt):
    """In a transaction: emits how many events it was given since the last tick."""

    fields = ("transaction", "number")

    def __init__(self) -> None:
        self.count = 0

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        self.count += not tuple.is_tick
        if tuple.is_tick and self.count:
            collector.emit((tuple[0], self.count))
            self.count = 0

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state


@bolt(fields=("transaction", "number"))
def fail_at_first(given: Tuple) -> Iterator[Any]:
    _plan["seen"].append(given["number"])
    if len(_plan["seen"]) <= _plan["fails"].get("transaction", 0):
        raise ConnectionError("503")
    yield given[0], given["number"]


class Sum(BaseTransactionalBolt, Committer):
    """Adds up."""

    fields = ("transaction", "sum")

    def __init__(self) -> None:
        self.sum = 0

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.sum += tuple["number"]

    def finish_batch(self) -> None:
        before, after = self.context.state("sum").update(
            "all", lambda _, was: (was or 0) + self.sum
        )
        self.collector.emit((self.transaction, after))
        del before


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_in_a_transaction_the_batch_is_what_is_tried_again(tmp_path: Path, fails: int) -> None:
    """Ticks included: nothing is kept, nothing is lost, and nothing counts twice."""
    _plan["fails"] = {"transaction": fails}
    builder = TransactionalTopologyBuilder("tx", "spout")
    made = builder.set_bolt("numbers", AttemptsAndNumbers(), tick_interval="1 s")
    made.local_grouping("spout")
    builder.set_bolt("post", fail_at_first).local_grouping("numbers")
    states = {"sum": TransactionalState(store_in(tmp_path), "sums")}
    builder.set_bolt("sum", Sum(), states=states).global_grouping("post")
    builder.set_output("out", key=None, value="sum").local_grouping("sum")
    tester = TransactionTester(builder.build(), ProcessSettings(retry_jitter=0))
    tester.run([("k", "v")] * 5)
    tester.advance(2)
    tester.run([("k", "v")] * 3)
    tester.retry_all()
    assert _plan["seen"] == [5] * (fails + 1)
    assert [value for _, value in tester.records("out")][-1] == b"5"
    assert (tester.made, len(tester.acked)) == (0, 8)


class Gathers(BasicBolt):
    """Emits the numbers of a batch at its end, unless it does not like one of them."""

    fields = ("number",)

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        del collector
        self.numbers.append(tuple["number"])

    def finish_batch(self) -> None:
        numbers, self.numbers = self.numbers, []
        if any(number in _plan["fails"] for number in numbers):
            raise ConnectionError("503")
        for number in numbers:
            self.collector.emit((number,))


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
def test_no_innocent_dies_where_the_end_of_a_batch_fails_behind_it(
    tmp_path: Path, tasks: int | None
) -> None:
    """What is to blame is found among what bolts made as it is among events."""
    _plan["fails"] = {3: 9}
    builder = TopologyBuilder("gathers")
    builder.set_spout("events")
    made = Numbers()
    made.each = 6
    builder.set_bolt("numbers", made, tick_interval="1 s").local_grouping("events")
    gathers = builder.set_bolt("gathers", Gathers(), tasks)
    gathers.local_grouping("numbers") if tasks is None else gathers.global_grouping("numbers")
    builder.set_output("out", key=None, value="number").local_grouping("gathers")
    runs = _ticking(StepRuns(builder.build(), tmp_path, _SETTINGS))
    runs.step()
    assert (runs.counts["made"], runs.counts["made_acked"]) == (6, 0)
    runs.ticks = {}
    runs.to_the_end()
    assert _written(runs) == [1, 2, 4, 5, 6]
    assert [value for _, value in runs.dead()] == [b'{"task":0,"number":3}']
    assert (runs.counts["made_acked"], runs.counts["made_dead"]) == (5, 1)


@bolt(fields=("number",))
def post_slowly(given: Tuple) -> Iterator[Any]:
    """Fail as is planned, the earlier ones after a longer while."""
    number = given["number"]
    _plan["seen"].append(number)
    time.sleep(0.02 / number)
    if given.attempt <= _plan["fails"].get(number, 0):
        raise ConnectionError("503")
    yield number


@pytest.mark.promise("process-bolt-fails-behind")
@_EVERYWHERE
def test_calls_side_by_side_keep_the_order_of_what_one_task_makes(
    tmp_path: Path, tasks: int | None
) -> None:
    """They are made one after the other, as those for one key are."""
    _plan["fails"] = {1: 1, 4: 1}
    builder = TopologyBuilder("slow")
    builder.set_spout("events")
    builder.set_bolt("numbers", Numbers(), tick_interval="1 s").local_grouping("events")
    post = builder.set_bolt("post", post_slowly, tasks, concurrency=4)
    post.local_grouping("numbers") if tasks is None else post.global_grouping("numbers")
    builder.set_output("out", key=None, value="number").local_grouping("post")
    runs = _ticking(StepRuns(builder.build(), tmp_path, _SETTINGS))
    for _ in range(3):
        runs.step()
        runs.now_ms += 50
    runs.ticks = {}
    runs.to_the_end()
    assert _written(runs) == [1, 2, 3, 4, 5, 6]
    assert list(dict.fromkeys(_plan["seen"])) == [1, 2, 3, 4, 5, 6]
    assert runs.counts["made_acked"] == 6


class Shy:
    """A value that neither JSON nor Python shows."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Thawing:
    """A value that raises when it is unpickled, with half a surrogate pair in its text."""

    def __reduce__(self) -> Any:
        return _thawed, ()


def _thawed() -> None:
    raise ValueError("half \ud83d")


def test_a_letter_is_written_whatever_its_values_are() -> None:
    """Of what cannot be unpickled, or shown, it says so."""
    topology = _topology(Numbers())
    made = MadeTuple("numbers", 0, "default", (0, Shy()), None).event(1, 2)
    shown = b"values that cannot be shown: RuntimeError"
    assert readable(made, topology) == ("default", shown)
    twice = MadeTuple("numbers", 0, "default", (0, {1: 2, "1": 3}), None).event(1, 2)
    assert readable(twice, topology)[1] == b"{'task': 0, 'number': {1: 2, '1': 3}}"
    odd = MadeTuple("numbers", 0, "default", (0, Thawing()), None).event(1, 2)
    assert readable(odd, topology)[1].endswith(b"cannot be unpickled: ValueError: half \\ud83d")
    stream, said = readable((made[0], b"?", *made[2:]), topology)
    assert stream == ""
    assert said.startswith(b"a kept value of bolt 'numbers' cannot be unpickled: ")
