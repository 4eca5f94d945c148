"""Where cursors are kept: a compacted topic, and a consumer group's offsets beside it.

The topic is the truth: all of a subscription's cursors are written to it in one transaction, under
a transactional id that one process owns at a time. The group's offsets follow, for Kafka's own
tools: the lag that they show is then what was not processed. Nothing is read from them, since Kafka
forgets them a week after the group is empty; ADR 29 has more.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import TopicPartition

from sequitur.consumer import CursorIdentity, SourcePartition
from sequitur.consumer._errors import CursorDamagedError, CursorError
from sequitur.consumer.subscription.position import Position
from sequitur.consumer.subscription.sizes import CountedSizes
from sequitur.consumer.subscription.state import SubscriptionState
from sequitur.consumer.subscription.stored_pieces import in_metadata, read_pointer, read_stored
from sequitur.pipelines._errors import SubscriptionError, SubscriptionFencedError, TopicError
from sequitur.pipelines.subscriptions.compacted_topic import CompactedTopic
from sequitur.pipelines.subscriptions.fenced_writer import FencedWriter, TopicWrite
from sequitur.pipelines.subscriptions.group_member import GroupMember

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sequitur.consumer import Cursor
    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.producer import KafkaSettings

CURSOR_TOPIC: Final = "sequitur-cursors"
_PARTITIONS: Final = 8


@dataclass(frozen=True, slots=True)
class PartitionCursor:
    """The cursor of a partition, and how many bytes were read there.

    Attributes:
        cursor: What is acked.
        sizes: What was counted while reading.
    """

    cursor: Cursor
    sizes: CountedSizes = field(default_factory=CountedSizes)


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """All that is stored of a subscription, as of one moment.

    Attributes:
        state: What its cursors share.
        cursors: The cursor of each partition that has one.
    """

    state: SubscriptionState
    cursors: Mapping[SourcePartition, PartitionCursor]


def transactional_id(subscription: str) -> str:
    """Return what the owner of a subscription owns."""
    return f"sequitur-subscription/{subscription}"


class CursorStore:
    """The cursors of all subscriptions of a cluster.

    Args:
        kafka: How to reach the brokers.
        replication_factor: How many replicas the topic gets if it is not there; -1 for the
            broker's default.
        outages: How long what passes is waited for.
    """

    def __init__(
        self, kafka: KafkaSettings, *, replication_factor: int = -1, outages: Outages | None = None
    ) -> None:
        self._kafka = kafka
        self._outages = outages
        self._replication_factor = replication_factor
        self._topic = CompactedTopic(kafka, CURSOR_TOPIC, partitions=_PARTITIONS, outages=outages)

    def read(self, subscription: str) -> StoredSubscription | None:
        """Return what is stored of a subscription; None if nothing is.

        Raises:
            CursorError: It was changed, or is of another version.
            TopicError: The brokers do not answer.
        """
        if not self._topic.exists():
            return None
        found = self._topic.read(self._topic.partition_of(subscription))
        return _stored(subscription, found)

    def read_all(self, wanted: Collection[str] | None = None) -> dict[str, StoredSubscription]:
        """Return what is stored of subscriptions, by name; see `read`.

        Args:
            wanted: Their names; by default all. Those of which nothing is stored are left out.
        """
        found = self._topic.read()
        names = {str(parts[1]) for key in found if (parts := _parts(key)) and parts[0] == "state"}
        if wanted is not None:
            names &= set(wanted)
        stored = {name: _stored(name, found) for name in sorted(names)}
        return {name: one for name, one in stored.items() if one is not None}

    def places(self, subscription: str) -> dict[SourcePartition, Position]:
        """Return the partition and offset of the record that each stored cursor is in.

        Raises:
            TopicError: The brokers do not answer.
        """
        if not self._topic.exists():
            return {}
        found = self._topic.read_records(self._topic.partition_of(subscription))
        places = {}
        for key, record in found.items():
            match _parts(key):
                case ["cursor", name, str(topic), int(partition)] if name == subscription:
                    where = SourcePartition(topic, partition)
                    places[where] = Position(record.partition, record.offset)
        return places

    def take(self, subscription: str, topics: Sequence[str] = ()) -> CursorOwner:
        """Become the owner of a subscription; whoever was is fenced.

        Args:
            subscription: Its name.
            topics: Joins the consumer group for these, so that the subscription is connected.

        Raises:
            CursorError: What is stored was changed, or is of another version.
            TopicError: The brokers refuse, or do not answer.
        """
        self._topic.ensure(replication_factor=self._replication_factor)
        return CursorOwner(
            self._kafka, self._topic, subscription, topics=topics, outages=self._outages
        )


class CursorOwner:
    """Whoever may write a subscription's cursors. One thread at a time.

    Attributes:
        stored: What was stored when it became the owner, or by itself since; None if nothing was.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topic: CompactedTopic,
        subscription: str,
        *,
        topics: Sequence[str],
        outages: Outages | None,
    ) -> None:
        self.subscription = subscription
        self._kafka = kafka
        self._outages = outages
        self._topic = topic
        self._partition = topic.partition_of(subscription)
        self._claim = uuid.uuid4().hex.encode()
        self._writer = self._new_writer()
        try:
            # Behind that: what former owners write from now on is refused, and is not missed.
            found = topic.read(self._partition)
            self.stored = _stored(subscription, found)
            self._generation = _newest_generation(subscription, found)
            self._chunks = _chunks_of(subscription, found)
            self._writer.write([self._record(_key("owner", subscription), self._claim)])
            self._member = GroupMember(kafka, subscription, topics)
        except BaseException:
            self._writer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_fenced(self) -> bool:
        """Whether somebody else is known to have taken the subscription over."""
        return self._writer.is_fenced or self._member.is_fenced

    def check(self) -> None:
        """Check that nobody is known to have taken the subscription over.

        Raises:
            SubscriptionFencedError: Somebody has.
        """
        if self.is_fenced:
            raise self._lost()

    def write(
        self,
        state: SubscriptionState,
        cursors: Iterable[PartitionCursor],
        *,
        removed: Iterable[SourcePartition] = (),
    ) -> None:
        """Store cursors, and what they share; cursors that are not named stay as they are.

        Args:
            state: What they share.
            cursors: The cursors.
            removed: Partitions whose cursors are deleted, but for those that are in `cursors`.

        Raises:
            SubscriptionFencedError: Somebody else has taken the subscription over; nothing is
                written.
            SubscriptionError: The cursors are another subscription's.
            TopicError: The brokers refuse, or do not answer.
        """
        self.check()
        records = [self._record(_key("state", self.subscription), state.encode())]
        offsets: list[TopicPartition] = []
        written: dict[SourcePartition, PartitionCursor] = {}
        chunks: dict[SourcePartition, frozenset[bytes]] = {}
        generation = self._generation + 1
        for one in cursors:
            identity = one.cursor.identity
            if identity.subscription != self.subscription:
                raise SubscriptionError(f"this is the cursor of {identity}")
            where = SourcePartition(identity.topic, identity.partition)
            pieces = in_metadata(one.cursor, generation=generation, carried=one.sizes.encode())
            value = f"{pieces.offset}\n{pieces.metadata}".encode()
            records += [self._record(key, part) for key, part in pieces.chunks]
            records.append(self._record(_cursor_key(self.subscription, where), value))
            chunks[where] = frozenset(key for key, _ in pieces.chunks)
            records += [
                self._record(key, None)
                for key in self._chunks.get(where, frozenset()) - chunks[where]
            ]
            offsets.append(TopicPartition(*where, pieces.offset, pieces.metadata))
            written[where] = one
        deleted = set(removed) - written.keys()
        for where in deleted:
            keys = {_cursor_key(self.subscription, where), *self._chunks.get(where, ())}
            records += [self._record(key, None) for key in keys]
        self._write(records)
        self._member.commit(offsets)
        self._generation = generation
        before = {} if self.stored is None else self.stored.cursors
        left = {where: one for where, one in before.items() if where not in deleted}
        self._chunks |= chunks
        for where in deleted:
            self._chunks.pop(where, None)
        self.stored = StoredSubscription(state, {**left, **written})

    def remove(self) -> None:
        """Delete all that is stored of the subscription, but for the group's offsets.

        Raises:
            SubscriptionFencedError: Somebody else has taken the subscription over.
            TopicError: The brokers refuse, or do not answer.
        """
        self.check()
        cursors = {} if self.stored is None else self.stored.cursors
        keys = [_key("state", self.subscription), _key("owner", self.subscription)]
        keys += [_cursor_key(self.subscription, where) for where in cursors]
        keys += [key for chunks in self._chunks.values() for key in chunks]
        self._write([self._record(key, None) for key in keys])
        self.stored, self._chunks = None, {}

    def close(self) -> None:
        """Stop being connected."""
        self._member.close()
        self._writer.close()

    def _write(self, records: Sequence[TopicWrite]) -> None:
        while True:
            try:
                self._writer.write(records)
            except SubscriptionFencedError as error:
                if self._member.is_fenced or not self._is_claimed():
                    raise self._lost() from error
                # Nobody else: brokers were away for longer than a transaction may take, and have
                # ended it in the same way. Others may have come meanwhile: their claim tells.
                self._writer.close()
                self._writer = self._new_writer()
                if not self._is_claimed():
                    self._writer.is_fenced = True
                    raise self._lost() from error
            else:
                return

    def _lost(self) -> SubscriptionFencedError:
        """Say that the subscription is somebody else's, and why, where that can be known."""
        state, own = None, self.stored
        with contextlib.suppress(TopicError, CursorError):
            key = _key("state", self.subscription)
            value = self._topic.read(self._partition).get(key)
            if value is not None:
                state = SubscriptionState.decode(value)
            elif own is not None:
                return SubscriptionFencedError(
                    f"subscription {self.subscription!r} was deleted; nothing was written"
                )
        if state is not None and own is not None and state.epoch != own.state.epoch:
            return SubscriptionFencedError(
                f"subscription {self.subscription!r} was reset: it is in epoch {state.epoch}, and "
                f"acks of epoch {own.state.epoch} are refused; nothing was written"
            )
        return SubscriptionFencedError(
            f"subscription {self.subscription!r} was taken over by another process, which goes on "
            "from what was acked last; nothing was written"
        )

    def _is_claimed(self) -> bool:
        """Tell whether nobody has become the owner since."""
        found = self._topic.read(self._partition)
        return found.get(_key("owner", self.subscription)) == self._claim

    def _new_writer(self) -> FencedWriter:
        return FencedWriter(
            self._kafka,
            transactional_id(self.subscription),
            name=f"subscription {self.subscription!r}",
            outages=self._outages,
        )

    def _record(self, key: bytes, value: bytes | None) -> TopicWrite:
        return TopicWrite(self._topic.name, self._partition, key, value)


