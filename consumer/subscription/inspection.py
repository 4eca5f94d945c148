"""What there is of subscriptions, as documents under Pulsar's field names.

`stats` is what Pulsar's `topics stats` says of a topic, `stats-internal` what `topics
stats-internal` says. A partition stands where Pulsar has a ledger, so a position is
partition:offset. What has no counterpart in Kafka is absent; docs/inside/cursors.md lists it.

`take_sight` asks Kafka for what the documents are made of. `peek` reads the messages that are not
acked yet.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.subscription.position import Position
from sequitur.consumer.subscription.standing import Standing, standing_of
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import (
    FatalError,
    PositionRangeError,
    RetriableError,
)
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.registry import SubscriptionRecord
    from sequitur.consumer.subscription.survey import Survey
    from sequitur.kafka.settings import KafkaSettings


_OPEN: Final = "Open"
_NO_LEDGER: Final = "NoLedger"
_UNINITIALIZED: Final = "Uninitialized"
_UNKNOWN: Final = "Unknown"
_DAMAGED: Final = "Damaged"


@dataclass(frozen=True, slots=True)
class Sight:
    survey: Survey  # topics and subscriptions; its cursors belong to `states`
    # what the cursors of each subscription share; absent if nothing is stored
    states: Mapping[str, SubscriptionState] = field(default_factory=dict)
    # the producers of each topic; absent if they were not asked for
    publishers: Mapping[str, Sequence[Publisher]] = field(default_factory=dict)
    # partition and offset of each stored cursor's record
    places: Mapping[tuple[str, SourcePartition], Position] = field(default_factory=dict)

    def state(self, subscription: str) -> SubscriptionState:
        return self.states.get(subscription, SubscriptionState())


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """A producer that a partition remembers. Kafka does not know producers' connections."""

    partition: int
    producer_id: int
    epoch: int  # the newest epoch that wrote
    last_sequence: int
    last_timestamp_ms: int

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON. Only `producerId` is one of Pulsar's names."""
        return {
            "producerId": self.producer_id,
            "producerEpoch": self.epoch,
            "partition": self.partition,
            "lastSequence": self.last_sequence,
            "lastTimestamp": moment(self.last_timestamp_ms),
        }


def take_sight(
    surveyor: Surveyor,
    topics: Collection[str] | None = None,
    *,
    with_publishers: bool = False,
    with_places: bool = False,
) -> Sight:
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


def listed(sight: Sight) -> list[dict[str, Any]]:
    survey = sight.survey
    documents = []
    for name, record in sorted(survey.registry.subscriptions.items()):
        document: dict[str, Any] = {
            "name": name,
            "type": record.type.value,
            "topics": list(record.topics),
            "epoch": record.epoch,
            "ownerSeenSecondsAgo": _owner_seen_s(survey, name),
            "created": moment(record.created_ms),
            "lastConnected": moment(max(record.last_connected_ms, survey.seen_ms.get(name, 0))),
        }
        if name in survey.damaged:
            document["damaged"] = survey.damaged[name]
        else:
            document |= _listed_backlog(survey, record)
        documents.append(document)
    documents += [
        {"name": name, "type": _UNKNOWN, "topics": [], "damaged": why}
        for name, why in sorted(survey.registry.unread.items())
    ]
    return documents


def stats_document(sight: Sight, topic: str, *, before: Sight | None = None) -> dict[str, Any]:
    """Return Pulsar's `topics stats` of a topic."""
    survey = sight.survey
    backlog = survey.backlog(topic)
    logs = [survey.logs[where] for where in survey.partitions(topic)]
    sizes = [log.size_bytes for log in logs]
    document: dict[str, Any] = {
        "backlogSize": backlog.size_bytes,
        "backlogSizeIsEstimate": backlog.is_estimate,
        "msgInCounter": sum(log.end for log in logs),
    }
    if None not in sizes:
        document["storageSize"] = sum(size or 0 for size in sizes)
    if backlog.oldest is not None:
        document["oldestBacklogMessageAgeSeconds"] = int(backlog.age_s(survey.now_ms))
        document["oldestBacklogMessageSubscriptionName"] = backlog.oldest.subscription
    if topic in sight.publishers:
        document["publishers"] = [one.to_document() for one in sight.publishers[topic]]
    document["subscriptions"] = {
        record.name: _subscription_stats(sight, topic, record, before)
        for record in survey.registry.on(topic)
    }
    return document


