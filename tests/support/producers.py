"""Producers on a cluster in memory: how they are made, how they die, and what the cluster got."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sequitur.producer import IdempotentProducer, ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from sequitur.kafka.record_batch import StoredRecord
    from tests.support.fake_wire import FakeWire, Fault

FAST: Final[dict[str, Any]] = {
    "linger": timedelta(0),
    "retry_backoff": timedelta(milliseconds=1),
    "retry_backoff_max": timedelta(milliseconds=1),
}
"""Settings of a producer that waits for nothing."""


def use(wire: FakeWire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each producer that starts from now on find this cluster."""
    monkeypatch.setattr("sequitur.producer._client.Wire", lambda *_args, **_kwargs: wire)


def make_producer(**settings: Any) -> IdempotentProducer:
    """Make a producer that waits for nothing, where these settings do not say otherwise."""
    return IdempotentProducer("unused:1", ProducerSettings(**(FAST | settings)))


async def kill(producer: IdempotentProducer) -> None:
    """End it as `kill -9` would: nothing is told, written or sent any more."""
    assert producer._running is not None
    for task in producer._running.halt():
        with contextlib.suppress(asyncio.CancelledError):
            await task
    # A process that is killed ends its threads, too.
    await asyncio.to_thread(producer._running.rounds._writer._threads.shutdown)
    assert producer._journal is not None
    producer._journal._disk.unlock()
    producer._closed = True


async def close_without_kafka(producer: IdempotentProducer) -> None:
    """Close it without waiting for answers; the disk has the time that it takes.

    A `close` in a hurry does not wait for the disk either, and leaves the journal locked so long.
    """
    closing = asyncio.create_task(producer.close(timedelta(hours=1)))
    await asyncio.sleep(0)
    await producer.close(timedelta(milliseconds=1))
    await closing


def let_pass(time: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock of the running loop: what waits for a time within this one is due."""
    loop = asyncio.get_running_loop()
    before = loop.time
    monkeypatch.setattr(loop, "time", lambda: before() + time.total_seconds())


def values_of(wire: FakeWire, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in wire.records["t", partition]]


def scripted(*faults: Fault) -> Callable[[list[StoredRecord]], Fault]:
    """One fault for each batch that arrives, then none."""
    script = iter(faults)
    return lambda _records: next(script, None)
