"""Every error that Sequitur raises on purpose.

All descend from `SequiturError` but the two that a bolt is not to catch by chance, or raises as a
request: `BoltTimeoutError` and `FailBatch`. All can be pickled. `__all__` leaves out those that
only a command or the daemon raises, since no program gets them.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "AckBeyondEndError",
    "BacklogQuotaError",
    "BoltCrashError",
    "BoltError",
    "BoltStateError",
    "BoltTimeoutError",
    "BrokerError",
    "BrokerUnreachableError",
    "BufferFullError",
    "CheckpointError",
    "ColumnsError",
    "ConnectorMissingError",
    "ConservationError",
    "ConsumerError",
    "ControlRecordError",
    "CumulativeAckError",
    "CursorChunksError",
    "CursorDamagedError",
    "CursorError",
    "CursorVersionError",
    "DataLossError",
    "DeliveryError",
    "DoubleAckError",
    "EmitError",
    "EventTimeSpecError",
    "FailBatch",
    "FatalError",
    "FencedError",
    "ForeignCursorError",
    "ForeignTupleError",
    "JarError",
    "JavaError",
    "JournalBusyError",
    "JournalClosedError",
    "JournalCorruptError",
    "JournalError",
    "JournalFailedError",
    "JournalFullError",
    "JournalLockedError",
    "JournalNameError",
    "JournalVersionError",
    "KeyedStateError",
    "LateRowError",
    "LogRangeError",
    "LostRowsError",
    "MalformedEventIdError",
    "MarkDeleteBackError",
    "MissingExtraError",
    "NameNotAllowedError",
    "NotAllPersistedError",
    "NotPersistedError",
    "OutcomeUnknownError",
    "OutputMismatchError",
    "OwnershipError",
    "PipelineError",
    "PolicyError",
    "PositionFormatError",
    "PositionRangeError",
    "PossiblyPersistedError",
    "ProducerClosedError",
    "ProducerError",
    "RegistryError",
    "ReorderError",
    "RequestUnknownError",
    "RetriableError",
    "RowRefusedError",
    "SendManyError",
    "SendRefusedError",
    "SendUnansweredError",
    "SequiturError",
    "SettingsError",
    "SinkError",
    "SinkUnansweredError",
    "StateConflictError",
    "StateError",
    "StateFormatError",
    "StateOvertakenError",
    "StateOwnerError",
    "StateUnavailableError",
    "StateValueError",
    "StepFunctionError",
    "SubscriptionClosedError",
    "SubscriptionConnectedError",
    "SubscriptionError",
    "SubscriptionExistsError",
    "SubscriptionFencedError",
    "SubscriptionNameError",
    "TakenOverError",
    "TaskDiedError",
    "TaskFailedError",
    "TopicError",
    "TopologyBuildError",
    "TopologyError",
    "TopologyFileError",
    "TopologyTaskError",
    "TransactionError",
    "TransactionMetadataError",
    "TransactionOrderError",
    "UnansweredError",
    "UngroupableValueError",
    "UnreadableHeadersError",
    "WrongBatchError",
    "WrongClusterError",
    "WrongRecordError",
    "WrongThreadError",
]


class SequiturError(Exception):
    """Base of all errors that Sequitur raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how to pickle it: constructors take what the message is made of, not the message."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[SequiturError], args: tuple[Any, ...], state: dict[str, Any]
) -> SequiturError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class MissingExtraError(SequiturError, ImportError):
    """A package is not installed. The message names the extra that installs it."""


class ProducerError(SequiturError):
    """Base of the errors of the producer, of requests to brokers, and of settings."""


class ControlRecordError(ProducerError, ValueError):
    """A record of the control topic of backlog quotas cannot be read.

    Attributes:
        record: Which record it is.
    """

    def __init__(self, record: str, reason: str) -> None:
        self.record = record
        super().__init__(f"control record, {record}: {reason}")


class ProducerClosedError(ProducerError):
    """The producer was not started, or is closed. The event was not accepted."""


class WrongThreadError(ProducerError, RuntimeError):
    """The call came from another event loop than the producer's. Nothing was done."""


