"""What a subscription's cursors share: how far the job behind them has got.

It is written together with the cursors, all or nothing. A job without its checkpoint begins with
it: the frontier says which rows are late, the transaction id is never given again, and what its
output held then tells how many rows come again.

A line of JSON follows its CRC32C, in eight hexadecimal digits: with a digit changed JSON is JSON
still, and would be another state.
"""

from __future__ import annotations

import enum
import json
import math
import re
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

import google_crc32c
import msgspec
from confluent_kafka import TopicPartition

from sequitur.base.process import ProcessIdentity
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.subscription.codec import (
    OTHER_VERSION,
    is_chunk_of,
    read_pointer,
    read_stored,
)
from sequitur.consumer.subscription.cursor import CountedSizes, CursorIdentity, PartitionCursor
from sequitur.errors import ConsumerError, CursorDamagedError, CursorVersionError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_FORMAT: Final = 2
"""No release had 1. It is refused, and not used again."""
_CHECKSUM: Final = 8
"""Hexadecimal digits in front of the JSON, and no more."""


class _Format(msgspec.Struct):
    format: int


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    epoch: int
    checkpoint: str
    step: int
    frontier_ms: int
    transaction: int
    transactions: str
    lives: int
    written_ms: int
    sent: dict[str, dict[int, int]]
    topics: dict[str, str]
    repeated: int
    generation: int
    group: str


