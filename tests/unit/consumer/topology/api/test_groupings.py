"""Which tasks the groupings choose, in the tester and each by itself."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    Bolt,
    CustomStreamGrouping,
    FailReason,
    GroupingContext,
    Place,
    ProcessSettings,
    TaskId,
    To,
    Topology,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.api.bolt import FunctionBolt
from sequitur.consumer.topology.api.groupings import (
    AllGrouping,
    DirectGrouping,
    Emitter,
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    LocalGrouping,
    LocalOrShuffleGrouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)
from sequitur.consumer.topology.api.tuple import Stream
from sequitur.consumer.topology.engine.plan import plan
from sequitur.errors import BoltError, EmitError, TopologyBuildError
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Event, Tuple


_STREAM = Stream("split", "default", ("word", "length"))
_DIRECT = Stream("split", "named", ("word",), is_direct=True)
_TASKS = 4


@bolt(fields=("word", "task"))
def split(event: Event) -> Any:
    for number, word in enumerate((event.value or b"").decode().split()):
        yield (word, number)


class Where(Bolt):
    """Tells in which of its tasks it got a word."""

    fields = ("word", "task")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.emit((tuple["word"], self.context.task), anchors=tuple)
        self.collector.ack(tuple)


def plain_to_tasks(event: Event) -> Any:
    for word in (event.value or b"").decode().split():
        yield To("named", (word,), task=int(word))


@bolt(streams={"named": ("word",)}, direct_streams=("named",))
def to_tasks(event: Event) -> Any:
    yield from plain_to_tasks(event)


class Direct(Bolt):
    """Emits to tasks by number."""

    streams = {"named": ("word",)}  # noqa: RUF012 - as users write it
    direct_streams = ("named",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        for word in tuple["value"].decode().split():
            task = int(word) if word.isdigit() else None
            self.collector.emit((word,), anchors=tuple, stream="named", task=task)
        self.collector.ack(tuple)


def _where(grouping: Grouping) -> Topology:
    builder = TopologyBuilder("where")
    builder.set_spout("events")
    builder.set_bolt("split", split).local_grouping("events")
    builder.set_bolt("where", Where(), _TASKS).grouping("split", grouping)
    builder.set_output("out", key="word", value="task").local_grouping("where")
    return builder.build()


def _direct(made: Any) -> Topology:
    builder = TopologyBuilder("direct")
    builder.set_spout("events")
    builder.set_bolt("direct", made).local_grouping("events")
    builder.set_bolt("where", Where(), _TASKS).direct_grouping("direct", "named")
    builder.set_output("out", key="word", value="task").local_grouping("where")
    return builder.build()


def _tasks(grouping: Grouping, words: str) -> list[tuple[str, int]]:
    tester = TopologyTester(_where(grouping))
    tester.run([(None, words)])
    assert len(tester.acked) == 1
    return [((key or b"").decode(), int(value or b"")) for key, value in tester.records("out")]


def test_shuffling_is_even() -> None:
    assert Counter(task for _, task in _tasks(ShuffleGrouping(), "a " * 10)) == {
        0: 3, 1: 3, 2: 2, 3: 2,
    }  # fmt: skip


def test_equal_fields_meet_in_one_task() -> None:
    """And words are spread over all tasks."""
    found = _tasks(FieldsGrouping(("word",)), " ".join(f"w{number % 50}" for number in range(100)))
    assert len(set(found)) == 50
    assert {task for _, task in found} == set(range(_TASKS))


def test_all_tasks_get_each_tuple() -> None:
    """Each as a tuple of its own: the tree is done when all are acked."""
    assert sorted(_tasks(AllGrouping(), "a b")) == [
        (word, task) for word in "ab" for task in range(_TASKS)
    ]


def test_global_is_the_first_task() -> None:
    assert {task for _, task in _tasks(GlobalGrouping(), "a b c")} == {0}


def test_local_stays_where_the_tuple_is() -> None:
    builder = TopologyBuilder("local")
    builder.set_spout("events")
    builder.set_bolt("first", Where(), _TASKS).fields_grouping("split", "word")
    builder.set_bolt("split", split).local_grouping("events")
    builder.set_bolt("second", Where(), _TASKS).local_grouping("first")
    builder.set_output("one", key="word", value="task").local_grouping("first")
    builder.set_output("two", key="word", value="task").local_grouping("second")
    tester = TopologyTester(builder.build())
    tester.run([(None, "a b c d e f g h")])
    assert len({task for _, task in tester.records("one")}) > 1
    assert tester.records("one") == tester.records("two")


def test_none_is_another_word_for_local() -> None:
    builder = TopologyBuilder("none")
    builder.set_spout("events")
    builder.set_bolt("split", split).none_grouping("events")
    assert builder.build().components["split"].inputs[0].grouping == LocalGrouping()


@pytest.mark.parametrize("made", [
    Direct(), to_tasks,
    FunctionBolt(plain_to_tasks, streams={"named": ("word",)}, direct_streams=("named",)),
])  # fmt: skip
def test_a_direct_tuple_goes_to_the_task_that_is_named(made: Any) -> None:
    """Whoever emits it says which; a function by what it yields."""
    tester = TopologyTester(_direct(made))
    tester.run([(None, "3 0 2")])
    # As a job writes what several tasks make of one event: task by task.
    assert tester.records("out") == [(b"0", b"0"), (b"2", b"2"), (b"3", b"3")]


@pytest.mark.parametrize(("word", "message"), [
    ("4", "bolt 'direct' emitted to task 4 of a reader of 'direct.named', which has 4"),
    ("nobody", "bolt 'direct': stream 'named' is direct: say which task"),
])  # fmt: skip
def test_a_direct_tuple_for_no_task_is_an_error(word: str, message: str) -> None:
    tester = TopologyTester(_direct(Direct()), ProcessSettings(max_attempts=1))
    tester.run([(None, word)])
    assert tester.dead_letters[0].reason is FailReason.EXCEPTION
    assert message in tester.dead_letters[0].detail


def test_a_direct_chooser_names_its_limits() -> None:
    """Neither before the first task nor behind the last."""
    choose = DirectGrouping().chooser(_DIRECT, 2, Emitter())
    assert [tuple(choose(("a",), task)) for task in (0, 1)] == [(0,), (1,)]
    for task in (-1, 2, None):
        with pytest.raises(EmitError, match="which has 2"):
            choose(("a",), task)


def test_several_fields_are_grouped_by_together() -> None:
    """Equal pairs meet, whatever their other values."""
    stream = Stream("s", "default", ("a", "b", "c"))
    choose = FieldsGrouping(("a", "c")).chooser(stream, 64, Emitter())
    assert choose(("x", 1, "y"), None) == choose(("x", 2, "y"), None)
    assert len({tuple(choose((a, 0, c), None)) for a in "abcd" for c in "abcd"}) > 8


_WORDS = Stream("words", "default", ("word",))
_seen: list[Any] = []


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    _seen.clear()
    yield _seen
    _seen.clear()


class ByLength(CustomStreamGrouping):
    """Words of a length meet; those without letters go to nobody."""

    def prepare(self, context: GroupingContext) -> None:
        """Take down how many tasks there are."""
        self.tasks = context.tasks

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        if values[0] == b"raise":
            raise ValueError(f"no task for this of task {task}")
        if values[0] == b"beyond":
            return (self.tasks,)
        return (len(values[0]) % self.tasks,) if values[0] else ()


class ByValue(ByLength):
    """The same for events."""

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        return super().choose_tasks(task, (values[1],))


class Unready(ByLength):
    """Cannot get ready."""

    def prepare(self, context: GroupingContext) -> None:
        raise ConnectionError(context.reader)


@bolt(fields=("word",))
def words(given: Any) -> Any:
    yield from given["value"].split(b" ")


class Told(BasicBolt):
    """Tells which task it is, and what it is told of the tuple."""

    fields = ("word", "task")

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        _seen.append((tuple[0], self.context.task, tuple.source_task, tuple.place))
        collector.emit((tuple[0], self.context.task))


class Sender(BasicBolt):
    """Emits words, and tells who got them."""

    fields = ("word",)

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        given_to = collector.emit_many(tuple["value"].split(b" "))
        _seen.append((given_to, dict(self.context.task_counts)))
        self.context.logger.warning("sent %d", len(given_to))


def _custom(grouping: Any, tasks: int = 3) -> Topology:
    builder = TopologyBuilder("custom")
    builder.set_spout("events")
    builder.set_bolt("words", words).local_grouping("events")
    builder.set_bolt("where", Told(), tasks).custom_grouping("words", grouping)
    builder.set_output("out", key="word", value="task").local_grouping("where")
    return builder.build()


def _chosen(grouping: Grouping, tasks: int, emitter: Emitter, values: Sequence[str]) -> list[int]:
    choose = grouping.chooser(_WORDS, tasks, emitter)
    return [task for value in values for task in choose((value,), None)]


def test_a_grouping_of_the_users_chooses_tasks() -> None:
    tester = TopologyTester(_custom(ByLength()))
    tester.run([("k", "a bb ccc dddd  e")])
    assert Counter(tester.records("out")) == Counter(
        [(b"a", b"1"), (b"bb", b"2"), (b"ccc", b"0"), (b"dddd", b"1"), (b"e", b"1")]
    )
    assert len(tester.acked) == 1


@pytest.mark.promise("process-grouping-user-raises")
@pytest.mark.parametrize(("word", "message"), [
    ("raise", "ValueError: no task for this of task 0"),
    ("beyond", "the grouping of 'words' chose task 3 of 'where', which has 3"),
])  # fmt: skip
def test_a_grouping_that_cannot_choose_fails_the_event(word: str, message: str) -> None:
    tester = TopologyTester(_custom(ByLength()), ProcessSettings(max_attempts=1))
    tester.run([("k", word), ("other", "a")])
    assert message in tester.dead_letters[0].detail
    assert tester.records("out") == [(b"a", b"1")]


@pytest.mark.promise("process-grouping-user-raises")
@pytest.mark.parametrize("word", ["raise", "beyond"])
def test_a_grouping_of_events_that_cannot_choose_fails_the_event(tmp_path: Path, word: str) -> None:
    """Also where no bolt has been called yet, and the bolt is in a stage of its own."""
    builder = TopologyBuilder("custom")
    builder.set_spout("events")
    builder.set_bolt("where", Told(), 2).custom_grouping("events", ByValue())
    topology = builder.build()
    tester = TopologyTester(topology, ProcessSettings(max_attempts=1))
    tester.run([("k", word), ("other", "a")])
    assert len(tester.dead_letters) == len(tester.acked) == 1
    runs = StepRuns(topology, tmp_path, ProcessSettings(max_attempts=1))
    runs.step([event(1, word.encode()), event(2)])
    assert (runs.counts["dead"], runs.counts["acked"]) == (1, 1)


def test_a_grouping_that_cannot_get_ready_is_named() -> None:
    with pytest.raises(BoltError, match="grouping of 'words' for 'where': its prepare raised Conn"):
        TopologyTester(_custom(Unready())).run()


def test_what_is_no_grouping_is_refused() -> None:
    """By the reader's name; also what cannot be pickled, and a partial key without fields."""
    with pytest.raises(TopologyBuildError, match=r"bolt 'where': .* is not a CustomStreamGrouping"):
        _custom(object())
    closed = ByLength()
    closed.tasks = lambda: 1  # type: ignore[assignment]
    with pytest.raises(TopologyBuildError, match="bolt 'where' cannot be pickled"):
        _custom(closed)
    builder = TopologyBuilder("partial")
    builder.set_spout("events")
    builder.set_bolt("where", Told()).partial_key_grouping("events")
    with pytest.raises(TopologyBuildError, match="partial key grouping without fields"):
        builder.build()


