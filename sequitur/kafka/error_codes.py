"""Kafka's error codes: for each request, what a code means and what follows. The one table.

The numbers are Kafka's (https://kafka.apache.org/protocol#protocol_error_codes); those below -1 are
librdkafka's own, for what it finds out by itself. `meaning_of` says what a code means for a batch
of a produce request, and `action_of` what follows from a code in the answer to any other `Request`.

Of a produce request the question is not whether the code is an error, but whether the batch may be
in the log. With acks=all a leader appends a batch and then waits for its replicas. So a code says
that the batch was not appended only where the broker gives it before the append (KafkaApis,
Partition, UnifiedLog) and never while it waits (DelayedProduce). While it waits it gives
NOT_LEADER_OR_FOLLOWER when it has lost the lead of the partition, UNKNOWN_TOPIC_OR_PARTITION when
the partition has gone, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT.
Codes that no broker gives to a batch count as unknown, too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


_ENDS_CLIENT: Final = -150


class Answer(enum.Enum):
    PERSISTED = enum.auto()
    """In the log, at the offset of the answer."""
    DUPLICATE = enum.auto()
    """In the log since an earlier attempt. The broker no longer knows the offset."""
    RETRIABLE = enum.auto()
    """Not appended by this attempt; a retry may succeed."""
    UNKNOWN = enum.auto()
    """Unclear, or no answer at all: the batch may be in the log."""
    OUT_OF_ORDER = enum.auto()
    """Not appended: its sequence is not the next one that the broker expects."""
    FORGOTTEN = enum.auto()
    """Not appended: the broker no longer has state for the producer id."""
    FENCED = enum.auto()
    """Not appended: the broker knows a newer epoch of the producer id."""
    TOO_LARGE = enum.auto()
    """Not appended: it is too large or has an invalid record. Its halves may be accepted."""
    REFUSED = enum.auto()
    """Not appended, and no retry helps: the cause is the event or its topic."""
    MISDATED = enum.auto()
    """Not appended: a timestamp in it is out of bounds. It is the event's fault if its sender gave
    it, and else ours."""
    FORBIDDEN = enum.auto()
    """Not appended: writing to the topic is forbidden. The cause is not the batch, and may pass."""
    UNFIT = enum.auto()
    """Not appended, like all other batches of this program: the cause is not the events."""


class Request(enum.Flag):
    """The kind of a request, and which part sends it."""

    LOGIN = enum.auto()
    """Connecting, with TLS and SASL."""
    INIT_PRODUCER_ID = enum.auto()
    """A producer's id and epoch (InitProducerId)."""
    FIND_COORDINATOR = enum.auto()
    """Finding the coordinator of a group or of a transactional id (FindCoordinator)."""
    DESCRIBE_CONFIGS = enum.auto()
    """A topic's `max.message.bytes` (DescribeConfigs)."""
    DESCRIBE_PRODUCERS = enum.auto()
    """Reading a producer's last sequence in a partition (DescribeProducers)."""
    READ = enum.auto()
    """Looking for events in a partition (ListOffsets, Fetch)."""
    TOPICS = enum.auto()
    """A job's reading of topics and their ends (Metadata, ListOffsets), by librdkafka."""
    TOPIC_IDS = enum.auto()
    """Topics' ids (DescribeTopicPartitions), by librdkafka."""
    TOPIC_CONFIGS = enum.auto()
    """Topics' configuration (DescribeConfigs), by librdkafka."""
    TOPIC_OF_JOB = enum.auto()
    """Creating a topic that a job writes to (CreateTopics), by librdkafka."""
    TOPIC_OF_DAEMON = enum.auto()
    """Creating the topic that a user gives a daemon (CreateTopics), by librdkafka."""
    WATERMARKS = enum.auto()
    """Reading the ends of a topic that is checked (ListOffsets), by librdkafka."""
    POSITION = enum.auto()
    """A subscription's reading from its position on (Fetch), by librdkafka."""
    GROUPS = enum.auto()
    """Consumer groups, their members and what they have committed (ListGroups, DescribeGroups,
    OffsetFetch, OffsetCommit, DeleteGroups), by librdkafka."""
    TRANSACTION = enum.auto()
    """Taking a transactional id, and writing in a transaction (InitProducerId, Produce, EndTxn), by
    librdkafka."""
    SOURCE = enum.auto()
    """Spark's reading of the input, by Kafka's Java client."""


