"""A cluster's metadata: its id, its brokers, and the topics that are asked for.

aiokafka asks in a version that has neither the cluster's id nor those of topics, and lets brokers
create the topics that are asked for. This client asks in version 10 (Kafka 2.8). So it creates
nothing, and notices a topic that was deleted and recreated.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from sequitur.base.log import Logger
from sequitur.kafka.error_codes import NO_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
    from io import BytesIO
    from typing import TypeVar

    T = TypeVar("T")

_NO_ID: Final = bytes(16)
_MAY_HANG_S: Final = 1.0
"""If one broker has not answered for so long, another is asked as well."""

_log = Logger(__name__)


class ClusterClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka is untyped
    """aiokafka's client with our metadata request, for clusters where a broker may hang."""

    _get_conn_lock = contextlib.nullcontext()
    """aiokafka's lock holds up all connections while one is made: see `_get_conn`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.on_update: Callable[[], None] = _nothing
        self.cluster_id: str | None = None
        self.topic_ids: dict[str, bytes] = {}
        self.too_old: str | None = None
        self._made_s: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._making: dict[Any, asyncio.Lock] = {}
        self._asking: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await super().close()

    def age_s(self, connection: Any) -> float:
        """Return a connection's age, or more, by a monotonic clock."""
        now_s = time.monotonic()
        return now_s - self._made_s.get(connection, now_s)

    async def _get_conn(
        self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, **options: Any
    ) -> Any:
        async with self._making.setdefault((node_id, group), asyncio.Lock()):
            connection = await super()._get_conn(node_id, group=group, **options)
        if connection is not None:
            self._made_s.setdefault(connection, time.monotonic())
        return connection

    def nodes(self) -> list[Any]:
        """Return the known brokers in random order."""
        nodes = [broker.nodeId for broker in self.cluster.brokers()]
        random.shuffle(nodes)
        return nodes

    async def first_answer(
        self, nodes: Iterable[Any], ask: Callable[[Any], Coroutine[Any, Any, T | None]]
    ) -> T | None:
        """Ask brokers one after the other; return the first answer, None where none gives one.

        A broker that hangs is not waited for long: the next one is asked beside it. Once the client
        is closed, nobody gives one.
        """
        left, asked = iter(nodes), set[asyncio.Task[Any]]()
        while True:
            node = None if self._is_closed else next(left, None)
            if node is not None:
                asked.add(self._begin(ask(node)))
            elif not asked:
                return None
            done, asked = await asyncio.wait(
                asked,
                timeout=None if node is None else _MAY_HANG_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for one in done:
                answer: T | None = None if one.cancelled() else one.result()
                if answer is not None:
                    return answer

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that its caller does not cancel: a half-made connection would stay open."""
        task = asyncio.get_running_loop().create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: there may be no waiter any more

    async def _metadata_update(self, cluster_metadata: Any, topics: Collection[str]) -> bool:
        """Ask the brokers. Any error is a failed update, and the next update is tried.

        Who adds a topic meanwhile waits for this update. aiokafka compares the topics with
        themselves then, and would not ask for the new one.
        """
        try:
            asked = frozenset(topics)
            return await self._ask_brokers(cluster_metadata, asked) and (
                asked.issuperset(topics) or await self._metadata_update(cluster_metadata, topics)
            )
        except Exception as error:  # noqa: BLE001 - else the client would never ask again
            _log.warning("a metadata update failed", reason=repr(error))
            cluster_metadata.failed_update(None)
            return False

    async def _ask_brokers(self, cluster_metadata: Any, topics: Collection[str]) -> bool:
        nodes = self.nodes()
        nodes += [node for node, _group in self._conns if node not in nodes]  # from the bootstrap

        async def ask(node: Any) -> Any:
            connection = await self._get_conn(node)
            if connection is None:
                return None
            self.too_old = too_old(connection._versions)  # noqa: SLF001 - see `kafka.wire`
            if self.too_old is not None:
                return None
            try:
                return await connection.send(MetadataRequest(list(topics or ())))
            except (kafka_errors.KafkaError, TimeoutError):
                return None

        answer = await self.first_answer(nodes, ask)
        if answer is None:
            cluster_metadata.failed_update(None)
            return False
        if not answer.brokers:
            return False
        self._take(cluster_metadata, answer)
        return True

    def _take(self, cluster_metadata: Any, answer: Any) -> None:
        self.cluster_id = answer.cluster_id
        topics: list[Any] = []
        self.topic_ids.clear()
        for code, name, topic_id, is_internal, partitions, *_ in answer.topics:
            if code == NO_ERROR:
                self.topic_ids[name] = topic_id
            of_topic = [
                (error, partition, leader, replicas, isr)
                for error, partition, leader, _epoch, replicas, isr, *_ in partitions
            ]
            topics.append((code, name, is_internal, of_topic))
        brokers = [tuple(broker[:4]) for broker in answer.brokers]
        cluster_metadata.update_metadata(_Metadata(brokers, answer.controller_id, topics))
        self.on_update()


def _nothing() -> None:
    """Do nothing: there is no listener yet."""


def too_old(versions: Mapping[int, tuple[int, int]]) -> str | None:
    """Return which needs of a producer a broker does not support; None if it supports all."""
    lacking = [
        f"{name} version {needed}"
        for key, (name, needed) in NEEDED_VERSIONS.items()
        if versions.get(key, (0, -1))[1] < needed
    ]
    if not lacking:
        return None
    return f"the broker does not know {', '.join(lacking)}: Kafka 3.0 or newer is needed"


NEEDED_VERSIONS: Final = {
    0: ("Produce", 8),
    1: ("Fetch", 4),
    2: ("ListOffsets", 1),
    3: ("Metadata", 10),
    10: ("FindCoordinator", 1),
    22: ("InitProducerId", 4),
    32: ("DescribeConfigs", 1),
    61: ("DescribeProducers", 0),
}
"""A producer's requests, by Kafka's number, each with the version that the producer needs."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    """An answer in the form that aiokafka's cluster object takes."""

    API_VERSION: ClassVar[int] = 1

    brokers: list[Any]
    controller_id: int
    topics: list[Any]


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka is untyped
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class MetadataResponseV10(Response):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition_index", Int32),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("replica_nodes", CompactArray(Int32)),
                        ("isr_nodes", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("topic_authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequestV10(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = MetadataResponseV10
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class MetadataRequest(Request[MetadataRequestV10]):  # type: ignore[misc]  # aiokafka is untyped
    """Ask for topics without creating any, or for all that are there."""

    API_KEY = 3

    def __init__(self, topics: Collection[str] | None) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[MetadataRequestV10]) -> Any:
        asked: list[Any] | None = None
        if self._topics is not None:
            asked = [(_NO_ID, topic, {}) for topic in self._topics]
        return request_struct_class(asked, False, False, False, {})