def test_a_config_that_cannot_be_sent_to_tasks_is_refused() -> None:
    """The tester would pass what no job can run."""
    builder = TopologyBuilder("config", config={"lock": lambda: None})
    builder.set_spout("events")
    with pytest.raises(TopologyBuildError, match="config 'lock' cannot be pickled"):
        builder.build()


def test_a_key_is_shared_by_two_tasks() -> None:
    """The one with less to do gets the next tuple, so that one hot key does not fill one task."""
    grouping = PartialKeyGrouping(("word",))
    hot = _chosen(grouping, 8, Emitter(), ["hot"] * 100)
    assert sorted(Counter(hot).values()) == [50, 50]
    many = [f"w{number % 7}" for number in range(700)]
    spread = _chosen(grouping, 4, Emitter(), many)
    assert max(Counter(spread).values()) < 250
    assert spread == _chosen(grouping, 4, Emitter(turn=9), many)
    assert set(_chosen(grouping, 1, Emitter(), many)) == {0}


def test_shuffling_begins_with_another_task_in_each_batch() -> None:
    """Else small batches would all go to the first tasks."""
    grouping = ShuffleGrouping()
    first = [_chosen(grouping, 3, Emitter(0, 1, turn), "a")[0] for turn in range(6)]
    assert first == [0, 1, 2, 0, 1, 2]
    assert [_chosen(grouping, 3, Emitter(task, 3), "a")[0] for task in range(3)] == [0, 1, 2]