class StoredState(NamedTuple):
    """What cursors share, and what was stored with it."""

    state: SubscriptionState
    generation: int  # number of that writing, counted over all owners
    group: str  # id of the subscription's consumer group


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """What is known of the job of a subscription, as of its newest step that is done."""

    epoch: int = 0  # how often the subscription was reset. Acks of an earlier one are refused
    checkpoint: str = ""  # id of the checkpoint whose job wrote it last; empty if none has
    step: int = -1  # number of its newest step that is done; -1 before the first
    frontier_ms: int = BEFORE_ALL_TIME_MS
    # the id of the last transaction of a transactional topology; 0 before the first
    transaction: int = 0
    transactions: str = ""  # what the databases of its states know the job by; empty without one
    lives: int = 0  # the newest owner generation of its drivers, over all its checkpoints
    written_ms: int = 0  # when it was written, wall-clock time
    # end of each partition of the topics that the job writes, after that step, by topic
    sent: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # ids of the topics, by name: one that is recreated gets another
    topics: Mapping[str, str] = field(default_factory=dict)
    # how many rows, at most, were out and not acked when a job went on without its checkpoint: they
    # came again. Over all such starts
    repeated: int = 0

    def encode(self, *, generation: int = 0, group: str = "") -> bytes:
        """Return it as JSON behind a checksum."""
        sent = {topic: dict(ends) for topic, ends in self.sent.items()}
        body = msgspec.json.encode(
            _Document(
                _FORMAT,
                self.epoch,
                self.checkpoint,
                self.step,
                self.frontier_ms,
                self.transaction,
                self.transactions,
                self.lives,
                self.written_ms,
                sent,
                dict(self.topics),
                self.repeated,
                generation,
                group,
            )
        )
        return _checksum(body) + body

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read `encode` back."""
        found = _read(data)
        return cls(
            epoch=found.epoch,
            checkpoint=found.checkpoint,
            step=found.step,
            frontier_ms=found.frontier_ms,
            transaction=found.transaction,
            transactions=found.transactions,
            lives=found.lives,
            written_ms=found.written_ms,
            sent=found.sent,
            topics=found.topics,
            repeated=found.repeated,
        )


def read_state(data: bytes) -> StoredState:
    """Read `SubscriptionState.encode` back, with what was stored beside it; see `decode`."""
    found = _read(data)
    return StoredState(SubscriptionState.decode(data), found.generation, found.group)


def _read(data: bytes) -> _Document:
    body = data[_CHECKSUM:]
    if data[:_CHECKSUM] != _checksum(body):
        raise CursorDamagedError("the checksum of a subscription's state is wrong")
    try:
        if (version := msgspec.json.decode(body, type=_Format).format) != _FORMAT:
            raise CursorVersionError(
                f"the state of a subscription has format {version}, this version reads {_FORMAT}: "
                f"{OTHER_VERSION}"
            )
        return msgspec.json.decode(body, type=_Document)
    except msgspec.DecodeError as error:
        raise CursorDamagedError(f"the state of a subscription cannot be read: {error}") from None


def _checksum(body: bytes) -> bytes:
    return b"%08x" % google_crc32c.value(body)


# Who has a subscription: its owner's claim, and what others may conclude from that.
#
# A claim is a record beside the cursors. Whoever becomes the owner writes one, and writes it again
# with all that is stored, and at least three times in each *lease*. The lease says who may try to
# become the owner; who may write, the transactional id and the claim alone say.
#
# - **Others** take an owner for gone when its claim stands still for a lease, by their own
# monotonic clock: a claim is compared with the one that was read before, and no two clocks. A
# process of this machine that has ended is known to have. - **The owner** goes by a clock that runs
# on while the machine sleeps. Once it has not written its claim for a lease somebody else may have
# the subscription: it hands out nothing before it has.
#
# A command holds nothing: its claim has no lease, and so has that of an owner that has ended.


LEASE_S: Final = 15.0
LONGEST_LEASE_S: Final = 3_600.0
RENEWALS: Final = 3
"""So often a claim is written in the time of its lease."""
_LOOKS: Final = 10
"""So often others look at it in that time."""
_CLAIMS_FORMAT: Final = 2
"""No release had the first form, the life alone. It is refused."""
_FIRST_FORM: Final = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Claim:
    """The newest word of whoever has a subscription."""

    life: str  # names this hold on the subscription; no other has it
    count: int  # how often this life has written it
    lease_ms: int  # so long it may stand still; 0: nobody holds the subscription
    # when an owner was last there, by that one's wall clock; None if none is known
    seen_ms: int | None
    owner: ProcessIdentity  # the process

    @classmethod
    def begin(cls, lease_s: float, before: Claim | None) -> Self:
        """Return that of a new owner."""
        seen_ms = None if before is None else before.seen_ms
        own = ProcessIdentity.own()
        return cls(uuid.uuid4().hex, 0, round(lease_s * 1000), seen_ms, own)

    @property
    def lease_s(self) -> float:
        """The lease in seconds."""
        return self.lease_ms / 1000

    def renewed(self, now_ms: int) -> Claim:
        """Return it as its owner writes it next."""
        seen_ms = now_ms if self.lease_ms else self.seen_ms
        return replace(self, count=self.count + 1, seen_ms=seen_ms)

    def released(self, now_ms: int) -> Claim:
        """Return it as its owner leaves it."""
        return replace(self.renewed(now_ms), lease_ms=0)

    def encode(self) -> bytes:
        """Return the value of its record."""
        return json.dumps(
            {"format": _CLAIMS_FORMAT, **asdict(self)}, separators=(",", ":")
        ).encode()

    @classmethod
    def decode(cls, value: bytes, subscription: str) -> Self:
        """Read `encode` back."""
        if _FIRST_FORM.fullmatch(value):
            raise CursorVersionError(
                f"the claim of subscription {subscription!r} has the first form, this version "
                f"reads {_CLAIMS_FORMAT}: {OTHER_VERSION}"
            )
        try:
            document = json.loads(value)
            version = document["format"]
            if version == _CLAIMS_FORMAT:
                return cls(
                    life=str(document["life"]),
                    count=int(document["count"]),
                    lease_ms=min(int(document["lease_ms"]), round(LONGEST_LEASE_S * 1000)),
                    seen_ms=None if document["seen_ms"] is None else int(document["seen_ms"]),
                    owner=ProcessIdentity.from_document(document["owner"]),
                )
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise CursorDamagedError(
                f"the claim of subscription {subscription!r} cannot be read: {value[:80]!r}"
            ) from error
        raise CursorVersionError(
            f"the claim of subscription {subscription!r} has format {version}, this version "
            f"reads {_CLAIMS_FORMAT}: {OTHER_VERSION}"
        )


class Hold(enum.Enum):
    """What is known of a subscription's owner."""

    FREE = enum.auto()
    """There is none, or it has let its lease pass."""
    YOUNG = enum.auto()
    """It was there within its lease."""
    UNDECIDED = enum.auto()
    """Its claim was seen for less than a lease, and has not been seen to change."""


class _Seen(NamedTuple):
    written: tuple[str, int]
    since_s: float
    has_changed: bool


