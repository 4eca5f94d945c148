"""Every error that Sequitur raises on purpose.

All descend from `SequiturError` but the two that a bolt is not to catch by chance, or raises as a
request: `BoltTimeoutError` and `FailBatch`. All can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sequitur.kafka.control import BacklogState
    from sequitur.producer._outcome import Ticket, TicketResult

__all__ = [
    "AckBeyondEndError",
    "BacklogQuotaError",
    "BoltCrashError",
    "BoltError",
    "BoltStateError",
    "BoltTimeoutError",
    "BrokerError",
    "BrokerStartError",
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
    "DeadLettersFullError",
    "DeliveryError",
    "DemoError",
    "DoubleAckError",
    "EmitError",
    "EventTimeSpecError",
    "FailBatch",
    "FatalError",
    "FencedError",
    "ForeignCursorError",
    "ForeignTupleError",
    "JarError",
    "JarFetchError",
    "JarHashError",
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
    "KeySpecError",
    "LateRowError",
    "LogRangeError",
    "LostFileError",
    "LostRowsError",
    "MalformedEventIdError",
    "MarkDeleteBackError",
    "MissingExtraError",
    "NameNotAllowedError",
    "NoRoomError",
    "NotADeadLetterError",
    "NotAllPersistedError",
    "NotPersistedError",
    "OutcomeUnknownError",
    "OutputMismatchError",
    "OwnershipError",
    "PipelineError",
    "PolicyError",
    "PortInUseError",
    "PositionError",
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
    "SourceError",
    "SourceSpecError",
    "StateConflictError",
    "StateError",
    "StateFormatError",
    "StateOvertakenError",
    "StateOwnerError",
    "StateUnavailableError",
    "StateValueError",
    "StepFunctionError",
    "StoppingError",
    "SubscriptionChangedError",
    "SubscriptionClosedError",
    "SubscriptionConnectedError",
    "SubscriptionError",
    "SubscriptionExistsError",
    "SubscriptionFencedError",
    "SubscriptionNameError",
    "TakenOverError",
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
    "UnknownRecordError",
    "UnknownSubscriptionError",
    "UnknownTopicError",
    "UnreadableHeadersError",
    "WrongBatchError",
    "WrongClusterError",
    "WrongRecordError",
    "WrongThreadError",
]


class SequiturError(Exception):
    """Base of every error that Sequitur raises on purpose."""

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
    """A package is not installed; the message names the extra of `sequitur` that brings it."""


class ProducerError(SequiturError):
    """Base of every error this package raises on purpose."""


class ControlRecordError(ProducerError, ValueError):
    """A record of the control topic of backlog quotas cannot be read.

    Attributes:
        record: Which record it is.
    """

    def __init__(self, record: str, reason: str) -> None:
        self.record = record
        super().__init__(f"control record, {record}: {reason}")


class ProducerClosedError(ProducerError):
    """The producer was not started, or is closed; the event was not accepted."""


class WrongThreadError(ProducerError, RuntimeError):
    """The call belongs to the event loop in which the producer was started; nothing was done."""


class SendManyError(ProducerError):
    """`send_many` ended before the last event; what ended it is chained as the cause.

    That is what the iterable or a serializer raised, a `TypeError` for an event of a wrong type, or
    a `BacklogQuotaError`.
    When `send_many` was cancelled, this error is itself the cause of the `CancelledError`.

    Attributes:
        ticket: The events that were accepted before; await it for their outcomes.
    """

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(f"send_many ended early, after {ticket.accepted} events were accepted")
        self.ticket = ticket


class DeliveryError(ProducerError):
    """An event is not, or not surely, in the log. The message says why."""


class NotPersistedError(DeliveryError):
    """The event is not in the log and will never be; sending it again makes no duplicate."""


class PossiblyPersistedError(DeliveryError):
    """The event was sent and no answer came: it may be in the log, once, now or later."""


class NotAllPersistedError(DeliveryError):
    """Of a ticket's events, or of those of `send_nowait`, not all are surely in the log.

    Attributes:
        result: How many are, and which are not.
    """

    def __init__(self, result: TicketResult) -> None:
        first = f", the first: {result.failures[0].outcome}" if result.failures else ""
        super().__init__(
            f"of {result.accepted} events {result.not_persisted} are not persisted and "
            f"{result.possibly_persisted} only possibly{first}"
        )
        self.result = result


class BrokerError(ProducerError):
    """A request to a broker failed."""


class RetriableError(BrokerError):
    """The request failed and was not carried out; it may succeed later."""


class BrokerUnreachableError(RetriableError):
    """No broker answers at the given addresses."""


class BacklogQuotaError(RetriableError):
    """The topic is over its backlog quota: the event was not accepted.

    Attributes:
        topic: The topic.
        state: The figures: policy, subscription, backlog and limits.
    """

    def __init__(self, topic: str, state: BacklogState, *, held: bool) -> None:
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
    """The request got no answer; it may have been carried out."""


class UnreadableHeadersError(BrokerError):
    """A record has a header whose name is no UTF-8, and was deleted before it was read whole."""


class FatalError(BrokerError):
    """The request failed, and will again until something changes: rights, settings, versions."""


class RequestUnknownError(FatalError):
    """The broker does not know the request: it is too old for it, or another make."""


class TakenOverError(FatalError):
    """Another process has taken over the producer's name: this one may no longer send.

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
    """The transactional id of the producer's name may not be used."""


