"""Kafka's protocol, by aiokafka's wire layer: the only module that touches its private parts.

`AIOKafkaClient` keeps the metadata and the connections, `AIOKafkaConnection` frames requests and
matches answers to them; both do TLS and SASL. Neither is public API: a contract test
(tests/unit/kafka/test_wire_contract.py) holds them to what is used here, so that an
upgrade that breaks it is seen.

A produce request is written the moment `produce` is called, not when its answer is awaited: so
requests leave on a connection in the order of the calls, and the answers come back in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from aiokafka import errors as kafka_errors
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.structs import TopicPartition

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.units import milliseconds
from sequitur.errors import (
    BrokerError,
    FatalError,
    NameNotAllowedError,
    RetriableError,
    TakenOverError,
)
from sequitur.kafka.connection_check import NOT_CONNECTED, translated, why_no_connection
from sequitur.kafka.error_codes import NO_ERROR, Action, Request, action_of, meaning_of
from sequitur.kafka.identity import Identity
from sequitur.kafka.log_reading import find_events
from sequitur.kafka.metadata import ClusterClient, MetadataRequest
from sequitur.kafka.producer_ids import (
    InitProducerIdRequest,
    PartitionAnswer,
    ProduceRequest,
    last_sequence,
    read_answers,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from datetime import timedelta

    from aiokafka.conn import AIOKafkaConnection

    from sequitur.kafka.settings import KafkaSettings, TokenProvider

_ALL_IN_SYNC_REPLICAS: Final = -1
_TOPIC_RESOURCE: Final = 2
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_TIMESTAMP_AFTER_MAX: Final = (
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
_WHY_NOT_TIMEOUT_MS: Final = 3_000
_BOOTSTRAP_END_S: Final = 0.5

_log = Logger(__name__)

# The client logs each failed connection as an error, but its meaning is ours to report.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class CoordinatorKind(enum.Enum):
    """What a broker coordinates, by Kafka's numbers."""

    GROUP = 0
    TRANSACTION = 1


