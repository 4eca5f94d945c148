"""A subscription after Apache Pulsar's: messages are received, and acked one by one.

What is acked is kept in a cursor for each partition, so it does not come again, whatever the order
of the acks; and a message that fails comes again after a while, without its key's order being lost.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import starmap
from operator import index
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import msgspec
from confluent_kafka import Message as KafkaMessage

from sequitur.consumer.subscription.claims import LEASE_S, LONGEST_LEASE_S, HeldLease
from sequitur.consumer.subscription.consumption import Consumption
from sequitur.consumer.subscription.dead_letters import DeadLetters
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.dispatch import (
    NEGATIVE_ACK_BACKOFF,
    Dispatch,
    DispatchLimits,
    OrderRule,
)
from sequitur.consumer.subscription.group_offsets import GroupOffsets
from sequitur.consumer.subscription.opening import SubscriptionOpening
from sequitur.consumer.subscription.partition_reader import PartitionReader
from sequitur.consumer.subscription.position import Edge, Position
from sequitur.consumer.subscription.registry import SubscriptionType
from sequitur.consumer.subscription.skipping import OwnSkips
from sequitur.errors import CumulativeAckError
from sequitur.kafka.arrivals import headers_of
from sequitur.kafka.partition import SourcePartition, check_topic_name
from sequitur.kafka.settings import KafkaSettings, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.base.retry import Backoff
    from sequitur.consumer.subscription.cursor import CursorStats

_ORDER_RULES: Final = {
    SubscriptionType.EXCLUSIVE: OrderRule.TAKEN_BACK,
    SubscriptionType.FAILOVER: OrderRule.TAKEN_BACK,
    SubscriptionType.SHARED: OrderRule.NONE,
    SubscriptionType.KEY_SHARED: OrderRule.ONE_OUT,
}
_REFILL_SHARE: Final = 4

_logger: Final = logging.getLogger("sequitur.subscription")


def _names_of(topics: object) -> tuple[str, ...]:
    names: list[Any] = [topics]
    if isinstance(topics, Iterable) and not isinstance(topics, str | bytes):
        names = [*topics]
    for one in names:
        check_topic_name(one)
    return tuple(dict.fromkeys(names))


class Message(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A message that was received. Its parts are decoded when they are read.

    Attributes:
        offset: Its offset in its partition.
        redelivery_count: How often it was handed out before. Before the subscription was opened,
            the count leaves out deliveries that were taken back because an earlier message of the
            key failed.
    """

    _where: SourcePartition
    offset: int
    _record: KafkaMessage
    redelivery_count: int

    @property
    def topic(self) -> str:
        """Its topic."""
        return self._where.topic

    @property
    def partition(self) -> int:
        """Its partition."""
        return self._where.partition

    @property
    def key(self) -> bytes | None:
        """Its key, or None."""
        return self._record.key()

    @property
    def value(self) -> bytes | None:
        """Its value, None for a tombstone."""
        return self._record.value()

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Name and value of each header, in order."""
        return tuple(headers_of(self._record))

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, epoch milliseconds."""
        return self._record.timestamp()[1]

    @property
    def position(self) -> Position:
        """Its position, to ack it with. As text `topic:partition:offset`."""
        return Position(self.partition, self.offset, self.topic)


Acked: TypeAlias = Message | Position | str
"""What can be acked: a message, its position, or that as text (`0:17`, `orders:0:17`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """A subscription at one moment.

    Attributes:
        name: Its name.
        type: How its messages are handed out.
        cursors: The counts of each partition's cursor, by topic and partition.
        unacked_messages: Messages that were handed out and are not acked.
        is_blocked: Whether no message is handed out because too many are not acked.
        messages_out: How many messages were handed out since it was opened.
        messages_redelivered: How many of them had been handed out before.
        negative_acks: How many failed by a negative ack.
        ack_timeouts: How many failed because no ack came in time.
        taken_back: How many were taken back because an earlier message of their key failed.
        messages_expired: How many were acked because their time to live was over.
        messages_evicted: How many were acked because a backlog quota evicted them.
        dead_letters: How many were acked because they had failed too often.
    """

    name: str
    type: SubscriptionType
    cursors: Mapping[tuple[str, int], CursorStats]
    unacked_messages: int
    is_blocked: bool
    messages_out: int
    messages_redelivered: int
    negative_acks: int
    ack_timeouts: int
    taken_back: int
    messages_expired: int
    messages_evicted: int
    dead_letters: int

    @property
    def backlog(self) -> int:
        """How many messages are not acked: Pulsar's msgBacklog."""
        return sum(one.backlog for one in self.cursors.values())

    def to_document(self) -> dict[str, Any]:
        """Return the fields that Pulsar has, under its names, and the cursors by position."""
        return {
            "type": self.type.value,
            "msgBacklog": self.backlog,
            "unackedMessages": self.unacked_messages,
            "blockedSubscriptionOnUnackedMsgs": self.is_blocked,
            "msgOutCounter": self.messages_out,
            "messagesRedelivered": self.messages_redelivered,
            "totalMsgExpired": self.messages_expired,
            "cursors": {
                f"{topic}:{partition}": one.to_document()
                for (topic, partition), one in self.cursors.items()
            },
        }