def _key(*parts: str | int) -> bytes:
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()


def _cursor_key(subscription: str, where: SourcePartition) -> bytes:
    return _key("cursor", subscription, where.topic, where.partition)


def _parts(key: bytes) -> list[str | int] | None:
    """Read a key back; None for that of a chunk."""
    try:
        found = json.loads(key)
    except ValueError:
        return None
    return found if isinstance(found, list) and len(found) > 1 else None


def _cursors_of(
    subscription: str, found: Mapping[bytes, bytes]
) -> dict[SourcePartition, tuple[int, str]]:
    """Return committed offset and metadata of each cursor of a subscription."""
    cursors = {}
    for key, value in found.items():
        match _parts(key):
            case ["cursor", name, str(topic), int(partition)] if name == subscription:
                offset, line, metadata = value.decode(errors="replace").partition("\n")
                if not line or not offset.isdecimal():
                    raise CursorDamagedError(
                        f"{CursorIdentity(subscription, topic, partition)}: what is stored is no "
                        "cursor"
                    )
                cursors[SourcePartition(topic, partition)] = int(offset), metadata
    return cursors


def _stored(subscription: str, found: Mapping[bytes, bytes]) -> StoredSubscription | None:
    state = found.get(_key("state", subscription))
    if state is None:
        return None
    cursors = {}
    for where, (offset, metadata) in sorted(_cursors_of(subscription, found).items()):
        identity = CursorIdentity(subscription, *where)
        pointer = read_pointer(metadata)
        keys = [] if pointer is None else pointer.keys(identity)
        chunks = [found[key] for key in keys if key in found]
        stored = read_stored(metadata, chunks, identity, offset=offset)
        cursors[where] = PartitionCursor(stored.cursor, CountedSizes.decode(stored.carried))
    return StoredSubscription(SubscriptionState.decode(state), cursors)


def _chunks_of(
    subscription: str, found: Mapping[bytes, bytes]
) -> dict[SourcePartition, frozenset[bytes]]:
    """Return the keys of the chunks of each cursor."""
    chunks = {}
    for where, (_, metadata) in _cursors_of(subscription, found).items():
        pointer = read_pointer(metadata)
        if pointer is not None:
            chunks[where] = frozenset(pointer.keys(CursorIdentity(subscription, *where)))
    return chunks


def _newest_generation(subscription: str, found: Mapping[bytes, bytes]) -> int:
    """Return the greatest number that a writing had; -1 before the first."""
    pointers = (read_pointer(text) for _, text in _cursors_of(subscription, found).values())
    return max((one.generation for one in pointers if one is not None), default=-1)
