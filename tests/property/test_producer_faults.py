"""The whole producer over a cluster in memory where any batch can meet any fault."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.producer import (
    IdempotentProducer,
    NotPersisted,
    Outcome,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
)
from tests.support.examples import examples
from tests.support.fake_wire import DROPPED, LOST, Appended, FakeWire, Fault

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
_TASKS = 3
_EVENTS = 12


async def _run(wire: FakeWire) -> dict[bytes, Outcome]:
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
        async with (
            IdempotentProducer("unused:1", _SETTINGS) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            for task in range(_TASKS):
                tasks.create_task(send(producer, task))
    return outcomes


@settings(max_examples=examples(1.5))
@given(st.lists(_FAULTS, max_size=60))
def test_every_event_has_the_outcome_that_the_log_shows(script: list[Fault]) -> None:
    """Persisted is there once, NotPersisted is not, and each task's events are in their order."""
    faults = iter(script)
    wire = FakeWire(2, lambda _records: next(faults, None))
    outcomes = asyncio.run(_run(wire))
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
