"""The tester runs topologies on lists: batches, retries, dead letters, and trees to look at."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    Bolt,
    EventValues,
    FailReason,
    Outputs,
    ProcessSettings,
    Topology,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from tests.support.bolts import HoldingBolt

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Event, Tuple

_PNG = b"\x89PNG"


@bolt(fields=("word",))
def words(event: Event) -> Any:
    for word in (event.value or b"").decode().split():
        yield (word,)


@bolt(fields=("word",))
def refuse_bad(event: Event) -> Any:
    """Raise for one value, until the attempt that it names."""
    value = (event.value or b"").decode()
    yield ("seen",)
    if value.startswith("bad") and event.attempt <= int(value[3:] or "99"):
        raise ValueError(f"cannot use {value}")
    yield (value,)


@bolt(fields=("word",))
def slow(event: Event) -> Any:
    """Take as many seconds as the value says."""
    TopologyTester.running().advance(float(event.value or b"0"))
    yield (event.value,)


@bolt
def end(_tuple: Tuple) -> None:
    """Emit nothing."""


@bolt
def refuse_both(_tuple: Tuple) -> Any:
    raise ValueError("never")


def is_bad(event: EventValues) -> bool:
    return event.value == b"bad"


class Forgets(Bolt):
    """Goes wrong in so many attempts: acks nothing, or raises."""

    fields = ("word",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        how, times = tuple["value"].decode().split()
        if tuple.attempt > int(times):
            self.collector.ack(tuple)
        elif how == "raised":
            raise ValueError(how)


class Join(HoldingBolt):
    """Emits one tuple for all of the batch."""

    fields = ("pair",)

    def finish_batch(self) -> None:
        self.collector.emit(("both",), anchors=self.held)
        for one in self.held:
            self.collector.ack(one)


class Total(Bolt):
    """Counts over batches."""

    fields = ("total",)
    total = 0

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.total += 1
        self.collector.emit((self.total,), anchors=tuple)
        self.collector.ack(tuple)

    def snapshot(self) -> int:
        return self.total

    def restore(self, state: int) -> None:
        self.total = state


def _one(made: Any, value: str, *, tracked: bool = True) -> Topology:
    """A topology of one bolt, and an output of one of its fields."""
    builder = TopologyBuilder("one")
    builder.set_spout("events", tracked=tracked)
    builder.set_bolt("work", made).shuffle_grouping("events")
    builder.set_output("out", key=None, value=value).local_grouping("work")
    return builder.build()


def _joined() -> Topology:
    builder = TopologyBuilder("joined")
    builder.set_spout("events")
    builder.set_bolt("join", Join()).global_grouping("events")
    builder.set_bolt("sink", end).shuffle_grouping("join")
    return builder.build()


def _values(tester: TopologyTester) -> list[bytes | None]:
    return [value for _, value in tester.records("out")]


def test_events_run_in_event_time_order() -> None:
    """Whatever the order of the list; without a time, at the time of the clock."""
    tester = TopologyTester(_one(words, "word"))
    tester.advance(2)
    tester.run([("k", "c", 3000), ("k", "a", 1000), {"value": "b"}])
    assert _values(tester) == [b"a", b"b", b"c"]
    assert [event.event_time_ms for event in tester.acked] == [1000, 2000, 3000]


def test_events_are_given_in_any_handy_form() -> None:
    """Text becomes bytes, other values JSON; what is an event already stays as it is."""
    tester = TopologyTester(_one(words, "word"))
    whole = EventValues(b"k", b"v", [("h", b"1")], 7, "t", 3, 9, 8)
    tester.run([whole, {"key": "ä", "value": {"a": 1}, "event_time_ms": 8}, (None, b"x", 9)])
    assert tester.acked[0] == whole
    assert [(event.key, event.value) for event in tester.acked[1:]] == [
        ("ä".encode(), b'{"a":1}'),
        (None, b"x"),
    ]


@pytest.mark.parametrize(("given", "message"), [
    (7, "7 is not an event"),
    ("text", "'text' is not an event"),
    ({"vlaue": 1}, "field 'vlaue', expected: key, value"),
])  # fmt: skip
def test_what_is_no_event_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopologyTester(_one(words, "word")).run([given])


@pytest.mark.promise("process-bolt-raises-fails")
def test_a_failed_event_is_tried_again_once_its_time_has_come() -> None:
    settings = ProcessSettings(retry_delay=timedelta(seconds=1), retry_jitter=0)
    tester = TopologyTester(_one(refuse_bad, "word"), settings)
    tester.run([("k", "bad1")])
    assert ([event.value for event in tester.failed], _values(tester)) == ([b"bad1"], [])
    assert tester.next_retry_s == 1
    tester.retry()
    assert len(tester.failed) == 1
    tester.advance(1)
    tester.retry()
    assert (tester.failed, _values(tester)) == ([], [b"seen", b"bad1"])
    assert [tree.attempt for tree in tester.trees] == [1, 2]


@pytest.mark.promise("process-event-fails-later")
def test_later_events_of_its_key_wait_and_others_go_on() -> None:
    """Also new ones of later batches; afterwards they run in order."""
    tester = TopologyTester(_one(refuse_bad, "word"))
    tester.run([("a", "bad1"), ("a", "a2"), ("b", "b1")])
    tester.run([("a", "a3"), ("b", "b2")])
    assert [event.value for event in tester.held] == [b"a2", b"a3"]
    assert [event.value for event in tester.acked] == [b"b1", b"b2"]
    tester.retry_all()
    assert [event.value for event in tester.acked[2:]] == [b"bad1", b"a2", b"a3"]


@pytest.mark.promise("process-event-fails-later")
def test_an_event_whose_time_has_come_waits_for_an_earlier_one_of_its_key() -> None:
    """Both have failed, and the earlier one is tried again later."""
    tester = TopologyTester(_one(Forgets(), "word"), ProcessSettings(retry_jitter=0))
    tester.run([("a", "forgotten 2"), ("a", "raised 1")])
    tester.retry_all()
    assert [event.value for event in tester.acked] == [b"forgotten 2", b"raised 1"]
    assert (tester.failed, tester.next_retry_s) == ([], None)


def test_without_ordering_nothing_waits_for_a_failed_event() -> None:
    tester = TopologyTester(_one(refuse_bad, "word"), ProcessSettings(ordering="none"))
    tester.run([("a", "bad1"), ("a", "a2")])
    tester.run([("a", "a3")])
    assert [event.value for event in tester.acked] == [b"a2", b"a3"]


@pytest.mark.promise("process-event-keeps-failing")
def test_what_fails_each_time_is_dead_lettered() -> None:
    """With reason, traceback, attempts and path; those that were held for it go on."""
    tester = TopologyTester(_one(refuse_bad, "word"), ProcessSettings(max_attempts=3))
    tester.run([("a", "bad"), ("a", "good")])
    tester.retry_all()
    letter = tester.dead_letters[0]
    assert (letter.reason, letter.attempts) == (FailReason.EXCEPTION, 3)
    assert letter.path == ("events", "work")
    assert letter.detail.endswith("ValueError: cannot use bad\n")
    assert _values(tester) == [b"seen", b"good"]
    assert [event.value for event in tester.acked] == [b"good"]


@pytest.mark.promise("process-tree-fails-behind")
def test_immediate_outputs_are_repeated() -> None:
    """As in Storm: what a failed attempt emitted is written as well."""
    tester = TopologyTester(
        _one(refuse_bad, "word"), ProcessSettings(outputs=Outputs.IMMEDIATE, max_attempts=5)
    )
    tester.run([("a", "bad1")])
    tester.retry_all()
    assert _values(tester) == [b"seen", b"seen", b"bad1"]


@pytest.mark.promise("process-call-bolt-hangs")
def test_a_call_that_overruns_fails_and_its_ack_is_late() -> None:
    """The clock is moved from within the bolt."""
    settings = ProcessSettings(call_timeout=timedelta(seconds=30), max_attempts=1)
    tester = TopologyTester(_one(slow, "word"), settings)
    tester.run([("a", "30"), ("b", "31"), ("c", "1")])
    assert [event.value for event in tester.acked] == [b"30", b"1"]
    assert [(one.event.value, one.reason) for one in tester.dead_letters] == [
        (b"31", FailReason.TIMEOUT)
    ]
    assert tester.late_acks == 1
    assert _values(tester) == [b"30", b"1"]


class Holds(BasicBolt):
    """Takes the time that it is told, in each call or at the end of the batch."""

    fields = ("value",)

    def __init__(self, end_s: float = 0) -> None:
        self.end_s = end_s

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        TopologyTester.running().advance(float(tuple["value"].decode()))
        collector.emit((tuple["value"],))

    def finish_batch(self) -> None:
        TopologyTester.running().advance(self.end_s)


@pytest.mark.promise("process-tree-takes-long")
@pytest.mark.parametrize("tasks", [None, 2])
def test_no_limit_is_for_a_whole_tree(tasks: int | None) -> None:
    """Trees of a batch wait for each other: only a call, and an end of a batch, may overrun."""
    builder = TopologyBuilder("slow")
    builder.set_spout("events")
    before = "events"
    for name in ("first", "second", "third"):
        builder.set_bolt(name, Holds(29), tasks).shuffle_grouping(before)
        before = name
    builder.set_output("out", key=None, value="value").local_grouping("third")
    settings = ProcessSettings(call_timeout=timedelta(seconds=30), max_attempts=1)
    tester = TopologyTester(builder.build(), settings)
    tester.run([(str(at), "29") for at in range(4)])
    assert (len(tester.acked), tester.dead_letters, tester.late_acks) == (4, [], 0)
    assert tester.now_s > 4 * 3 * 29


def test_an_end_of_a_batch_that_overruns_fails_its_events() -> None:
    settings = ProcessSettings(call_timeout=timedelta(seconds=30), max_attempts=1)
    tester = TopologyTester(_one(Holds(31), "value"), settings)
    tester.run([("a", "1")])
    (letter,) = tester.dead_letters
    assert (letter.reason, tester.acked) == (FailReason.TIMEOUT, [])
    assert letter.detail == "finish_batch of 'work': took longer than call_timeout"


def test_there_is_a_running_tester_only_while_one_runs() -> None:
    """Outside of a run a bolt has none to move."""
    TopologyTester(_one(slow, "word")).run([("a", "1")])
    with pytest.raises(LookupError):
        TopologyTester.running()


class CountsPieces(Bolt):
    """Emits at each end how many events it has had."""

    fields = ("key", "value")
    total = 0

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.total += 1
        self.collector.ack(tuple)

    def finish_batch(self) -> None:
        self.collector.emit((b"%d" % self.context.task, b"%d" % self.total))

    def snapshot(self) -> int:
        return self.total

    def restore(self, snapshot: int) -> None:
        self.total = snapshot


@pytest.mark.promise("process-number-open-trees")
@pytest.mark.parametrize(
    ("most", "of_task_0", "of_task_1"),
    [(None, [b"3"], [b"2"]), (2, [b"2", b"2", b"3"], [b"0", b"2", b"2"])],
)
def test_an_end_without_an_event_stands_between_those_of_other_pieces(
    most: int | None, of_task_0: list[bytes], of_task_1: list[bytes]
) -> None:
    """Each piece of a batch has an end, which stands where its task made it."""
    builder = TopologyBuilder("t")
    builder.set_spout("events")
    builder.set_bolt("counts", CountsPieces(), 2).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="value").local_grouping("counts")
    tester = TopologyTester(builder.build(), ProcessSettings(max_spout_pending=most), partitions=1)
    tester.advance(1000)  # the step runs after the times of its events
    tester.run([(key, b"", time_ms) for time_ms, key in enumerate([b"a", b"a", b"d", b"d", b"a"])])
    found = {
        task: [one.value for one in tester.outputs["out"] if one.key == task]
        for task in (b"0", b"1")
    }
    assert sorted(found.values()) == sorted([of_task_0, of_task_1])


def test_the_clock_does_not_go_back() -> None:
    """Time that ran out stays so."""
    with pytest.raises(ValueError, match="does not go back"):
        TopologyTester(_one(words, "word")).advance(-1)


@pytest.mark.promise("process-bolts-keep-state")
def test_what_bolts_keep_goes_on_over_batches() -> None:
    tester = TopologyTester(_one(Total(), "total"))
    tester.run([(None, "x"), (None, "x")])
    tester.run([(None, "x")])
    assert _values(tester) == [b"1", b"2", b"3"]


def test_without_ackers_every_event_is_acked_at_once() -> None:
    """Even one that fails: nobody waits for it, but it is counted."""
    tester = TopologyTester(_one(refuse_bad, "word"), ProcessSettings(ackers=0))
    tester.run([("a", "bad"), ("a", "good")])
    assert [event.value for event in tester.acked] == [b"bad", b"good"]
    assert (tester.untracked_failures, tester.failed, tester.dead_letters) == (1, [], [])


@pytest.mark.promise("process-events-tracked-ackers")
def test_an_untracked_event_is_not_held_for_one_that_failed() -> None:
    """It would run twice, and nobody waits for it."""
    builder = TopologyBuilder("joined")
    builder.set_spout("events", tracked=is_bad)
    builder.set_bolt("join", Join()).global_grouping("events")
    builder.set_bolt("refuse", refuse_both).local_grouping("join")
    builder.set_output("out", key=None).local_grouping("refuse")
    tester = TopologyTester(builder.build())
    tester.run([("a", "bad"), ("a", "good")])
    assert ([event.value for event in tester.failed], tester.held) == ([b"bad"], [])


@pytest.mark.promise("process-several-events-share")
def test_an_output_of_a_tracked_and_an_untracked_event_waits_for_the_tracked_one() -> None:
    builder = TopologyBuilder("joined")
    builder.set_spout("events", tracked=is_bad)
    builder.set_bolt("join", Join()).global_grouping("events")
    builder.set_bolt("refuse", refuse_both).local_grouping("join")
    builder.set_output("out", key=None, value="pair").local_grouping("join")
    tester = TopologyTester(builder.build())
    tester.run([("a", "bad"), ("b", "good")])
    assert _values(tester) == []


@pytest.mark.promise("process-events-tracked-ackers")
def test_events_without_a_message_id_are_not_told_of() -> None:
    """Neither acked nor failed, and none waits for them."""
    tester = TopologyTester(_one(refuse_bad, "word", tracked=False))
    tester.run([("a", "bad"), ("a", "good")])
    assert (tester.acked, tester.failed, tester.held) == ([], [], [])
    assert tester.trees[0].verdict == "untracked"
    assert _values(tester) == [b"seen", b"seen", b"good"]


@bolt(fields=("word",))
def emit_function(event: Event) -> Any:
    """What cannot go to another process; and what can."""
    yield (lambda: event.value,) if event.value == b"bad" else (event.value,)


@pytest.mark.promise("process-bolt-emits-values")
@pytest.mark.parametrize(("grouping", "acked"), [("local", 2), ("shuffle", 1)])
def test_what_a_job_could_not_send_to_a_later_stage_fails_here(grouping: str, acked: int) -> None:
    """Where a job with several partitions would run the reader in another process."""
    builder = TopologyBuilder("stages")
    builder.set_spout("events")
    builder.set_bolt("emit", emit_function).local_grouping("events")
    declarer = builder.set_bolt("end", end)
    if grouping == "local":
        declarer.local_grouping("emit")
    else:
        declarer.shuffle_grouping("emit")
    tester = TopologyTester(builder.build(), ProcessSettings(max_attempts=1))
    tester.run([("a", "bad"), ("b", "good")])
    assert len(tester.acked) == acked
    for letter in tester.dead_letters:
        assert letter.reason is FailReason.EXCEPTION
        assert "bolt 'emit' emitted to 'emit' a value that cannot be pickled" in letter.detail


def test_a_tree_is_shown_step_by_step() -> None:
    """Who emitted what, anchors, acks, and the XOR value behind each step."""
    tester = TopologyTester(_joined(), ids=[0b1010, 0b1011, 0b1100, 0b1100])
    tester.run([("a", "1"), ("b", "2")])
    lines = [" ".join(line.split()) for line in tester.trees[1].as_text(binary=True).splitlines()]
    assert lines == [
        "events/0@1 key=b'b', attempt 1: acked",
        "1 events gives #2 to join#0: key=b'b', value=b'2' edge 1011 value 1011",
        "2 join#0 emits #3 to sink#0, anchored to #1, #2: pair='both' edge 1100 value 0111",
        "3 join#0 acks #2 edge 1011 value 1100",
        "4 sink#0 acks #3 edge 1100 value 0000",
    ]


def test_a_failed_tree_says_why() -> None:
    tester = TopologyTester(_one(refuse_bad, "word"))
    tester.run([("a", "bad")])
    text = tester.trees[0].as_text()
    assert "failed (exception), to be tried again" in text.splitlines()[0]
    assert "work#0 fails #1: exception: ValueError: cannot use bad" in text


def test_a_tree_is_drawn_by_graphviz_or_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture does not need a program that may not be there."""
    tester = TopologyTester(_joined())
    tester.run([('"a"', "$1$"), ("b", "2")])
    dot = tester.trees[0].to_dot()
    assert dot.startswith("digraph tree {")
    assert "tuple1 -> tuple3" in dot
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    tester.trees[0].to_png(tmp_path / "tree.png")
    assert (tmp_path / "tree.png").read_bytes().startswith(_PNG)


def test_graphviz_draws_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given the tree in its own language."""
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\ncat > "$3"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    tester = TopologyTester(_joined())
    tester.run([("a", "1"), ("b", "2")])
    tester.trees[0].to_png(tmp_path / "tree.png")
    assert (tmp_path / "tree.png").read_text() == tester.trees[0].to_dot()


def test_the_same_seed_gives_the_same_run() -> None:
    """Roots, edges and retries are drawn from it."""
    testers = [TopologyTester(_one(refuse_bad, "word"), seed=seed) for seed in (1, 1, 2)]
    for tester in testers:
        tester.run([("a", "bad"), ("b", "good")])
    seen = [(tester.trees[1].as_text(), tester.next_retry_s) for tester in testers]
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]
