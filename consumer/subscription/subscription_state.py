"""What a subscription's cursors share: how far the job behind them has got.

It is written together with the cursors, all or nothing. A job without its checkpoint begins with
it: the frontier says which rows are late, the transaction id is not used again, and the ends of its
output say how many rows come again.

A line of JSON follows its CRC32C, in eight hexadecimal digits: if a digit changes, JSON is still
JSON, and would be another state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import google_crc32c
import msgspec

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.subscription.codec import OTHER_VERSION
from sequitur.errors import CursorDamagedError, CursorVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping


_FORMAT: Final = 2
"""Format 1 was in no release. It is refused and never used again."""
_CHECKSUM: Final = 8
"""The number of hexadecimal digits before the JSON."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """How far a subscription's job has got with its newest completed step."""

    epoch: int = 0  # how often the subscription was reset. Acks from an earlier epoch are refused
    checkpoint: str = ""  # id of the checkpoint whose job wrote it last; empty if no job did
    step: int = -1  # number of the newest completed step; -1 before the first
    frontier_ms: int = BEFORE_ALL_TIME_MS
    # the id of the last transaction of a transactional topology; 0 before the first
    transaction: int = 0
    transactions: str = ""  # the name of the job in its states' databases; empty without one
    lives: int = 0  # the newest owner generation of its drivers, over all its checkpoints
    written_ms: int = 0  # when it was written, wall-clock time
    # the end of each partition of the job's output topics after that step, by topic
    sent: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # ids of the topics, by name: a recreated topic has another id
    topics: Mapping[str, str] = field(default_factory=dict)
    # upper bound of the rows that were out and unacked when a job went on without its checkpoint,
    # and that came again. It counts all such starts
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


class StoredState(NamedTuple):
    state: SubscriptionState
    generation: int  # number of that write, counted over all owners
    group: str  # id of the subscription's consumer group


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