class SendManyError(ProducerError):
    """`send_many` ended before the last event. The exception's cause says why.

    That is what the iterable or a serializer raised, a `TypeError` for an event of a wrong type, or
    a `BacklogQuotaError`.
    When `send_many` was cancelled, this error is itself the cause of the `CancelledError`.

    Attributes:
        ticket: The `Ticket` of the events that were accepted before. Await it for their outcomes.
    """

    def __init__(self, ticket: Any) -> None:
        super().__init__(f"send_many ended early, after {ticket.accepted} events were accepted")
        self.ticket = ticket


class DeliveryError(ProducerError):
    """An event is not, or not surely, in the log. The message says why."""


class NotPersistedError(DeliveryError):
    """The event is not in the log and never will be. Sending it again makes no duplicate."""


class PossiblyPersistedError(DeliveryError):
    """The event was sent and no answer came: it may be in the log, once, now or later."""


class NotAllPersistedError(DeliveryError):
    """Some events of a ticket, or of `send_nowait`, are not surely in the log.

    Attributes:
        result: The `TicketResult`: how many are, and which are not.
    """

    def __init__(self, result: Any) -> None:
        first = f", the first: {result.failures[0].outcome}" if result.failures else ""
        super().__init__(
            f"of {result.accepted} events {result.not_persisted} are not persisted and "
            f"{result.possibly_persisted} only possibly{first}"
        )
        self.result = result


class BrokerError(ProducerError):
    """A request to a broker failed."""


class RetriableError(BrokerError):
    """The request failed and was not carried out. It may succeed later."""


class BrokerUnreachableError(RetriableError):
    """No broker answers at the given addresses."""


class BacklogQuotaError(RetriableError):
    """The topic is over its backlog quota: the event was not accepted.

    Attributes:
        topic: The topic.
        state: The figures: `policy`, `subscription`, `backlog_bytes`, `limit_bytes`, `age_s` and
            `limit_s`.
    """

    def __init__(self, topic: str, state: Any, *, held: bool) -> None:
        self.topic = topic
        self.state = state
        waited = ", also after a wait of delivery_timeout" if held else ""
        super().__init__(f"topic {topic} takes no events{waited} ({state.policy}): {state.figures}")


class BufferFullError(RetriableError):
    """`send_nowait` would have to wait: the event was not accepted, and `send` waits for it.

    Attributes:
        topic: Where it was to go.
    """

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"an event for {topic} would have to wait ({reason}): await send for it")
        self.topic = topic


class OutcomeUnknownError(BrokerError):
    """The request got no answer. The broker may have carried it out."""


class UnreadableHeadersError(BrokerError):
    """A record has a header whose name is not UTF-8, and was deleted before it was read whole."""


class FatalError(BrokerError):
    """The request failed, and will fail until rights, settings or versions change."""


class RequestUnknownError(FatalError):
    """The broker does not know the request: it is too old, or not Apache Kafka."""


class TakenOverError(FatalError):
    """Another process has taken over the producer's name. This one may no longer send.

    Attributes:
        transactional_id: The transactional id of the name.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        super().__init__(
            f"another process has taken over this name ({transactional_id}): one producer at a "
            "time may have a name, so end the other one, or give this one a name and a journal "
            "of its own"
        )


class WrongClusterError(FatalError):
    """The journal belongs to another cluster.

    Attributes:
        journal_has: The id of the cluster that the journal's events were for.
        found: The id of the cluster that answers.
    """

    def __init__(self, journal_has: str, found: str) -> None:
        self.journal_has = journal_has
        self.found = found
        super().__init__(
            f"the journal belongs to cluster {journal_has}, and this is cluster {found}: give the "
            "addresses of the former, or set accept_new_cluster to send what the journal holds to "
            "this one"
        )


class NameNotAllowedError(FatalError):
    """The producer has no right to the transactional id of its name."""


class LogRangeError(FatalError):
    """A partition's log no longer has the offset to read from."""


class ReadTooLargeError(FatalError):
    """What was to be read has more bytes than its reader takes.

    Attributes:
        most_bytes: How many that are.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        super().__init__(f"more than {most_bytes} bytes, once unpacked, were to be read")


class SettingsError(ProducerError, ValueError):
    """Settings are unknown, missing or wrong. The message names each of them."""


class MalformedEventIdError(ProducerError, ValueError):
    """A header's value is not an event id, or a producer's name cannot be part of one."""


class WrongRecordError(SequiturError, TypeError):
    """One of several records is of a wrong type.

    Attributes:
        index: Its place among them.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"event {index}: {reason}")
        self.index = index


