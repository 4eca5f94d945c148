"""A clock that is wrong: our timestamps are corrected by the broker's, a sender's never are."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from sequitur.base.process import StampClock
from sequitur.errors import JournalFailedError, ProducerClosedError
from sequitur.kafka.identity import Identity
from sequitur.kafka.records import TimestampRange, timestamp_range
from sequitur.producer import IdempotentProducer, NotPersisted, Persisted, Record, parse_event_id
from sequitur.producer.batching.batch import Batch
from sequitur.producer.delivery.redating import Redating
from sequitur.producer.delivery.sequencer import Doubt, Sequencer, Slot, State
from sequitur.producer.journal.frames import Numbered
from tests.support.fake_wire import DELAYED, DROPPED, LOST, FakeWire
from tests.support.numbers_in_doubt import NumbersInDoubt
from tests.support.outcomes import InLog
from tests.support.producers import kill, make_producer, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.producer.journal.frames import Frame

_NOW_MS = 1_790_000_000_000
_HOUR_MS = 3_600_000
_IN_TIME_S = PATIENCE_S


@pytest.fixture
def wire(wire: FakeWire) -> FakeWire:
    wire.now_ms = lambda: _NOW_MS
    return wire


def _ahead(producer: IdempotentProducer, ahead_ms: int = 3 * _HOUR_MS) -> IdempotentProducer:
    """Let the machine's clock be ahead of the cluster's."""
    producer._clock = StampClock(lambda: _NOW_MS + ahead_ms, lambda: 0.0)
    return producer


def _times(wire: FakeWire, partition: int = 0) -> list[int]:
    return [record.timestamp_ms - _NOW_MS for record in wire.records["t", partition]]


@pytest.mark.promise("in-machine-clock-hours")
@pytest.mark.parametrize("journals", [False, True])
async def test_a_clock_far_ahead_costs_no_event(
    wire: FakeWire, make: Callable[..., IdempotentProducer], journals: bool
) -> None:
    """The first batches get the broker's time under their numbers, what follows has it at once."""
    producer = _ahead(make(batch_size=1) if journals else make_producer(batch_size=1))
    async with asyncio.timeout(_IN_TIME_S), producer:
        first = [await producer.send("t", b"%d" % number) for number in range(8)]
        outcomes = await asyncio.gather(*first)
        assert outcomes == [InLog(0, number) for number in range(8)]
        told = [o.timestamp_ms for o in outcomes if isinstance(o, Persisted)]
        assert told == [record.timestamp_ms for record in wire.records["t", 0]][:8]
        refused = wire.misdated
        for number in range(8, 20):
            await producer.send_and_wait("t", b"%d" % number)
        result = await (await producer.send_many("t", [b"x"] * 600))
        assert result.persisted == 600
        assert wire.misdated == refused > 0
        counts = producer.statistics()
        assert (counts.renewals, counts.batches_split) == (0, 0)
    assert values_of(wire)[:20] == [b"%d" % number for number in range(20)]
    assert all(abs(time_ms) < 60_000 for time_ms in _times(wire))


async def test_the_clock_that_is_wrong_is_told(wire: FakeWire) -> None:
    """Once, with how far and which way."""
    del wire
    with structlog.testing.capture_logs() as told:
        async with asyncio.timeout(_IN_TIME_S), _ahead(make_producer()) as producer:
            for partition in (b"1", b"2"):
                await producer.send_and_wait("t", partition)
    clock = [line["event"] for line in told if "clock" in line["event"]]
    assert clock == [
        "this machine's clock is 3.0 h ahead of the broker's: records get the broker's time"
    ]


async def test_a_clock_far_behind_is_corrected_too(wire: FakeWire) -> None:
    """Where a topic takes no old timestamps."""
    wire.before_max_ms = _HOUR_MS
    async with asyncio.timeout(_IN_TIME_S), _ahead(make_producer(), -5 * _HOUR_MS) as producer:
        assert await producer.send_and_wait("t", b"1") == InLog(0, 0)
    assert abs(_times(wire)[0]) < 60_000


