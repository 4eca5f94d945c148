"""Bytes of batches that wait: out of memory, and back again when it is their turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.kafka.record_batch import Stamp, batch_of
from sequitur.producer.batching.batch import Batch, InJournal, InMemory
from sequitur.producer.batching.budget import BufferBudget
from sequitur.producer.delivery.spill import REFERENCE_BYTES, Spill
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

_BUDGET = 50_000
_PATIENCE_S = 0.01
_DATA = batch_of(b"x" * (2 * _BUDGET), 1, first_ms=0, last_ms=0)


class _Journal:
    """Has the same bytes for each batch."""

    def read(self, _key: object) -> bytes:
        return _DATA


async def _in_thread(call: Callable[[Batch], bytes], batch: Batch) -> bytes:
    await asyncio.sleep(0)
    return call(batch)


def _fail(error: Exception) -> None:
    raise error


def _spill(
    budget: BufferBudget | None = None, *, patience_s: float = _PATIENCE_S, still_s: float = 1.0
) -> Spill:
    journal: Any = _Journal()
    budget = budget or BufferBudget(asyncio.get_running_loop(), 4 * _BUDGET)
    return Spill(
        journal, budget, _BUDGET, _in_thread, _fail, patience_s=patience_s, still_s=still_s
    )


def _is_away(batch: Batch) -> bool:
    return batch.in_memory is InMemory.AWAY


def _resident(number: int, accepted_at_s: float) -> Batch:
    stamp = Stamp(1, 0, number)
    return Batch(
        "t", 0, accepted_at_s, number,
        last_event=number, count=1, size=_BUDGET,
        in_memory=InMemory.BYTES, in_journal=InJournal.NUMBERED, journaled=stamp,
    )  # fmt: skip


async def test_what_has_waited_leaves_the_memory_the_newest_first() -> None:
    """What is sent soon keeps its bytes: to read them back would cost more than it gives."""
    loop = asyncio.get_running_loop()
    budget = BufferBudget(loop, 5 * _BUDGET)
    spill = _spill(budget)
    long_ago_s = loop.time() - 2 * _PATIENCE_S
    old = [_resident(number, long_ago_s) for number in range(3)]
    new = _resident(3, loop.time() + 3600)
    for batch in (*old, new):
        budget.take(batch.size)
    spill.track([*old, new])
    async with asyncio.timeout(PATIENCE_S):
        while not _is_away(old[1]):  # noqa: ASYNC110 - a timer of its own does it
            await asyncio.sleep(_PATIENCE_S)
    away = [_is_away(batch) for batch in (*old, new)]
    assert away == [False, True, True, False]
    assert budget.used == 2 * (_BUDGET + REFERENCE_BYTES)
    spill.stop()


@pytest.mark.promise("in-kafka-away-buffer")
async def test_while_nothing_is_sent_no_buffer_is_too_large_to_leave_memory() -> None:
    """A buffer that takes an hour to be sent makes nobody wait for an hour while Kafka is away."""
    loop = asyncio.get_running_loop()
    budget = BufferBudget(loop, _BUDGET)
    spill = _spill(budget, patience_s=3600, still_s=_PATIENCE_S)
    batch = _resident(0, loop.time())
    budget.take(batch.size)
    spill.track([batch])
    async with asyncio.timeout(PATIENCE_S):
        while not _is_away(batch):  # noqa: ASYNC110 - a timer of its own does it
            await asyncio.sleep(_PATIENCE_S)
    assert budget.used == REFERENCE_BYTES
    spill.stop()


def _stored(number: int) -> Batch:
    stamp = Stamp(1, 0, number)
    return Batch(
        "t", 0, 0.0, number,
        last_event=number, count=1, size=REFERENCE_BYTES,
        in_memory=InMemory.AWAY, in_journal=InJournal.NUMBERED, journaled=stamp,
    )  # fmt: skip


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


@pytest.mark.promise("in-waiting-batches-read")
async def test_a_batch_whose_turn_it_is_finds_memory() -> None:
    """One that was read ahead gives its bytes up for it: it could not go before it anyway."""
    spill = _spill()
    first, later = _stored(0), _stored(1)
    spill.request(later, lambda: None)
    await _until(lambda: not _is_away(later))
    told: list[Batch] = []
    spill.request(first, lambda: told.append(first), is_next=True)
    await _until(lambda: bool(told))
    assert (_is_away(first), _is_away(later)) == (False, True)
    assert later.data == b""


async def test_what_is_on_its_way_keeps_its_bytes() -> None:
    """Until there is an answer; then the next one is read."""
    spill = _spill()
    sent, waits = _stored(0), _stored(1)
    spill.request(sent, lambda: None, is_next=True)
    await _until(lambda: not _is_away(sent))
    spill.on_sent(sent)
    spill.request(waits, lambda: None, is_next=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (_is_away(sent), _is_away(waits)) == (False, True)
    spill.forget(sent)
    await _until(lambda: not _is_away(waits))


@pytest.mark.promise("in-waiting-batches-read")
async def test_a_batch_that_failed_makes_room_for_others() -> None:
    """It may have to wait for long: its partition's leader is away."""
    spill = _spill()
    failed, other = _stored(0), _stored(1)
    spill.request(failed, lambda: None, is_next=True)
    await _until(lambda: not _is_away(failed))
    spill.on_sent(failed)
    spill.on_retry(failed)
    assert not _is_away(failed)  # nobody wants its memory
    spill.request(other, lambda: None, is_next=True)
    await _until(lambda: not _is_away(other))
    assert _is_away(failed)
