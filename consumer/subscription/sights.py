"""What documents of subscriptions are made of, asked of Kafka; and the messages not acked yet."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sequitur.consumer.subscription.backlog import read_spans, reader
from sequitur.consumer.subscription.documents import Publisher, Sight
from sequitur.consumer.subscription.position import Position
from sequitur.consumer.subscription.standing import standing_of
from sequitur.errors import FatalError, PositionRangeError, RetriableError
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.records import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from confluent_kafka import Consumer, Message

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.standing import Standing
    from sequitur.kafka.settings import KafkaSettings


def take_sight(
    surveyor: Surveyor,
    topics: Collection[str] | None = None,
    *,
    with_publishers: bool = False,
    with_places: bool = False,
) -> Sight:
    """Ask for all that documents of topics and their subscriptions need."""
    registry = surveyor.registry.read()
    wanted = registry.topics() if topics is None else sorted(set(topics))
    names = sorted({one.name for topic in wanted for one in registry.on(topic)})
    stored = surveyor.stored(registry, names)
    places = {
        (name, where): place
        for name in (names if with_places else ())
        for where, place in surveyor.cursors.places(
            name, partition=registry.partition_of(name)
        ).items()
    }
    survey = surveyor.with_oldest(surveyor.survey(wanted, registry=registry, known=stored))
    return Sight(
        survey,
        states={name: found.state for name, found in stored.stored.items()},
        publishers=_publishers(surveyor.kafka, survey.logs) if with_publishers else {},
        places=places,
    )


def _publishers(
    kafka: KafkaSettings, partitions: Collection[SourcePartition]
) -> dict[str, list[Publisher]]:
    """Return the producers that partitions remember; of topics whose leaders do not tell, none."""
    wanted = [OutputPartition(*one) for one in partitions]
    found: dict[str, list[Publisher]] = {}
    if not wanted:
        return found
    # Who may not ask, or asks a broker that is away for a moment, is told all the rest.
    with contextlib.suppress(RetriableError, FatalError):
        connections = kept_connections(kafka)
        connections.run(connections.leaders.refresh({one.topic for one in wanted}))
        told = connections.run(connections.leaders.producers(wanted))
        for where, some in sorted(told.items()):
            found.setdefault(where.topic, []).extend(
                Publisher(
                    partition=where.partition,
                    producer_id=one.producer_id,
                    epoch=one.epoch,
                    last_sequence=one.last_sequence,
                    last_timestamp_ms=one.last_timestamp_ms,
                )
                for one in some
            )
    return found


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message that is not acked."""

    position: Position
    timestamp_ms: int  # the record's timestamp, epoch milliseconds
    key: bytes | None  # its key, None when it has none
    value: bytes | None  # its value, None for a tombstone
    headers: tuple[tuple[str, bytes | None], ...]  # name and value of each header, in order


def peek(
    surveyor: Surveyor,
    name: str,
    count: int,
    *,
    only: Callable[[SourcePartition], bool] = lambda _where: True,
) -> list[PeekedMessage]:
    """Return the first messages that a subscription has not acked; nothing is acked by that."""
    standing = standing_of(surveyor, name)
    wanted = list(filter(only, standing.partitions))
    if not wanted:
        raise PositionRangeError(f"subscription {name!r} has no such partition")
    found: list[PeekedMessage] = []
    with reader(surveyor.kafka) as consumer:
        for where in wanted:
            messages = _unacked(consumer, standing, where)
            found += itertools.islice(messages, count)
    return found


def _unacked(
    consumer: Consumer, standing: Standing, where: SourcePartition
) -> Iterator[PeekedMessage]:
    log, cursor = standing.survey.logs[where], standing.held(where).cursor
    for span in _spans(cursor, log.start, log.end):
        for message in read_spans(consumer, {where: span}):
            yield _peeked(message, where)


def _spans(cursor: Cursor, start: int, end: int) -> Iterator[tuple[int, int]]:
    return cursor.unacked_ranges(max(cursor.committed_offset, start), end)


def _peeked(message: Message, where: SourcePartition) -> PeekedMessage:
    return PeekedMessage(
        position=Position(where.partition, int(message.offset() or 0), where.topic),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(headers_of(message)),
    )
