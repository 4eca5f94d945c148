"""A topic with subscriptions on a real broker, for tests of what follows from their cursors."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.claims import HeldLease
from sequitur.consumer.subscription.compacted_topic import CompactedTopic
from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_store import cursor_topic, transactional_id
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.stored_records import owner_key, state_key
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.kafka.control import BacklogState, control_topic, key_of
from sequitur.kafka.partition import SourcePartition
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from confluent_kafka.admin import AdminClient

    from sequitur.consumer.subscription.checks import CheckRound
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.consumer.subscription.policies import TopicPolicies
    from sequitur.kafka.settings import KafkaSettings

SHORT_LEASE_S = 2.0
"""It is renewed three times in that."""
MINUTE_MS = 60_000


def is_group_deleted(admin: AdminClient, group: str) -> bool:
    """Delete a share group; False while it has a member."""
    try:
        admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    except KafkaException:
        return False
    return True


class SubscribedTopics:
    """Topics and subscriptions of one test: nobody else has its settings' prefix."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self.passed_s = 0.0
        self.surveyor = Surveyor(kafka, clock=lambda: time.monotonic() + self.passed_s)
        self.now_ms = int(time.time() * 1000)

    @property
    def environ(self) -> dict[str, str]:
        """The same settings for commands."""
        return {
            "KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "SEQUITUR_KAFKA_SYSTEM_PREFIX": self.kafka.system_prefix,
        }

    def fill(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        ages_s: Callable[[int], float] = lambda _number: 0,
        size: int = 100,
        codec: str = "none",
    ) -> None:
        """Write records, with the ages that they are to have now."""
        options = {"linger.ms": 5, "compression.type": codec}
        client = Producer({**self.kafka.librdkafka(), **options})
        for number in range(count):
            value = f"{number}".encode().ljust(size, b".")
            stamp_ms = self.now_ms - int(ages_s(number) * 1000)
            client.produce(topic, value, partition=partition, timestamp=stamp_ms)
        assert client.flush(PATIENCE_S) == 0

    def subscribe(
        self,
        name: str,
        *topics: str,
        created_ms: int | None = None,
        epoch: int = 0,
        **given: Any,
    ) -> SubscriptionRecord:
        """Create a subscription that has acked nothing, and fence nobody."""
        made_ms = self.now_ms if created_ms is None else created_ms
        table = CompactedTopic(self.kafka, cursor_topic(self.kafka), partitions=8)
        table.ensure()
        record = SubscriptionRecord(
            name,
            topics,
            SubscriptionType.EXCLUSIVE,
            made_ms,
            epoch,
            group=group_of_new(self.kafka, name),
            last_connected_ms=made_ms,
            partition=table.partition_of(name),
            **given,
        )
        state = SubscriptionState(epoch=epoch).encode(group=record.group)
        stored = TopicWrite(table.name, table.partition_of(name), state_key(name), state)
        self.surveyor.registry.change(lambda registry: registry.created(record), [stored])
        return record

    def acks(
        self, name: str, topic: str, *ranges: tuple[int, int], partition: int = 0, counted: int = 0
    ) -> None:
        """Ack ranges of a subscription, as a job stores it; `counted` bytes were read with them."""
        where = SourcePartition(topic, partition)
        with self.surveyor.cursors.take(name) as owner:
            stored = owner.stored
            known = None if stored is None else stored.cursors.get(where)
            cursor = Cursor(CursorIdentity(name, *where)) if known is None else known.cursor
            sizes = CountedSizes() if known is None else known.sizes
            for first, stop in ranges:
                cursor.ack_range(first, stop, end=1 << 40)
                sizes = sizes.read(stop, counted) if counted else sizes
            state = SubscriptionState() if stored is None else stored.state
            owner.write(state, [PartitionCursor(cursor, sizes)])

    def reads(self, name: str, topic: str, stop: int, *, size: int, partition: int = 0) -> None:
        """Let a subscription have read up to before an offset, and have counted so many bytes."""
        where = SourcePartition(topic, partition)
        with self.surveyor.cursors.take(name) as owner:
            assert owner.stored is not None
            cursor = owner.stored.cursors[where].cursor
            cursor.seek(stop, end=stop)
            sizes = CountedSizes().read(stop, size).behind(cursor.committed_offset)
            owner.write(owner.stored.state, [PartitionCursor(cursor, sizes)])

    def acks_up_to(self, name: str, topic: str, offsets: Sequence[int]) -> None:
        """Ack what is before an offset of each partition, for a subscription that acked nothing."""
        with self.surveyor.cursors.take(name) as owner:
            written = []
            for partition, offset in enumerate(offsets):
                cursor = Cursor(CursorIdentity(name, topic, partition))
                cursor.ack_range(0, offset, end=1 << 40)
                written.append(PartitionCursor(cursor))
            owner.write(SubscriptionState(), written)

    @contextlib.contextmanager
    def held(self, name: str, lease_s: float = SHORT_LEASE_S) -> Iterator[CursorOwner]:
        """Have an owner of the subscription that renews its lease, as a job does."""
        with self.surveyor.cursors.take(name, lease=HeldLease(lease_s)) as owner:
            yield owner

    def claim_in_the_first_form(self, name: str) -> tuple[bytes, bytes]:
        """Claim a subscription by a number alone; return the record's key and value."""
        self.surveyor.cursors.take(name).close()
        partition = self.surveyor.cursors.follow(name).partition
        key, value = owner_key(name), uuid.uuid4().hex.encode()
        writer = FencedWriter(self.kafka, transactional_id(self.kafka, name), name="first form")
        writer.write([TopicWrite(cursor_topic(self.kafka), partition, key, value)])
        writer.close()
        return key, value

    def policies(self, topic: str | None, policies: TopicPolicies) -> None:
        self.surveyor.registry.change(lambda registry: registry.with_policies(topic, policies))

    def idle(self, after_s: float = 3_600) -> None:
        """Let the checks see who has no owner now for so long, by their steady clock."""
        self.surveyor.judged(is_detected=True)
        self.passed_s += after_s

    def check(
        self, *, after_s: float = 0, copy_to: str | None = None, dry_run: bool = False
    ) -> CheckRound:
        """Make one round of checks, so long after the beginning of the test."""
        checks = Checks(self.surveyor, copy_to=copy_to, dry_run=dry_run)
        try:
            return checks.run(now_ms=self.now_ms + int(after_s * 1000))
        finally:
            checks.close()

    def committed(self, name: str, topic: str, partition: int = 0) -> int | None:
        """Return where a subscription's stored cursor stands."""
        stored = self.surveyor.cursors.read(name)
        found = None if stored is None else stored.cursors.get(SourcePartition(topic, partition))
        return None if found is None else found.cursor.committed_offset

    def told(self, topic: str) -> BacklogState | None:
        records = CompactedTopic(self.kafka, control_topic(self.kafka), partitions=1).read()
        value = records.get(key_of(topic))
        return None if value is None else BacklogState.decode(topic, value)

    def start_of(self, topic: str, partition: int = 0) -> int:
        where = SourcePartition(topic, partition)
        return self.surveyor.topics.low_watermarks([where])[where]
