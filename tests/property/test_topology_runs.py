"""Whatever fails, each event is acked or dead-lettered, and what it emitted is there once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology import (
    Bolt,
    Ordering,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from tests.support.bolts import HoldingBolt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.topology import Topology, Tuple

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What an event does to the bolts.

    Attributes:
        number: The event's number.
        key: Its key.
        how: What goes wrong.
        times: In so many of its attempts.
        where: Before anything is emitted for it, or behind.
    """

    number: int
    key: str | None
    how: str
    times: int
    where: str


class Work(Bolt):
    """Does to an event what its plan says, and emits two tuples for it."""

    fields = ("number", "part", "plan")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        plan = json.loads(tuple["value"])
        fails = tuple.attempt <= plan["times"]
        if fails and plan["where"] == "before":
            self._go_wrong(plan["how"], tuple)
            return
        for part in range(2):
            self.collector.emit((plan["number"], part, plan), anchors=tuple)
        if fails and plan["where"] == "after":
            self._go_wrong(plan["how"], tuple)
            return
        self.collector.ack(tuple)

    def _go_wrong(self, how: str, given: Tuple) -> None:
        if how == "raise":
            raise ValueError(how)
        if how == "fail":
            self.collector.fail(given)
        if how == "overrun":
            TopologyTester.running().advance(31)
            self.collector.ack(given)


@bolt(fields=("number", "part"))
def second(given: Tuple) -> Iterator[Any]:
    """Fail the second part, where the plan says so."""
    plan = given["plan"]
    if plan["where"] == "below" and given["part"] == 1 and given.attempt <= plan["times"]:
        raise ValueError(plan["how"])
    yield given["number"], given["part"]


class Together(HoldingBolt):
    """One tuple of all that a task holds."""

    fields = ("numbers", "parts")

    def finish_batch(self) -> None:
        if not self.held:
            return
        numbers = [one["number"] for one in self.held]
        parts = [one["part"] for one in self.held]
        self.collector.emit((numbers, parts), anchors=self.held)
        for one in self.held:
            self.collector.ack(one)
        self.held.clear()


def _topology(*, is_joined: bool) -> Topology:
    builder = TopologyBuilder("runs")
    builder.set_spout("events")
    builder.set_bolt("work", Work(), 2).shuffle_grouping("events")
    builder.set_bolt("second", second, 2).fields_grouping("work", "number")
    if is_joined:
        builder.set_bolt("together", Together(), 2).fields_grouping("second", "number")
        builder.set_output("out", key=None, value=None).local_grouping("together")
    else:
        builder.set_output("out", key="number", value="part").local_grouping("second")
    return builder.build()


_ALONE, _JOINED = _topology(is_joined=False), _topology(is_joined=True)
_FAILURES = st.tuples(
    st.sampled_from(["raise", "fail", "forget", "overrun"]),
    st.sampled_from([0, 0, 0, 1, 2, _ATTEMPTS]),
    st.sampled_from(["before", "after", "below"]),
)
_BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), _FAILURES), max_size=6), max_size=4
)


def _settings(ordering: Ordering, most: int | None) -> ProcessSettings:
    return ProcessSettings(
        ordering=ordering,
        max_attempts=_ATTEMPTS,
        max_spout_pending=most,
        call_timeout=timedelta(seconds=30),
    )


def _run(tester: TopologyTester, batches: Sequence[Any], waits_s: Sequence[float]) -> list[Plan]:
    """Run all batches, and then whatever waits. Gives the plans of all events, in their order."""
    plans: list[Plan] = []
    for batch, wait_s in zip(batches, waits_s, strict=True):
        events = []
        for key, (how, times, where) in batch:
            plans.append(Plan(len(plans), key, how, times, where))
            events.append((key, asdict(plans[-1]), len(plans)))
        tester.run(events)
        tester.advance(wait_s)
    tester.retry_all()
    return plans


def _number(event: Any) -> int:
    number: int = json.loads(event.value)["number"]
    return number


def _waits(batches: Sequence[Any]) -> st.SearchStrategy[list[float]]:
    return st.lists(
        st.sampled_from([0.0, 0.05, 0.2, 5.0]), min_size=len(batches), max_size=len(batches)
    )


_MOST = st.sampled_from([None, None, 1, 3])


@pytest.mark.promise("process-random-failures-retries")
@given(batches=_BATCHES, ordering=st.sampled_from(Ordering), most=_MOST, data=st.data())
def test_each_event_is_processed_to_its_end(
    batches: Any, ordering: Ordering, most: int | None, data: st.DataObject
) -> None:
    """Acked with all that it emitted, once; or dead-lettered with nothing of it, and the reason."""
    tester = TopologyTester(_ALONE, _settings(ordering, most))
    plans = _run(tester, batches, data.draw(_waits(batches)))
    dead = {plan.number for plan in plans if plan.times >= _ATTEMPTS}
    assert sorted(_number(letter.event) for letter in tester.dead_letters) == sorted(dead)
    acked = [_number(event) for event in tester.acked]
    assert sorted(acked) == [plan.number for plan in plans if plan.number not in dead]
    written = [(int(key or b""), int(value or b"")) for key, value in tester.records("out")]
    assert Counter(written) == Counter((number, part) for number in acked for part in (0, 1))
    assert all(letter.attempts == _ATTEMPTS for letter in tester.dead_letters)
    if ordering is Ordering.KEY:
        _check_order(plans, [number for number, _ in written])


def _check_order(plans: Sequence[Plan], written: Sequence[int]) -> None:
    by_key = defaultdict(list)
    for number in written:
        by_key[plans[number].key].append(number)
    for key, numbers in by_key.items():
        assert key is None or numbers == sorted(numbers)


@pytest.mark.promise("process-several-events-share")
@given(batches=_BATCHES, ordering=st.sampled_from(Ordering), most=_MOST, data=st.data())
def test_joined_events_are_in_one_output_each(
    batches: Any, ordering: Ordering, most: int | None, data: st.DataObject
) -> None:
    """Each acked event with both its parts; a dead one in none, whoever it was joined with."""
    tester = TopologyTester(_JOINED, _settings(ordering, most))
    plans = _run(tester, batches, data.draw(_waits(batches)))
    acked = {_number(event) for event in tester.acked}
    dead = {_number(letter.event) for letter in tester.dead_letters}
    assert len(acked) == len(tester.acked)
    assert len(dead) == len(tester.dead_letters)
    assert acked.isdisjoint(dead)
    assert acked | dead == {plan.number for plan in plans}
    records = [json.loads(value or b"") for _, value in tester.records("out")]
    parts = [pair for one in records for pair in zip(one["numbers"], one["parts"], strict=True)]
    assert Counter(parts) == Counter((number, part) for number in acked for part in (0, 1))


@pytest.mark.promise("process-random-failures-retries")
@given(batches=_BATCHES, data=st.data())
def test_a_tree_that_was_acked_came_to_zero(batches: Any, data: st.DataObject) -> None:
    tester = TopologyTester(_ALONE, _settings(Ordering.KEY, None))
    _run(tester, batches, data.draw(_waits(batches)))
    verdicts = Counter(tree.verdict for tree in tester.trees)
    assert verdicts["acked"] == len(tester.acked)
    assert all(tree.values[-1] == 0 for tree in tester.trees if tree.verdict == "acked")
    attempts: dict[int, list[int]] = defaultdict(list)
    for tree in tester.trees:
        if tree.verdict != "held":
            attempts[_number(tree.event)].append(tree.attempt)
    assert all(seen == list(range(1, len(seen) + 1)) for seen in attempts.values())
