"""Reads partitions from where it is told on, and says between which offsets there is nothing.

Its consumer sends the offsets of the subscription's group, too: a client is a connection to each
broker, and some threads.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sequitur.consumer.subscription.group_offsets import GroupOffsets
from sequitur.errors import SubscriptionError, TopicError, UnansweredError
from sequitur.kafka.arrivals import Arrivals
from sequitur.kafka.error_codes import Action, Request, action_of
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

    from sequitur.kafka.admin import KafkaTopics
    from sequitur.kafka.settings import KafkaSettings

_FETCH_WAIT_MS: Final = 100
_MOST_READ_AHEAD_KB: Final = 16_384


class Arrival(NamedTuple):
    where: SourcePartition
    first: int  # no message lies from here to before `offset`
    offset: int  # that of the first message; without messages, what reading has reached
    messages: list[Message]
    # whether the log now begins at `offset`: there may have been messages before
    is_deleted: bool = False

    @property
    def offsets(self) -> range:
        return range(self.offset, self.offset + len(self.messages))


class PartitionReader:
    """Reads committed records. One thread at a time."""

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: KafkaTopics,
        group: str,
        offsets: GroupOffsets | None = None,
    ) -> None:
        self._topics = topics
        self._offsets = offsets or GroupOffsets(len)
        self._next: dict[SourcePartition, int] = {}
        self._lost: set[SourcePartition] = set()
        self._consumer = self._offsets.consumer(
            kafka,
            group,
            {
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
                "queued.max.messages.kbytes": _MOST_READ_AHEAD_KB,
            },
        )
        self._arrivals = Arrivals(self._consumer, kafka)

    def add(self, positions: Mapping[SourcePartition, int]) -> None:
        self._next |= positions
        self._consumer.incremental_assign(
            [TopicPartition(*where, offset) for where, offset in positions.items()]
        )

    def move(self, where: SourcePartition, offset: int) -> None:
        self._next[where] = offset
        self._consumer.incremental_unassign([TopicPartition(*where)])
        self._consumer.incremental_assign([TopicPartition(*where, offset)])

    def read(self, count: int, timeout_s: float) -> list[Arrival]:
        """Return what comes in time, in order within each partition."""
        self.send_offsets()
        arrivals: list[Arrival] = []
        with suppress(UnansweredError):  # it is asked again, but messages come only once
            arrivals.extend(self._found_again(where) for where in sorted(self._lost))
        try:
            messages = self._arrivals.next(count, timeout_s=timeout_s)
        except UnansweredError:
            return arrivals  # they come with a later call
        except KafkaException as error:
            raise TopicError(f"the subscription's topics cannot be read: {error}") from error
        together: tuple[str, int, int] | None = None
        for message in messages:
            reason, offset = message.error(), cast("int", message.offset())
            if reason is not None and self._offsets.hides(message):
                continue
            topic, partition = cast("str", message.topic()), cast("int", message.partition())
            if together == (topic, partition, offset) and reason is None:
                arrivals[-1].messages.append(message)
                self._next[arrivals[-1].where] = offset + 1
                together = topic, partition, offset + 1
                continue
            together, where = None, SourcePartition(topic, partition)
            if reason is None or reason.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public code, under this name
                first = self._next.get(where)
                if first is None or offset < first:
                    continue  # read before the position changed
                found = [message] if reason is None else []
                arrivals.append(Arrival(where, first, offset, found))
                self._next[where] = offset + len(found)
                together = topic, partition, self._next[where]
            elif (action := action_of(Request.POSITION, reason.code())) is Action.GO_WITHOUT:
                self._lost.add(where)
            elif not action.is_waited_for:
                raise TopicError(f"{where.topic}-{where.partition} cannot be read: {reason}")
        return arrivals

    def send_offsets(self) -> None:
        """Send the group's offsets. The answer comes during a read."""
        self._offsets.send(self._consumer)

    def close(self) -> None:
        """Let go of the connection, once the group has or refuses its offsets, if that is soon."""
        self._consumer.unassign()
        self._offsets.settle(self._consumer)
        self._consumer.close()

    def _found_again(self, where: SourcePartition) -> Arrival:
        """Read on where the partition begins now, since records were deleted."""
        first = self._next[where]
        begins = self._topics.low_watermarks([where])[where]
        ends = self._topics.high_watermarks([where])[where]
        if ends < first:
            raise SubscriptionError(
                f"{where.topic}-{where.partition} ends before {ends}, and the subscription has "
                f"read up to before {first}: the topic was recreated, or brokers have lost "
                "records. Reset the subscription"
            )
        offset = max(first, begins)
        self._lost.discard(where)
        self.move(where, offset)
        return Arrival(where, first, offset, [], is_deleted=True)
