"""Backlog quotas on a real broker: records of the control topic act on producers and the daemon."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import urllib.error
import urllib.request
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.errors import BacklogQuotaError, ProducerClosedError
from sequitur.producer import IdempotentProducer, KafkaSettings, Persisted, ProducerSettings
from sequitur.producer.quota import ControlReader, QuotaGate, QuotaStatistics
from tests.support.control_topic import ControlTopic, key_of
from tests.support.daemon_health import DaemonHealth
from tests.support.daemon_process import read_partitions
from tests.support.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conftest import MakeBroker, MakeTopic
    from tests.integration.conftest import StartDaemon
    from tests.support.brokers import Broker


@pytest.fixture
def control(kafka: KafkaSettings) -> ControlTopic:
    return ControlTopic(kafka.bootstrap_servers, kafka.system_prefix)


@pytest.fixture
async def producer(
    kafka: KafkaSettings, control: ControlTopic
) -> AsyncIterator[IdempotentProducer]:
    """A producer that keeps to quotas; the topic of its control records is there."""
    del control
    async with _producer(kafka) as producer:
        yield producer


def _producer(kafka: KafkaSettings | str, **settings: Any) -> IdempotentProducer:
    return IdempotentProducer(kafka, ProducerSettings(backlog_quota=True, **settings))


def _create_topic(broker: Broker) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
    return admin


def _gate(producer: IdempotentProducer) -> QuotaGate:
    assert producer._running is not None
    assert producer._running.quota is not None
    return producer._running.quota


def _quota(producer: IdempotentProducer) -> QuotaStatistics:
    quota = producer.statistics().quota
    assert quota is not None
    return quota


async def _send(producer: IdempotentProducer, topic: str, value: bytes = b"event") -> None:
    assert isinstance(await (await producer.send(topic, value)), Persisted)


async def _held(producer: IdempotentProducer, topic: str) -> asyncio.Task[None]:
    """Return a send that waits for the quota."""
    before = _gate(producer).statistics([]).held
    sending = asyncio.create_task(_send(producer, topic))
    await until(lambda: _gate(producer).statistics([]).held > before)
    return sending


@pytest.mark.promise("in-topic-backlog-quota")
async def test_a_record_holds_sends_and_the_next_one_lets_them_go(
    producer: IdempotentProducer, control: ControlTopic, make_topic: MakeTopic
) -> None:
    """What was accepted before the record goes out; it is lifted by a state, or by its deletion."""
    topic, other = make_topic(), make_topic()
    for lift in (partial(control.write, topic, None), partial(control.lift, topic)):
        await _send(producer, topic)
        control.write(topic, "producer_request_hold")
        await until(producer.blocked_reason)
        delivered = producer.statistics().persisted
        held = await _held(producer, topic)
        await _send(producer, other)
        assert not held.done()
        assert producer.statistics().persisted == delivered + 1
        assert "(producer_request_hold)" in (producer.blocked_reason() or "")
        lift()
        await held
        assert producer.blocked_reason() is None


async def test_a_hold_ends_with_the_time_for_delivery(
    kafka: KafkaSettings, control: ControlTopic, topic: str
) -> None:
    async with _producer(kafka, delivery_timeout=timedelta(seconds=1)) as producer:
        await _send(producer, topic)
        control.write(topic, "producer_request_hold")
        await until(producer.blocked_reason)
        with pytest.raises(BacklogQuotaError, match="12 MiB of at most 10 MiB"):
            await producer.send(topic, b"refused")
        assert producer.statistics().accepted == 1


@pytest.mark.promise("in-topic-backlog-quota")
async def test_a_record_has_sends_raise_until_it_is_lifted(
    producer: IdempotentProducer, control: ControlTopic, topic: str
) -> None:
    await _send(producer, topic)
    control.write(topic, "producer_exception", age_s=90.5, limit_s=60)
    await until(producer.blocked_reason)
    with pytest.raises(BacklogQuotaError) as refused:
        await producer.send(topic, b"refused")
    state = refused.value.state
    assert (state.subscription, state.backlog_bytes, state.limit_bytes) == (
        "billing",
        12 << 20,
        10 << 20,
    )
    assert (state.age_s, state.limit_s) == (90.5, 60)
    control.lift(topic)
    await producer.wait_for_quota(topic)
    await _send(producer, topic)
    assert producer.statistics().accepted == 2


async def test_a_proximity_is_told_before_the_quota_is_reached(
    producer: IdempotentProducer, control: ControlTopic, topic: str
) -> None:
    await _send(producer, topic)
    control.write(topic, None, backlog_bytes=6 << 20)
    await until(lambda: _quota(producer).proximity)
    assert _quota(producer).proximity == 0.6
    await _send(producer, topic)
    control.write(topic, None, backlog_bytes=4 << 20)
    await until(lambda: _quota(producer).proximity is None)


@pytest.mark.promise("in-whoever-checks-quotas")
async def test_a_record_counts_for_its_time_alone(
    kafka: KafkaSettings, control: ControlTopic, topic: str
) -> None:
    """By a clock set by hand, and nobody writes another record."""
    now_ms = 0
    gate = QuotaGate(lambda: now_ms)
    reader = ControlReader(kafka, gate, client_id="test", random=Random(1))
    reader.start()
    control.write(topic, "producer_request_hold", valid_for_ms=10_000)
    await until(lambda: gate.limits(topic))
    waiting = asyncio.create_task(gate.lifted(topic))
    now_ms += 10_000
    control.write("other", "producer_request_hold", valid_for_ms=10_000)
    await until(lambda: gate.limits("other"))
    assert not waiting.done()
    now_ms += 1
    await waiting
    assert not gate.limits(topic)
    await reader.close(1)


@pytest.mark.promise("in-whoever-checks-quotas")
async def test_a_held_send_goes_on_when_the_record_is_stale(
    producer: IdempotentProducer, control: ControlTopic, topic: str
) -> None:
    """As when the one who checks quotas has died."""
    control.write(topic, "producer_request_hold", valid_for_ms=3_000)
    await until(lambda: _gate(producer).limits(topic))
    await (await _held(producer, topic))
    assert _quota(producer).held == 1


@pytest.mark.promise("in-control-topic-created")
async def test_a_topic_that_is_created_later_is_found(make_broker: MakeBroker) -> None:
    """Until then nothing is limited; the producer started without it, and has not created it."""
    broker = make_broker({"auto.create.topics.enable": "true"})
    control = ControlTopic(broker.bootstrap_servers, creates=False)
    admin = _create_topic(broker)
    async with _producer(broker.bootstrap_servers) as producer:
        await _send(producer, "t")
        await asyncio.sleep(1.5)  # it has looked for the topic again meanwhile
        await _send(producer, "t")
        assert "sequitur-subscriptions" not in admin.list_topics(timeout=PATIENCE_S).topics
        control.create()
        control.write("t", "producer_request_hold")
        await until(producer.blocked_reason)
        held = await _held(producer, "t")
        control.lift("t")
        await held


@pytest.mark.promise("in-whoever-checks-quotas")
@pytest.mark.parametrize("value", [b"{", b'{"format":9}', b""])
async def test_a_bad_record_is_passed_over(
    producer: IdempotentProducer, control: ControlTopic, topic: str, value: bytes
) -> None:
    """What was known before it counts on, and what comes behind it is read."""
    control.write(topic, "producer_request_hold")
    control.write_raw(key_of(topic), value)
    control.write_raw(b'["backlog"]', value)
    control.write_raw(b"\xff", value)
    control.write(f"{topic}-behind", "producer_request_hold")
    await until(lambda: _gate(producer).limits(f"{topic}-behind"))
    held = await _held(producer, topic)
    control.lift(f"{topic}-behind")
    control.lift(topic)
    await held


@pytest.mark.promise("in-control-topic-created")
async def test_records_of_aborted_transactions_are_not_read(
    producer: IdempotentProducer, control: ControlTopic, topic: str
) -> None:
    """A checker that is fenced has said nothing."""
    with control.aborted():
        control.write(topic, "producer_exception")
    control.write(f"{topic}-behind", "producer_request_hold")
    await until(lambda: _gate(producer).limits(f"{topic}-behind"))
    assert not _gate(producer).limits(topic)
    control.lift(f"{topic}-behind")


async def test_a_reader_that_starts_sees_no_state_that_was_overtaken(
    kafka: KafkaSettings, control: ControlTopic, topic: str
) -> None:
    control.write(topic, "producer_exception")
    control.write(topic, None)
    taken: list[list[tuple[Any, Any]]] = []

    class Gate(QuotaGate):
        def take(self, records: Any) -> None:
            taken.append(list(records))
            super().take(records)
            assert not self.limits(topic)

    reader = ControlReader(kafka, Gate(), client_id="test", random=Random(1))
    reader.start()
    await until(lambda: taken)
    assert [key for key, _ in taken[0]].count(key_of(topic)) == 2
    await reader.close(1)


@pytest.mark.test_all
@pytest.mark.promise("in-whoever-checks-quotas")
async def test_states_count_while_the_broker_is_away(make_broker: MakeBroker) -> None:
    broker = make_broker()
    _create_topic(broker)
    control = ControlTopic(broker.bootstrap_servers)
    async with _producer(broker.bootstrap_servers) as producer:
        await _send(producer, "t")
        control.write("t", "producer_request_hold")
        await until(producer.blocked_reason)
        held = await _held(producer, "t")
        broker.stop()
        await asyncio.to_thread(broker.start)  # meanwhile the states are asked for in vain
        assert producer.blocked_reason() is not None
        assert not held.done()
        control.write("other", "producer_request_hold")
        await until(lambda: _gate(producer).limits("other"))
        assert not held.done()
        control.lift("t")
        await held


@pytest.mark.promise("in-control-topic-created")
async def test_a_control_topic_that_is_made_anew_is_read_anew(make_broker: MakeBroker) -> None:
    """What the former one said does not count any more."""
    broker = make_broker()
    control = ControlTopic(broker.bootstrap_servers)
    async with _producer(broker.bootstrap_servers) as producer:
        control.write("t", "producer_exception")
        await until(lambda: _gate(producer).limits("t"))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.delete_topics(["sequitur-subscriptions"])["sequitur-subscriptions"].result(PATIENCE_S)
        await asyncio.sleep(1)
        control.create()
        control.write("other", "producer_exception")
        await until(lambda: _gate(producer).limits("other"))
        assert not _gate(producer).limits("t")


async def test_a_producer_closes_while_a_send_is_held(
    producer: IdempotentProducer, control: ControlTopic, topic: str
) -> None:
    accepted = await producer.send(topic, b"before")
    control.write(topic, "producer_request_hold")
    await until(lambda: _gate(producer).limits(topic))
    held = await _held(producer, topic)
    await producer.close()
    with pytest.raises(ProducerClosedError):
        await held
    assert isinstance(accepted.result(), Persisted)
    assert producer.statistics().persisted == 1


async def test_the_reader_ends_with_its_producer(
    kafka: KafkaSettings, control: ControlTopic, topic: str
) -> None:
    del control
    async with _producer(kafka) as producer:
        await _send(producer, topic)
    assert producer._control is not None
    assert producer._control._reading is not None
    assert producer._control._reading.cancelled()
    connections = producer._control._wire._client._conns.values()
    assert not any(connection.connected() for connection in connections)


_BOTH_POLICIES = pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])


def _health(kafka: KafkaSettings) -> tuple[str, ...]:
    flags = ("--health", "127.0.0.1:0", "--backlog-quota")
    return (*flags, "--system-prefix", kafka.system_prefix)


def _lines(numbers: range) -> str:
    return "".join(f'{{"n":{number}}}\n' for number in numbers)


def _numbers(kafka: KafkaSettings, topic: str) -> list[int]:
    (messages,) = read_partitions(kafka.bootstrap_servers, topic)
    return [json.loads(message.value())["n"] for message in messages]


@pytest.mark.test_all
@pytest.mark.promise("in-producer-daemon")
@_BOTH_POLICIES
@pytest.mark.parametrize("durability", ["journal", "none"])
def test_the_source_waits_until_the_quota_is_kept(
    kafka: KafkaSettings,
    make_topic: MakeTopic,
    start_daemon: StartDaemon,
    policy: str,
    durability: str,
) -> None:
    """Beyond `delivery_timeout`, too; each event arrives once, in order, and the report says so."""
    topic = make_topic(partitions=1)
    control = ControlTopic(kafka.bootstrap_servers, kafka.system_prefix)
    control.write(topic, policy)
    daemon = start_daemon(
        *("--topic", topic, "--source", "stdin", *_health(kafka)),
        *("--durability", durability, "--delivery-timeout", "500 ms"),
        stdin=subprocess.PIPE,
    )
    health = DaemonHealth(daemon)
    health.until(lambda: "producer" in health.unready())
    assert f"topic {topic} takes no events ({policy})" in health.unready()["producer"]
    assert "subscription 'billing'" in health.unready()["producer"]
    assert daemon.process.stdin is not None
    daemon.process.stdin.write(_lines(range(100)))
    daemon.process.stdin.close()
    # By the policy to hold, that is once a wait of `delivery_timeout` was over.
    health.until(lambda: health.metric("backlog_quota_refused_total"))
    assert bool(health.metric("backlog_quota_held_total")) == (policy == "producer_request_hold")
    assert health.metric("events_accepted_total") == 0
    assert health.metric("backlog_quota_ratio") == 1.2
    assert health.metric("ready") == 0
    control.lift(topic)
    report = daemon.end()
    assert (report["accepted"], report["persisted"]) == (100, 100)
    assert _numbers(kafka, topic) == list(range(100))


@pytest.mark.test_all
@pytest.mark.promise("in-producer-daemon")
@_BOTH_POLICIES
def test_a_daemon_that_is_stopped_meanwhile_loses_nothing(
    kafka: KafkaSettings,
    make_topic: MakeTopic,
    start_daemon: StartDaemon,
    tmp_path: Path,
    policy: str,
) -> None:
    """It ends at once; the next one begins where the source was left."""
    topic = make_topic(partitions=1)
    control = ControlTopic(kafka.bootstrap_servers, kafka.system_prefix)
    lines = tmp_path / "lines.jsonl"
    lines.write_text(_lines(range(10)))
    flags = ("--topic", topic, "--source", f"file:{lines}", "--name", "reader", *_health(kafka))
    daemon = start_daemon(*flags)
    health = DaemonHealth(daemon)
    health.until(lambda: health.metric("events_persisted_total") == 10)
    control.write(topic, policy)
    health.until(lambda: "producer" in health.unready())
    with lines.open("a") as file:
        file.write(_lines(range(10, 20)))
    counts = ("backlog_quota_held_total", "backlog_quota_refused_total")
    health.until(lambda: any(health.metric(name) for name in counts))
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["accepted"] == 10
    control.lift(topic)
    daemon = start_daemon(*flags)
    health = DaemonHealth(daemon)
    health.until(lambda: health.metric("events_persisted_total") == 10)
    daemon.signal(signal.SIGTERM)
    daemon.end()
    assert _numbers(kafka, topic) == list(range(20))


@pytest.mark.promise("in-producer-daemon")
@_BOTH_POLICIES
def test_http_clients_are_told_to_try_again(
    kafka: KafkaSettings,
    make_topic: MakeTopic,
    start_daemon: StartDaemon,
    policy: str,
) -> None:
    """503, as while the buffer is full; nothing of the request was accepted."""
    topic = make_topic(partitions=1)
    control = ControlTopic(kafka.bootstrap_servers, kafka.system_prefix)
    control.write(topic, policy)
    daemon = start_daemon(
        *("--topic", topic, "--source", "http:127.0.0.1:0", "--http-room-timeout", "200 ms"),
        *_health(kafka),
    )
    health = DaemonHealth(daemon)
    health.until(lambda: "producer" in health.unready())
    url = f"http://127.0.0.1:{daemon.wait_for('listening')['port']}/events"
    request = urllib.request.Request(
        url, _lines(range(2)).encode(), {"Content-Type": "application/x-ndjson"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    with refused.value as answer:
        assert (answer.code, json.loads(answer.read())["accepted"]) == (503, 0)
    control.lift(topic)
    health.until(lambda: not health.unready())
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 202
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["persisted"] == 2
    assert _numbers(kafka, topic) == [0, 1]
