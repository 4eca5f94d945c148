"""Where cursors are kept: a compacted topic, and a consumer group's offsets beside it.

The topic is the truth: all of a subscription's cursors are written to it in one transaction, under
a transactional id that one process owns at a time. The group's offsets follow, for Kafka's own
tools: the lag that these show is then what was not processed. Nothing is read from the offsets,
since Kafka forgets them a week after the group is empty; ADR 29 has more.
"""

from __future__ import annotations

import contextlib
import random
import threading
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from confluent_kafka import TopicPartition

from sequitur.base.process import wall_clock_ms
from sequitur.base.retry import Backoff, Retry, any_of, brief_outages
from sequitur.consumer.subscription.claims import Claim, ClaimWatch, HeldLease, Hold
from sequitur.consumer.subscription.compacted_topic import (
    CompactedTopic,
    FollowedPartition,
    TopicStore,
)
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.group_offsets import GroupOffsets, OwnersThread
from sequitur.consumer.subscription.position import Position
from sequitur.consumer.subscription.registry import group_of_new
from sequitur.consumer.subscription.stored_pieces import pieces_of
from sequitur.consumer.subscription.stored_records import (
    StoredRecords,
    StoredSubscription,
    StoredSubscriptions,
    cursor_key,
    cursor_of_key,
    cursor_value,
    is_record_of,
    owner_key,
    place_of,
    state_key,
    what_helps,
)
from sequitur.errors import (
    ConsumerError,
    CursorError,
    SubscriptionConnectedError,
    SubscriptionError,
    SubscriptionFencedError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.subscription.compacted_topic import KeptRecord
    from sequitur.consumer.subscription.partitions import PartitionCursor
    from sequitur.consumer.subscription.stored_records import KnownCursors
    from sequitur.consumer.subscription.subscription_state import SubscriptionState
    from sequitur.kafka.settings import KafkaSettings


_NAME: Final = "cursors"
_PARTITIONS: Final = 8
_NOTHING: Final = StoredRecords({})
_FEW: Final = 4
"""If there are more partitions than this, the whole topic is read."""
_RETRY: Final = Retry(
    patience_s=60.0,
    backoff=Backoff(initial_ms=20, maximum_ms=1_000, jitter=1.0),
    random=random.random,
)
WriteRecords: TypeAlias = "Callable[[Sequence[TopicWrite]], object]"


class CursorStore(TopicStore):
    _name, _partitions = _NAME, _PARTITIONS

    @cached_property
    def _known(self) -> KnownCursors:
        return {}

    def read(self, subscription: str, *, partition: int | None = None) -> StoredSubscription | None:
        """Return what is stored of a subscription, None if nothing is."""
        if not self._topic.exists():
            return None
        return self._place(subscription, partition)[1].subscription(subscription)

    def read_all(
        self, names: Collection[str], partition_of: Callable[[str], int | None] = lambda _name: None
    ) -> StoredSubscriptions:
        """Return what is stored of subscriptions, to be looked at only.

        A cursor that has not changed since is the same object each time.
        """
        found = StoredSubscriptions()
        wanted = set(names)
        self._known = {
            one: known for one, known in self._known.items() if one.subscription in wanted
        }
        for name, records in self._read_all(names, partition_of):
            try:
                if (one := records.subscription(name)) is not None:
                    found.stored[name] = one
            except ConsumerError as error:
                found.damaged[name] = what_helps(error)
            try:
                if (claim := records.claim(name)) is not None:
                    found.claims[name] = claim
            except ConsumerError as error:
                found.untold[name] = str(error)
        return found

    def _read_all(
        self, names: Collection[str], partition_of: Callable[[str], int | None]
    ) -> Iterator[tuple[str, StoredRecords]]:
        """Yield each subscription's name and the records that contain its own."""
        if not names or not self._topic.exists():
            return
        known = {name: partition_of(name) for name in sorted(names)}
        wanted = {one for one in known.values() if one is not None}
        read: dict[int, StoredRecords] = {}
        if None in known.values() or len(wanted) > _FEW:
            read = _with(self._followed.read_apart(), self._known)
        else:
            for one in wanted:
                read |= self._read(one, self._known)
        for name, noted in known.items():
            place = place_of(read, name, 0) if noted is None else noted
            yield name, read.get(place, _NOTHING)

    def _place(self, name: str, noted: int | None) -> tuple[int, StoredRecords]:
        """Return the partition of a subscription's records, and its records."""
        read = self._read(noted)
        place = place_of(read, name, self._home(name, noted))
        return place, read.get(place, _NOTHING)

    def _home(self, name: str, noted: int | None) -> int:
        """Return the partition for a subscription's records if it has none yet."""
        if noted is not None and noted < (self._topic.partitions() or 0):
            return noted
        return self._topic.partition_of(name)

    def _read(
        self, partition: int | None = None, known: KnownCursors | None = None
    ) -> dict[int, StoredRecords]:
        return _with(self._topic.read_apart(partition), known)

    def places(
        self, subscription: str, *, partition: int | None = None
    ) -> dict[SourcePartition, Position]:
        """Return the partition and offset of each stored cursor's record; see `read`."""
        if not self._topic.exists():
            return {}
        found = self._topic.read_records(self._place(subscription, partition)[0])
        places = {}
        for key, record in found.items():
            match cursor_of_key(key):
                case (name, where) if name == subscription:
                    places[where] = Position(record.partition, record.offset)
        return places

    def follow(self, subscription: str, *, partition: int | None = None) -> FollowedPartition:
        """Return the partition of a subscription's records, for reading on; see `read`."""
        self.ensure()
        if partition is None:
            return FollowedPartition(self._topic, self._place(subscription, None)[0])
        return FollowedPartition(self._topic, self._home(subscription, partition))

    def take(
        self,
        subscription: str,
        *,
        lease: HeldLease | None = None,
        watch: ClaimWatch | None = None,
        partition: int | None = None,
        followed: FollowedPartition | None = None,
        offsets: GroupOffsets | None = None,
        to_remove: bool = False,
    ) -> CursorOwner:
        """Become the owner of a subscription. This fences the earlier owner."""
        self.ensure()
        if followed is not None:
            followed.read()
        return CursorOwner(
            self._kafka,
            self._topic,
            partial(self.follow, subscription, partition=partition),
            self._home(subscription, partition) if followed is None else followed.partition,
            subscription,
            followed=followed,
            lease=lease or HeldLease(0),
            watch=watch,
            offsets=offsets,
            to_remove=to_remove,
            outages=self._outages,
        )


class CursorOwner:
    """The one process that may write a subscription's cursors."""

    def __init__(
        self,
        kafka: KafkaSettings,
        topic: CompactedTopic,
        follow: Callable[[], FollowedPartition],
        home: int,
        subscription: str,
        *,
        followed: FollowedPartition | None,
        lease: HeldLease,
        watch: ClaimWatch | None,
        offsets: GroupOffsets | None,
        to_remove: bool,
        outages: Outages | None,
    ) -> None:
        self.subscription = subscription
        self._kafka = kafka
        self._outages = outages or brief_outages()
        self._is_taken = False
        self._is_proven = True
        self._topic = topic
        self.partition = home
        self._lock = threading.RLock()
        self.lease = lease
        self._claim = Claim.begin(lease.lease_s, None)
        self._offsets = offsets or GroupOffsets(self._outages.tell)
        self._thread: OwnersThread | None = None
        self.stored: StoredSubscription | None = None
        self.group = ""
        self._generation = -1
        self._chunks: dict[SourcePartition, frozenset[bytes]] = {}
        self._writer = self._new_writer()
        try:
            # Read after the id is ours: that ends what a former owner left open, so nothing is
            # hidden.
            followed = followed or follow()
            if followed.partition != home:
                self.partition = followed.partition
                self._writer.close()
                self._writer = self._new_writer()
            self._take_over(followed, watch, to_remove=to_remove)
            if offsets is None:
                self._thread = OwnersThread(
                    kafka, self.group, self._offsets, self.renew, self._outages.tell
                )
        except BaseException:
            self._writer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seen_ms(self) -> int | None:
        """When an owner was last there, according to the claims."""
        return self._claim.seen_ms

    @property
    def is_fenced(self) -> bool:
        """Whether another process is known to have taken the subscription over."""
        return self._is_taken

    def check(self) -> None:
        """Raise if another process is known to have taken the subscription over."""
        if self.is_fenced:
            raise self._lost()

    def write(
        self,
        state: SubscriptionState,
        cursors: Iterable[PartitionCursor],
        *,
        removed: Iterable[SourcePartition] = (),
        by: WriteRecords | None = None,
    ) -> None:
        """Store cursors and what they share. Cursors that are not named stay as they are."""
        with self._lock:
            self._write_cursors(state, cursors, removed, by or self._write_records)

    def _write_cursors(
        self,
        state: SubscriptionState,
        cursors: Iterable[PartitionCursor],
        removed: Iterable[SourcePartition],
        write: WriteRecords,
    ) -> None:
        self.check()
        offsets: list[TopicPartition] = []
        written: dict[SourcePartition, PartitionCursor] = {}
        chunks: dict[SourcePartition, frozenset[bytes]] = {}
        generation = self._generation + 1
        value = state.encode(generation=generation, group=self.group)
        records = [self._record(state_key(self.subscription), value)]
        for one in cursors:
            identity = one.cursor.identity
            if identity.subscription != self.subscription:
                raise SubscriptionError(f"this is the cursor of {identity}")
            where = SourcePartition(identity.topic, identity.partition)
            pieces = pieces_of(
                one.cursor,
                generation=generation,
                carried=one.sizes.encode(),
                redeliveries=one.redeliveries,
            )
            value = cursor_value(pieces.offset, pieces.metadata)
            records += [self._record(key, part) for key, part in pieces.chunks]
            records.append(self._record(cursor_key(self.subscription, where), value))
            chunks[where] = frozenset(key for key, _ in pieces.chunks)
            records += [
                self._record(key, None)
                for key in self._chunks.get(where, frozenset()) - chunks[where]
            ]
            offsets.append(TopicPartition(*where, pieces.offset, pieces.metadata))
            written[where] = one
        deleted = set(removed) - written.keys()
        for where in deleted:
            keys = {cursor_key(self.subscription, where), *self._chunks.get(where, ())}
            records += [self._record(key, None) for key in keys]
        write(records)
        self._offsets.set(offsets)
        self._generation = generation
        before = {} if self.stored is None else self.stored.cursors
        left = {where: one for where, one in before.items() if where not in deleted}
        self._chunks |= chunks
        for where in deleted:
            self._chunks.pop(where, None)
        self.stored = StoredSubscription(state, {**left, **written})

    def renew(self) -> None:
        """Write the claim alone, if nothing was written for long."""
        with self._lock:
            if self.lease.lease_s and self.lease.due_in_s <= 0:
                self.check()
                self._write_records([])

    def release(self) -> None:
        """Note that the subscription has no owner any more, if brokers answer."""
        with self._lock, contextlib.suppress(TopicError, SubscriptionFencedError):
            is_able = self._is_proven and not self._writer.is_over
            if self.lease.lease_s and is_able and not self.is_fenced:
                self._claim = self._claim.released(wall_clock_ms())
                self._writer.write([self._claim_record()])

    def remove(self, *, by: WriteRecords | None = None) -> None:
        """Delete all that is stored of the subscription, except the group's offsets."""
        with self._lock:
            self.check()
            # If the topic has grown, other partitions may hold older records.
            (by or partial(self._write_records, claims=False))(
                [
                    self._record(key, None)._replace(partition=partition)
                    for partition, found in self._topic.read_apart().items()
                    for key in found
                    if is_record_of(key, self.subscription)
                ]
            )
            self.stored, self._chunks = None, {}

    def close(self) -> None:
        self.release()
        if self._thread is not None:
            self._thread.close()
        self._writer.close()

    def _write_records(self, records: Sequence[TopicWrite], *, claims: bool = True) -> None:
        """Write records. If a client's transaction failed, another client writes them."""
        outages = self._outages.as_one()

        def attempt() -> None:
            if self._writer.is_over:
                # This comes first: a new client ends the failed client's transaction, which hides
                # the claim. If it takes the id from a new owner, that owner has the claim and takes
                # the id back.
                self._writer.close()
                self._writer = self._new_writer(outages)
                self._is_proven = False
            if not self._is_proven:
                self.confirm()
                self._is_proven = True
            begun_s = self.lease.now_s()
            with contextlib.suppress(SubscriptionFencedError):
                self._writer.write([*records, *(self._next_claim() if claims else ())], outages)
                self.lease.renewed(begun_s)
                return
            # Another process took it, or a broker ended a slow transaction.
            self.confirm()
            raise UnansweredError(
                f"subscription {self.subscription!r} cannot be written: the brokers have ended "
                "the transaction, which took too long"
            )

        outages.outlast(attempt, any_of(UnansweredError))

    def confirm(self) -> None:
        """Ask the brokers; raise if another process has claimed the subscription since."""
        if not self._is_claimed():
            self._is_taken = True
            self._offsets.forget()
            raise self._lost()

    def _next_claim(self) -> list[TopicWrite]:
        self._claim = self._claim.renewed(wall_clock_ms())
        return [self._claim_record()]

    def _claim_record(self) -> TopicWrite:
        return self._record(owner_key(self.subscription), self._claim.encode())

    def _take_over(
        self, followed: FollowedPartition, watch: ClaimWatch | None, *, to_remove: bool
    ) -> None:
        """Read what is stored, and claim the subscription.

        A former owner that writes between the two is refused, finds no newer claim than its own,
        and takes the transactional id back, since brokers end transactions in the same way. This
        process came later: it begins again.
        """
        before: Claim | None = None
        outages = self._outages.as_one()

        def attempt() -> None:
            nonlocal before
            if self._writer.is_over:
                self._writer.close()
                self._writer = self._new_writer(outages)
            # Read after the id is ours: later writes of former owners are refused, so none is
            # missed.
            found = StoredRecords(followed.read())
            known = StoredRecords({}) if to_remove else found
            before = (known if watch is None else found).claim(self.subscription)
            if watch is not None and watch.judge(self.subscription, before) is not Hold.FREE:
                raise SubscriptionConnectedError(held_by(self.subscription, before))
            self.stored = known.subscription(self.subscription)
            self._generation = known.newest_generation(self.subscription)
            self.group = known.group(self.subscription) or group_of_new(
                self._kafka, self.subscription
            )
            self._chunks = known.chunks(self.subscription)
            if not self._claim.count:
                self._claim = Claim.begin(self.lease.lease_s, before)
            begun_s = self.lease.now_s()
            self._writer.write(self._next_claim(), outages)
            self.lease.renewed(begun_s)
            if self.lease.lease_s:  # the group's offsets may be a week old
                self._offsets.set(known.offsets(self.subscription))

        def passes(error: Exception) -> str | None:
            is_fenced = isinstance(error, SubscriptionFencedError)
            # Another process that fenced it has ended it, so it hides no claim.
            if is_fenced and watch is None and self._is_claimed_anew(followed, before):
                return None
            return str(error) if is_fenced or isinstance(error, UnansweredError) else None

        _RETRY.run(attempt, passes)

    def _is_claimed_anew(self, followed: FollowedPartition, before: Claim | None) -> bool:
        claim = StoredRecords(followed.read()).claim(self.subscription)
        lives = {self._claim.life} if before is None else {self._claim.life, before.life}
        return before is not None if claim is None else claim.life not in lives

    def _lost(self) -> SubscriptionFencedError:
        """Return the error that says who has the subscription now, as far as that is known."""
        state, own = None, self.stored
        with contextlib.suppress(TopicError, CursorError):
            records = StoredRecords(self._topic.read(self.partition))
            state = records.state(self.subscription)
            if state is None and own is not None:
                return SubscriptionFencedError(
                    f"subscription {self.subscription!r} was deleted. Nothing was written"
                )
        if state is not None and own is not None and state.epoch != own.state.epoch:
            return SubscriptionFencedError(
                f"subscription {self.subscription!r} was reset: it is in epoch {state.epoch}, "
                f"and acks of epoch {own.state.epoch} are refused. Nothing was written"
            )
        return SubscriptionFencedError(
            f"subscription {self.subscription!r} was taken over by another process, which "
            "resumes from the last acks. Nothing was written"
        )

    def _is_claimed(self) -> bool:
        with contextlib.suppress(CursorError):  # a newer version's claim
            claim = StoredRecords(self._topic.read(self.partition)).claim(self.subscription)
            return claim is not None and claim.life == self._claim.life
        return False

    def _new_writer(self, outages: Outages | None = None) -> FencedWriter:
        return FencedWriter(
            self._kafka,
            transactional_id(self._kafka, self.subscription),
            name=f"subscription {self.subscription!r}",
            writes_to=(self._topic.name, self.partition),
            outages=outages or self._outages,
        )

    def _record(self, key: bytes, value: bytes | None) -> TopicWrite:
        return TopicWrite(self._topic.name, self.partition, key, value)


def cursor_topic(kafka: KafkaSettings) -> str:
    return system_name(kafka, _NAME)


def transactional_id(kafka: KafkaSettings, subscription: str) -> str:
    return system_name(kafka, f"subscription/{subscription}")


def held_by(subscription: str, claim: Claim | None) -> str:
    """Return the sentence that a subscription has an owner, and who it is."""
    owner = None if claim is None else claim.owner
    return f"subscription {subscription!r} has a consumer" + (f" ({owner})" if owner else "")


def _with(
    read: Mapping[int, Mapping[bytes, KeptRecord]], known: KnownCursors | None
) -> dict[int, StoredRecords]:
    return {
        one: StoredRecords({key: kept.value for key, kept in records.items()}, known)
        for one, records in read.items()
    }