def test_batches_of_one_event_reach_all_tasks(seen: list[Any]) -> None:
    builder = TopologyBuilder("shuffle")
    builder.set_spout("events")
    builder.set_bolt("where", Told(), 3).shuffle_grouping("events")
    tester = TopologyTester(builder.build())
    for _ in range(3):
        tester.run([("k", "v")])
    assert sorted(task for _, task, _, _ in seen) == [0, 1, 2]


@pytest.mark.parametrize(("emitters", "tasks"), [(2, 5), (3, 3), (4, 2), (1, 4)])
def test_local_grouping_leaves_no_task_idle(emitters: int, tasks: int) -> None:
    """Where a bolt has more tasks than what it reads, each is that of one task there."""
    grouping = LocalGrouping()
    chosen = [
        set(_chosen(grouping, tasks, Emitter(task, emitters), "aaaaaaaa"))
        for task in range(emitters)
    ]
    assert set().union(*chosen) == set(range(tasks))
    if tasks >= emitters:
        assert sum(map(len, chosen)) == tasks


def test_local_or_shuffle_stays_where_it_can() -> None:
    """A bolt with a number of tasks of its own has tuples from all of them."""
    builder = TopologyBuilder("local")
    builder.set_spout("events")
    builder.set_bolt("here", Told()).local_or_shuffle_grouping("events")
    builder.set_bolt("there", Told(), 5).local_or_shuffle_grouping("events")
    assert [stage.components for stage in plan(builder.build(), 2).stages] == [
        ("events", "here"), ("there",),
    ]  # fmt: skip
    grouping = LocalOrShuffleGrouping()
    assert _chosen(grouping, 3, Emitter(1, 2), "abcd") == [1, 2, 0, 1]