def internal_document(sight: Sight, topic: str, names: Iterable[str] = ()) -> dict[str, Any]:
    """Return Pulsar's `topics stats-internal` of a topic."""
    survey = sight.survey
    wanted = sorted(names) or [record.name for record in survey.registry.on(topic)]
    partitions: dict[str, Any] = {}
    for where in survey.partitions(topic):
        log = survey.logs[where]
        partitions[f"{topic}-{where.partition}"] = {
            "entriesAddedCounter": log.end,
            "numberOfEntries": log.end - log.start,
            **({} if log.size_bytes is None else {"totalSize": log.size_bytes}),
            "lastConfirmedEntry": str(Position(where.partition, log.end - 1)),
            "cursors": {name: _cursor_document(sight, name, where) for name in wanted},
        }
    return {"partitions": partitions}


def peek(
    surveyor: Surveyor,
    name: str,
    count: int,
    *,
    only: Callable[[SourcePartition], bool] = lambda _where: True,
) -> list[PeekedMessage]:
    """Return a subscription's first unacked messages, without acking them."""
    standing = standing_of(surveyor, name)
    wanted = list(filter(only, standing.partitions))
    if not wanted:
        raise PositionRangeError(f"subscription {name!r} has no such partition")
    found: list[PeekedMessage] = []
    reader = Reader(kafka=surveyor.kafka, passes_deleted=True)
    for where in wanted:
        found += itertools.islice(_unacked_messages(reader, standing, where), count)
    return found


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    position: Position
    timestamp_ms: int  # the record's timestamp, epoch milliseconds
    key: bytes | None  # its key, or None
    value: bytes | None  # its value, None for a tombstone
    headers: tuple[tuple[str, bytes | None], ...]  # name and value of each header, in order


def moment(time_ms: int) -> str | None:
    """Return a time as ISO 8601; None for one before 1970, or beyond the year 9999."""
    if time_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return None


def _owner_seen_s(survey: Survey, name: str) -> int | None:
    seen_ms = survey.seen_ms.get(name)
    return None if seen_ms is None else max(0, survey.now_ms - seen_ms) // 1000


def _listed_backlog(survey: Survey, record: SubscriptionRecord) -> dict[str, Any]:
    name = record.name
    backlogs = [survey.backlog(topic) for topic in record.topics]
    return {
        "msgBacklog": sum(one.messages(name) for one in backlogs),
        "backlogSize": sum(
            part.size_bytes for one in backlogs for part in one.of_subscriptions.get(name, ())
        ),
        "oldestBacklogMessageAgeSeconds": int(
            max((one.age_s(survey.now_ms, name) for one in backlogs), default=0)
        ),
    }


def _subscription_stats(
    sight: Sight, topic: str, record: SubscriptionRecord, before: Sight | None
) -> dict[str, Any]:
    survey = sight.survey
    about: dict[str, Any] = {
        "type": record.type.value,
        "isDurable": True,
        "ownerSeenSecondsAgo": _owner_seen_s(survey, record.name),
        "epoch": record.epoch,
    }
    if record.name in survey.damaged:
        return {**about, "damaged": survey.damaged[record.name]}
    parts = survey.backlog(topic).of_subscriptions.get(record.name, [])
    stamps = [part.oldest_ms for part in parts if part.oldest_ms is not None]
    cursors = _cursors(survey, record.name, topic)
    document: dict[str, Any] = {
        "msgBacklog": sum(part.messages for part in parts),
        "backlogSize": sum(part.size_bytes for part in parts),
        "heldSize": sum(part.held_bytes for part in parts),
        "unackedMessages": sum(
            _unacked(cursor, survey.logs[where].start) for where, cursor in cursors.items()
        ),
        "lostAtMost": sum(survey.lost(record.name, where) for where in cursors),
        **about,
    }
    if stamps:
        document["earliestMsgPublishTimeInBacklog"] = min(stamps)
    if before is not None:
        document |= _rates(before, sight, record.name, topic)
    return document