@pytest.mark.promise("in-machine-clock-hours")
@pytest.mark.parametrize("bulk", [False, True])
async def test_a_batch_has_timestamps_of_one_kind(wire: FakeWire, bulk: bool) -> None:
    """The sender's stay as they are, ours beside them are corrected; what is out of bounds goes."""
    mine = [_NOW_MS - 5, None, _NOW_MS - 7, _NOW_MS + 9 * _HOUR_MS, None, _NOW_MS - 9]
    records = [Record(b"%d" % n, timestamp_ms=time_ms) for n, time_ms in enumerate(mine)]
    if bulk:  # as many as are laid out by columns, around one that is not
        records = [*[Record(b"0")] * 300, records[0], *[Record(b"0")] * 300]
    linger = timedelta(milliseconds=20)
    async with asyncio.timeout(_IN_TIME_S), _ahead(make_producer(linger=linger)) as producer:
        if bulk:
            await (await producer.send_many("t", [b"0"] * 300))  # loads the columns
        result = await (await producer.send_many("t", records))
        one = [await producer.send("t", r.value, timestamp_ms=r.timestamp_ms) for r in records[:6]]
        outcomes = await asyncio.gather(*one)
    if bulk:
        assert result.not_persisted == 0
        assert min(_times(wire)) == -5
        return
    assert [failure.index for failure in result.failures] == [3]
    assert [isinstance(outcome, NotPersisted) for outcome in outcomes] == [
        *(False, False, False, True, False, False)
    ]
    assert [t for t in _times(wire) if t < 0] == [-5, -7, -9, -5, -7, -9]


@pytest.mark.promise("in-machine-clock-hours")
async def test_what_may_be_in_the_log_is_asked_for_before_it_is_dated_anew(wire: FakeWire) -> None:
    """Its answer was lost, and the topic takes such timestamps no more: it is there once."""
    wire.after_max_ms = 5 * _HOUR_MS
    asked = 0

    def on_judged() -> None:
        nonlocal asked
        asked += 1

    wire.on_judged = on_judged
    async with asyncio.timeout(_IN_TIME_S), _ahead(make_producer()) as producer:
        await producer.send_and_wait("t", b"0")
        wire.fault = lambda _records: LOST
        delivery = await producer.send("t", b"1")
        await wire.broken.wait()
        wire.after_max_ms = _HOUR_MS
        wire.fault = lambda _records: None
        assert await delivery == InLog(0, None)
        assert asked > 0
        assert await producer.send_and_wait("t", b"2") == InLog(0, 2)
    assert values_of(wire) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_text", [True, False])
async def test_a_broker_that_does_not_say_what_time_it_is_is_waited_for(
    wire: FakeWire, is_text: bool
) -> None:
    """Nothing is given up for a clock; the reason says what to look at."""
    if is_text:
        wire.range_text = "no"
    else:
        wire.configs_known = False
    async with asyncio.timeout(_IN_TIME_S), _ahead(make_producer()) as producer:
        delivery = await producer.send("t", b"1")
        while wire.misdated < 5:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(delivery), 0.01)
        assert "is this machine's clock right?" in (producer.blocked_reason() or "")
        wire.now_ms = lambda: _NOW_MS + 3 * _HOUR_MS
        assert await delivery == InLog(0, 0)
        assert producer.blocked_reason() is None


async def test_records_too_far_apart_for_one_batch_are_halved(wire: FakeWire) -> None:
    """The clock was set while the batch was filled, by more than the topic takes."""
    wire.before_max_ms = _HOUR_MS
    ours = iter([_NOW_MS + 9 * _HOUR_MS, _NOW_MS])
    last = _NOW_MS
    producer = make_producer(linger=timedelta(milliseconds=20))
    producer._clock = StampClock(lambda: next(ours, last), lambda: 0.0)
    async with asyncio.timeout(_IN_TIME_S), producer:
        deliveries = [await producer.send("t", value) for value in (b"1", b"2")]
        await asyncio.gather(*deliveries)
        assert producer.statistics().batches_split == 1
    assert values_of(wire) == [b"1", b"2"]


