"""The parts of aiokafka that are not its public API and that we stand on.

Each test names what an upgrade may break, so that it is seen here and not in production.
"""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import codec
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import for_code
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataResponse_v1
from aiokafka.protocol.produce import ProduceResponse_v8
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition

from sequitur.errors import FatalError, RetriableError
from sequitur.kafka import log_reading, metadata
from sequitur.kafka.error_codes import MEANINGS, Answer
from sequitur.kafka.identity import Identity
from sequitur.kafka.metadata import NEEDED_VERSIONS, MetadataRequest, too_old
from sequitur.kafka.producer_ids import (
    DescribeProducersRequest,
    DescribeProducersResponseV0,
    InitProducerIdRequest,
    PartitionAnswer,
    ProduceRequest,
)
from sequitur.kafka.wire import Wire
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S, until


class _Connection:
    """Stands for an AIOKafkaConnection."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self._versions: dict[int, tuple[int, int]] = {}
        self.sent: list[Any] = []
        self.closed: list[Any] = []

    def connected(self) -> bool:
        return not self.closed

    def send(self, request: Any, expect_response: bool = True) -> Any:
        del expect_response
        self.sent.append(request)
        return self._reply()

    def close(self, reason: Any = None) -> None:
        self.closed.append(reason)

    async def _reply(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def _wire() -> Wire:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    return Wire(kafka, client_id="test", request_timeout=timedelta(seconds=1))


def _metadata(*, leader: int) -> Any:
    return MetadataResponse_v1(
        [(1, "127.0.0.1", 1, None)], 1, [(0, "t", False, [(0, 0, leader, [1], [1])])]
    )


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (AIOKafkaClient, "bootstrap", ["self"]),
        (AIOKafkaClient, "_get_conn", ["self", "node_id", "group", "no_hint"]),
        (AIOKafkaClient, "send", ["self", "node_id", "request", "group"]),
        (AIOKafkaClient, "_metadata_update", ["self", "cluster_metadata", "topics"]),
        (AIOKafkaClient, "add_topic", ["self", "topic"]),
        (AIOKafkaClient, "force_metadata_update", ["self"]),
        (AIOKafkaConnection, "send", ["self", "request", "expect_response"]),
        (AIOKafkaConnection, "close", ["self", "reason", "exc"]),
        (AIOKafkaConnection, "connected", ["self"]),
        (ClusterMetadata, "broker_metadata", ["self", "broker_id"]),
        (ClusterMetadata, "leader_for_partition", ["self", "partition"]),
        (ClusterMetadata, "partitions_for_topic", ["self", "topic"]),
        (
            PartitionRecords,
            "__init__",
            [
                *("self", "tp", "records", "aborted_transactions", "fetch_offset"),
                *("key_deserializer", "value_deserializer", "check_crcs", "isolation_level"),
            ],
        ),
        (codec, "lz4_encode", ["payload", "level"]),
        (codec, "zstd_encode", ["payload", "level"]),
        (codec, "gzip_encode", ["payload", "compresslevel"]),
    ],
)
def test_what_we_call_takes_what_we_give(owner: Any, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


async def test_a_topic_that_we_may_not_know_of_is_told_from_one_that_is_not_there() -> None:
    """The cluster keeps the names of both kinds apart, and tells the last answer."""
    wire = await _wire()
    for code, is_unauthorized in ((29, True), (3, False)):
        metadata = MetadataResponse_v1([(1, "127.0.0.1", 1, None)], 1, [(code, "t", False, [])])
        wire._client.cluster.update_metadata(metadata)
        assert wire.is_unauthorized("t") is is_unauthorized
        assert not wire.is_unauthorized("other")


def test_the_level_of_committed_records_is_ours() -> None:
    """`PartitionRecords` leaves out aborted transactions at this level alone."""
    assert log_reading._READ_COMMITTED == READ_COMMITTED


def test_a_connection_takes_what_the_client_gives_it() -> None:
    """We connect once more to hear why the client could not."""
    parameters = set(inspect.signature(create_conn).parameters)
    ours = {"host", "port", "client_id", "request_timeout_ms"}
    security = {"security_protocol", "ssl_context", "sasl_mechanism"}
    assert ours | security | {"sasl_plain_username", "sasl_plain_password"} <= parameters


async def test_the_addresses_to_start_from_are_known() -> None:
    wire = await _wire()
    assert [address[:2] for address in wire._client.hosts] == [("127.0.0.1", 1)]


def test_the_builder_is_the_fast_one() -> None:
    """Without aiokafka's compiled extension everything works, at a tenth of the speed."""
    assert DefaultRecordBatchBuilder.__module__.startswith("aiokafka.record._crecords")