def _rates(before: Sight, after: Sight, name: str, topic: str) -> dict[str, Any]:
    first, last = before.state(name), after.state(name)
    if first.epoch != last.epoch:
        return {}
    earlier, later = (_cursors(one.survey, name, topic) for one in (before, after))
    elapsed_s = (last.written_ms - first.written_ms) / 1000
    if elapsed_s <= 0:  # nothing was stored meanwhile, so no step was done
        return {"msgRateOut": 0.0, "msgThroughputOut": 0.0, "msgRateRedeliver": 0.0}
    messages = size = 0
    for where in earlier.keys() & later.keys():
        acked = max(later[where].counts.consumed - earlier[where].counts.consumed, 0)
        log = after.survey.logs[where]
        messages += acked
        size += acked * log.bytes_of(log.start, log.end) // max(log.end - log.start, 1)
    return {
        "msgRateOut": messages / elapsed_s,
        "msgThroughputOut": size / elapsed_s,
        "msgRateRedeliver": max(last.repeated - first.repeated, 0) / elapsed_s,
    }


def _cursor_document(sight: Sight, name: str, where: SourcePartition) -> dict[str, Any]:
    survey, state = sight.survey, sight.state(name)
    if name in survey.damaged:
        return {"state": _DAMAGED, "damaged": survey.damaged[name]}
    cursor = survey.held_of(name, where).cursor
    # A topic that was deleted and made anew may end before its cursors' acks.
    end = max(survey.logs[where].end, _reached(cursor))
    document = cursor.stats(end).to_document()
    document["lostAtMost"] = survey.lost(name, where)
    document["waitingReadOp"] = name in survey.connected and cursor.read_position >= end
    place = sight.places.get((name, where))
    if place is not None:
        document["cursorLedger"] = place.partition
        document["cursorLedgerLastEntry"] = place.offset
    document["state"] = _state(survey, name, where)
    document["epoch"] = state.epoch
    document["step"] = state.step
    document["frontier"] = moment(state.frontier_ms)
    document["written"] = moment(state.written_ms)
    return document


def _state(survey: Survey, name: str, where: SourcePartition) -> str:
    record = survey.registry.subscriptions.get(name)
    if record is not None and survey.is_being_reset(record):
        return _UNINITIALIZED
    return _OPEN if where in survey.held.get(name, {}) else _NO_LEDGER


def _cursors(survey: Survey, name: str, topic: str) -> dict[SourcePartition, Cursor]:
    return {where: survey.held_of(name, where).cursor for where in survey.partitions(topic)}


def _unacked(cursor: Cursor, start: int) -> int:
    """Return how many messages were read and are unacked. A job holds them."""
    unacked = cursor.unacked_ranges(max(cursor.committed_offset, start), cursor.read_position)
    return sum(stop - first for first, stop in unacked)


def _reached(cursor: Cursor) -> int:
    _firsts, stops = cursor.acked_arrays()
    return max(cursor.committed_offset, int(stops[-1]) if len(stops) else 0)


def _publishers(
    kafka: KafkaSettings, partitions: Collection[SourcePartition]
) -> dict[str, list[Publisher]]:
    """Return the producers that partitions know, as far as leaders answer."""
    wanted = [OutputPartition(*one) for one in partitions]
    found: dict[str, list[Publisher]] = {}
    if not wanted:
        return found
    # Without the right to ask, or while a broker is away, the rest is still shown.
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


def _unacked_messages(
    reader: Reader, standing: Standing, where: SourcePartition
) -> Iterator[PeekedMessage]:
    log, cursor = standing.survey.logs[where], standing.held(where).cursor
    for span in _spans(cursor, log.start, log.end):
        for _, record in reader.rows({where: span}):
            yield PeekedMessage(
                position=Position(where.partition, record.offset, where.topic),
                timestamp_ms=record.timestamp,
                key=record.key,
                value=record.value,
                headers=tuple(record.headers),
            )


def _spans(cursor: Cursor, start: int, end: int) -> Iterator[tuple[int, int]]:
    return cursor.unacked_ranges(max(cursor.committed_offset, start), end)