@pytest.mark.promise("in-machine-clock-hours")
async def test_another_timestamp_is_synced_before_its_batch_is_sent(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """While the disk is at it, the producer has time enough to send it too early."""
    producer = _ahead(make(batch_size=1))
    appended: list[tuple[int, int]] = []
    synced: set[tuple[int, int]] = set()
    early: list[tuple[int, int]] = []
    redated = 0

    def arrives(records: list[StoredRecord]) -> None:
        nonlocal redated
        event = parse_event_id(records[0].headers[-1][1] or b"").sequence
        if records[-1].timestamp_ms < _NOW_MS + _HOUR_MS and event < 4:
            redated += 1
            if (sent := (event, records[-1].timestamp_ms)) not in synced:
                early.append(sent)

    async with asyncio.timeout(_IN_TIME_S), producer:
        loop, journal = asyncio.get_running_loop(), producer._journal
        assert journal is not None
        append, sync = journal.append, journal.sync

        def append_and_note(frames: Sequence[Frame], *, part: bool = False) -> bool:
            is_written = append(frames, part=part)
            for numbered in frames:
                if isinstance(numbered, Numbered):
                    numbers = numbered.numbers
                    appended.extend((n.first_event_sequence, n.timestamp_ms) for n in numbers)
            return is_written

        def sync_slowly() -> bool:
            before = list(appended)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.02), loop).result()
            has_synced = sync()
            synced.update(before)
            return has_synced

        journal.append, journal.sync = append_and_note, sync_slowly  # type: ignore[method-assign]
        wire.fault = arrives
        deliveries = [await producer.send("t", b"%d" % number) for number in range(4)]
        assert await asyncio.gather(*deliveries) == [InLog(0, number) for number in range(4)]
    assert redated >= 4
    assert early == []


class _Redated:
    """Stand for the rounds: note which batches get another timestamp."""

    def __init__(self) -> None:
        self.batches: list[str] = []

    def redate(self, _queue: object, slot: Slot[Any], _now_ms: int) -> None:
        self.batches.append(slot.batch.topic)


@pytest.mark.promise("in-machine-clock-hours")
async def test_what_may_be_in_the_log_keeps_its_timestamp_until_the_broker_was_asked(
    wire: FakeWire,
) -> None:
    """A batch in flight keeps its own too, and one that the journal does not have yet."""
    sequencer: Sequencer[Batch] = Sequencer(Identity(1, 0), confirmed=True)
    ahead_ms = [3 * _HOUR_MS] * 5 + [0]
    slots = [
        sequencer.admit(Batch(name, 0, 0.0, 0, last_ms=_NOW_MS + ms), 1)
        for name, ms in zip("abcdef", ahead_ms, strict=True)
    ]
    rounds: Any = _Redated()
    cluster: Any = wire
    parts: Any = None
    is_known = asyncio.Event()
    redating = Redating(
        wire=cluster,
        clock=StampClock(lambda: _NOW_MS, lambda: 0.0),
        queues=parts,
        rounds=rounds,
        barred=parts,
        on_known=is_known.set,
        on_failure=lambda _error: None,
    )
    queue: Any = SimpleNamespace(sequencer=sequencer, topic="t")
    redating.refused(queue, slots[0], wire.range_text.format(0, _NOW_MS + _HOUR_MS))
    async with asyncio.timeout(_IN_TIME_S):
        await is_known.wait()
    for number, (state, doubt, held) in enumerate(
        [
            (State.READY, Doubt.NONE, False),
            (State.READY, Doubt.POSSIBLE, False),
            (State.READY, Doubt.ASKED, False),
            (State.IN_FLIGHT, Doubt.NONE, False),
            (State.READY, Doubt.NONE, True),
        ]
    ):
        slot = slots[number]
        slot.state, slot.doubt, slot.held = state, doubt, held
    redating.redate(queue)
    assert rounds.batches == ["a", "c"]