def test_a_connection_writes_when_it_is_called() -> None:
    """The order of requests is that of the calls: `send` is no coroutine function."""
    assert not inspect.iscoroutinefunction(AIOKafkaConnection.send)
    source = inspect.getsource(AIOKafkaConnection.send)
    assert source.index("self._writer.write(") < source.index("return wait_for(")


def test_a_produce_request_asks_for_all_replicas() -> None:
    """Version 8: the first whose answer says what is wrong with a record (Kafka 2.4 to 4)."""
    request = ProduceRequest(-1, 30_000, [("t", [(0, b"batch")])]).prepare({0: (3, 13)})
    assert request.API_VERSION == 8
    assert request.encode() == (
        b"\xff\xff" b"\xff\xff" b"\x00\x00\x75\x30"
        b"\x00\x00\x00\x01" b"\x00\x01t"
        b"\x00\x00\x00\x01" b"\x00\x00\x00\x00" b"\x00\x00\x00\x05batch"
    )  # fmt: skip


def test_a_producer_id_is_asked_for_without_a_transaction() -> None:
    """A null transactional id makes it an idempotent producer's; none is held yet."""
    request = InitProducerIdRequest(None).prepare({22: (0, 5)})
    assert request.API_VERSION == 4
    assert request.encode() == b"\x00\x00\x00\xea\x60" + b"\xff" * 10 + b"\x00"


def test_a_transactional_id_is_asked_for_with_what_is_held() -> None:
    """The same request serves the jobs' names and the producer's own."""
    held = Identity(7, 2)
    request = InitProducerIdRequest("app", held).prepare({22: (0, 5)})
    assert request.encode() == (
        b"\x04app" b"\x00\x00\xea\x60" b"\x00\x00\x00\x00\x00\x00\x00\x07" b"\x00\x02" b"\x00"
    )  # fmt: skip


def test_a_topics_limit_is_asked_for_by_name() -> None:
    request = DescribeConfigsRequest([(2, "t", ["max.message.bytes"])]).prepare({32: (1, 4)})
    assert b"\x02\x00\x01t\x00\x00\x00\x01\x00\x11max.message.bytes" in request.encode()


def test_describe_producers_is_written_and_read_as_kafka_defines_it() -> None:
    """API 61, version 0, flexible: bytes by hand from the protocol's definition."""
    request = DescribeProducersRequest({"t": (3,)}).prepare({61: (0, 0)})
    assert request.encode() == b"\x02\x02t\x02\x00\x00\x00\x03\x00\x00"
    body = (
        b"\x00\x00\x00\x00"  # throttle time
        b"\x02" b"\x02t"  # one topic, "t"
        b"\x02" b"\x00\x00\x00\x03" b"\x00\x00" b"\x00"  # one partition, 3; no error, no message
        b"\x02" b"\x00\x00\x00\x00\x00\x00\x00\x07"  # one producer, 7
        b"\x00\x00\x00\x02" b"\x00\x00\x00\x09"  # epoch 2, last sequence 9
        b"\x00\x00\x00\x00\x00\x00\x00\x05"  # timestamp
        b"\xff\xff\xff\xff" b"\xff\xff\xff\xff\xff\xff\xff\xff"  # no transaction
        b"\x00" b"\x00" b"\x00" b"\x00"  # no tags
    )  # fmt: skip
    buffer = BytesIO(body)
    response = DescribeProducersResponseV0.decode(buffer)
    assert buffer.read() == b""
    ((topic, ((partition, code, message, producers, _), *_), _),) = response.topics
    assert (topic, partition, code, message) == ("t", 3, 0, None)
    assert producers[0][:3] == (7, 2, 9)


