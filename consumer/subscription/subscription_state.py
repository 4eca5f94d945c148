"""What a subscription's cursors share: how far the job behind them has got.

It is written together with the cursors, all or nothing. A job without its checkpoint begins with
it: the frontier says which rows are late, the transaction id is not used again, and the ends of its
output say how many rows come again.

A line of JSON follows its CRC32C, in eight hexadecimal digits: if a digit changes, JSON is still
JSON, and would be another state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import google_crc32c
import msgspec
from msgspec.structs import asdict

from sequitur.base.stored import load
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.subscription.codec import OTHER_VERSION
from sequitur.errors import CursorDamagedError, CursorVersionError, StateFormatError

_FORMAT: Final = 2
"""Format 1 was in no release. It is refused and never used again."""
_CHECKSUM: Final = 8
"""The number of hexadecimal digits before the JSON."""


class SubscriptionState(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag=_FORMAT,
):
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
    sent: Mapping[str, Mapping[int, int]] = {}
    # ids of the topics, by name: a recreated topic has another id
    topics: Mapping[str, str] = {}
    # upper bound of the rows that were out and unacked when a job went on without its checkpoint,
    # and that came again. It counts all such starts
    repeated: int = 0

    def encode(self, *, generation: int = 0, group: str = "") -> bytes:
        """Return it as JSON behind a checksum."""
        stored = _Stored(**asdict(self), generation=generation, group=group)
        body = msgspec.json.encode(stored)
        return _checksum(body) + body

    @classmethod
    def decode(cls, data: bytes) -> SubscriptionState:
        return read_state(data).state


class StoredState(NamedTuple):
    state: SubscriptionState
    generation: int  # number of that write, counted over all owners
    group: str  # id of the subscription's consumer group


class _Stored(SubscriptionState, frozen=True, kw_only=True):
    """The state and what is stored beside it, see `StoredState`."""

    generation: int
    group: str


def read_state(data: bytes) -> StoredState:
    """Read `SubscriptionState.encode` back, with what was stored beside it."""
    body = data[_CHECKSUM:]
    if data[:_CHECKSUM] != _checksum(body):
        raise CursorDamagedError("the checksum of a subscription's state is wrong")
    try:
        version = msgspec.json.decode(body, type=_Format).format
        found = load(_Stored, msgspec.json.decode(body)) if version == _FORMAT else None
    except (msgspec.DecodeError, StateFormatError) as error:
        raise CursorDamagedError(f"the state of a subscription cannot be read: {error}") from None
    if found is None:
        raise CursorVersionError(
            f"the state of a subscription has format {version}, this version reads {_FORMAT}: "
            f"{OTHER_VERSION}"
        )
    fields = asdict(found)
    generation, group = fields.pop("generation"), fields.pop("group")
    return StoredState(SubscriptionState(**fields), generation, group)


class _Format(msgspec.Struct):
    format: int


def _checksum(body: bytes) -> bytes:
    return b"%08x" % google_crc32c.value(body)