class JournalError(ProducerError):
    """Base of the journal's errors."""


class JournalClosedError(JournalError):
    """The producer was closed, or failed, before the journal had the awaited events.

    They may be in the journal or not: their outcomes tell.
    """


class JournalBusyError(JournalError):
    """Too many files are open, so the journal cannot be read now. It is not damaged.

    Files are closed again: try later.
    """


class JournalFullError(JournalError):
    """The batches do not fit below the size limit, or the disk is full.

    Nothing of the round was written. Acks make room: append their marks, call `sync` and
    `reclaim`, try again.
    """


class JournalLockedError(JournalError):
    """Another process holds the journal.

    Attributes:
        directory: the journal's directory.
        pid: the holder's process id, or None when its lock file does not say.
    """

    def __init__(self, directory: str, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"journal {directory} is held by {holder}. A producer name belongs to one process at "
            "a time"
        )


class JournalNameError(JournalError):
    """The journal was written under another producer name."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            f"the journal belongs to producer {found!r}, not to {expected!r}. Give each producer "
            "name a directory of its own"
        )


class JournalVersionError(JournalError):
    """The journal was written in another format than this version reads."""

    def __init__(self, segment: str, found: int, known: int) -> None:
        self.segment = segment
        self.found = found
        self.known = known
        age = "newer" if found > known else "older"
        super().__init__(
            f"{segment} has journal format version {found}; this version reads {known}: let the "
            f"{age} version that wrote it send what it holds (`sequitur journal show` then "
            "has no un-acked batches), and give this version an empty directory. Or start "
            f"the {age} version"
        )


class JournalCorruptError(JournalError):
    """Bytes that were synced cannot be read. Continuing would lose events.

    Attributes:
        segment: the segment's file name.
        offset: where the damage begins, bytes.
        lost: what cannot be read.
        follows: what can still be read behind it.
    """

    def __init__(self, segment: str, offset: int, lost: str, follows: str) -> None:
        self.segment = segment
        self.offset = offset
        self.lost = lost
        self.follows = follows
        super().__init__(f"{segment} is damaged at offset {offset}: {lost}; {follows}")


class JournalFailedError(JournalError):
    """A write or a sync failed, so what the disk holds is unknown until the next open.

    After a failed sync the kernel may have dropped the dirty pages and would report the next
    sync as a success; therefore the journal refuses everything from then on.
    """


class SourceError(ProducerError):
    """A source cannot be read. Base of the errors of sources."""


class SourceSpecError(SourceError, ValueError):
    """The setting `source` does not name a source."""


class KeySpecError(SourceError, ValueError):
    """The setting `key` does not name a place in an event."""


class PositionError(SourceError):
    """The journal has a position that this source cannot resume from."""


class LostFileError(SourceError):
    """A file that was read up to a position is gone, or was cut, before it was read to its end."""


class DeadLettersFullError(SourceError):
    """No entry can be written: the dead-letter file has reached its limit, or its disk fails."""


class NoRoomError(SourceError):
    """The producer's buffer stayed full. Nothing was accepted."""


class StoppingError(SourceError):
    """The daemon stops, and had no room before. Nothing was accepted."""


class ConsumerError(SequiturError):
    """Base of the errors of event times, topologies, states and cursors."""


class EventTimeSpecError(ConsumerError, ValueError):
    """An event-time setting does not have a known form."""


class StateFormatError(ConsumerError):
    """A state document was written by another program, or by a newer version."""


class ConservationError(ConsumerError):
    """The counts of rows do not add up. This is never expected, and stops the job."""


class CursorError(ConsumerError):
    """Base of every error about a subscription's cursor."""


class AckBeyondEndError(CursorError, ValueError):
    """An ack or a read position is after the end of the partition. Nothing was changed."""


class MarkDeleteBackError(CursorError, ValueError):
    """A cumulative ack goes back: all up to a later offset is acked. Nothing was changed."""


