"""The errors of the producer.

ProducerError
├── SettingsError           producer.settings
├── MalformedEventIdError   producer._event_id
├── ProducerClosedError     send after close
├── SendManyError           the iterable given to send_many broke off
├── JournalError            producer._journal_errors
├── SourceError             producer.sources._errors
└── BrokerError             a request that is no event failed
    ├── RetriableError          it may succeed later
    ├── OutcomeUnknownError     it may have succeeded
    └── FatalError              it will not succeed until somebody changes something

What becomes of an *event* is never an exception but an outcome: see `producer._outcomes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from producer._ticket import Ticket


class ProducerError(Exception):
    """Base of every error this package raises on purpose."""


class ProducerClosedError(ProducerError):
    """The producer was not started, or is closed; the event was not accepted."""


class SendManyError(ProducerError):
    """The iterable given to `send_many` raised; the cause is chained.

    Attributes:
        ticket: The events that were accepted before; await it for what becomes of them.
    """

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(f"the events broke off after {ticket.accepted} of them were accepted")
        self.ticket = ticket


class BrokerError(ProducerError):
    """A request to a broker failed."""


class RetriableError(BrokerError):
    """The request failed and was not carried out; it may succeed later."""


class OutcomeUnknownError(BrokerError):
    """The request got no answer; it may have been carried out."""


class FatalError(BrokerError):
    """The request failed, and will again until something changes: rights, settings, versions."""