@pytest.mark.parametrize(
    "code", [code for code, meaning in MEANINGS.items() if meaning.answer is Answer.RETRIABLE]
)
def test_our_table_is_no_more_patient_than_kafkas(code: int) -> None:
    """What aiokafka knows as retriable, or does not know, is what we retry."""
    own_view = {2}  # retriable in Kafka's protocol, not so in aiokafka
    assert code in own_view or for_code(code).retriable


@pytest.mark.promise("in-leader-appends-batch")
@pytest.mark.parametrize("code", [3, 6, 7, 20, 56])
def test_what_a_leader_answers_after_its_append_is_an_unknown_outcome(code: int) -> None:
    """Kafka's DelayedProduce gives these codes for batches that the leader has in its log."""
    assert MEANINGS[code].answer is Answer.UNKNOWN


@pytest.mark.promise("in-broker-older-kafka")
@pytest.mark.parametrize(
    ("key", "newest", "lacking"), [(61, None, "DescribeProducers"), (22, 3, "InitProducerId")]
)
async def test_a_broker_that_is_too_old_is_refused_by_what_it_lacks(
    key: int, newest: int | None, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and with the Kafka version that is needed: nothing is tried without end."""
    versions = {known: (0, needed) for known, (_, needed) in NEEDED_VERSIONS.items()}
    assert too_old(versions) is None
    del versions[key]
    if newest is not None:
        versions[key] = (0, newest)
    wire = await _wire()
    connection = _Connection(None)
    connection._versions = versions
    wire._client._conns[1, 0] = connection

    async def bootstrap() -> None:
        wire._client.cluster.update_metadata(_metadata(leader=1))

    async def update() -> bool:
        return await wire._client._metadata_update(wire._client.cluster, [])

    async def connected(_node: int) -> _Connection:
        return connection

    monkeypatch.setattr(wire._client, "bootstrap", bootstrap)
    monkeypatch.setattr(wire._client, "force_metadata_update", update)
    monkeypatch.setattr(wire._client, "_get_conn", connected)
    with pytest.raises(FatalError, match=f"does not know {lacking} .*Kafka 3.0 or newer is needed"):
        await wire.start()


@pytest.mark.promise("in-event-topic-name")
async def test_whatever_goes_wrong_in_a_metadata_update_fails_that_update_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's task goes on, and the next update is made; if the task ends, that is told."""
    wire = await _wire()
    failures: asyncio.Queue[Exception] = asyncio.Queue()
    wire.watch(lambda: None, failures.put_nowait)
    connection = _Connection(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"))
    connection._versions = {key: (0, needed) for key, (_, needed) in NEEDED_VERSIONS.items()}

    async def bootstrap() -> None:
        client = wire._client
        client.cluster.update_metadata(_metadata(leader=1))
        if client._sync_task is None:
            client._sync_task = asyncio.create_task(client._md_synchronizer())

    async def connected(_node: int) -> _Connection:
        return connection

    monkeypatch.setattr(wire._client, "bootstrap", bootstrap)
    monkeypatch.setattr(wire._client, "_get_conn", connected)
    wire._bootstrapped = True
    await wire._bootstrap()
    async with asyncio.timeout(PATIENCE_S):
        assert not await wire.refresh(["t"])
        assert len(connection.sent) == 2  # once more after the bootstrap
        connection.answer = _cluster_of_one("t")
        assert await wire.refresh(["t"])
    assert wire.partitions("t") == 1
    assert failures.empty()

    def defect() -> None:
        """End the task that calls it: it takes no arguments."""

    monkeypatch.setattr(wire._client, "_metadata_update", defect)
    wire._client.force_metadata_update()
    async with asyncio.timeout(PATIENCE_S):
        assert isinstance(await failures.get(), TypeError)  # it takes no arguments


async def test_an_update_tells_of_the_topics_that_are_added_while_it_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever adds one waits for this update, and would take the topic for a missing one."""
    wire = await _wire()
    client = wire._client
    client.cluster.update_metadata(_metadata(leader=1))
    client._topics = {"t"}
    asked: list[set[str]] = []

    class Adding(_Connection):
        def send(self, request: Any, expect_response: bool = True) -> Any:
            asked.append({*request._topics})
            client._topics.add("u")
            return super().send(request, expect_response)

    connection = Adding(_cluster_of_one("t"))
    connection._versions = {key: (0, needed) for key, (_, needed) in NEEDED_VERSIONS.items()}

    async def connected(_node: int) -> _Connection:
        return connection

    monkeypatch.setattr(client, "_get_conn", connected)
    assert await client._metadata_update(client.cluster, client._topics)
    assert asked == [{"t"}, {"t", "u"}]


async def test_a_broker_that_hangs_is_waited_for_by_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another is asked beside it, over a connection that is made meanwhile."""
    monkeypatch.setattr(metadata, "_MAY_HANG_S", 0.01)
    wire = await _wire()
    client = wire._client
    brokers = [(node, "127.0.0.1", node, None) for node in (1, 2)]
    client.cluster.update_metadata(MetadataResponse_v1(brokers, 1, []))
    monkeypatch.setattr(client, "nodes", lambda: [1, 2])
    begun: list[int] = []
    versions = {key: (0, needed) for key, (_, needed) in NEEDED_VERSIONS.items()}

    async def connecting(_host: str, port: int, **_options: Any) -> Any:
        begun.append(port)
        if port == 1:
            await asyncio.sleep(3_600)
        connection = _Connection(_cluster_of_one("t"))
        connection._versions = versions
        return connection

    monkeypatch.setattr("aiokafka.client.create_conn", connecting)
    async with asyncio.timeout(PATIENCE_S):
        assert await client._metadata_update(client.cluster, ["t"])
        assert wire.partitions("t") == 1
        assert await wire._ask_any(DescribeConfigsRequest([])) is not None
        assert begun == [1, 2]
        assert len(client._asking) == 2
        client._conns.clear()
        await wire.close()
    assert not client._asking


async def test_who_waits_for_any_broker_is_told_of_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error, and not by a cancellation of its own task; nobody else is asked then."""
    wire = await _wire()
    brokers = [(node, "127.0.0.1", node, None) for node in (1, 2)]
    wire._client.cluster.update_metadata(MetadataResponse_v1(brokers, 1, []))
    begun: list[int] = []

    async def connecting(_host: str, port: int, **_options: Any) -> Any:
        begun.append(port)
        await asyncio.sleep(3_600)

    monkeypatch.setattr("aiokafka.client.create_conn", connecting)
    asking = asyncio.create_task(wire._ask_any(DescribeConfigsRequest([])))
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: begun)
        await wire.close()
        with pytest.raises(RetriableError):
            await asking
    assert len(begun) == 1


async def test_a_connection_to_a_broker_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where several ask for it at once."""
    wire = await _wire()
    wire._client.cluster.update_metadata(_metadata(leader=1))
    begun: list[int] = []

    async def connecting(_host: str, port: int, **_options: Any) -> Any:
        begun.append(port)
        await asyncio.sleep(0)
        return _Connection(None)

    monkeypatch.setattr("aiokafka.client.create_conn", connecting)
    first, second = await asyncio.gather(wire._client._get_conn(1), wire._client._get_conn(1))
    assert first is second
    assert begun == [1]


def _cluster_of_one(topic: str) -> Any:
    partition: Any = (0, 0, 1, 0, [1], [1], [], {})
    topics: Any = [(0, topic, bytes(16), False, [partition], 0, {})]
    return SimpleNamespace(
        brokers=[(1, "127.0.0.1", 1, None, {})], cluster_id="c", controller_id=1, topics=topics
    )


@pytest.mark.promise("in-metadata-topic-requested")
def test_no_topic_is_created_by_asking_for_it() -> None:
    """The metadata request names its topics, and forbids to create them."""
    request = MetadataRequest(["t"]).prepare({3: (0, 13)})
    assert (
        request.encode()
        == (
            b"\x02" + bytes(16) + b"\x02t" + b"\x00"  # one topic, by its name
            b"\x00"
            b"\x00"
            b"\x00"
            b"\x00"  # create none, tell no rights, no tags
        )
    )


async def test_a_partition_without_a_leader_has_none() -> None:
    wire = await _wire()
    cluster = wire._client.cluster
    assert wire.partitions("t") is None
    assert wire.leader("t", 0) is None
    cluster.update_metadata(_metadata(leader=-1))
    assert wire.partitions("t") == 1
    assert wire.leader("t", 0) is None
    cluster.update_metadata(_metadata(leader=1))
    assert wire.leader("t", 0) == 1
    assert cluster.leader_for_partition(TopicPartition("t", 0)) == 1


async def test_an_answer_is_read_by_partition() -> None:
    """Error code, base offset and what is said of a record are found where version 8 has them."""
    wire = await _wire()
    of_records = [(3, None), (4, "Timestamp 1 is out of range")]
    partitions = [
        (0, 0, 42, -1, 0, [], None),
        (1, 45, -1, -1, 0, [], "out of order"),
        (2, 32, -1, -1, 0, of_records, "One or more records"),
    ]
    written = ProduceResponse_v8([("t", partitions)], 0).encode()
    answer = ProduceResponse_v8.decode(BytesIO(written))
    wire._client._conns[1, 0] = _Connection(answer)
    assert wire.is_connected(1)
    assert await wire.produce(1, [("t", [(0, b""), (1, b"")])]) == {
        ("t", 0): PartitionAnswer(0, 42),
        ("t", 1): PartitionAnswer(45, -1, "out of order"),
        ("t", 2): PartitionAnswer(32, -1, "Timestamp 1 is out of range"),
    }


async def test_a_connection_without_an_answer_is_closed() -> None:
    """A later answer on it would be taken for an earlier request's."""
    wire = await _wire()
    connection = _Connection(TimeoutError())
    wire._client._conns[1, 0] = connection
    with pytest.raises(Exception, match="no answer within the request timeout"):
        await wire.produce(1, [])
    assert connection.closed == [CloseReason.CONNECTION_TIMEOUT]
    assert not wire.is_connected(1)


async def test_without_a_connection_nothing_is_written() -> None:
    wire = await _wire()
    with pytest.raises(RetriableError, match="no connection to broker 1"):
        wire.produce(1, [])


async def test_no_broker_is_a_retriable_error() -> None:
    """Also for each question asked of a cluster that is not there."""
    wire = await _wire()
    with pytest.raises(RetriableError):
        await wire.start()
    with pytest.raises(RetriableError):
        await wire.new_producer_id()
    with pytest.raises(RetriableError):
        await wire.max_message_bytes("t")
    with pytest.raises(RetriableError):
        await wire.last_sequence("t", 0, Identity(1, 0))
    await wire.close()


async def test_who_gives_up_waiting_does_not_cut_the_bootstrap_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client would lose sight of the connection it asks on; closing waits for it instead."""
    asking, answered = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def bootstrap(_client: AIOKafkaClient) -> None:
        asking.set()
        try:
            await answered.wait()
            ended.append("answered")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    wire = await _wire()
    waiting = asyncio.create_task(wire.start())
    await asking.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == []
    closing = asyncio.create_task(wire.close())
    await asyncio.sleep(0)
    answered.set()
    await closing
    assert ended == ["answered"]


async def test_closing_does_not_wait_long_for_a_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that never answers holds up nobody."""
    monkeypatch.setattr("sequitur.kafka.wire._BOOTSTRAP_END_S", 0.0)
    asking = asyncio.Event()

    async def bootstrap(_client: AIOKafkaClient) -> None:
        asking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    wire = await _wire()
    waiting = asyncio.create_task(wire.start())
    await asking.wait()
    await asyncio.wait_for(wire.close(), PATIENCE_S)
    with pytest.raises(asyncio.CancelledError):
        await waiting