class CumulativeAckError(CursorError, ValueError):
    """Subscriptions of the types Shared and Key_Shared take only individual acks, as in Pulsar."""


class CursorDamagedError(CursorError, StateFormatError):
    """The bytes or the text are not a cursor, or were cut or changed since they were written."""


class CursorVersionError(CursorError, StateFormatError):
    """The cursor was written in a format that this version does not know."""


class ForeignCursorError(CursorError, StateFormatError):
    """The cursor belongs to another subscription, topic or partition."""


class CursorChunksError(CursorError, StateFormatError):
    """Chunks are missing, duplicate, or of another generation than the pointer's."""


class PositionFormatError(ConsumerError, ValueError):
    """A position, or a time to reset to, does not have a known form."""


class PositionRangeError(ConsumerError, ValueError):
    """A position names a topic, partition or offset that does not exist. Nothing was changed."""


class RegistryError(ConsumerError):
    """Base of every error about the registry of subscriptions and its policies."""


class PolicyError(RegistryError, ValueError):
    """A policy is not one of Pulsar's, or its text cannot be read."""


class SubscriptionNameError(RegistryError, ValueError):
    """The name cannot be the name of a consumer group and its member."""


class SubscriptionExistsError(RegistryError):
    """A subscription of that name exists already."""


class UnknownSubscriptionError(RegistryError):
    """There is no subscription of that name."""


class SubscriptionChangedError(RegistryError):
    """The subscription was reset or recreated since the caller read it. Nothing was changed."""


class SubscriptionConnectedError(RegistryError):
    """The subscription has a consumer, which keeps it."""


class TopologyError(ConsumerError):
    """Base of every error about a topology."""


class TopologyBuildError(TopologyError):
    """The topology is not valid. The message names the component."""


class EmitError(TopologyError):
    """A bolt emitted to a stream, or with fields, that it did not declare."""


class UngroupableValueError(TopologyError):
    """`fields_grouping` got a value of a type that Sequitur cannot compare.

    That is so for all events, so it fails none of them, and ends the job.
    """


class DoubleAckError(TopologyError):
    """A tuple was acked or failed for the second time."""


class ForeignTupleError(TopologyError):
    """A tuple was acked, failed or anchored to by a bolt it was not delivered to."""


class BoltError(TopologyError):
    """A bolt's `prepare`, `restore` or `snapshot` raised, or a grouping's `prepare`.

    There is no tuple to fail for it.
    """


class BoltStateError(TopologyError):
    """A bolt's snapshot cannot be pickled."""


class KeyedStateError(TopologyError):
    """A key's state or timer is not valid, too large, or of a call that is over."""


class TimerLoopError(KeyedStateError):
    """A thousand timers of a key in a row were due as soon as they were set."""


class TransactionError(TopologyError):
    """A transaction failed too often. The next start of the job repeats it."""


class TransactionOrderError(TopologyError):
    """A transaction was emitted, failed or committed out of turn. The message names it."""


class TransactionMetadataError(TopologyError):
    """A transaction's metadata is damaged, of a newer version, or not a JSON value."""


class BoltTimeoutError(BaseException):
    """Raised in a bolt's call that took too long. Not an `Exception`, so no bolt catches it.

    Never leaves the executor: the tuple fails, with reason `timeout`.
    """


class FailBatch(Exception):  # noqa: N818 - Storm's FailedException; it asks for something
    """Raised by a bolt to fail this attempt of its batch. The batch is tried again."""


class StateError(TopologyError):
    """A state, a store or its address is not valid, or the database refuses it for good."""


class StateOwnerError(StateError):
    """The database is not as this topology's job left it.

    It belongs to another checkpoint, was lost or restored from a backup, or a table is that of
    another topology, component, kind or type.
    """


class StateOvertakenError(StateError):
    """A newer attempt or transaction has committed. This task is outdated, and must end."""


class StateConflictError(StateError):
    """Two tasks of one component updated the same key in the same transaction."""


class StateValueError(StateError, ValueError):
    """A key or value does not fit its type or column. The message names state and key.

    Attributes:
        keys: The keys whose rows are refused, where that is known.
        is_key: Whether it is the keys themselves, and not the values.
    """

    def __init__(self, message: str, keys: tuple[Any, ...] = (), *, is_key: bool = False) -> None:
        super().__init__(message)
        self.keys = keys
        self.is_key = is_key