@pytest.mark.parametrize("in_a_job", [False, True], ids=["tester", "job"])
def test_bolts_know_of_the_tasks_of_others(
    seen: list[Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    in_a_job: bool,
) -> None:
    """Who got what was emitted, how many there are, who emitted it, and where its event is from."""
    caplog.set_level(logging.WARNING)
    builder = TopologyBuilder("tasks")
    builder.set_spout("events")
    builder.set_bolt("send", Sender(), 3).shuffle_grouping("events")
    builder.set_bolt("where", Told(), 2).shuffle_grouping("send")
    if in_a_job:
        StepRuns(builder.build(), tmp_path, number=2).step([event(7, b"x y")])
    else:
        tester = TopologyTester(builder.build())
        tester.run()
        tester.run()
        tester.run([{"value": "x y", "offset": 7, "topic": "in"}])
    given_to, counts = seen[0]
    assert given_to == [[TaskId("where", 0)], [TaskId("where", 1)]]
    assert (counts["send"], counts["where"]) == (3, 2)
    assert sorted(seen[1:]) == [
        (b"x", 0, 2, Place("in", 0, 7)),
        (b"y", 1, 2, Place("in", 0, 7)),
    ]
    assert [(one.name, one.getMessage()) for one in caplog.records] == [
        ("sequitur.topology.tasks.send.2", "sent 2")
    ]


def test_attempts_may_go_on_without_end() -> None:
    """With `max_attempts = 0` an event is never given up."""
    tester = TopologyTester(_custom(ByLength()), ProcessSettings(max_attempts=0))
    tester.run([("k", "raise")])
    for _ in range(20):
        tester.advance(120)
        tester.run()
    assert (len(tester.failed), tester.dead_letters) == (1, [])
