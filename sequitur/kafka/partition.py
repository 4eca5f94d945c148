"""Topics' names, partitions, and which one a key has.

Which names a topic may have is Kafka's rule (its `Topic.validate`); which partition an event goes
to, that of Kafka's Java client.

A key goes to `toPositive(murmur2(key)) % partitions`, so that events of one key are in one
partition whichever client sent them (librdkafka's default is CRC32, and would separate them).
An event without a key goes to the sticky partition (KIP-480): the same one until its batch is
full, since a few large batches cost less than many small ones.

Pure: the random numbers of the sticky choice are arguments. Keys repeat, so their partitions are
cached; many new keys at once are hashed by numpy, a column at a time.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


EXPECTED: Final = "expected a topic name: letters, digits, '.', '_' and '-', at most 249"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def check_topic_name(name: object) -> None:
    """Raise unless a topic can have this name."""
    if not isinstance(name, str):
        raise TypeError(f"topic is {type(name).__name__}, expected str")
    if not is_topic_name(name):
        raise ValueError(f"topic {name!r}: {EXPECTED}")


CURSOR_PREFIX: Final = "sequitur-cursor/"
"""The beginning of the metadata of each offset that belongs to a cursor."""


class OutputPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.topic!r}"


class SourcePartition(NamedTuple):
    topic: str
    partition: int


_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_CACHE_BYTES: Final = 32 << 20
_KEY_OVERHEAD_BYTES: Final = 150  # for a dictionary entry and its objects
_BULK: Final = 32
"""For this many new keys of one length, or more, numpy is faster than a loop."""


def murmur2(key: bytes) -> int:
    """Return the 32-bit murmur2 hash of `key`, unsigned, with the seed of Kafka's Java client."""
    length = len(key)
    words = length >> 2
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{words}I", key):
        mixed = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((mixed ^ (mixed >> 24)) * _M) & _MASK)
    tail = length & 3
    if tail:
        h = ((h ^ int.from_bytes(key[-tail:], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def murmur2_bulk(keys: list[bytes], length: int) -> list[int]:
    """Return the murmur2 hashes of `keys`, which are all `length` bytes long."""
    rows = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), length)
    words = length >> 2
    m = np.uint32(_M)
    h = np.full(len(keys), _SEED ^ length, dtype=np.uint32)
    columns = np.ascontiguousarray(rows[:, : words * 4]).view("<u4")
    for index in range(words):
        mixed = columns[:, index] * m
        h = (h * m) ^ ((mixed ^ (mixed >> np.uint32(24))) * m)
    if length & 3:
        tail = np.zeros(len(keys), dtype=np.uint32)
        for place in range(length & 3):
            tail |= rows[:, words * 4 + place].astype(np.uint32) << np.uint32(8 * place)
        h = (h ^ tail) * m
    h = (h ^ (h >> np.uint32(13))) * m
    hashes: list[int] = (h ^ (h >> np.uint32(15))).tolist()
    return hashes


class KeyPartitioner:
    """Chooses partitions for the keys of one topic, and caches them up to a limit."""

    __slots__ = ("_cache_left", "_known", "partitions")

    def __init__(self, partitions: int) -> None:
        if partitions < 1:
            raise ValueError(f"partitions = {partitions}: expected 1 or more")
        self.partitions = partitions
        self._known: dict[bytes, int] = {}
        self._cache_left = _CACHE_BYTES

    def partition(self, key: bytes) -> int:
        known = self._known.get(key)
        return self.learn((key,))[key] if known is None else known

    def each(self, keys: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.signedinteger[Any]]]:
        try:
            return np.fromiter(map(self._known.__getitem__, keys), np.int32, len(keys))
        except KeyError:
            return np.fromiter(map(self.learn(keys).__getitem__, keys), np.int32, len(keys))

    def learn(self, keys: Collection[bytes]) -> dict[bytes, int]:
        """Hash all new keys in `keys` at once."""
        unknown = set(keys).difference(self._known)
        if not unknown:
            return self._known
        self._cache_left -= sum(map(len, unknown)) + _KEY_OVERHEAD_BYTES * len(unknown)
        if self._cache_left < 0:
            # Clearing the cache costs a few new hashes now and then; a true LRU would slow each
            # event.
            unknown = set(keys)
            self._known = {}
            self._cache_left = _CACHE_BYTES
        by_length: dict[int, list[bytes]] = {}
        for key in unknown:
            by_length.setdefault(len(key), []).append(key)
        for length, same in by_length.items():
            if len(same) < _BULK or not length:
                hashes = [murmur2(key) for key in same]
            else:
                hashes = murmur2_bulk(same, length)
            for key, hashed in zip(same, hashes, strict=True):
                self._known[key] = (hashed & _POSITIVE) % self.partitions
        return self._known


class StickyPartitioner:
    """Chooses the partition for events without a key: one at a time, another after each batch."""

    __slots__ = ("current", "partitions")

    def __init__(self, partitions: int, random: float) -> None:
        if partitions < 1:
            raise ValueError(f"partitions = {partitions}: expected 1 or more")
        self.partitions = partitions
        self.current = int(random * partitions)

    def move_on(self, full: int, random: float) -> None:
        """Choose another partition, if the full batch was for the current one."""
        if full != self.current or self.partitions == 1:
            return
        step = 1 + int(random * (self.partitions - 1))
        self.current = (self.current + step) % self.partitions