class ClaimWatch:
    """Judges claims by what this process has seen of them. One thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def judge(self, subscription: str, claim: Claim | None) -> Hold:
        """Say whether a subscription has an owner, by its claim as it was read just now."""
        if claim is None or not claim.lease_ms or claim.owner.is_gone():
            self._seen.pop(subscription, None)
            return Hold.FREE
        written, now_s = (claim.life, claim.count), self._clock()
        seen = self._seen.get(subscription)
        if seen is None or seen.written != written:
            seen = self._seen[subscription] = _Seen(written, now_s, seen is not None)
        if now_s - seen.since_s >= claim.lease_s:
            return Hold.FREE
        return Hold.YOUNG if seen.has_changed else Hold.UNDECIDED


def await_free(
    look: Callable[[], tuple[Hold, Claim | None]],
    *,
    patiently: bool,
    wait: Callable[[float], object] = time.sleep,
) -> Claim | None:
    """Look until a subscription is known to have no owner, or one."""
    while True:
        hold, claim = look()
        if hold is Hold.FREE or claim is None:
            return None
        if hold is Hold.YOUNG and not patiently:
            return claim
        wait((claim.lease_s or LEASE_S) / _LOOKS)


def _boot_time() -> float:
    """Return seconds of a clock that runs on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeldLease:
    """What an owner knows of its own lease."""

    def __init__(self, lease_s: float, clock: Callable[[], float] = _boot_time) -> None:
        self.lease_s = lease_s
        self.now_s = clock
        self._renewed_s = clock()

    @property
    def is_over(self) -> bool:
        """Whether others may take this owner for gone."""
        return bool(self.lease_s) and self.now_s() - self._renewed_s >= self.lease_s

    @property
    def due_in_s(self) -> float:
        """In how many seconds the claim is to be written again; less than 0 if that is late."""
        return self._renewed_s + self.lease_s / RENEWALS - self.now_s()

    def renewed(self, begun_s: float) -> None:
        """Note that the claim is written: nobody has seen it before that was begun."""
        self._renewed_s = max(self._renewed_s, begun_s)


# What the records of the cursors' topic mean: state, owner, cursors and chunks of subscriptions.
#
# A key is a JSON list of its kind and the subscription's name, and of topic and partition for a
# cursor; that of a chunk is `chunk_key`'s. The value of a cursor is the offset that its group
# commits and the metadata beside it, a line each.


_STATE: Final = "state"
_OWNER: Final = "owner"
_CURSOR: Final = "cursor"
_MOST_KEYS: Final = 1 << 16
"""They are read again with each round of checks."""


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """All that is stored of a subscription, as of one moment."""

    state: SubscriptionState  # what its cursors share
    cursors: Mapping[SourcePartition, PartitionCursor]


@dataclass(frozen=True, slots=True)
class StoredSubscriptions:
    """What is stored of several subscriptions."""

    # what is stored, by name; absent where nothing is
    stored: dict[str, StoredSubscription] = field(default_factory=dict)
    # of which it was changed, or is of another version, and what is wrong with it
    damaged: dict[str, str] = field(default_factory=dict)
    # the claim of the newest owner of each that has one
    claims: dict[str, Claim] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)  # whose claim cannot be read, and why

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored but claims."""
        return not self.stored and not self.damaged


def nothing_stored(subscription: str) -> str:
    """Say that a subscription is registered and nothing tells how far it has got."""
    return (
        f"subscription {subscription!r} is registered, but has no stored cursors: its cursors "
        "were deleted, or an older version has not ended its creation. Reset it to a "
        "position, or delete it"
    )


def what_helps(error: ConsumerError) -> str:
    """Say why cursors cannot be read, and what helps."""
    is_other = isinstance(error, CursorVersionError)
    return str(error) if is_other else f"{error}; only a deletion helps"


def state_key(subscription: str) -> bytes:
    """Return the key of what a subscription's cursors share."""
    return _key(_STATE, subscription)


def owner_key(subscription: str) -> bytes:
    """Return the key under which a subscription's newest owner stands."""
    return _key(_OWNER, subscription)


def cursor_key(subscription: str, where: SourcePartition) -> bytes:
    """Return the key of a subscription's cursor of a partition."""
    return _key(_CURSOR, subscription, *where)


def cursor_value(offset: int, metadata: str) -> bytes:
    """Return the value of a cursor's record."""
    return f"{offset}\n{metadata}".encode()


@lru_cache(_MOST_KEYS)
def cursor_of_key(key: bytes) -> tuple[str, SourcePartition] | None:
    """Return whose cursor a key is of, and of which partition; None for other keys."""
    match _parts(key):
        case [kind, str(name), str(topic), int(partition)] if kind == _CURSOR:
            return name, SourcePartition(topic, partition)
    return None


def is_record_of(key: bytes, subscription: str) -> bool:
    """Tell whether a record is a subscription's, whole or not."""
    parts = _parts(key)
    if parts is None:
        return is_chunk_of(key, subscription)
    return parts[0] in {_STATE, _OWNER, _CURSOR} and parts[1] == subscription


KnownCursors: TypeAlias = (
    "dict[CursorIdentity, tuple[tuple[str, list[bytes], int], PartitionCursor]]"
)
"""Of each cursor its metadata, its chunks and the offset, and what they say."""


