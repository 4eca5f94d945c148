"""The idempotent producer and its daemon: events into Kafka once and in order."""

from producer._client import IdempotentProducer
from producer._daemon import run_daemon
from producer._daemon_report import DaemonReport
from producer._errors import (
    BrokerError,
    FatalError,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerError,
    RetriableError,
    SendManyError,
)
from producer._event_id import (
    EVENT_ID_HEADER,
    EventId,
    MalformedEventIdError,
    check_producer_name,
    encode_event_id,
    parse_event_id,
)
from producer._journal_codec import Position
from producer._journal_errors import JournalError
from producer._outcomes import Delivery, NotPersisted, Outcome, Persisted, PossiblyPersisted
from producer._produce_settings import ProduceSettings
from producer._record import Record
from producer._settings import ProducerSettings
from producer._statistics import ProducerStatistics
from producer._ticket import Failure, Ticket, TicketResult
from producer.settings import KafkaSettings, SettingsError

__all__ = [
    "EVENT_ID_HEADER",
    "BrokerError",
    "DaemonReport",
    "Delivery",
    "EventId",
    "Failure",
    "FatalError",
    "IdempotentProducer",
    "JournalError",
    "KafkaSettings",
    "MalformedEventIdError",
    "NotPersisted",
    "Outcome",
    "OutcomeUnknownError",
    "Persisted",
    "Position",
    "PossiblyPersisted",
    "ProduceSettings",
    "ProducerClosedError",
    "ProducerError",
    "ProducerSettings",
    "ProducerStatistics",
    "Record",
    "RetriableError",
    "SendManyError",
    "SettingsError",
    "Ticket",
    "TicketResult",
    "check_producer_name",
    "encode_event_id",
    "parse_event_id",
    "run_daemon",
]
