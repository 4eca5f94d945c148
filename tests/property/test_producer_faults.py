"""The whole producer over a cluster in memory where any batch can meet any fault."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.base.process import StampClock
from sequitur.producer import (
    IdempotentProducer,
    NotPersisted,
    Outcome,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
)
from tests.support.examples import examples
from tests.support.fake_wire import DELAYED, DROPPED, LOST, Appended, FakeWire, Fault
from tests.support.numbers_in_doubt import NumbersInDoubt

_MILLISECOND = timedelta(milliseconds=1)
_SETTINGS = ProducerSettings(
    linger=timedelta(0),
    batch_size=300,
    retry_backoff=_MILLISECOND,
    retry_backoff_max=_MILLISECOND,
    delivery_timeout=timedelta(seconds=60),
)
_REFUSALS = [3, 6, 7, 10, 19, 20, 29, 45, 87, -1, 999]
_AFTER_LOCAL_APPEND = [Appended(code) for code in (3, 6, 7, 20, 56, -1)]
_FAULTS = st.sampled_from([None, None, None, LOST, DROPPED, *_REFUSALS, *_AFTER_LOCAL_APPEND])
_CLOCK_FAULTS = st.sampled_from([None, None, LOST, DROPPED, DELAYED, 6, Appended(7)])
_NOW_MS = 1_790_000_000_000
_HOUR_MS = 3_600_000
_TASKS = 3
_EVENTS = 12


async def _run(wire: FakeWire, clock: StampClock) -> dict[bytes, Outcome]:
    outcomes: dict[bytes, Outcome] = {}

    async def send(producer: IdempotentProducer, task: int) -> None:
        deliveries = {}
        for number in range(_EVENTS):
            value = b"%d:%d" % (task, number)
            deliveries[value] = await producer.send("t", value, partition=number % 2)
            if number % 4 == 0:
                await asyncio.sleep(0)
        for value, delivery in deliveries.items():
            outcomes[value] = await delivery

    with patch("sequitur.producer._client.Wire", lambda *_args, **_kwargs: wire):
        made = IdempotentProducer("unused:1", _SETTINGS)
        made._clock = clock
        async with made as producer, asyncio.TaskGroup() as tasks:
            for task in range(_TASKS):
                tasks.create_task(send(producer, task))
    return outcomes


@pytest.mark.promise("in-answer-lost-connection", "in-leader-appends-batch")
@settings(max_examples=examples(1.5))
@given(st.lists(_FAULTS, max_size=60))
def test_every_event_has_the_outcome_that_the_log_shows(script: list[Fault]) -> None:
    """Persisted is there once, NotPersisted is not, and each task's events are in their order."""
    faults = iter(script)
    wire = FakeWire(2, lambda _records: next(faults, None))
    _check(wire, asyncio.run(_run(wire, StampClock())))


@pytest.mark.promise("in-machine-clock-hours")
@settings(max_examples=examples(1.0))
@given(st.lists(st.tuples(_CLOCK_FAULTS, st.booleans()), max_size=40))
def test_a_clock_far_ahead_changes_nothing_of_that(script: list[tuple[Fault, bool]]) -> None:
    """Also where the topic takes such timestamps for a while, and answers are lost meanwhile.

    No number goes out with other bytes while an attempt under it may be in the log.
    """
    faults = iter(script)

    def fault(_records: object) -> Fault:
        what, takes_them = next(faults, (None, False))
        wire.after_max_ms = _HOUR_MS * (9 if takes_them else 1)
        return what

    wire = FakeWire(2, fault)
    wire.now_ms = lambda: _NOW_MS
    numbers = NumbersInDoubt(wire)
    clock = StampClock(lambda: _NOW_MS + 3 * _HOUR_MS, lambda: 0.0)
    outcomes = asyncio.run(_run(wire, clock))
    _check(wire, outcomes)
    assert all(isinstance(outcome, Persisted) for outcome in outcomes.values())
    assert numbers.reused == []


def _check(wire: FakeWire, outcomes: dict[bytes, Outcome]) -> None:
    assert len(outcomes) == _TASKS * _EVENTS
    for partition in range(2):
        log = [record.value or b"" for record in wire.records["t", partition]]
        assert [value for value, times in Counter(log).items() if times > 1] == []
        for task in range(_TASKS):
            own = [value for value in log if value.startswith(b"%d:" % task)]
            assert own == sorted(own, key=lambda value: int(value.split(b":")[1]))
        for value, outcome in outcomes.items():
            if int(value.split(b":")[1]) % 2 != partition:
                continue
            match outcome:
                case Persisted(found_partition, offset):
                    assert found_partition == partition
                    assert value in log
                    assert offset is None or log[offset] == value
                case NotPersisted(reason):
                    assert value not in log, reason
                case PossiblyPersisted():
                    pass
