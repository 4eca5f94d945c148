"""The errors of the producer.

ProducerError
├── SettingsError           producer.settings
├── MalformedEventIdError   producer._event_id
├── ControlRecordError      a record of the control topic of backlog quotas cannot be read
├── ProducerClosedError     send after close
├── SendManyError           send_many ended early: its iterable raised, an event is invalid, quota
├── DeliveryError           an event is not surely in the log; only by calls that say so
│   ├── NotPersistedError       it is not, and never will be
│   ├── PossiblyPersistedError  it is unknown whether it is
│   └── NotAllPersistedError    some events of a ticket are not surely in the log
├── JournalError            producer.journal.errors
├── SourceError             producer.sources._errors
└── BrokerError             a request other than sending an event failed
    ├── RetriableError          it may succeed later
    │   ├── BrokerUnreachableError  no broker answers
    │   └── BacklogQuotaError       the topic is over its backlog quota: the event was not accepted
    ├── OutcomeUnknownError     it may have succeeded
    ├── UnreadableHeadersError  a record has a header whose name is no UTF-8
    └── FatalError              it will not succeed until rights, settings or versions change
        ├── RequestUnknownError     the broker does not know the request
        ├── TakenOverError          another process has taken over the producer's name
        ├── WrongClusterError       the journal belongs to another cluster
        ├── NameNotAllowedError     the transactional id of the name may not be used
        └── LogRangeError           a log does not have an offset that is to be read

What becomes of an *event* is an outcome and no exception, unless it is asked for by
`result_or_raise` or `send_and_wait`: see `sequitur.producer._outcomes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequitur.producer._ticket import Ticket, TicketResult
    from sequitur.producer.quota.control import BacklogState


class ProducerError(Exception):
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
    """Of a ticket's events not all are surely in the log.

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


class OutcomeUnknownError(BrokerError):
    """The request got no answer; it may have been carried out."""


class UnreadableHeadersError(BrokerError):
    """A record has a header whose name is no UTF-8: Kafka's clients do not agree on what it is."""


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
