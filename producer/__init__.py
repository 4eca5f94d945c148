"""The idempotent producer and its daemon: events into Kafka once and in order.

Each name is loaded when it is first asked for: a topology is tested without a Kafka client, and
`python -m sequitur.producer`, which imports the package first, handles Ctrl-C before it loads more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sequitur.producer._client import IdempotentProducer
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
    from sequitur.producer.daemon.daemon import run_daemon
    from sequitur.producer.daemon.report import DaemonReport
    from sequitur.producer.daemon.settings import ProduceSettings
    from sequitur.producer.journal.errors import JournalError
    from sequitur.producer.journal.frames import Position
    from sequitur.producer.kafka.tokens import TokenProvider
    from sequitur.producer.settings import KafkaSettings, SettingsError

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
    "BacklogQuotaError": "_errors",
    "BrokerError": "_errors",
    "DaemonReport": "daemon.report",
    "Delivery": "_outcomes",
    "DeliveryError": "_errors",
    "EVENT_ID_HEADER": "_event_id",
    "EventId": "_event_id",
    "Failure": "_ticket",
    "FatalError": "_errors",
    "IdempotentProducer": "_client",
    "JournalError": "journal.errors",
    "KafkaSettings": "settings",
    "MalformedEventIdError": "_event_id",
    "NotAllPersistedError": "_errors",
    "NotPersisted": "_outcomes",
    "NotPersistedError": "_errors",
    "Outcome": "_outcomes",
    "OutcomeUnknownError": "_errors",
    "Partitioner": "_record_maker",
    "Persisted": "_outcomes",
    "Position": "journal.frames",
    "PossiblyPersisted": "_outcomes",
    "PossiblyPersistedError": "_errors",
    "ProduceSettings": "daemon.settings",
    "ProducerClosedError": "_errors",
    "ProducerError": "_errors",
    "ProducerSettings": "_settings",
    "ProducerStatistics": "_statistics",
    "Record": "_record",
    "RetriableError": "_errors",
    "SendManyError": "_errors",
    "Serializer": "_record_maker",
    "SettingsError": "settings",
    "TakenOverError": "_errors",
    "Ticket": "_ticket",
    "TicketResult": "_ticket",
    "TokenProvider": "kafka.tokens",
    "WrongClusterError": "_errors",
    "check_producer_name": "_event_id",
    "encode_event_id": "_event_id",
    "parse_event_id": "_event_id",
    "run_daemon": "daemon.daemon",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_LOADED_WHEN_USED[name]}"), name)
    return value