class LogRangeError(FatalError):
    """A partition's log does not have the offset it was to be read from: what was there is gone."""


class ReadTooLargeError(FatalError):
    """What was to be read has more bytes than its reader takes.

    Attributes:
        most_bytes: How many that are.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        super().__init__(f"more than {most_bytes} bytes, once unpacked, were to be read")


class SettingsError(ProducerError, ValueError):
    """One or more settings are unknown, missing or wrong; the message names each of them."""


class MalformedEventIdError(ProducerError, ValueError):
    """A header value that is no event id, or a producer name that cannot be part of one."""


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
    """Too many files are open, so the journal cannot be read now; it is not damaged.

    Files are closed again: try later.
    """


class JournalFullError(JournalError):
    """The round does not fit below the size limit, or the disk has no space left.

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
            f"journal {directory} is held by {holder}; "
            f"a producer name belongs to one process at a time"
        )


class JournalNameError(JournalError):
    """The journal was written under another producer name."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            f"the journal belongs to producer {found!r}, not to {expected!r}; "
            f"give each producer name a directory of its own"
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
            f"{age} version that wrote it send what it holds (`sequitur journal show` then has no "
            f"un-acked batches), and give this version an empty directory; or start the {age} "
            f"version"
        )


class JournalCorruptError(JournalError):
    """Bytes that were synced cannot be read, and going on would lose what they or others hold.

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
    """Base of the errors of sources; by itself: a source that cannot be read."""


class SourceSpecError(SourceError, ValueError):
    """The setting `source` names no source."""


class KeySpecError(SourceError, ValueError):
    """The setting `key` names no place in an event."""


class PositionError(SourceError):
    """The journal holds a position that this source cannot go on from."""


class LostFileError(SourceError):
    """A file that was read up to a position is gone, or was cut, before it was read to its end."""


class DeadLettersFullError(SourceError):
    """The dead-letter file has reached its limit, or its disk fails: no entry can be written."""


class NoRoomError(SourceError):
    """The producer's buffer stayed full; nothing was accepted."""


class StoppingError(SourceError):
    """The daemon stops, and there was no room before; nothing was accepted."""


class ConsumerError(SequiturError):
    """Base of every error this package raises on purpose."""


class EventTimeSpecError(ConsumerError, ValueError):
    """An event-time setting is not one of the forms understood."""


class StateFormatError(ConsumerError):
    """A state document was written by something else, or by a newer version."""


class ConservationError(ConsumerError):
    """The rows read are not the rows accounted for. Never expected; stops the job."""


