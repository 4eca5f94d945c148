"""Late events are counted by bolt: each once, when its tree is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import BasicBolt, ProcessSettings, TopologyBuilder, TopologyTester
from sequitur.windows import Count, join, session, sliding, tumbling

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology import Event, KeyedBolt, Tuple


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