class StoredRecords:
    """The newest records of a partition of the topic, or of several."""

    def __init__(self, found: Mapping[bytes, bytes], known: KnownCursors | None = None) -> None:
        self._found = found
        self._known: KnownCursors = {} if known is None else known
        self._cursors: dict[str, dict[SourcePartition, bytes]] = {}
        for key, value in found.items():
            if (cursor := cursor_of_key(key)) is not None:
                name, where = cursor
                self._cursors.setdefault(name, {})[where] = value

    def holds(self, subscription: str) -> bool:
        """Tell whether anything is stored of a subscription but a claim."""
        return state_key(subscription) in self._found

    def claim(self, subscription: str) -> Claim | None:
        """Return the claim of a subscription's newest owner; None if there was none."""
        value = self._found.get(owner_key(subscription))
        return None if value is None else Claim.decode(value, subscription)

    def state(self, subscription: str) -> SubscriptionState | None:
        """Return what a subscription's cursors share; None if nothing is stored."""
        found = self._stored_state(subscription)
        return None if found is None else found.state

    def subscription(self, name: str) -> StoredSubscription | None:
        """Return what is stored of a subscription; None if nothing is."""
        state = self.state(name)
        if state is None:
            return None
        cursors = {}
        for where, (offset, metadata) in sorted(self._committed(name).items()):
            identity = CursorIdentity(name, *where)
            pointer = read_pointer(metadata)
            keys = [] if pointer is None else pointer.keys(identity)
            chunks = [self._found[key] for key in keys if key in self._found]
            source = metadata, chunks, offset
            known = self._known.get(identity)
            if known is None or known[0] != source:
                stored = read_stored(metadata, chunks, identity, offset=offset)
                sizes = CountedSizes.decode(stored.carried)
                part = PartitionCursor(stored.cursor, sizes, stored.redeliveries)
                known = self._known[identity] = source, part
            cursors[where] = known[1]
        return StoredSubscription(state, cursors)

    def offsets(self, name: str) -> list[TopicPartition]:
        """Return what the subscription's group is to have committed."""
        found = self._committed(name).items()
        return [TopicPartition(*where, *committed) for where, committed in found]

    def chunks(self, name: str) -> dict[SourcePartition, frozenset[bytes]]:
        """Return the keys of the chunks of each of a subscription's cursors that has some."""
        chunks = {}
        for where, (_, metadata) in self._committed(name).items():
            pointer = read_pointer(metadata)
            if pointer is not None:
                chunks[where] = frozenset(pointer.keys(CursorIdentity(name, *where)))
        return chunks

    def newest_generation(self, name: str) -> int:
        """Return the greatest number that a writing had; -1 before the first."""
        pointers = (read_pointer(text) for _, text in self._committed(name).values())
        of_chunks = max((one.generation for one in pointers if one is not None), default=-1)
        found = self._stored_state(name)
        return of_chunks if found is None else max(of_chunks, found.generation)

    def age(self, name: str) -> tuple[int, int]:
        """Return what is greater of two that are stored of a subscription the later it was written.

        That is the generation, which no clock gives. Of two of one generation the time counts.
        """
        found = read_state(self._found[state_key(name)])
        return found.generation, found.state.written_ms

    def group(self, name: str) -> str | None:
        """Return the consumer group that a subscription has; None if nothing is stored of it."""
        found = self._stored_state(name)
        return None if found is None else found.group

    def _stored_state(self, name: str) -> StoredState | None:
        value = self._found.get(state_key(name))
        try:
            return None if value is None else read_state(value)
        except CursorVersionError as error:
            raise CursorVersionError(f"subscription {name!r}: {error}") from error

    def _committed(self, name: str) -> dict[SourcePartition, tuple[int, str]]:
        """Return offset and metadata of each cursor of a subscription."""
        committed = {}
        for where, value in self._cursors.get(name, {}).items():
            offset, line, metadata = value.decode(errors="replace").partition("\n")
            if not line or not offset.isdecimal():
                raise CursorDamagedError(
                    f"{CursorIdentity(name, *where)}: the stored value is not a cursor"
                )
            committed[where] = int(offset), metadata
        return committed


def place_of(read: Mapping[int, StoredRecords], name: str, home: int) -> int:
    """Return the partition of the topic that a subscription's records are in, or are to be."""

    def age(partition: int) -> tuple[float, int]:
        try:
            return read[partition].age(name)
        except ConsumerError:
            return math.inf, 0

    holders = (one for one, records in read.items() if records.holds(name))
    return max(holders, key=age, default=home)


@lru_cache(_MOST_KEYS)
def _key(*parts: str | int) -> bytes:
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()


def _parts(key: bytes) -> list[str | int] | None:
    """Read a key back; None for that of a chunk."""
    try:
        found = json.loads(key)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and len(found) > 1 else None
