"""Late events are counted by bolt: each once, when its tree is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    EventValues,
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine import keyed
from sequitur.windows import Count, Sum, join, session, sliding, tumbling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.topology import Event, Key, Timer, Tuple


def _left(_: Event) -> str:
    return "left"


class Careless(BasicBolt):
    """Fails the first attempts at each late event."""

    fields = ("key", "value")

    def __init__(self, fails: int) -> None:
        self.fails = fails

    def process(self, tuple: Tuple, _: Any) -> Any:  # noqa: A002
        if tuple.attempt <= self.fails:
            raise ValueError("not yet")
        yield tuple["key"], tuple["value"]


@pytest.mark.promise("windows-late-counted")
@pytest.mark.parametrize("grouping", ["local_grouping", "shuffle_grouping"])
@pytest.mark.parametrize(("fails", "counted"), [(0, 2), (2, 2), (9, 0)])
@pytest.mark.parametrize(
    "make",
    [
        lambda **late: tumbling("1 s", n=Count(), **late),
        lambda **late: session("1 s", n=Count(), **late),
        lambda **late: sliding("1 s", n=Count(), **late),
        lambda **late: join(_left, "1 s", kind="left", **late),
    ],
)
def test_a_late_event_counts_once(
    make: Callable[..., KeyedBolt], fails: int, counted: int, grouping: str
) -> None:
    """Where nobody decides but ackers, too. One that is given up is not counted."""
    builder = TopologyBuilder("late")
    builder.set_spout("events")
    builder.set_bolt("one", make()).fields_grouping("events", "key")
    builder.set_bolt("two", make(late="drop")).fields_grouping("events", "key")
    careless = builder.set_bolt("careless", Careless(fails))
    getattr(careless, grouping)("one", stream="late")
    builder.set_output("late", "late").local_grouping("careless")
    settings = ProcessSettings.model_validate({"max_attempts": 4, "retry_jitter": 0})
    tester = TopologyTester(builder.build(), settings)
    tester.run([("a", "", 10_000), ("b", "", 10_000)])
    assert not tester.late_for_window
    tester.run([("a", "x", 2_000), ("b", "y", 3_000), ("b", "z", 11_500)])
    tester.retry_all()
    expected = {"one": counted, "two": counted} if counted else {}
    assert tester.late_for_window == expected
    assert len(tester.records("late")) == counted
    assert (len(tester.acked), len(tester.dead_letters)) == (3 + counted, 2 - counted)


@bolt(fields=EventValues._fields)
def again(given: Tuple) -> Iterator[Any]:
    """Give on the result of each key as an event of that key."""
    at_ms = given.event_time_ms
    key = given["key"] if isinstance(given["key"], str) else given["key"].decode()
    yield key, b'{"count":%d}' % given["count"], (), at_ms, "in", 0, 0, at_ms


@bolt(fields=EventValues._fields)
def by_text(given: Tuple) -> Iterator[Any]:
    yield ((given["key"] or b"").decode(), *given.values[1:])


@pytest.mark.promise("windows-late-counted")
@pytest.mark.parametrize("by", ["the events' key", "a field"])
def test_a_window_that_had_no_room_to_close_is_not_late_for_a_total(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many windows close at once behind a silence. Each step has room for some of them."""
    monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", 3 * keyed._KEY_BYTES)
    builder = TopologyBuilder("totals")
    builder.set_spout("events")
    counts = tumbling("1 s", late="drop", count=Count())
    if by == "a field":
        builder.set_bolt("by_text", by_text).local_grouping("events")
        builder.set_bolt("counts", counts, 1).fields_grouping("by_text", "key")
    else:
        builder.set_bolt("counts", counts).fields_grouping("events", "key")
    builder.set_bolt("again", again).local_grouping("counts")
    total = tumbling("1 s", late="drop", total=Sum("count"))
    builder.set_bolt("total", total, 1).fields_grouping("again", "key")
    builder.set_output("out", key="key", value=None).local_grouping("total")
    tester = TopologyTester(builder.build())
    tester.run([(f"key {number}", "", 100 + number) for number in range(20)])
    tester.run(watermark_ms=5_000)
    steps = 1
    while tester.next_retry_s == tester.now_s and steps < 60:
        steps += 1
        tester.run()
    assert steps > 4
    assert tester.next_retry_s is None
    assert tester.late_for_window == {}
    said = b'{"begin_ms":0,"end_ms":1000,"total":1}'
    assert sorted(tester.records("out")) == sorted((b"key %d" % one, said) for one in range(20))


class Rings(KeyedBolt):
    """Has a timer for each filler."""

    fields = ("user",)

    def process(self, given: Tuple, key: Key) -> None:
        if given["value"] == b"filler":
            key.timer("rings", at=1_050)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        del timer
        yield (key.value,)


@bolt(fields=(*EventValues._fields, "user"))
def of_all(given: Tuple) -> Iterator[Any]:
    user = given["key"].decode()
    key = user if given["value"] == b"filler" else "all"
    yield (key, *given.values[1:], user)


@pytest.mark.promise("windows-late-counted")
def test_a_window_waits_for_an_event_that_another_bolt_had_no_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both bolts leave something to the next step: the one beside an event of the window."""
    monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", 3 * keyed._KEY_BYTES)
    builder = TopologyBuilder("beside")
    builder.set_spout("events")
    builder.set_bolt("of_all", of_all).local_grouping("events")
    total = tumbling("100 ms", late="drop", count=Count())
    builder.set_bolt("total", total, 1).fields_grouping("of_all", "key")
    builder.set_bolt("rings", Rings(), 1).fields_grouping("of_all", "user")
    builder.set_output("out", key="key", value=None).local_grouping("total")
    builder.set_output("rung", key="user", value=None).local_grouping("rings")
    tester = TopologyTester(builder.build())
    tester.run([(f"filler{number:02}", "filler", 1_000) for number in range(10)])
    tester.run([("ann", "", 1_010), ("bob", "", 1_090), ("last", "", 1_200)])
    assert tester.held
    tester.retry_all()
    assert len(tester.records("rung")) == 10
    found = [value for key, value in tester.records("out") if key == b"all"]
    assert found == [b'{"begin_ms":1000,"end_ms":1100,"count":2}']