class CursorError(ConsumerError):
    """Base of every error about a subscription's cursor."""


class AckBeyondEndError(CursorError, ValueError):
    """An ack, or a read position, lies beyond the end of the partition; nothing was changed."""


class MarkDeleteBackError(CursorError, ValueError):
    """A cumulative ack lies before the mark-delete position; nothing was changed."""


class CumulativeAckError(CursorError, ValueError):
    """Subscriptions of the types Shared and Key_Shared take individual acks only; so in Pulsar."""


class CursorDamagedError(CursorError, StateFormatError):
    """The bytes or the text were cut or changed since they were written, or are no cursor."""


class CursorVersionError(CursorError, StateFormatError):
    """The cursor was written in a format that this version does not know."""


class ForeignCursorError(CursorError, StateFormatError):
    """The cursor is whole, and that of another subscription, topic or partition."""


class CursorChunksError(CursorError, StateFormatError):
    """Chunks are missing, there twice, or of another generation than the pointer names."""


class PositionFormatError(ConsumerError, ValueError):
    """A position, or a time to reset to, is not one of the forms understood."""


class PositionRangeError(ConsumerError, ValueError):
    """A position is of a topic, a partition or an offset that is not there; nothing was changed."""


class RegistryError(ConsumerError):
    """Base of every error about the registry of subscriptions and its policies."""


class PolicyError(RegistryError, ValueError):
    """A policy is not one that Pulsar takes, or its text is not understood."""


class SubscriptionNameError(RegistryError, ValueError):
    """The name cannot be that of a consumer group and of its member."""


class SubscriptionExistsError(RegistryError):
    """A subscription of that name is there already."""


class UnknownSubscriptionError(RegistryError):
    """There is no subscription of that name."""


class SubscriptionChangedError(RegistryError):
    """The subscription was reset or created anew since the caller read it; nothing was changed."""


class SubscriptionConnectedError(RegistryError):
    """The subscription has a consumer, and was not taken away from it."""


class TopologyError(ConsumerError):
    """Base of every error about a topology."""


class TopologyBuildError(TopologyError):
    """The topology makes no sense; the message names the component."""


class EmitError(TopologyError):
    """A bolt emitted to a stream, or with fields, that it has not declared."""


class UngroupableValueError(TopologyError):
    """Tuples are grouped by a value of a type of which it is not known which values are equal.

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


class TransactionError(TopologyError):
    """A transaction failed as often as it may; the next start of the job goes on with it."""


class TransactionOrderError(TopologyError):
    """A transaction was emitted, failed or committed out of its turn; the message names it."""


class TransactionMetadataError(TopologyError):
    """A transaction's metadata is damaged, or of a newer version, or JSON has no form for it."""


class BoltTimeoutError(BaseException):
    """Raised in a bolt's call that has overrun: not an `Exception`, so that bolts do not catch it.

    Never leaves the executor: the tuple fails, with reason `timeout`.
    """


class FailBatch(Exception):  # noqa: N818 - Storm's FailedException; it asks for something
    """Raised by a bolt to fail this try at its batch, and nothing else: there will be another."""


class StateError(TopologyError):
    """A state, a store or its address makes no sense, or the database refuses it for good."""


class StateOwnerError(StateError):
    """The database is not the one that this topology's job left.

    It belongs to another checkpoint, was lost or restored from a backup, or a table is that of
    another topology, component, kind or type.
    """


class StateOvertakenError(StateError):
    """A newer attempt or transaction has committed: this task lives on too long, and must end."""


class StateConflictError(StateError):
    """Two tasks of one component updated the same key in the same transaction."""


class StateValueError(StateError, ValueError):
    """A key or a value does not fit its type or its column; the message names state and key.

    Attributes:
        keys: The keys whose rows are refused, where that is known.
        is_key: Whether it is the keys themselves, and not the values.
    """

    def __init__(self, message: str, keys: tuple[Any, ...] = (), *, is_key: bool = False) -> None:
        super().__init__(message)
        self.keys = keys
        self.is_key = is_key