class Wire:
    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        client_id: str,
        request_timeout: timedelta,
        token_provider: TokenProvider | None = None,
    ) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._request_timeout_ms = milliseconds(request_timeout)
        options = kafka.aiokafka(token_provider)
        self._client = ClusterClient(
            client_id=client_id, request_timeout_ms=self._request_timeout_ms, **options
        )
        del options["bootstrap_servers"]
        self._security = options
        self._bootstrapped = False
        self._bootstrapping: asyncio.Task[None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None

    async def start(self) -> None:
        """Reach any broker, and learn the others from it."""
        if self._bootstrapped:
            return
        try:
            await self._bootstrap()
        except NOT_CONNECTED as error:
            raise await self._why_not_bootstrapped() from error
        # The bootstrap gives neither the cluster's id nor whether the brokers are new enough.
        if not await self._client.force_metadata_update():
            if self._client.too_old is not None:
                raise FatalError(self._client.too_old)
            reason = await self._why_not_bootstrapped()
            if isinstance(reason, FatalError):
                raise reason
            raise RetriableError("no broker answered a metadata request")
        self._bootstrapped = True

    async def close(self) -> None:
        bootstrapping = self._bootstrapping
        if bootstrapping is not None:
            await asyncio.wait([bootstrapping], timeout=_BOOTSTRAP_END_S)
            bootstrapping.cancel()
        await self._client.close()

    async def _bootstrap(self) -> None:
        """Fetch metadata from the bootstrap servers.

        Cancelling a caller does not cancel the request: the client would forget its connection, and
        leave it open.
        """
        if self._bootstrapping is None:
            self._bootstrapping = asyncio.get_running_loop().create_task(self._client.bootstrap())
            self._bootstrapping.add_done_callback(self._on_bootstrapped)
        await asyncio.shield(self._bootstrapping)

    def _on_bootstrapped(self, bootstrapping: asyncio.Task[None]) -> None:
        self._bootstrapping = None
        if not bootstrapping.cancelled():
            bootstrapping.exception()  # retrieved: the caller may have been cancelled
            self._watch_updates()

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id; None while it is unknown."""
        return self._client.cluster_id

    def watch(self, on_update: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        """Call `on_update` after each metadata update, and `on_failure` once there are no more."""
        self._client.on_update = on_update
        self._on_failure = on_failure
        self._watch_updates()

    def _watch_updates(self) -> None:
        """Report if the task that updates metadata ends: it never should."""
        updating = self._client._sync_task  # noqa: SLF001 - see the module
        if updating is not None and self._on_failure is not None:
            report_failure(updating, self._on_failure)
            self._on_failure = None

    def topic_id(self, topic: str) -> bytes | None:
        """Return a topic's id, which changes if the topic is recreated; None while unknown."""
        return self._client.topic_ids.get(topic)

    def is_unauthorized(self, topic: str) -> bool:
        return topic in self._client.cluster.unauthorized_topics

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None while that is unknown."""
        known = self._client.cluster.partitions_for_topic(topic)
        return len(known) if known else None

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the broker that takes a partition's batches; None while there is none."""
        node: int | None = self._client.cluster.leader_for_partition(
            TopicPartition(topic, partition)
        )
        return None if node == -1 else node

    async def refresh(self, topics: Iterable[str] = ()) -> bool:
        """Fetch the metadata of topics and leaders again; also of `topics` from now on.

        When no known broker answers, the bootstrap servers are asked again, since brokers move
        (KIP-899).
        """
        for topic in topics:
            self._client.add_topic(topic)
        if not self._bootstrapped:
            # Without a first bootstrap the client would wait for ever.
            try:
                await self.start()
            except BrokerError as error:
                if isinstance(error, FatalError):
                    _log.warning("no broker accepts the login", reason=str(error))
                return False
        if await self._client.force_metadata_update():
            return True
        try:
            await self._bootstrap()
        except NOT_CONNECTED:
            return False
        return bool(await self._client.force_metadata_update())

    def forget(self, topic: str) -> None:
        """Do not ask for a topic any more, until `refresh` names it again."""
        self._client._topics.discard(topic)  # noqa: SLF001 - see the module

    async def create_topic(self, topic: str) -> None:
        """Create a topic with the brokers' defaults, unless it is there.

        librdkafka asks: aiokafka's request ends at version 3, which knows no defaults.
        """
        from sequitur.kafka.admin import create_topic  # noqa: PLC0415 - imports a second Kafka client

        await create_topic(self._kafka, topic, partitions=-1, replication_factor=-1)

    def is_connected(self, node: int) -> bool:
        """Return whether `produce` may be called for a broker."""
        return self._connection(node) is not None

    def connected_since(self, node: int) -> float | None:
        """Return when the connection was made that `produce` takes, epoch seconds; None without.

        A broker may have restarted since an answer that came before that.
        """
        connection = self._connection(node)
        return None if connection is None else time.time() - self._client.age_s(connection)

    async def connect(self, node: int) -> bool:
        """Connect to a broker; False if it is no longer known."""
        try:
            if await self._client._get_conn(node) is not None:  # noqa: SLF001 - see the module
                return True
        except NOT_CONNECTED as error:
            _log.debug("no connection", broker=node, reason=repr(error))
        broker = self._client.cluster.broker_metadata(node)
        if broker is None:
            return False
        raise await self._why_not([(broker.host, broker.port)])

    def produce(
        self,
        node: int,
        topics: list[tuple[str, list[tuple[int, bytes]]]],
    ) -> Awaitable[dict[tuple[str, int], PartitionAnswer]]:
        """Write a produce request, and return its answer to be awaited.

        The connection must be there (`is_connected`). One batch a partition.
        """
        connection = self._connection(node)
        if connection is None:
            raise RetriableError(f"no connection to broker {node}")
        request = ProduceRequest(_ALL_IN_SYNC_REPLICAS, self._request_timeout_ms, topics)
        try:
            answer = connection.send(request)
        except (kafka_errors.KafkaError, OSError) as error:
            # A failed write may have put part of the request on the wire, never the whole.
            raise RetriableError(f"broker {node}: {error}") from error
        return read_answers(connection, answer)

    async def new_producer_id(self) -> Identity:
        """Return a new producer id, with epoch 0."""
        answer = await self._ask_any(InitProducerIdRequest(None))
        _check(Request.INIT_PRODUCER_ID, answer.error_code, "a producer id")
        return Identity(answer.producer_id, answer.producer_epoch)

    async def claim(self, transactional_id: str, held: Identity | None) -> Identity:
        """Return the next epoch of the producer id that belongs to a transactional id.

        No transaction is begun. Each caller gets a new epoch, and a partition to which it has
        written refuses batches of older epochs.
        """
        node = await self.coordinator(CoordinatorKind.TRANSACTION, transactional_id)
        answer = await self._ask(node, InitProducerIdRequest(transactional_id, held))
        code = answer.error_code
        if action_of(Request.INIT_PRODUCER_ID, code) is Action.FENCED:
            raise TakenOverError(transactional_id)
        _check(Request.INIT_PRODUCER_ID, code, f"the producer id of {transactional_id}")
        return Identity(answer.producer_id, answer.producer_epoch)

    async def max_message_bytes(self, topic: str) -> int:
        """Return the largest batch that a topic takes, in bytes (its `max.message.bytes`)."""
        return (await self._limits(topic, [_MAX_MESSAGE_BYTES]))[0]

    async def timestamp_after_max_ms(self, topic: str) -> int:
        """Return how far a record's timestamp may be ahead of the broker's time.

        That is `message.timestamp.after.max.ms`; in Kafka before 3.6 and beside it before 4.0
        `message.timestamp.difference.max.ms`.
        """
        return min(await self._limits(topic, _TIMESTAMP_AFTER_MAX))

    async def _limits(self, topic: str, names: Sequence[str]) -> list[int]:
        """Return those of the named settings that the topic has; raise if it has none."""
        told = (await self.topic_settings([topic]))[topic]
        if isinstance(told, int):
            _check(Request.DESCRIBE_CONFIGS, told, f"the configuration of topic {topic}")
            told = {}
        found = [int(told[name]) for name in names if name in told]
        if not found:
            raise FatalError(f"topic {topic} has no {names[0]}")
        return found

    async def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str] | int]:
        """Return the settings of each topic, or the error's code."""
        request = DescribeConfigsRequest([(_TOPIC_RESOURCE, topic, None) for topic in topics])
        answer = await self._ask_any(request)
        return {
            topic: code or {name: str(value) for name, value, *_ in entries}
            for code, _message, _type, topic, entries in answer.resources
        }

    async def all_topics(self) -> dict[str, int]:
        """Return how many partitions each topic has that may be seen."""
        answer = await self._ask_any(MetadataRequest(None))
        if not answer.brokers:
            # A broker that hung and answers again may not have rejoined its cluster yet.
            raise RetriableError("the broker that answers knows of no cluster")
        return {
            name: len(partitions)
            for code, name, _id, _is_internal, partitions, *_ in answer.topics
            if partitions or code == NO_ERROR
        }

    async def last_sequence(self, topic: str, partition: int, identity: Identity) -> int | None:
        """Return an identity's last sequence in a partition's in-sync replicas (KIP-664)."""
        node = self.leader(topic, partition)
        if node is None:
            raise RetriableError(f"{topic}-{partition} has no leader")
        ask = functools.partial(self._ask, node)
        return await last_sequence(ask, topic, partition, identity)

    async def find_events(
        self, topic: str, partition: int, wanted: Collection[bytes], since_ms: int
    ) -> set[bytes]:
        """Return the event ids in `wanted` that a partition holds; see `log_reading`."""
        node = self.leader(topic, partition)
        if node is None:
            raise RetriableError(f"{topic}-{partition} has no leader")
        ask = functools.partial(self._ask, node)
        return await find_events(ask, topic, partition, wanted, since_ms)

    async def _why_not_bootstrapped(self) -> BrokerError:
        return await self._why_not((host, port) for host, port, _ in self._client.hosts)

    async def _why_not(self, addresses: Iterable[tuple[str, int]]) -> BrokerError:
        return await why_no_connection(
            addresses,
            self._kafka,
            client_id=self._client_id,
            timeout_ms=min(self._request_timeout_ms, _WHY_NOT_TIMEOUT_MS),
            security=self._security,
        )

    async def coordinator(self, kind: CoordinatorKind, key: str) -> int:
        """Return the broker that keeps a group's offsets, or the state of a transactional id."""
        answer = await self._ask_any(FindCoordinatorRequest(key, kind.value))
        _check(Request.FIND_COORDINATOR, answer.error_code, f"the coordinator of {key}")
        return int(answer.coordinator_id)

    async def ask(self, node: int, request: Any) -> Any:
        return await self._ask(node, request)

    async def _ask_any(self, request: Any) -> Any:
        failures: list[RetriableError] = []

        async def ask(node: int) -> Any:
            try:
                return await self._ask(node, request)
            except RetriableError as error:
                failures.append(error)

        answer = await self._client.first_answer(self._client.nodes(), ask)
        if answer is None:
            raise failures[-1] if failures else RetriableError("no broker is known")
        return answer

    async def _ask(self, node: int, request: Any) -> Any:
        try:
            return await self._client.send(node, request)
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            raise translated(error) from error

    def _connection(self, node: int) -> AIOKafkaConnection | None:
        for (known, _group), connection in self._client._conns.items():  # noqa: SLF001 - see the module
            if known == node and connection.connected():
                return connection
        return None


def _check(request: Request, code: int, what: str) -> None:
    action = action_of(request, code)
    if action is Action.DONE:
        return
    sentence = f"{what}: {meaning_of(code).name}"
    if action is Action.GO_WITHOUT:
        raise NameNotAllowedError(sentence)
    raise (RetriableError if action is Action.RETRY else FatalError)(sentence)


async def close_within(wire: Wire, timeout_s: float) -> None:
    """Close the wire. Give up waiting for it after `timeout_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await wire.close()
