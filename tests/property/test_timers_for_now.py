"""Counts for each event time, by keyed bolts one behind the other: those of no failures."""

from __future__ import annotations

import zlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sequitur.consumer.topology import (
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine import keyed, keyed_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, Key, Timer, Topology, Tuple

_SETTINGS = ProcessSettings.model_validate(
    {"max_attempts": 12, "retry_delay": "10 ms", "retry_jitter": 0}
)
_ROOM = 64 << 20
_PLAN = {"seed": 0, "fails": 0.0}
_RANDOM = Random()


def _drawn(*what: object) -> int:
    return zlib.crc32(repr((_PLAN["seed"], *what)).encode())


def _may_fail(where: str, what: object, attempt: int) -> None:
    """Fail some calls, of those that a step repeats not always the same."""
    if _RANDOM.random() < _PLAN["fails"] and attempt <= 2:
        raise ValueError(f"not yet: {what} in {where}")


@bolt(fields=("user", "count"))
def read(event: Event) -> Iterator[Any]:
    number = int(event.value or b"")
    _may_fail("read", number, event.attempt)
    for user in range(1 + number % 2):
        yield f"user{(number + user) % 4}", 1


class PerTime(KeyedBolt):
    """Counts what comes at each event time, by timers for the past, the present and the future."""

    fields = ("half", "said", "count")
    state = dict[int, int]
    drains = True

    def __init__(self, name: str, random: Random) -> None:
        self._name = name
        self.lag_ms = random.choice([0, 0, 1, 5, 20])  # if any, counts come as of their time
        self._passes = random.random() < 0.4  # whether it passes on what it gets

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        at_ms = given.event_time_ms
        counts = {**(key.state or {})}
        counts[at_ms] = counts.get(at_ms, 0) + given["count"]
        key.state = counts
        key.timer(str(at_ms), at=at_ms + (self.lag_ms or [0, 0, -2, 3][_drawn(at_ms) % 4]))
        if self._passes:
            yield "all" if at_ms % 3 else "some", f"{self._name} passes {key.value} {at_ms}", 1
        _may_fail(f"{self._name} call", (key.value, at_ms), given.attempt)

    def on_timer(self, timer: Timer, key: Key) -> None:
        counts = {**(key.state or {})}
        count = counts.pop(int(timer.name))
        key.state = counts or None
        said = f"{self._name} {key.value} {timer.name} {count}"
        to = "all" if _drawn(key.value) % 3 else "some"
        key.emit((to, said, count), event_time_ms=int(timer.name) if self.lag_ms else None)
        _may_fail(f"{self._name} timer", said, timer.attempt)


@bolt(fields=("half", "said"))
def later(given: Tuple) -> Iterator[Any]:
    _may_fail("later", given["said"], given.attempt)
    yield given["half"], given["said"]


def _topology(random: Random) -> Topology:
    builder = TopologyBuilder("times")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    reads = {"users": ["read"], "halves": ["users"]}
    third = random.choice([None, ["halves"], ["users", "halves"]])
    if third is not None:
        reads["thirds"] = third
    ends = builder.set_bolt("later", later, 2)
    for name, inputs in reads.items():
        counter = builder.set_bolt(name, PerTime(name, random), random.choice([1, 2, 5]))
        for one in inputs:
            counter.fields_grouping(one, "user" if name == "users" else "half")
        ends.fields_grouping(name, "half")
    builder.set_output("out", key="half", value="said").local_grouping("later")
    return builder.build()


def _to_the_end(tester: TopologyTester) -> None:
    for _ in range(200):
        if tester.next_retry_s is None:
            return
        tester.advance(max(0.05, tester.next_retry_s - tester.now_s))
        tester.run()
    raise AssertionError(f"{len(tester.failed)} fail, and {len(tester.held)} are held for ever")


@pytest.mark.promise("keyed-by-field")
@settings(max_examples=20)
@example(149)  # a timer that failed held those of its own bolt
@given(st.integers(0, 1_000_000))
def test_counts_for_each_event_time_are_those_of_a_run_without_failures(seed: int) -> None:
    """However steps are cut, and with little memory: timers wait for all of their time."""
    random = Random(seed)
    _PLAN["seed"], at_ms, events = seed, 1_000, []
    for number in range(random.choice([6, 12, 25])):
        at_ms += random.choice([0, 0, 1, 3, 11])
        events.append((random.choice("abc"), str(number), at_ms))
    topology, said = _topology(random), []
    for fails in (False, True):
        _PLAN["fails"] = random.choice([0, 0.03, 0.2]) if fails else 0
        _RANDOM.seed(seed)
        tester = TopologyTester(topology, _SETTINGS, partitions=random.choice([1, 2]), seed=seed)
        room = random.choice([_ROOM, 1, 1, 600, 1_500]) if fails else _ROOM
        images = random.choice([_ROOM, 3_000, 6_000]) if fails else _ROOM
        with (
            patch.object(keyed, "_MOST_TIMERS_BYTES", room),
            patch.object(keyed_stage, "MOST_IMAGES_BYTES", images),
        ):
            left = list(events)
            while left:
                cut = random.choice([1, 2, 5, 40]) if fails else len(left)
                end = next(
                    (n for n in range(cut, len(left)) if left[n - 1][2] < left[n][2]), len(left)
                )
                some, left = left[:end], left[end:]
                tester.run(some)
                if fails and random.random() < 0.5:
                    tester.advance(random.choice([0.01, 0.1]))
                    tester.run()
            if fails and random.random() < 0.3:
                _to_the_end(tester)
                tester.drain()
            else:
                tester.run(watermark_ms=at_ms + 1_000)
            _to_the_end(tester)
        assert not tester.dead_letters
        said.append(Counter(tester.records("out")))
    assert said[1] == said[0]
    counts: Counter[tuple[str, int]] = Counter()
    for _, text, at in events:
        number = int(text)
        counts.update((f"user{(number + more) % 4}", at) for more in range(1 + number % 2))
    found = [(value or b"").decode().split() for _, value in said[1].elements()]
    assert counts == {
        (user, int(at)): int(count)
        for name, user, at, count in found
        if name == "users" and user != "passes"
    }