class Action(enum.Enum):
    """What follows from an answer about anything but a batch."""

    DONE = enum.auto()
    """The request was carried out."""
    RETRY = enum.auto()
    """It passes by itself: repeat the request after a pause."""
    RETRY_BRIEFLY = enum.auto()
    """It passes if the topic was just created, and never if it was deleted."""
    GO_WITHOUT = enum.auto()
    """The answer is not available, or not allowed: the caller goes on without it."""
    FENCED = enum.auto()
    """Another process has a newer epoch of the producer id: stop."""
    FAIL = enum.auto()
    """Nothing will change without a person's help."""

    @property
    def is_waited_for(self) -> bool:
        """Whether a reader with enough time waits: the obstacle may pass by itself."""
        return self in {Action.RETRY, Action.RETRY_BRIEFLY}


@dataclass(frozen=True, slots=True)
class Meaning:
    name: str  # kafka's name of the code
    answer: Answer  # the meaning for a batch
    stale_metadata: bool = False  # whether the partition probably has a new leader
    # whether to give up after a few: the batch itself may be the cause
    limited: bool = False
    # what follows for other requests; for those without an entry `FAIL` or the one in `_OTHERWISE`
    follows: Mapping[Action, Request] = field(default_factory=dict)
    hint: str = ""  # a possible cause, which is added to the error


def _of_no_batch(name: str, follows: Mapping[Action, Request]) -> Meaning:
    return Meaning(name, Answer.UNKNOWN, limited=True, follows=follows)


NO_ERROR: Final = 0
_REQUEST_TIMED_OUT: Final = 7

_RETRY: Final = Action.RETRY
_ABOUT_TOPICS: Final = Request.TOPICS | Request.TOPIC_IDS | Request.TOPIC_CONFIGS
_OF_SUBSCRIPTIONS: Final = Request.POSITION | Request.GROUPS | Request.TRANSACTION
_ADMIN: Final = _ABOUT_TOPICS | Request.TOPIC_OF_JOB | _OF_SUBSCRIPTIONS
_CREATION: Final = Request.TOPIC_OF_JOB | Request.TOPIC_OF_DAEMON
_IDENTITY: Final = Request.INIT_PRODUCER_ID | Request.FIND_COORDINATOR
_WIRE: Final = _IDENTITY | Request.DESCRIBE_CONFIGS | Request.DESCRIBE_PRODUCERS | Request.READ
_PARTITIONS: Final = Request.READ | Request.DESCRIBE_PRODUCERS | Request.WATERMARKS
_READERS: Final = Request.READ | _ADMIN | Request.SOURCE

_OTHERWISE: Final = {
    Request.LOGIN: Action.RETRY,
    Request.DESCRIBE_PRODUCERS: Action.GO_WITHOUT,
}
"""What follows from codes without a word on the request. A login is refused by few errors, and
most are of connections; a partition whose broker does not describe producers is read instead."""