class Subscription:
    """Messages of some topics, from where their acks end.

    ::

        with Subscription(
            "broker-1:9092", "billing", "orders", type="Key_Shared", position="earliest"
        ) as subscription:
            while (message := subscription.receive(timeout_s=5)) is not None:
                print(message.key, message.value)
                subscription.acknowledge(message)

    At least once: acks are written every `write_interval`, by `flush`, and by `close`. If the
    process dies, messages whose acks were not written come again.

    One process at a time owns a subscription, by a lease that it renews. Meanwhile a second process
    with `Failover` waits, and with another type it is refused. With `take_over` it takes the
    subscription over. A new owner resumes from the stored acks. The former owner gets
    `SubscriptionFencedError` from every call, after a third of its lease at the latest. An owner
    that could not renew its lease hands out nothing until it has. Any number of threads may use one
    object.

    While it is open, the subscription acks messages that are older than the topics' time to live,
    and messages that their backlog quota evicts (`sequitur topic set-message-ttl`,
    `set-backlog-quota`). It does not hand out such a message. If one is out, it counts as acked
    already. The logger `sequitur.subscription` reports each.

    Order: the messages of a key in a partition come in order. With `Exclusive`, `Failover` and
    `Key_Shared` they stay in order when one fails: no later message of the key is handed out before
    it. With `Exclusive` and `Failover` several messages of a key are out at a time, so the messages
    after a failed one come a second time. An ack of one of them that is made meanwhile counts. With
    `Key_Shared` one message of a key is out at a time. With `Shared`, and without keys, there is no
    order.

    Args:
        kafka: How to reach the brokers, or their addresses alone.
        name: The subscription's name: letters, digits, '.', '_', '-'. Its consumer group is
            `sequitur-` and the name.
        topics: The topic, or several.
        type: As in Pulsar. Several receivers are threads of one process.
        position: Where a new subscription begins: at the first message that is there, or after the
            last one. A new subscription needs it. An existing one ignores it, and resumes where it
            was. Partitions that are added later are read from their beginning.
        negative_ack_backoff: How long a failed message waits before it comes again.
        ack_timeout: A message without an ack for this time has failed. None: never, as in Pulsar.
        receiver_queue_size: How many messages are read ahead. Messages that wait for a failed one
            of their key count, so a larger queue lets other keys continue meanwhile.
        max_unacked_messages: No message is handed out while this many are not acked. 0: no limit.
        write_interval: How often acks are written.
        replication_factor: Replicas of the system topics of subscriptions, if they are missing. -1:
            the brokers' default.
        max_redeliver_count: A message that fails after this many redeliveries is a dead letter: it
            is copied to `dead_letter_topic`, then acked. None: no limit. Deliveries that were out
            when the process ended count, as far as they were stored.
        dead_letter_topic: Topic for dead letters. It must not be one of `topics`. `sequitur tail`
            reads it.
        evicted_topic: Topic that messages are copied to before a backlog quota evicts them. None:
            no copies. It must not be one of `topics`.
        lease: How long the next owner waits after a process on another machine died. The owner
            renews the lease after each third of it. The longest lease is an hour.
        take_over: Take the subscription from its owner, whatever the type.

    Raises:
        CursorError: The stored cursor was changed, or is of another version.
        SubscriptionConnectedError: Another process owns it. Or it is new, and a consumer group of
            its name has a member.
        SubscriptionExistsError: It is new, and a group of its name belongs to another program.
        SubscriptionError: It is on other topics, has another type, or belongs to a Spark job. Or it
            is new, and `position` is missing.
        SubscriptionNameError: The name is not allowed.
        TopicError: A topic does not exist, or the brokers do not answer.
        TypeError: A topic is not text.
        ValueError: A setting is out of range, or the name of a topic is not allowed.
    """

    def __init__(
        self,
        kafka: KafkaSettings | str | Iterable[str],
        name: str,
        topics: str | Sequence[str],
        *,
        type: SubscriptionType | Literal["Exclusive", "Failover", "Shared", "Key_Shared"] = (  # noqa: A002 - Pulsar's word
            SubscriptionType.EXCLUSIVE
        ),
        position: Edge | Literal["earliest", "latest"] | None = None,
        negative_ack_backoff: Backoff = NEGATIVE_ACK_BACKOFF,
        ack_timeout: timedelta | None = None,
        receiver_queue_size: int = 1_000,
        max_unacked_messages: int = 50_000,
        write_interval: timedelta = timedelta(seconds=1),
        replication_factor: int = -1,
        evicted_topic: str | None = None,
        max_redeliver_count: int | None = None,
        dead_letter_topic: str | None = None,
        lease: timedelta = timedelta(seconds=LEASE_S),
        take_over: bool = False,
    ) -> None:
        kafka = settings_of(kafka)
        self._name = name
        self._type = SubscriptionType(type)
        self._topics = _names_of(topics)
        for one in (evicted_topic, dead_letter_topic):
            if one is not None:
                check_topic_name(one)
        limits = DispatchLimits(
            receiver_queue=receiver_queue_size,
            unacked=max_unacked_messages,
            ack_timeout_ms=0 if ack_timeout is None else ack_timeout / timedelta(milliseconds=1),
            redeliveries=max_redeliver_count,
        )
        if write_interval <= timedelta(0):
            raise ValueError(f"write_interval {write_interval}: expected more than nothing")
        if not timedelta(0) < lease <= timedelta(seconds=LONGEST_LEASE_S):
            raise ValueError(f"lease {lease}: expected more than nothing, and at most an hour")
        opening = SubscriptionOpening(
            kafka,
            name,
            self._topics,
            type=self._type,
            replication_factor=replication_factor,
            evicted_topic=evicted_topic,
        )
        if (max_redeliver_count is None) != (dead_letter_topic is None):
            raise ValueError("max_redeliver_count and dead_letter_topic: expected both or neither")
        for role, one in (
            ("evicted_topic", evicted_topic),
            ("dead_letter_topic", dead_letter_topic),
        ):
            if one in self._topics:
                raise ValueError(
                    f"{role} {one!r}: the subscription is on it, so copied messages would come "
                    "again"
                )
            if one is not None:
                opening.topics.require(one)
        letters = None
        if dead_letter_topic is not None:
            letters = DeadLetters.in_kafka(kafka, dead_letter_topic, name)
        offsets = GroupOffsets(partial(_logger.warning, "%s: %s", name))
        opened = opening.open(
            None if position is None else Edge(position),
            lease=HeldLease(lease.total_seconds()),
            offsets=offsets,
            take_over=take_over,
        )
        self._consumption = Consumption(
            opening,
            opened,
            PartitionReader(kafka, opening.looks.topics, opened.owner.group, offsets),
            Dispatch(
                _ORDER_RULES[self._type],
                limits=limits,
                backoff=negative_ack_backoff,
                random=random.random,
            ),
            letters,
            refill=max(receiver_queue_size // _REFILL_SHARE, 1),
            write_interval_s=write_interval.total_seconds(),
        )
        self._skips = OwnSkips(opening.looks, self._consumption, self._topics)
        self._consumption.begin(self._skips.duty)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # else that error came first
                raise

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self._name

    @property
    def type(self) -> SubscriptionType:
        """How messages are handed out."""
        return self._type

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the subscription."""
        return self._topics

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout_s: How long to wait for one; None for ever.

        Returns:
            None if none comes in that time: there is none, messages wait for their next attempt, or
            `max_unacked_messages` are not acked (`stats().is_blocked`).

        Raises:
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over.
            TopicError: A topic cannot be read.
        """
        messages = self.receive_many(1, timeout_s)
        return messages[0] if messages else None

    def receive_many(self, most: int, timeout_s: float | None = None) -> list[Message]:
        """Return the next messages, as soon as there is one.

        Args:
            most: The largest number of messages to return.
            timeout_s: How long to wait for the first; None for ever.

        Returns:
            In a partition, messages of one key are in order, except with the type `Shared`. With
            `Key_Shared` there is at most one of each key. The list is empty if no message comes
            within `timeout_s`: see `receive`.

        Raises:
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over.
            TopicError: A topic cannot be read.
            ValueError: `most` is not positive.
        """
        if most < 1:
            raise ValueError(f"receive_many {most}: expected at least 1")
        return list(starmap(Message, self._consumption.receive(most, timeout_s)))

    def acknowledge(self, message: Acked) -> bool:
        """Ack a message: it does not come again.

        Args:
            message: A message, or a position, also one that was not received.

        Returns:
            False if it was acked before.

        Raises:
            AckBeyondEndError: There is no message at that position yet.
            PositionRangeError: The subscription is not on that topic or partition.
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over.
        """
        return self.acknowledge_many([message]) > 0

    def acknowledge_many(self, messages: Iterable[Acked]) -> int:
        """Ack messages of any partitions, in any order. If one is refused, none is acked.

        Args:
            messages: Messages, or positions.

        Returns:
            How many were not acked before.

        Raises:
            AckBeyondEndError: There is no message at one of these positions yet.
            PositionRangeError: The subscription is not on that topic or partition.
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over.
        """
        offsets: defaultdict[SourcePartition, list[int]] = defaultdict(list)
        for one in messages:
            where, offset = self._place(one)
            offsets[where].append(offset)
        return self._consumption.ack(offsets)

    def acknowledge_cumulative(self, message: Acked) -> int:
        """Ack a message and all before it in its partition, received or not.

        Args:
            message: A message, or a position.

        Returns:
            How many were not acked before.

        Raises:
            CumulativeAckError: The type is `Shared` or `Key_Shared`: an earlier message may still
                be with another receiver.
            AckBeyondEndError: There is no message at that position yet.
            MarkDeleteBackError: All up to a later position is acked, and not by a time to live.
            PositionRangeError: The subscription is not on that topic or partition.
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over.
        """
        if not self._type.takes_cumulative_acks:
            raise CumulativeAckError(
                f"subscription {self._name!r} is of type {self._type}: an earlier message may be "
                "with another receiver, so each message is acked by itself"
            )
        return self._consumption.ack_cumulative(*self._place(message))

    def negative_acknowledge(self, message: Acked) -> bool:
        """Mark a message as failed: it comes again after `negative_ack_backoff`.

        Args:
            message: A message, or a position.

        Returns:
            False if that changes nothing: it is acked, was taken back, or has been handed out again
            since this message was received.

        Raises:
            PositionRangeError: The subscription is not on that topic or partition.
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over.
        """
        count = message.redelivery_count if isinstance(message, Message) else None
        return self._consumption.negative_ack(*self._place(message), count)

    def flush(self, timeout_s: float | None = None) -> None:
        """Write all acks that were made before, and return when they are stored.

        Args:
            timeout_s: How long to wait; None for as long as brokers are waited for, half a minute.

        Raises:
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over: what was not stored is void.
            TopicError: The brokers refuse, or do not answer in time. In the latter case it is
                tried again in the background.
        """
        self._consumption.flush(timeout_s)

    def stats(self) -> SubscriptionStats:
        """Return the counts at this moment.

        Raises:
            SubscriptionClosedError: The subscription was closed.
            SubscriptionFencedError: Another process has taken it over.
            TopicError: The brokers do not answer.
        """
        cursors, unacked, counts, is_blocked = self._consumption.stats()
        return SubscriptionStats(
            name=self._name,
            type=self._type,
            cursors={(where.topic, where.partition): one for where, one in cursors.items()},
            unacked_messages=unacked,
            is_blocked=is_blocked,
            messages_out=counts.handed_out,
            messages_redelivered=counts.redelivered,
            negative_acks=counts.negative_acks,
            ack_timeouts=counts.timed_out,
            taken_back=counts.taken_back,
            messages_expired=self._skips.counts[FindingKind.EXPIRED_MESSAGES],
            messages_evicted=self._skips.counts[FindingKind.EVICTED],
            dead_letters=self._consumption.dead_letters,
        )

    def close(self) -> None:
        """Write all acks, and end. A second call does nothing.

        Raises:
            SubscriptionFencedError: Another process has taken the subscription over, and there are
                acks that were not stored.
            TopicError: There are acks that the brokers do not store.
        """
        self._consumption.close()

    def _place(self, message: Acked) -> tuple[SourcePartition, int]:
        if isinstance(message, Message):
            return message._where, message.offset  # noqa: SLF001 - kept from its users alone
        position = Position.parse(message) if isinstance(message, str) else message
        # The cursor takes int only: an offset from a table may be a float or a NumPy number.
        return position.within(self._topics), index(position.offset)
