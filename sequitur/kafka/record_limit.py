"""Whether a topic takes a record, checked before it is sent, as its broker will check it.

A broker holds a batch against the topic's `max.message.bytes` as it stands in the request, so
compressed. Where the topic has a compression of its own the broker compresses the batch again and
checks it once more; then the record is checked as if it were not compressed at all, which is safe.

A topic that is compacted takes no record without a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sequitur.kafka.compression import packed_bytes
from sequitur.kafka.record_format import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_MESSAGE_BYTES: Final = "max.message.bytes"
COMPRESSION_TYPE: Final = "compression.type"
CLEANUP_POLICY: Final = "cleanup.policy"
_BROKERS_DEFAULT: Final = 1_048_588
_AS_IT_COMES: Final = frozenset({"producer", "lz4"})
_LENGTHS: Final = 112
"""Bytes of a record and its batch beside payload and batch header, at most, without headers of its
own: lengths, and the one that the reorder job may give it, with its event time."""
HEADER_LENGTHS: Final = 10
_SAFETY: Final = 256
"""One part of so many of the limit is left free: lengths between the parts pack in their own way"""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """What a topic takes."""

    max_bytes: int = _BROKERS_DEFAULT
    is_packed: bool = True  # whether batches are checked with the compression that we send
    needs_key: bool = False

    @classmethod
    def of(cls, config: Mapping[str, str | None]) -> Self:
        """That of a topic's configuration."""
        return cls(
            int(config.get(MAX_MESSAGE_BYTES) or _BROKERS_DEFAULT),
            config.get(COMPRESSION_TYPE) in _AS_IT_COMES,
            "compact" in (config.get(CLEANUP_POLICY) or ""),
        )

    @property
    def surely_bytes(self) -> int:
        """A record without headers whose key and value have at most this many bytes always fits."""
        return self.max_bytes - HEADER_SIZE - _LENGTHS

    def takes(self, payload: Iterable[bytes | None], headers: int = 0) -> bool:
        """Return whether the topic takes a record, by its size."""
        parts = [part for part in payload if part]
        room = self.surely_bytes - headers * HEADER_LENGTHS
        if sum(map(len, parts)) <= room:
            return True
        if not self.is_packed:
            return False
        return packed_bytes(b"".join(parts)) <= room - self.max_bytes // _SAFETY
