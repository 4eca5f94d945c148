"""Error codes of produce requests: what each says of the batch that it answers.

One table, by Kafka's numbers (https://kafka.apache.org/protocol#protocol_error_codes). The question
that each row answers is not whether the code is an error, but whether the batch may be in the log.

With acks=all a leader appends a batch and then waits for its replicas. So a code says that the
batch was not appended only where the broker gives it before the append (KafkaApis, Partition,
UnifiedLog) and never while it waits (DelayedProduce). While it waits it gives
NOT_LEADER_OR_FOLLOWER when it has lost the lead of the partition, UNKNOWN_TOPIC_OR_PARTITION when
the partition has gone, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT.
Codes that no broker gives to a batch count as unknown, too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Answer(enum.Enum):
    """What became of one attempt to send a batch."""

    PERSISTED = enum.auto()
    """In the log, at an offset that we were told."""
    DUPLICATE = enum.auto()
    """In the log since an earlier attempt; the broker no longer knows the offset."""
    RETRIABLE = enum.auto()
    """Not appended by this attempt; the next may do better."""
    UNKNOWN = enum.auto()
    """No answer, or one that leaves it open: it may be in the log."""
    OUT_OF_ORDER = enum.auto()
    """Not appended: its sequence is not the one the broker waits for."""
    FORGOTTEN = enum.auto()
    """Not appended: the broker has lost what it knew of our producer id."""
    FENCED = enum.auto()
    """Not appended: the broker knows a newer epoch of our producer id."""
    TOO_LARGE = enum.auto()
    """Not appended, since some record in it is bad or the whole too large: halves may go."""
    REFUSED = enum.auto()
    """Not appended, and no retry will change that."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table.

    Attributes:
        name: Kafka's name of the code.
        answer: What it says of the batch.
        stale_metadata: Whether the partition's leader is likely to be another.
        limited: Whether to give up after a few of these: it may be the batch's own fault.
    """

    name: str
    answer: Answer
    stale_metadata: bool = False
    limited: bool = False


NO_ERROR: Final = 0
COORDINATOR_MOVED: Final = frozenset({14, 15, 16})
"""Codes of a coordinator that has just come up, or is elsewhere by now."""
FENCED: Final = frozenset({47, 90})
"""INVALID_PRODUCER_EPOCH and PRODUCER_FENCED: somebody has a newer epoch of the producer id."""
UNKNOWN_SERVER_ERROR: Final = -1

MEANINGS: Final[dict[int, Meaning]] = {
    NO_ERROR: Meaning("NONE", Answer.PERSISTED),
    UNKNOWN_SERVER_ERROR: Meaning("UNKNOWN_SERVER_ERROR", Answer.UNKNOWN, limited=True),
    2: Meaning("CORRUPT_MESSAGE", Answer.RETRIABLE, limited=True),
    3: Meaning("UNKNOWN_TOPIC_OR_PARTITION", Answer.UNKNOWN, stale_metadata=True),
    5: Meaning("LEADER_NOT_AVAILABLE", Answer.UNKNOWN, stale_metadata=True),
    6: Meaning("NOT_LEADER_OR_FOLLOWER", Answer.UNKNOWN, stale_metadata=True),
    7: Meaning("REQUEST_TIMED_OUT", Answer.UNKNOWN),
    9: Meaning("REPLICA_NOT_AVAILABLE", Answer.UNKNOWN, stale_metadata=True),
    10: Meaning("MESSAGE_TOO_LARGE", Answer.TOO_LARGE),
    13: Meaning("NETWORK_EXCEPTION", Answer.UNKNOWN, stale_metadata=True),
    14: Meaning("COORDINATOR_LOAD_IN_PROGRESS", Answer.UNKNOWN),
    17: Meaning("INVALID_TOPIC_EXCEPTION", Answer.REFUSED),
    18: Meaning("RECORD_LIST_TOO_LARGE", Answer.TOO_LARGE),
    19: Meaning("NOT_ENOUGH_REPLICAS", Answer.RETRIABLE),
    # Appended by the leader and then not by the others in time: a retry is answered as a duplicate.
    20: Meaning("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Answer.UNKNOWN),
    21: Meaning("INVALID_REQUIRED_ACKS", Answer.REFUSED),
    29: Meaning("TOPIC_AUTHORIZATION_FAILED", Answer.REFUSED),
    31: Meaning("CLUSTER_AUTHORIZATION_FAILED", Answer.REFUSED),
    # One record out of bounds has the whole batch refused; halving finds it.
    32: Meaning("INVALID_TIMESTAMP", Answer.TOO_LARGE),
    35: Meaning("UNSUPPORTED_VERSION", Answer.REFUSED),
    42: Meaning("INVALID_REQUEST", Answer.REFUSED),
    43: Meaning("UNSUPPORTED_FOR_MESSAGE_FORMAT", Answer.REFUSED),
    44: Meaning("POLICY_VIOLATION", Answer.REFUSED),
    45: Meaning("OUT_OF_ORDER_SEQUENCE_NUMBER", Answer.OUT_OF_ORDER),
    46: Meaning("DUPLICATE_SEQUENCE_NUMBER", Answer.DUPLICATE),
    47: Meaning("INVALID_PRODUCER_EPOCH", Answer.FENCED),
    # The disk failed under the append: bytes may have reached it.
    56: Meaning("KAFKA_STORAGE_ERROR", Answer.UNKNOWN, stale_metadata=True),
    59: Meaning("UNKNOWN_PRODUCER_ID", Answer.FORGOTTEN),
    74: Meaning("FENCED_LEADER_EPOCH", Answer.UNKNOWN, stale_metadata=True),
    75: Meaning("UNKNOWN_LEADER_EPOCH", Answer.UNKNOWN, stale_metadata=True),
    76: Meaning("UNSUPPORTED_COMPRESSION_TYPE", Answer.REFUSED),
    87: Meaning("INVALID_RECORD", Answer.TOO_LARGE),
    89: Meaning("THROTTLING_QUOTA_EXCEEDED", Answer.UNKNOWN),
    90: Meaning("PRODUCER_FENCED", Answer.FENCED),
}


def meaning_of(code: int) -> Meaning:
    """The row of `code`; of one that the table does not have, that nothing is known."""
    known = MEANINGS.get(code)
    return known or Meaning(f"error code {code}", Answer.UNKNOWN, limited=True)