@pytest.mark.parametrize("journals", [False, True])
async def test_two_brokers_that_disagree_move_a_timestamp_twice(
    wire: FakeWire, make: Callable[..., IdempotentProducer], journals: bool
) -> None:
    """A batch of one record gets the time of each broker that refuses it."""
    behind_ms = iter([0, 5 * _HOUR_MS])
    wire.now_ms = lambda: _NOW_MS - next(behind_ms, 5 * _HOUR_MS)
    producer = _ahead(make() if journals else make_producer())
    async with asyncio.timeout(_IN_TIME_S), producer:
        outcome = await producer.send_and_wait("t", b"1")
        assert outcome == InLog(0, 0)
        counts = producer.statistics()
    (record,) = wire.records["t", 0]
    assert abs(record.timestamp_ms - _NOW_MS + 5 * _HOUR_MS) < 60_000
    assert isinstance(outcome, Persisted)
    assert outcome.timestamp_ms == record.timestamp_ms
    assert (wire.misdated, counts.renewals, counts.batches_split) == (2, 0, 0)


async def test_a_batch_with_the_brokers_time_is_halved_though_another_refusal_told_no_time(
    wire: FakeWire,
) -> None:
    """The second refusal is of the batch before it, and leaves both as they were."""
    arrivals = iter([(0, True), (3 * _HOUR_MS, False), (0, True)])
    counts: list[int] = []

    def arrives(records: list[StoredRecord]) -> None:
        counts.append(len(records))
        behind_ms, wire.configs_known = next(arrivals, (3 * _HOUR_MS, True))
        wire.now_ms = lambda: _NOW_MS - behind_ms

    wire.fault = arrives
    values = [bytes(600), b"1", b"2"]
    async with asyncio.timeout(_IN_TIME_S), _ahead(make_producer(batch_size=512)) as producer:
        result = await (await producer.send_many("t", values))
        assert result.persisted == 3
        assert producer.statistics().batches_split == 1
    assert counts[:5] == [1, 1, 1, 2, 1]
    assert values_of(wire) == values
    first_ms, *halves_ms = _times(wire)
    assert abs(first_ms) < 60_000
    assert all(abs(time_ms + 3 * _HOUR_MS) < 60_000 for time_ms in halves_ms)