class StateUnavailableError(StateError):
    """The database does not serve just now: worth trying again.

    If the answer to a commit was lost, the batch may be written in whole; its repeat settles it.
    """


class PipelineError(SequiturError):
    """Base of every error this package raises on purpose."""


class JavaError(PipelineError):
    """There is no Java on this machine that Kafka and Spark can run on."""


class JarError(PipelineError):
    """The locked jars are not all there."""


class JarFetchError(JarError):
    """A jar of the lock could not be fetched."""


class JarHashError(JarError):
    """A jar's SHA-256 differs from the one in the lock; the file has been removed."""


class ReorderError(PipelineError):
    """The reorder job cannot go on."""


class ConnectorMissingError(ReorderError):
    """Spark was started without its Kafka connector."""


class TopicError(ReorderError):
    """A topic is missing, or is not as the job needs it."""


class UnansweredError(TopicError):
    """The brokers do not answer, for as long as patience goes; later they may."""


class DataLossError(TopicError):
    """Rows of an input topic are gone, and were never read."""


class SinkError(ReorderError):
    """A step's rows could not be written. The next run writes what is missing of them."""


class SinkUnansweredError(SinkError):
    """A step's rows could not be written, since brokers do not answer; later they may."""


class SendUnansweredError(SinkUnansweredError):
    """The brokers do not answer a task, for as long as its patience goes; later they may."""


class SendRefusedError(SinkUnansweredError):
    """A topic does not take a row as it is set now: the step waits until it does."""


class FencedError(SinkError):
    """A newer life of the job has written where this one was about to."""


class ColumnsError(SinkError):
    """A DataFrame has not the columns, or not the types, that a sink needs."""


class RowRefusedError(SinkError):
    """A topic does not take a row of a batch; nothing of the batch is out."""


class OutputMismatchError(ReorderError):
    """An output topic does not hold what the checkpoint says, or is not known to."""


class LostRowsError(OutputMismatchError):
    """An output topic lacks rows that its brokers had acknowledged."""


class LateRowError(ReorderError):
    """A row is late, and the late policy is to fail. Nothing of its step is out."""


class StepFunctionError(ReorderError):
    """A function that is given the steps of a job raised; the next start gives the step again."""


class SubscriptionError(ReorderError):
    """A subscription is another job's, is in use, or its cursors do not fit."""


class SubscriptionFencedError(SubscriptionError):
    """Another process has taken the subscription over: nothing that follows counts any more."""


class SubscriptionClosedError(SubscriptionError):
    """The subscription was closed: open it again."""


class BoltCrashError(ReorderError):
    """The process of a topology's task dies again and again, and no single event does it."""


class TopologyTaskError(ReorderError):
    """A task of a topology cannot go on, for a reason that is no tuple's: a bolt cannot prepare."""


class TopologyFileError(ReorderError):
    """A topology cannot be had from a file, or does not go with the job's settings."""


class CheckpointError(ReorderError):
    """A checkpoint is another job's or of a newer version, or its parts do not fit together."""


class OwnershipError(CheckpointError):
    """Another process has the checkpoint, or has taken it over. To try again at once is no use."""


class WrongBatchError(CheckpointError):
    """A sink's checkpoint belongs to another stream, or has got to another batch."""


class BrokerStartError(SequiturError):
    """The embedded broker did not come up, or does not run."""


class PortInUseError(BrokerStartError):
    """Another program has the embedded broker's port."""


class UnknownTopicError(SequiturError):
    """A topic was named that the brokers do not know."""


class UnknownRecordError(SequiturError):
    """A place in a topic was named where there is no record, or none any more."""


class NotADeadLetterError(SequiturError):
    """A record of the dead-letter topic that the process job did not write."""


class DemoError(SequiturError):
    """A part of the demo ended with an error, or its result does not hold."""


NOT_THE_USERS: Final = (KeyboardInterrupt, BoltTimeoutError)
"""What passes through a call of a user's code, and is none of the errors it may raise."""
