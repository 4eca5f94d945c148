"""Which tasks get a tuple."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    Bolt,
    EmitError,
    FailReason,
    FunctionBolt,
    ProcessSettings,
    To,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.api.groupings import (
    AllGrouping,
    DirectGrouping,
    Emitter,
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    LocalGrouping,
    ShuffleGrouping,
)
from sequitur.consumer.topology.api.tuple import Stream

if TYPE_CHECKING:
    from sequitur.consumer.topology import Event, Topology, Tuple

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
