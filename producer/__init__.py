"""The idempotent producer and its daemon: events into Kafka once and in order.

Records, outcomes, errors and settings are loaded with the package; what speaks to Kafka is loaded
when it is first asked for, so that a topology can be tested without a Kafka client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sequitur.producer._errors import (
    BacklogQuotaError,
    BrokerError,
    DeliveryError,
    FatalError,
    NotAllPersistedError,
    NotPersistedError,
    OutcomeUnknownError,
    PossiblyPersistedError,
    ProducerClosedError,
    ProducerError,
    RetriableError,
    SendManyError,
    TakenOverError,
    WrongClusterError,
)
from sequitur.producer._event_id import (
    EVENT_ID_HEADER,
    EventId,
    MalformedEventIdError,
    check_producer_name,
    encode_event_id,
    parse_event_id,
)
from sequitur.producer._outcomes import (
    Delivery,
    NotPersisted,
    Outcome,
    Persisted,
    PossiblyPersisted,
)
from sequitur.producer._record import Record
from sequitur.producer._record_maker import Partitioner, Serializer
from sequitur.producer._settings import ProducerSettings
from sequitur.producer._statistics import ProducerStatistics
from sequitur.producer._ticket import Failure, Ticket, TicketResult
from sequitur.producer.daemon.settings import ProduceSettings
from sequitur.producer.journal.errors import JournalError
from sequitur.producer.journal.frames import Position
from sequitur.producer.kafka.tokens import TokenProvider
from sequitur.producer.settings import KafkaSettings, SettingsError

if TYPE_CHECKING:
    from sequitur.producer._client import IdempotentProducer
    from sequitur.producer.daemon.daemon import run_daemon
    from sequitur.producer.daemon.report import DaemonReport

__all__ = [
    "EVENT_ID_HEADER",
    "BacklogQuotaError",
    "BrokerError",
    "DaemonReport",
    "Delivery",
    "DeliveryError",
    "EventId",
    "Failure",
    "FatalError",
    "IdempotentProducer",
    "JournalError",
    "KafkaSettings",
    "MalformedEventIdError",
    "NotAllPersistedError",
    "NotPersisted",
    "NotPersistedError",
    "Outcome",
    "OutcomeUnknownError",
    "Partitioner",
    "Persisted",
    "Position",
    "PossiblyPersisted",
    "PossiblyPersistedError",
    "ProduceSettings",
    "ProducerClosedError",
    "ProducerError",
    "ProducerSettings",
    "ProducerStatistics",
    "Record",
    "RetriableError",
    "SendManyError",
    "Serializer",
    "SettingsError",
    "TakenOverError",
    "Ticket",
    "TicketResult",
    "TokenProvider",
    "WrongClusterError",
    "check_producer_name",
    "encode_event_id",
    "parse_event_id",
    "run_daemon",
]

_LOADED_WHEN_USED: Final = {
    "DaemonReport": "daemon.report",
    "IdempotentProducer": "_client",
    "run_daemon": "daemon.daemon",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_LOADED_WHEN_USED[name]}"), name)
    return value
