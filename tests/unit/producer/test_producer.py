"""What the producer promises its users, over a cluster in memory."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sequitur.base.process import StampClock
from sequitur.errors import ProducerClosedError, RetriableError, SendManyError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.producer import (
    EVENT_ID_HEADER,
    IdempotentProducer,
    NotPersisted,
    Outcome,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
    Record,
    parse_event_id,
)
from sequitur.producer.delivery.sender import Sender
from tests.support.fake_wire import DROPPED, LOST, FakeWire, Fault
from tests.support.outcomes import InLog
from tests.support.producers import FAST, make_producer, scripted
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.producer._outcome import GivenUp

_UNKNOWN_TOPIC = 3


async def test_an_event_is_persisted_at_its_offset(wire: FakeWire) -> None:
    async with make_producer() as producer:
        deliveries = [await producer.send("t", b"%d" % number) for number in range(3)]
        outcomes = await asyncio.gather(*deliveries)
    assert outcomes == [InLog(0, 0), InLog(0, 1), InLog(0, 2)]
    assert [record.value for record in wire.records["t", 0]] == [b"0", b"1", b"2"]


@pytest.mark.promise("in-headers-dropped")
async def test_each_event_has_an_id_that_counts(wire: FakeWire) -> None:
    """The ids of one producer count from 0, in the order of acceptance; its headers stay."""
    async with make_producer(name="me") as producer:
        for _ in range(3):
            await producer.send("t", b"x", headers=[("own", b"1")])
        name = producer.name
    headers = [record.headers for record in wire.records["t", 0]]
    assert [found[0] for found in headers] == [("own", b"1")] * 3
    assert [found[1][0] for found in headers] == [EVENT_ID_HEADER] * 3
    ids = [parse_event_id(found[1][1] or b"") for found in headers]
    assert [(found.producer, found.sequence) for found in ids] == [(name, n) for n in range(3)]
    assert name.startswith("me~")


async def test_without_a_journal_no_two_runs_share_a_name(wire: FakeWire) -> None:
    """The count of events starts anew, so the name must be another."""
    del wire
    assert make_producer(name="me").name != make_producer(name="me").name


@pytest.mark.promise("in-broker-restarts-leader")
@pytest.mark.parametrize("fault", [LOST, DROPPED, 6, 7, 19, 20, -1, 45, 999])
@in_virtual_time
async def test_one_fault_is_outlived(wire: FakeWire, fault: Fault) -> None:
    """Whatever goes wrong once, each event is there once, soon."""
    wire.fault = scripted(fault)
    async with asyncio.timeout(0.9), make_producer() as producer:
        deliveries = [await producer.send("t", b"%d" % number) for number in range(3)]
        assert [type(outcome) for outcome in await asyncio.gather(*deliveries)] == [Persisted] * 3
    assert [record.value for record in wire.records["t", 0]] == [b"0", b"1", b"2"]


@pytest.mark.promise("in-broker-refuses-batch-large")
@in_virtual_time
async def test_one_bad_record_fails_alone(wire: FakeWire) -> None:
    """The broker refuses batches that hold it (INVALID_RECORD); all others get through."""
    wire.fault = lambda records: 87 if any(r.value == b"bad" for r in records) else None
    async with asyncio.timeout(0.9), make_producer(linger=timedelta(milliseconds=5)) as producer:
        values = [b"1", b"2", b"bad", b"3", b"4", b"5", b"6"]
        deliveries = {value: await producer.send("t", value) for value in values}
        outcomes = {value: await delivery for value, delivery in deliveries.items()}
    refused = [value for value, found in outcomes.items() if not isinstance(found, Persisted)]
    assert refused == [b"bad"]
    assert outcomes[b"bad"] == NotPersisted("INVALID_RECORD")
    assert [record.value for record in wire.records["t", 0]] == [v for v in values if v != b"bad"]


@pytest.mark.promise("in-batch-refused-good", "in-sequence-number-assigned")
@in_virtual_time
async def test_a_refused_batch_does_not_wedge_its_partition(wire: FakeWire) -> None:
    """No right to write now, but later: what comes later gets through (aiokafka #1017)."""
    wire.fault = scripted(44)
    async with asyncio.timeout(0.9), make_producer() as producer:
        first = await (await producer.send("t", b"1"))
        second = await (await producer.send("t", b"2"))
        assert producer.statistics().renewals == 1
    assert first == NotPersisted("POLICY_VIOLATION")
    assert second == InLog(0, 0)


@pytest.mark.parametrize("topic_limit", [1 << 20, 500])
async def test_an_event_that_is_too_large_is_refused_before_it_is_counted(
    wire: FakeWire, topic_limit: int
) -> None:
    """It gets neither a sequence nor an event id, so it leaves no gap; only it fails."""
    wire.max_bytes = topic_limit
    async with make_producer(max_request_size=1000, compression="none") as producer:
        before = await producer.send("t", b"1")
        large = await producer.send("t", b"x" * 2000)
        after = await producer.send("t", b"2")
        assert isinstance(await before, Persisted)
        outcome = await large
        assert isinstance(outcome, NotPersisted)
        assert "bytes are more than" in outcome.reason
        assert isinstance(await after, Persisted)
        assert producer.statistics().accepted == 2
    ids = [parse_event_id(r.headers[-1][1] or b"").sequence for r in wire.records["t", 0]]
    assert ids == [0, 1]


async def test_a_large_event_that_compresses_well_is_sent(wire: FakeWire) -> None:
    wire.max_bytes = 1000
    async with make_producer() as producer:
        outcome = await (await producer.send("t", b"x" * 100_000))
        small = await (await producer.send("t", b"y"))
    assert [outcome, small] == [InLog(0, 0), InLog(0, 1)]


@pytest.mark.parametrize("partition", [1, -1])
async def test_a_partition_that_is_not_there_is_refused(wire: FakeWire, partition: int) -> None:
    """It costs the event, and nothing else."""
    async with make_producer() as producer:
        await producer.send("t", b"1")
        outcome = await (await producer.send("t", b"", partition=partition))
        assert outcome == NotPersisted(f"partition {partition}: topic t has 0 to 0")
        assert await (await producer.send("t", b"2")) == InLog(0, 1)
    assert [record.value for record in wire.records["t", 0]] == [b"1", b"2"]


@pytest.mark.promise("in-topic-missing")
async def test_a_topic_that_nobody_ever_saw_is_named_soon(wire: FakeWire) -> None:
    """After topic_timeout, long before delivery_timeout; and nobody asks for it any more."""
    async with (
        asyncio.timeout(PATIENCE_S),
        make_producer(topic_timeout=timedelta(seconds=0.5)) as producer,
    ):
        sending = asyncio.create_task(producer.send("missing", b"1"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 0.1)
        assert producer.blocked_reason() == "topic missing is not there"
        outcome = await (await sending)
        assert outcome == NotPersisted("topic missing is not there, for 0.5 s")
        assert wire.forgotten == ["missing"]
        assert producer.blocked_reason() is None
        wire.unauthorized.add("missing-too")
        outcome = await (await producer.send("missing-too", b"1"))
        assert "TOPIC_AUTHORIZATION_FAILED" in str(outcome)
        wire.created.add("missing")
        assert isinstance(await (await producer.send("missing", b"2")), Persisted)


@pytest.mark.promise("in-topic-missing")
async def test_a_missing_topic_is_created_if_that_is_wanted(wire: FakeWire) -> None:
    """It is off by default: a name with a typing error would be a topic."""
    async with asyncio.timeout(PATIENCE_S), make_producer(create_topics=True) as producer:
        assert isinstance(await (await producer.send("missing", b"1")), Persisted)
    assert wire.created == {"missing"}


@pytest.mark.promise("in-topic-missing")
async def test_a_topic_that_is_not_there_is_told(wire: FakeWire) -> None:
    """After delivery_timeout, and without waiting for any other topic."""
    del wire
    async with make_producer(delivery_timeout=timedelta(milliseconds=500)) as producer:
        outcome = await (await producer.send("missing", b"1"))
        assert outcome == NotPersisted("topic missing is not there")
        assert await (await producer.send("t", b"1")) == InLog(0, 0)


async def test_closing_sends_those_away_who_wait_for_a_topic(wire: FakeWire) -> None:
    """They hear that the producer is closed, and are not cancelled themselves."""
    del wire
    producer = make_producer()
    await producer.start()
    waiting = asyncio.create_task(producer.send("missing", b"1"))
    await asyncio.sleep(0)
    await producer.close(timedelta(milliseconds=50))
    with pytest.raises(ProducerClosedError):
        await waiting


async def test_a_full_buffer_holds_senders_back_in_their_order(wire: FakeWire) -> None:
    """With more tasks than room, none overtakes another, and the buffer keeps its limit."""
    async with make_producer(buffer_size=1000, batch_size=400) as producer:
        most = 0

        async def send(number: int) -> Outcome:
            nonlocal most
            delivery = await producer.send("t", b"%03d" % number + b"x" * 97)
            most = max(most, producer.statistics().buffered_bytes)
            return await delivery

        tasks = [asyncio.create_task(send(number)) for number in range(100)]
        outcomes = await asyncio.gather(*tasks)
    assert all(isinstance(outcome, Persisted) for outcome in outcomes)
    assert [int((r.value or b"")[:3]) for r in wire.records["t", 0]] == list(range(100))
    assert most < 1200


async def test_a_sender_that_gives_up_waiting_lets_the_next_one_in(wire: FakeWire) -> None:
    """A cancelled task in the queue for room blocks nobody."""
    async with make_producer(buffer_size=200, batch_size=200) as producer:
        wire.reachable = wire.connected = False
        producer_tasks = []
        await producer.send("t", b"x" * 150)
        producer_tasks = [asyncio.create_task(producer.send("t", b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        producer_tasks[0].cancel()
        wire.reachable = True
        outcomes = [await (await task) for task in producer_tasks[1:]]
    assert [type(outcome) for outcome in outcomes] == [Persisted, Persisted]


async def test_no_room_in_time_is_told(wire: FakeWire) -> None:
    """A full buffer blocks, and then gives the event back as not persisted."""
    async with make_producer(
        buffer_size=200, delivery_timeout=timedelta(milliseconds=100)
    ) as producer:
        await producer.send("t", b"1")
        wire.reachable = wire.connected = False
        deliveries = [await producer.send("t", b"x" * 150) for _ in range(4)]
        outcomes = await asyncio.gather(*deliveries)
    assert {type(outcome) for outcome in outcomes} == {NotPersisted}


@pytest.mark.promise("in-kafka-away-longer")
async def test_a_batch_that_was_never_sent_expires_as_not_persisted(wire: FakeWire) -> None:
    """It surely is not in the log, and the reason says what was in the way."""
    async with make_producer(delivery_timeout=timedelta(milliseconds=500)) as producer:
        wire.reachable = wire.connected = False
        outcome = await (await producer.send("t", b"1"))
        assert isinstance(outcome, NotPersisted)
        assert "broker 1 cannot be reached" in outcome.reason
        wire.reachable = True
        assert isinstance(await (await producer.send("t", b"2")), Persisted)
    assert [record.value for record in wire.records["t", 0]] == [b"2"]


@pytest.mark.promise("in-kafka-away-longer")
async def test_a_batch_without_an_answer_expires_as_possibly_persisted(wire: FakeWire) -> None:
    """It was sent; and when the broker is back, what follows is in order and once."""
    wire.fault = scripted(LOST)
    async with make_producer(delivery_timeout=timedelta(milliseconds=500)) as producer:
        wire.fault = scripted(LOST)
        delivery = await producer.send("t", b"1")
        await wire.broken.wait()
        wire.reachable = False
        outcome = await delivery
        wire.reachable = True
        assert isinstance(await (await producer.send("t", b"2")), Persisted)
    assert isinstance(outcome, PossiblyPersisted)
    assert [record.value for record in wire.records["t", 0]] == [b"1", b"2"]


async def test_what_a_broker_never_takes_expires_as_not_persisted(wire: FakeWire) -> None:
    """Too few replicas for long: each answer said that it was not appended, and none is due."""
    wire.fault = lambda records: 19 if records[0].value == b"1" else None
    pause = timedelta(milliseconds=800)
    async with make_producer(
        delivery_timeout=timedelta(milliseconds=600), retry_backoff=pause, retry_backoff_max=pause
    ) as producer:
        outcome = await (await producer.send("t", b"1"))
        assert isinstance(await (await producer.send("t", b"2")), Persisted)
    assert isinstance(outcome, NotPersisted)
    assert "NOT_ENOUGH_REPLICAS" in outcome.reason
    assert [record.value for record in wire.records["t", 0]] == [b"2"]


@pytest.mark.promise("in-closing-hangs-kafka", "in-kafka-down-producer")
async def test_close_returns_in_time_with_kafka_down(wire: FakeWire) -> None:
    """The stop() of aiokafka hangs then (#1101); every event is told of instead."""
    wire.fault = scripted(DROPPED)
    producer = make_producer(delivery_timeout=timedelta(hours=1))
    await producer.start()
    sent = await producer.send("t", b"1")
    await wire.broken.wait()
    wire.reachable = False
    unsent = await producer.send("t", b"2", partition=0)
    await producer.close(timedelta(milliseconds=200))
    assert isinstance(await sent, PossiblyPersisted)
    assert isinstance(await unsent, NotPersisted)
    assert wire.closed
    assert producer.statistics().buffered_bytes == 0


async def test_close_sends_what_was_accepted(wire: FakeWire) -> None:
    """Nothing waits for its linger then."""
    producer = make_producer(linger=timedelta(seconds=30))
    await producer.start()
    delivery = await producer.send("t", b"1")
    await producer.close()
    assert await delivery == InLog(0, 0)
    assert wire.closed


async def test_flush_waits_for_what_was_sent_before(wire: FakeWire) -> None:
    del wire
    async with make_producer(linger=timedelta(seconds=30)) as producer:
        delivery = await producer.send("t", b"1")
        await producer.flush()
        assert delivery.done()
        await producer.flush()


async def test_a_closed_producer_accepts_nothing(wire: FakeWire) -> None:
    """Also one that was never started; those that queue for room are sent away."""
    with pytest.raises(ProducerClosedError, match="not started"):
        await make_producer().send("t", b"1")
    producer = make_producer(buffer_size=10)
    await producer.start()
    await producer.send("t", b"1" * 20)
    wire.reachable = wire.connected = False
    waiting = asyncio.create_task(producer.send("t", b"2"))
    await asyncio.sleep(0)
    await producer.close(timedelta(milliseconds=50))
    with pytest.raises(ProducerClosedError):
        await waiting
    with pytest.raises(ProducerClosedError, match="closed"):
        await producer.send("t", b"3")
    with pytest.raises(ProducerClosedError):
        await producer.start()
    await producer.close()


async def test_a_start_without_a_broker_ends(wire: FakeWire) -> None:
    """It tries until delivery_timeout, then says why."""
    wire.reachable = False
    with pytest.raises(RetriableError, match="no broker answers"):
        await make_producer(delivery_timeout=timedelta(milliseconds=50)).start()
    assert wire.closed


async def test_a_ticket_counts_and_lists_failures(wire: FakeWire) -> None:
    """The index of each event that was not persisted, and why."""
    wire.fault = lambda records: 87 if any(r.value == b"bad" for r in records) else None
    events: list[Any] = [b"1", Record(b"2", key=b"k"), b"bad", Record(b"x" * 2000), b"3"]
    async with make_producer(max_request_size=1000, compression="none") as producer:
        result = await (await producer.send_many("t", events))
    assert (result.accepted, result.persisted, result.not_persisted) == (5, 3, 2)
    assert [failure.index for failure in result.failures] == [2, 3]
    assert result.failures[0].outcome == NotPersisted("INVALID_RECORD")
    assert [record.value for record in wire.records["t", 0]] == [b"1", b"2", b"3"]


async def test_many_events_pass_a_small_buffer(wire: FakeWire) -> None:
    """Order and count hold, whatever the sizes of chunk, batch and buffer."""
    wire.partition_count = 3
    events = [Record(b"%d" % n, key=b"%d" % (n % 7)) for n in range(5_000)]
    async with make_producer(buffer_size=5_000, batch_size=1_000) as producer:
        result = await (await producer.send_many("t", iter(events)))
    assert (result.accepted, result.persisted) == (5_000, 5_000)
    for records in wire.records.values():
        values = [int(record.value or b"") for record in records]
        assert values == sorted(values)
    assert sum(map(len, wire.records.values())) == 5_000


@pytest.mark.promise("in-send-cancelled-events")
async def test_events_that_break_off_keep_their_ticket(wire: FakeWire) -> None:
    """What was accepted before the iterable raised is still accounted for."""

    def events() -> Iterator[bytes]:
        yield from (b"%d" % n for n in range(5_500))
        raise OSError("the file ended badly")

    async with make_producer() as producer:
        with pytest.raises(SendManyError, match="after 5500 events") as caught:
            await producer.send_many("t", events())
        result = await caught.value.ticket
    assert isinstance(caught.value.__cause__, OSError)
    assert (result.accepted, result.persisted) == (5_500, 5_500)
    assert len(wire.records["t", 0]) == 5_500


async def test_no_events_are_a_settled_ticket(wire: FakeWire) -> None:
    """An empty iterable has an outcome, too."""
    del wire
    async with make_producer() as producer:
        result = await (await producer.send_many("t", []))
    assert (result.accepted, result.persisted, result.failures) == (0, 0, ())


async def test_the_rows_of_an_arrow_table_are_events(wire: FakeWire) -> None:
    """Values and keys as binary or string, headers as a map."""
    table = pa.table(
        {
            "value": pa.array([b"1", b"2", None], pa.binary()),
            "key": pa.array(["a", None, "b"]),
            "headers": pa.array([[("h", b"x")], [], None], pa.map_(pa.string(), pa.binary())),
            "timestamp_ms": pa.array([5, 6, 7]),
        }
    )
    async with make_producer() as producer:
        result = await (await producer.send_many("t", table))
    assert result.persisted == 3
    stored = wire.records["t", 0]
    assert [(r.key, r.value, r.timestamp_ms) for r in stored] == [
        (b"a", b"1", 5),
        (None, b"2", 6),
        (b"b", None, 7),
    ]
    assert stored[0].headers[0] == ("h", b"x")


async def test_an_arrow_table_with_unknown_columns_is_refused(wire: FakeWire) -> None:
    """A misspelt column would otherwise be lost in silence."""
    del wire
    async with make_producer() as producer:
        with pytest.raises(SendManyError) as caught:
            await producer.send_many("t", pa.table({"value": [b"1"], "keys": [b"1"]}))
    assert "keys" in str(caught.value.__cause__)


async def test_statistics_add_up(wire: FakeWire) -> None:
    """Every accepted event is in one of the three outcomes."""
    wire.fault = scripted(44, LOST)
    async with make_producer() as producer:
        for number in range(3):
            await (await producer.send("t", b"%d" % number))
        counts = producer.statistics()
    assert (counts.accepted, counts.persisted, counts.not_persisted) == (3, 2, 1)
    assert (counts.batches_sent, counts.batches_retried, counts.renewals) == (4, 1, 1)
    assert (counts.buffered_bytes, counts.batches_in_flight) == (0, 0)


async def test_a_cancelled_delivery_disturbs_nothing(wire: FakeWire) -> None:
    """The event is sent all the same, and so are its neighbours."""
    async with make_producer(linger=timedelta(milliseconds=5)) as producer:
        first = await producer.send("t", b"1")
        second = await producer.send("t", b"2")
        first.cancel()
        assert await second == InLog(0, 1)
    assert len(wire.records["t", 0]) == 2


async def test_a_fault_of_the_sender_itself_is_told(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should there ever be one: no event waits for a sender that is gone."""
    del wire

    def fail(*_args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Sender, "_next_batches", fail)
    producer = make_producer()
    await producer.start()
    outcome = await (await producer.send("t", b"1"))
    assert isinstance(outcome, NotPersisted)
    assert "ZeroDivisionError" in outcome.reason
    with pytest.raises(ProducerClosedError):
        await producer.send("t", b"2")
    await producer.close()


@pytest.mark.promise("in-topic-gets-partitions")
async def test_more_partitions_are_used_once_the_cluster_tells_of_them(wire: FakeWire) -> None:
    """A partition that was added under a running producer is one to send to."""
    async with make_producer() as producer:
        assert await (await producer.send("t", b"0", partition=0)) == InLog(0, 0)
        wire.partition_count = 3
        await wire.refresh()
        assert await (await producer.send("t", b"1", partition=2)) == InLog(2, 0)
        keys = [b"%d" % number for number in range(40)]
        outcomes = [await (await producer.send("t", b"x", key)) for key in keys]
    partitions = [outcome.partition for outcome in outcomes if isinstance(outcome, Persisted)]
    assert partitions == [KeyPartitioner(3).partition(key) for key in keys]


@pytest.mark.promise("in-topic-deleted-recreated")
@pytest.mark.parametrize("max_in_flight", [1, 5])
async def test_a_topic_recreated_under_batches_in_flight_gets_each_once(
    wire: FakeWire, max_in_flight: int
) -> None:
    """One meets the deletion, those behind it the new log, which takes any sequence of ours.

    So later sequences there prove nothing of it; and order holds for one batch in flight only.
    """
    values = [b"%02d" % number for number in range(20)]
    arrived: list[bytes | None] = []

    def recreate(records: list[StoredRecord]) -> Fault:
        arrived.append(records[0].value)
        if len(arrived) == 1:
            wire.brokers.clear()
            wire.records.clear()
            wire.topic_generation += 1
            return _UNKNOWN_TOPIC
        return None

    async with make_producer(batch_size=1, max_in_flight=max_in_flight) as producer:
        await producer.send_and_wait("t", b"old")
        wire.fault = recreate
        deliveries = [await producer.send("t", value) for value in values]
        outcomes = await asyncio.gather(*deliveries)
    assert all(isinstance(outcome, Persisted) for outcome in outcomes)
    found = [record.value for record in wire.records["t", 0]]
    assert sorted(found, key=lambda value: value or b"") == values
    if max_in_flight == 1:
        assert found == values


@pytest.mark.promise("in-topic-gets-partitions")
async def test_a_topic_made_anew_with_fewer_partitions_stops_nobody(
    wire: FakeWire, caplog: pytest.LogCaptureFixture
) -> None:
    """What was for a partition that is gone is given up and told; flush and what is new go on."""
    attempted = asyncio.Event()

    def refuse(records: list[StoredRecord]) -> Fault:
        if records[0].value not in (b"1", b"2"):
            return None
        attempted.set()
        return 3

    wire.partition_count = 2
    given_up: list[GivenUp] = []
    settings = ProducerSettings(**FAST)
    async with IdempotentProducer("unused:1", settings, on_given_up=given_up.extend) as producer:
        await (await producer.send("t", b"0", partition=1))
        wire.fault = refuse
        sent = await producer.send("t", b"1", partition=1)
        behind = await producer.send("t", b"2", partition=1)
        await asyncio.wait_for(attempted.wait(), PATIENCE_S)
        wire.partition_count, wire.topic_generation = 1, 1
        await asyncio.wait_for(producer.flush(), PATIENCE_S)
        assert isinstance(await sent, PossiblyPersisted)
        assert isinstance(await behind, NotPersisted | PossiblyPersisted)
        assert await (await producer.send("t", b"3", b"any key")) == InLog(0, 0)
    assert [each.value for each in given_up] == [b"1", b"2"]
    assert "deleted and recreated" in caplog.text


async def test_an_event_that_is_in_the_log_has_its_topic_and_its_time(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """The time of its record: its sender's, ours, that of a batch that waited, or the broker's."""
    now_ms = 1_790_000_000_000
    clock_ms = now_ms
    producer = make(batch_size=2_000)
    producer._clock = StampClock(lambda: clock_ms)
    async with asyncio.timeout(PATIENCE_S), producer:
        first = await (await producer.send("t", b"1", timestamp_ms=77))
        second = await (await producer.send("t", b"2"))
        assert first == Persisted(0, 0, "t", 77)
        assert second == Persisted(0, 1, "t", now_ms)
        wire.reachable = wire.connected = False
        waited = []
        for number in range(40):  # in a batch that grows, and is dated when its turn comes
            clock_ms += 10
            waited.append(await producer.send("t", b"%02d" % number + bytes(50)))
            await waited[-1].journaled
        clock_ms += 10_000
        wire.reachable = True
        outcomes = await asyncio.gather(*waited)
        wire.append_ms = 99
        assert await (await producer.send("t", b"3")) == Persisted(0, 42, "t", 99)
    found = {record.value: record.timestamp_ms for record in wire.records["t", 0]}
    for number, outcome in enumerate(outcomes):
        value = b"%02d" % number + bytes(50)
        assert outcome == Persisted(0, 2 + number, "t", found[value])


async def test_a_batch_that_is_called_corrupt_again_and_again_is_given_up(wire: FakeWire) -> None:
    """It is the batch's fault then, and others wait behind it."""
    attempts = itertools.count()

    def fault(records: list[StoredRecord]) -> Fault:
        return 2 if records[0].value == b"bad" and next(attempts) < 20 else None

    wire.fault = fault
    async with make_producer() as producer:
        bad = await (await producer.send("t", b"bad"))
        assert await (await producer.send("t", b"good")) == InLog(0, 0)
    assert isinstance(bad, NotPersisted)
    assert "CORRUPT_MESSAGE, 5 times" in bad.reason


async def test_each_event_of_a_batch_of_several_calls_has_its_own_offset(wire: FakeWire) -> None:
    batches: list[int] = []
    wire.fault = lambda records: batches.append(len(records))
    async with make_producer(linger=timedelta(minutes=1)) as producer:
        many = await producer.send_many("t", [b"0", b"1", b"2"])
        one = await producer.send("t", b"3")
        await producer.flush()
        assert (await many).persisted == 3
        assert await one == InLog(0, 3)
    assert batches == [4]