MEANINGS: Final[dict[int, Meaning]] = {
    NO_ERROR: Meaning("NONE", Answer.PERSISTED, follows={Action.DONE: ~Request(0)}),
    # Kafka's consumers ask again (OffsetFetcherUtils, AbstractFetch): the log is as it was.
    -1: Meaning(
        "UNKNOWN_SERVER_ERROR", Answer.UNKNOWN, limited=True, follows={_RETRY: Request.READ}
    ),
    # The log was truncated during the read.
    1: _of_no_batch(
        "OFFSET_OUT_OF_RANGE", {_RETRY: Request.READ, Action.GO_WITHOUT: Request.POSITION}
    ),
    2: Meaning("CORRUPT_MESSAGE", Answer.RETRIABLE, limited=True),
    # A topic that was just created has this for a moment, and a deleted one for ever.
    3: Meaning(
        "UNKNOWN_TOPIC_OR_PARTITION",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={
            _RETRY: _WIRE | Request.WATERMARKS | Request.SOURCE,
            Action.RETRY_BRIEFLY: Request.POSITION
            | Request.TOPICS
            | Request.TOPIC_CONFIGS
            | Request.TOPIC_OF_JOB,
            Action.GO_WITHOUT: Request.TOPIC_IDS,
        },
    ),
    5: Meaning(
        "LEADER_NOT_AVAILABLE",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={_RETRY: _WIRE | _READERS | Request.WATERMARKS},
    ),
    6: Meaning(
        "NOT_LEADER_OR_FOLLOWER",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={_RETRY: _WIRE | _READERS | Request.WATERMARKS},
    ),
    _REQUEST_TIMED_OUT: Meaning(
        "REQUEST_TIMED_OUT",
        Answer.UNKNOWN,
        follows={_RETRY: _WIRE | _READERS | _CREATION | Request.WATERMARKS},
    ),
    8: _of_no_batch(
        "BROKER_NOT_AVAILABLE", {_RETRY: _ADMIN | Request.TOPIC_OF_DAEMON | Request.SOURCE}
    ),
    9: Meaning(
        "REPLICA_NOT_AVAILABLE",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={
            _RETRY: _PARTITIONS | Request.TOPICS | Request.SOURCE,
        },
    ),
    10: Meaning("MESSAGE_TOO_LARGE", Answer.TOO_LARGE),
    13: Meaning(
        "NETWORK_EXCEPTION",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={_RETRY: _ADMIN | Request.TOPIC_OF_DAEMON | Request.SOURCE},
    ),
    14: Meaning(
        "COORDINATOR_LOAD_IN_PROGRESS",
        Answer.UNKNOWN,
        follows={_RETRY: _WIRE | _ADMIN},
    ),
    15: _of_no_batch(
        "COORDINATOR_NOT_AVAILABLE",
        {_RETRY: _WIRE | _ADMIN | Request.SOURCE},
    ),
    16: _of_no_batch(
        "NOT_COORDINATOR",
        {_RETRY: _WIRE | Request.SOURCE | Request.GROUPS | Request.TRANSACTION},
    ),
    17: Meaning("INVALID_TOPIC_EXCEPTION", Answer.REFUSED),
    18: Meaning("RECORD_LIST_TOO_LARGE", Answer.TOO_LARGE),
    19: Meaning("NOT_ENOUGH_REPLICAS", Answer.RETRIABLE, follows={_RETRY: _WIRE | Request.SOURCE}),
    # The leader appended it, but replicas were too slow: a retry is answered as a duplicate.
    20: Meaning("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Answer.UNKNOWN, follows={_RETRY: _WIRE}),
    21: Meaning("INVALID_REQUIRED_ACKS", Answer.UNFIT),
    25: _of_no_batch("UNKNOWN_MEMBER_ID", {}),
    29: Meaning(
        "TOPIC_AUTHORIZATION_FAILED",
        Answer.FORBIDDEN,
        follows={
            Action.GO_WITHOUT: Request.TOPIC_CONFIGS | Request.TOPIC_IDS,
            Action.FAIL: Request.DESCRIBE_PRODUCERS,
        },
        hint=": the right WRITE is missing",
    ),
    # A reader with a group's name reads on without it.
    30: _of_no_batch("GROUP_AUTHORIZATION_FAILED", {Action.GO_WITHOUT: Request.POSITION}),
    31: Meaning(
        "CLUSTER_AUTHORIZATION_FAILED",
        Answer.FORBIDDEN,
        follows={
            Action.GO_WITHOUT: Request.TOPIC_CONFIGS,
            Action.FAIL: Request.LOGIN | Request.DESCRIBE_PRODUCERS,
        },
        hint=": the right IDEMPOTENT_WRITE is missing",
    ),
    # One record out of bounds has the whole batch refused.
    32: Meaning(
        "INVALID_TIMESTAMP",
        Answer.MISDATED,
        hint=": is this machine's clock ahead of the brokers'?",
    ),
    33: _of_no_batch("UNSUPPORTED_SASL_MECHANISM", {Action.FAIL: Request.LOGIN}),
    34: _of_no_batch("ILLEGAL_SASL_STATE", {Action.FAIL: Request.LOGIN}),
    35: Meaning("UNSUPPORTED_VERSION", Answer.UNFIT),
    36: _of_no_batch("TOPIC_ALREADY_EXISTS", {Action.DONE: _CREATION}),
    # There are fewer live brokers than a topic needs. Or the cluster has no more, which a user who
    # has just given the number to a daemon must learn at once.
    38: _of_no_batch("INVALID_REPLICATION_FACTOR", {_RETRY: _ADMIN}),
    41: _of_no_batch("NOT_CONTROLLER", {_RETRY: _WIRE | _ADMIN | Request.TOPIC_OF_DAEMON}),
    42: Meaning("INVALID_REQUEST", Answer.UNFIT),
    43: Meaning("UNSUPPORTED_FOR_MESSAGE_FORMAT", Answer.UNFIT),
    44: Meaning("POLICY_VIOLATION", Answer.REFUSED),
    45: Meaning("OUT_OF_ORDER_SEQUENCE_NUMBER", Answer.OUT_OF_ORDER),
    46: Meaning("DUPLICATE_SEQUENCE_NUMBER", Answer.DUPLICATE),
    47: Meaning(
        "INVALID_PRODUCER_EPOCH",
        Answer.FENCED,
        follows={Action.FENCED: Request.INIT_PRODUCER_ID | Request.TRANSACTION},
    ),
    48: _of_no_batch("INVALID_TXN_STATE", {}),
    49: _of_no_batch("INVALID_PRODUCER_ID_MAPPING", {}),
    50: _of_no_batch("INVALID_TRANSACTION_TIMEOUT", {}),
    # The coordinator is busy with another request of ours.
    51: _of_no_batch(
        "CONCURRENT_TRANSACTIONS",
        {
            _RETRY: _IDENTITY
            | Request.DESCRIBE_CONFIGS
            | Request.DESCRIBE_PRODUCERS
            | Request.TRANSACTION
        },
    ),
    # Without the right to its name, a producer has a new identity in each life.
    53: _of_no_batch("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", {Action.GO_WITHOUT: _IDENTITY}),
    # The disk failed during the append: bytes may have reached it.
    56: Meaning(
        "KAFKA_STORAGE_ERROR",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={_RETRY: _WIRE | _READERS | Request.WATERMARKS},
    ),
    58: _of_no_batch("SASL_AUTHENTICATION_FAILED", {Action.FAIL: Request.LOGIN}),
    59: Meaning("UNKNOWN_PRODUCER_ID", Answer.FORGOTTEN),
    # Brokers of Kafka 4 say so where others describe a group without members.
    69: _of_no_batch("GROUP_ID_NOT_FOUND", {Action.GO_WITHOUT: Request.GROUPS}),
    # The leader cannot be reached by this listener: brokers learn listeners one by one.
    72: _of_no_batch("LISTENER_NOT_FOUND", {_RETRY: _ADMIN | Request.SOURCE}),
    74: Meaning(
        "FENCED_LEADER_EPOCH",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={_RETRY: _READERS | _PARTITIONS},
    ),
    75: Meaning(
        "UNKNOWN_LEADER_EPOCH",
        Answer.UNKNOWN,
        stale_metadata=True,
        follows={_RETRY: _READERS | _PARTITIONS},
    ),
    76: Meaning("UNSUPPORTED_COMPRESSION_TYPE", Answer.UNFIT),
    78: _of_no_batch("OFFSET_NOT_AVAILABLE", {_RETRY: _READERS | _PARTITIONS}),
    87: Meaning(
        "INVALID_RECORD",
        Answer.TOO_LARGE,
        hint=": is the topic compacted? Then it takes no record without a key",
    ),
    89: Meaning("THROTTLING_QUOTA_EXCEEDED", Answer.UNKNOWN),
    90: Meaning(
        "PRODUCER_FENCED",
        Answer.FENCED,
        follows={Action.FENCED: Request.INIT_PRODUCER_ID | Request.TRANSACTION},
    ),
    120: _of_no_batch("TRANSACTION_ABORTABLE", {}),
    # librdkafka's own codes. -140: the records at a position are gone. -144: a transactional id is
    # fenced.
    -140: _of_no_batch("_AUTO_OFFSET_RESET", {Action.GO_WITHOUT: Request.POSITION}),
    -144: _of_no_batch("_FENCED", {Action.FENCED: Request.TRANSACTION}),
    # Brokers are away, no leader could be asked, or partitions were created or moved after
    # librdkafka's last metadata request.
    -156: _of_no_batch("_NOENT", {_RETRY: _ADMIN | _CREATION}),
    -166: _of_no_batch("_TIMED_OUT_QUEUE", {_RETRY: _ADMIN | _CREATION}),
    # An earlier call that timed out goes on in the background.
    -173: _of_no_batch("_CONFLICT", {_RETRY: Request.TRANSACTION}),
    -177: _of_no_batch("_PREV_IN_PROGRESS", {_RETRY: Request.TRANSACTION}),
    # A group's coordinator does not answer, or is unknown.
    -180: _of_no_batch("_WAIT_COORD", {_RETRY: Request.GROUPS}),
    -185: _of_no_batch("_TIMED_OUT", {_RETRY: _ADMIN | _CREATION}),
    -187: _of_no_batch("_ALL_BROKERS_DOWN", {_RETRY: _ADMIN | _CREATION}),
    -188: _of_no_batch("_UNKNOWN_TOPIC", {Action.RETRY_BRIEFLY: _ADMIN}),
    -190: _of_no_batch("_UNKNOWN_PARTITION", {Action.RETRY_BRIEFLY: _ADMIN}),
    -193: _of_no_batch("_RESOLVE", {_RETRY: _ADMIN | _CREATION}),
    -195: _of_no_batch("_TRANSPORT", {_RETRY: _ADMIN | _CREATION}),
}

FORBIDDEN_TOPIC: Final = MEANINGS[29]
"""Metadata leave out a topic for this reason."""


def meaning_of(code: int) -> Meaning:
    """Return the row of `code`. For an unknown code, it says that nothing is known."""
    known = MEANINGS.get(code)
    return known or _of_no_batch(f"error code {code}", {})


def action_of(request: Request, code: int) -> Action:
    meaning = meaning_of(code)
    for action, requests in meaning.follows.items():
        if request in requests:
            return action
    return _OTHERWISE.get(request, Action.FAIL)


def ends_client(code: int) -> bool:
    """Tell whether librdkafka's client stops for good: its `_FATAL`, for any first error."""
    return code == _ENDS_CLIENT


def codes_of(request: Request, action: Action) -> list[int]:
    return [code for code in MEANINGS if action_of(request, code) is action]


def java_exception(code: int) -> str:
    """Return the name of the Java client's exception for a code, without its package."""
    name = MEANINGS[code].name
    if code == _REQUEST_TIMED_OUT:
        return "TimeoutException"
    words = name.removesuffix("_ERROR").removesuffix("_EXCEPTION").split("_")
    return "".join(word.capitalize() for word in words) + "Exception"