async def test_the_next_life_knows_whose_timestamps_a_batch_has(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """It moves the producer's own, and gives up a sender's that is out of bounds."""
    wire.after_max_ms = 5 * _HOUR_MS
    producer = _ahead(make())
    await producer.start()
    await producer.send_and_wait("t", b"first")
    wire.reachable = wire.connected = False
    kept = {b"ours": None, b"far": _NOW_MS + 9 * _HOUR_MS, b"near": _NOW_MS - 9}
    for value, time_ms in kept.items():
        await (await producer.send("t", value, timestamp_ms=time_ms)).journaled
    await kill(producer)
    wire.reachable = True
    wire.after_max_ms = _HOUR_MS
    async with asyncio.timeout(_IN_TIME_S), _ahead(make()) as producer:
        await producer.flush()
        assert producer.statistics().not_persisted == 1
    assert values_of(wire) == [b"first", b"ours", b"near"]
    first_ms, ours_ms, near_ms = _times(wire)
    assert (first_ms, near_ms) == (3 * _HOUR_MS, -9)
    assert abs(ours_ms) < 60_000


class _Steps:
    """Ends a life at one of its steps: appends to the journal, and requests with batches.

    Args:
        wire: The cluster.
        dies_at: The step; counted from 0.
        fault: What becomes of the request that it dies with.
    """

    def __init__(self, wire: FakeWire, dies_at: int, fault: str) -> None:
        self.count = 0
        self.has_died = False
        self._wire = wire
        self._dies_at = dies_at
        self._fault = fault
        wire.fault = lambda _records: self._fault if self._dies() else None

    def watch(self, producer: IdempotentProducer) -> None:
        journal = producer._journal
        assert journal is not None
        before = journal.append

        def append(frames: Sequence[Frame], *, part: bool = False) -> bool:
            if self.has_died or self._dies():
                raise JournalFailedError("the process ended")
            return before(frames, part=part)

        journal.append = append  # type: ignore[method-assign]

    def _dies(self) -> bool:
        is_now = self.count == self._dies_at
        self.count += 1
        if is_now:
            self.has_died = True
            self._wire.reachable = self._wire.connected = False
        return is_now


@pytest.mark.promise("in-machine-clock-hours")
@pytest.mark.parametrize("fault", [LOST, DROPPED, DELAYED])
@pytest.mark.parametrize("answers", [True, False])
async def test_a_life_that_ends_at_any_step_of_it_loses_and_doubles_nothing(
    wire: FakeWire, make: Callable[..., IdempotentProducer], fault: str, answers: bool
) -> None:
    """Each append to the journal and each request; the next life finds what that left.

    With `answers` the topic takes the timestamps that were refused at first when the next life
    begins, so that a request on its way gets in with bytes that the journal has no more.
    """
    events = [b"%d" % number for number in range(4)]
    step = expected = 0
    numbers = NumbersInDoubt(wire)
    while True:
        wire.after_max_ms = _HOUR_MS
        steps = _Steps(wire, step, fault)
        producer = _ahead(make(batch_size=1))
        deliveries: list[Any] = []
        async with asyncio.timeout(_IN_TIME_S):
            await producer.start()
            steps.watch(producer)
            with contextlib.suppress(ProducerClosedError):  # it has died already
                for event in events:
                    deliveries += [await producer.send("t", b"%d:%b" % (step, event))]
            done = asyncio.gather(*deliveries)
            ended = asyncio.ensure_future(producer.failure())
            broken = asyncio.ensure_future(wire.broken.wait())
            waits: list[asyncio.Future[Any]] = [done, ended, broken]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await (kill(producer) if steps.has_died else producer.close())
            for waiting in (ended, broken):
                waiting.cancel()
        wire.broken.clear()
        wire.fault = lambda _records: None
        wire.reachable = wire.connected = True
        if answers:
            wire.after_max_ms = 5 * _HOUR_MS
        wire.on_judged = numbers.on_judged
        async with asyncio.timeout(_IN_TIME_S), _ahead(make(batch_size=1)) as producer:
            await producer.flush()
            wire.deliver()
            await producer.send_and_wait("t", b"%d:end" % step)
            assert producer.statistics().not_persisted == 0
        assert not numbers.reused
        of_life = [v for v in values_of(wire) if v is not None and v.startswith(b"%d:" % step)]
        # What was not in the journal yet was not accepted by any promise: a beginning is there.
        assert of_life[-1] == b"%d:end" % step
        kept = [b"%d:%b" % (step, event) for event in events][: len(of_life) - 1]
        assert of_life[:-1] == kept, step
        told = [d for d in deliveries if d.done() and isinstance(d.result(), Persisted)]
        assert len(told) <= len(kept)
        expected += len(of_life)
        assert len(values_of(wire)) == expected
        if not steps.has_died:
            break
        step += 1
    assert step > 8
    assert wire.misdated >= 8


def test_a_broker_tells_its_time() -> None:
    """In the text that Kafka's LogValidator writes; without a limit Java's numbers wrap round."""
    text = (
        "Timestamp 7 of message with offset 0 is out of range. The timestamp should be within "
        f"[{_NOW_MS - 2**63 + 1}, {_NOW_MS + _HOUR_MS}]"
    )
    found = timestamp_range(text)
    assert found == TimestampRange(_NOW_MS - 2**63 + 1, _NOW_MS + _HOUR_MS)
    assert found.broker_ms(_HOUR_MS) == _NOW_MS
    unlimited = TimestampRange(0, _NOW_MS + 2**63 - 1 - 2**64)
    assert unlimited.broker_ms(2**63 - 1) == _NOW_MS
    assert timestamp_range("One or more records have been rejected") is None


def test_a_correction_lasts_until_the_clock_is_set() -> None:
    """By the machine's steady clock: the time may have been put right."""
    wall_ms, steady_s = 10_000_000, 5.0
    clock = StampClock(lambda: wall_ms, lambda: steady_s)
    assert clock.now_ms() == 10_000_000
    clock.correct(4_000_000)
    assert (clock.ahead_ms, clock.now_ms()) == (6_000_000, 4_000_000)
    wall_ms, steady_s = 10_900_000, 905.0
    assert clock.now_ms() == 4_900_000
    wall_ms = 4_900_000  # set back to the broker's
    assert (clock.now_ms(), clock.ahead_ms) == (4_900_000, 0)
