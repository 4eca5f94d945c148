"""What the records of the cursors' topic mean: state, owner, cursors and chunks of subscriptions.

A key is a JSON list: its kind and the subscription's name. The key of a cursor also has the topic
and the partition. `chunk_key` makes the key of a chunk. The value of a cursor has two lines: the
offset that its group commits, and the metadata beside it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import TopicPartition

from sequitur.consumer.subscription.claims import Claim
from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import CursorIdentity
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.stored_pieces import is_chunk_of, read_pointer, read_stored
from sequitur.consumer.subscription.subscription_state import (
    StoredState,
    SubscriptionState,
    read_state,
)
from sequitur.errors import ConsumerError, CursorDamagedError, CursorVersionError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Mapping


_STATE: Final = "state"
_OWNER: Final = "owner"
_CURSOR: Final = "cursor"
_MOST_KEYS: Final = 1 << 16
"""The cache's size. Each round of checks parses the same keys again."""
KnownCursors: TypeAlias = (
    "dict[CursorIdentity, tuple[tuple[str, list[bytes], int], PartitionCursor]]"
)
"""Metadata, chunks and offset of each cursor, and the cursor that was read from them."""


class StoredRecords:
    """The newest records of one or several partitions of the topic."""

    def __init__(self, found: Mapping[bytes, bytes], known: KnownCursors | None = None) -> None:
        self._found = found
        self._known: KnownCursors = {} if known is None else known
        self._cursors: dict[str, dict[SourcePartition, bytes]] = {}
        for key, value in found.items():
            if (cursor := cursor_of_key(key)) is not None:
                name, where = cursor
                self._cursors.setdefault(name, {})[where] = value

    def holds(self, subscription: str) -> bool:
        """Tell whether a subscription has any stored record besides a claim."""
        return state_key(subscription) in self._found

    def claim(self, subscription: str) -> Claim | None:
        """Return the claim of a subscription's newest owner; None if there was none."""
        value = self._found.get(owner_key(subscription))
        return None if value is None else Claim.decode(value, subscription)

    def state(self, subscription: str) -> SubscriptionState | None:
        """Return what a subscription's cursors share, None if nothing is stored."""
        found = self._stored_state(subscription)
        return None if found is None else found.state

    def subscription(self, name: str) -> StoredSubscription | None:
        """Return what is stored of a subscription, None if nothing is."""
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
        found = self._committed(name).items()
        return [TopicPartition(*where, *committed) for where, committed in found]

    def chunks(self, name: str) -> dict[SourcePartition, frozenset[bytes]]:
        """Return the keys of each cursor's chunks, without cursors that have none."""
        chunks = {}
        for where, (_, metadata) in self._committed(name).items():
            pointer = read_pointer(metadata)
            if pointer is not None:
                chunks[where] = frozenset(pointer.keys(CursorIdentity(name, *where)))
        return chunks

    def newest_generation(self, name: str) -> int:
        """Return the number of the newest write; -1 before the first."""
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
        """Return a subscription's consumer group, None if nothing is stored."""
        found = self._stored_state(name)
        return None if found is None else found.group

    def _stored_state(self, name: str) -> StoredState | None:
        value = self._found.get(state_key(name))
        try:
            return None if value is None else read_state(value)
        except CursorVersionError as error:
            raise CursorVersionError(f"subscription {name!r}: {error}") from error

    def _committed(self, name: str) -> dict[SourcePartition, tuple[int, str]]:
        committed = {}
        for where, value in self._cursors.get(name, {}).items():
            offset, line, metadata = value.decode(errors="replace").partition("\n")
            if not line or not offset.isdecimal():
                raise CursorDamagedError(
                    f"{CursorIdentity(name, *where)}: the stored value is not a cursor"
                )
            committed[where] = int(offset), metadata
        return committed


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    state: SubscriptionState  # what its cursors share
    cursors: Mapping[SourcePartition, PartitionCursor]


@dataclass(frozen=True, slots=True)
class StoredSubscriptions:
    # stored subscriptions by name; absent if nothing is stored
    stored: dict[str, StoredSubscription] = field(default_factory=dict)
    # changed records or records of another version, and what is wrong with them
    damaged: dict[str, str] = field(default_factory=dict)
    # the claim of each subscription's newest owner
    claims: dict[str, Claim] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)  # with an unreadable claim, and why

    @property
    def is_empty(self) -> bool:
        """Whether nothing but claims is stored."""
        return not self.stored and not self.damaged


def nothing_stored(subscription: str) -> str:
    """Return the error text for a registered subscription without stored cursors."""
    return (
        f"subscription {subscription!r} is registered, but has no stored cursors: its cursors "
        "were deleted, or an older version has not ended its creation. Reset it to a "
        "position, or delete it"
    )


def what_helps(error: ConsumerError) -> str:
    is_other = isinstance(error, CursorVersionError)
    return str(error) if is_other else f"{error}; only a deletion helps"


def state_key(subscription: str) -> bytes:
    return _key(_STATE, subscription)


def owner_key(subscription: str) -> bytes:
    return _key(_OWNER, subscription)


def cursor_key(subscription: str, where: SourcePartition) -> bytes:
    return _key(_CURSOR, subscription, *where)


def cursor_value(offset: int, metadata: str) -> bytes:
    return f"{offset}\n{metadata}".encode()


@lru_cache(_MOST_KEYS)
def cursor_of_key(key: bytes) -> tuple[str, SourcePartition] | None:
    """Return the subscription and the partition of a cursor's key; None for other keys."""
    match _parts(key):
        case [kind, str(name), str(topic), int(partition)] if kind == _CURSOR:
            return name, SourcePartition(topic, partition)
    return None


def is_record_of(key: bytes, subscription: str) -> bool:
    """Tell whether a record belongs to a subscription, even if it is damaged."""
    parts = _parts(key)
    if parts is None:
        return is_chunk_of(key, subscription)
    return parts[0] in {_STATE, _OWNER, _CURSOR} and parts[1] == subscription


def place_of(read: Mapping[int, StoredRecords], name: str, home: int) -> int:
    """Return the partition with a subscription's records, `home` if it has none."""

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
    """Read a key back; return None for the key of a chunk."""
    try:
        found = json.loads(key)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and len(found) > 1 else None