class StateUnavailableError(StateError):
    """The database is not available now. Trying again may help.

    If the answer to a commit was lost, the batch may be written in whole; its repeat settles it.
    """


class PipelineError(SequiturError):
    """Base of the errors of jobs, checkpoints, sinks and open subscriptions."""


class JavaError(PipelineError):
    """This machine has no Java that can run Kafka and Spark."""


class JarError(PipelineError):
    """Some of the locked jars are missing."""


class JarFetchError(JarError):
    """A jar of the lock could not be fetched."""


class JarHashError(JarError):
    """A jar's SHA-256 differs from the one in the lock; the file has been removed."""


class ReorderError(PipelineError):
    """The reorder job cannot continue."""


class ConnectorMissingError(ReorderError):
    """Spark was started without its Kafka connector."""


class TopicError(ReorderError):
    """A topic is missing, or does not have the settings that the job needs."""


class UnansweredError(TopicError):
    """The brokers did not answer within `patience`. They may answer later."""


class DataLossError(TopicError):
    """Kafka deleted rows of an input topic before they were read."""


class SinkError(ReorderError):
    """A step's rows could not be written. The next run writes the missing rows."""


class SinkUnansweredError(SinkError):
    """A step's rows could not be written: brokers do not answer, but may later."""


class SendUnansweredError(SinkUnansweredError):
    """The brokers did not answer a task within its patience. They may answer later."""


class SendRefusedError(SinkUnansweredError):
    """A topic refuses a row by its present settings. The step waits until it takes it."""


class FencedError(SinkError):
    """A newer process of this job has written where this one was about to."""


class ColumnsError(SinkError):
    """A DataFrame lacks columns that a sink needs, or has other types."""


class RowRefusedError(SinkError):
    """A topic does not take a row of a batch. No row of the batch was written."""


class OutputMismatchError(ReorderError):
    """An output topic does not hold what the checkpoint says, or nobody knows whether it does."""


class LostRowsError(OutputMismatchError):
    """An output topic lacks rows that its brokers had acknowledged."""


class LateRowError(ReorderError):
    """A row is late, and the late policy is `fail`. No row of its step was released."""


class StepFunctionError(ReorderError):
    """A job's step function raised. The next start calls it with the same step."""


class SubscriptionError(ReorderError):
    """A subscription belongs to another job, is in use, or its cursors do not fit."""


class SubscriptionFencedError(SubscriptionError):
    """Another process has taken over the subscription. Acks of this process no longer count."""


class SubscriptionClosedError(SubscriptionError):
    """The subscription was closed: open it again."""


class BoltCrashError(ReorderError):
    """The process of a task dies again and again, and no single event causes it."""


class TaskFailedError(ReorderError):
    """A task without Spark raised an exception. A note has its traceback."""


class TaskDiedError(ReorderError):
    """The process of a task without Spark died in each attempt."""


class TopologyTaskError(ReorderError):
    """A task cannot continue, for another reason than a tuple: a bolt cannot prepare."""


class TopologyFileError(ReorderError):
    """A file has no valid topology, or the topology does not fit the job's settings."""


class CheckpointError(ReorderError):
    """A checkpoint belongs to another job or a newer version, or its parts do not fit together."""


class OwnershipError(CheckpointError):
    """Another process owns the checkpoint. Trying again at once does not help."""


class WrongBatchError(CheckpointError):
    """A sink's checkpoint belongs to another stream, or is at another batch."""


class BrokerStartError(SequiturError):
    """The embedded broker did not start, or does not run."""


class PortInUseError(BrokerStartError):
    """Another program has the embedded broker's port."""


class UnknownTopicError(SequiturError):
    """The brokers do not know a topic that was named."""


class UnknownRecordError(SequiturError):
    """There is no record at the named place in a topic, or no longer."""


class NotADeadLetterError(SequiturError):
    """A record of the dead-letter topic was not written by the process job."""


class DemoError(SequiturError):
    """A part of the demo ended with an error, or its result is wrong."""


NOT_THE_USERS: Final = (KeyboardInterrupt, BoltTimeoutError)
"""What may come out of a call of a user's code and is not an error of that code."""
