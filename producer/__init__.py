"""The idempotent producer and its daemon: events into Kafka once and in order.

Each name is loaded when it is first asked for: a topology is tested without a Kafka client, and
`python -m sequitur.producer`, which imports the package first, handles Ctrl-C before it loads more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sequitur.errors import (
        BacklogQuotaError,
        BrokerError,
        BufferFullError,
        DeliveryError,
        FatalError,
        JournalError,
        MalformedEventIdError,
        NotAllPersistedError,
        NotPersistedError,
        OutcomeUnknownError,
        PossiblyPersistedError,
        ProducerClosedError,
        ProducerError,
        RetriableError,
        SendManyError,
        SettingsError,
        TakenOverError,
        WrongClusterError,
    )
    from sequitur.kafka.records import (
        EVENT_ID_HEADER,
        EventId,
        check_producer_name,
        encode_event_id,
        parse_event_id,
    )
    from sequitur.kafka.settings import KafkaSettings, TokenProvider
    from sequitur.producer._client import IdempotentProducer
    from sequitur.producer._outcome import (
        Delivery,
        Failure,
        NotPersisted,
        Outcome,
        Persisted,
        PossiblyPersisted,
        Ticket,
        TicketResult,
    )
    from sequitur.producer._record import Partitioner, Record, Serializer
    from sequitur.producer._running import ProducerStatistics
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.daemon.daemon import DaemonReport, ProduceSettings, run_daemon
    from sequitur.producer.journal.frames import Position

__all__ = [
    "EVENT_ID_HEADER",
    "BacklogQuotaError",
    "BrokerError",
    "BufferFullError",
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
    "BacklogQuotaError": "sequitur.errors",
    "BrokerError": "sequitur.errors",
    "BufferFullError": "sequitur.errors",
    "DaemonReport": ".daemon.daemon",
    "Delivery": "._outcome",
    "DeliveryError": "sequitur.errors",
    "EVENT_ID_HEADER": "sequitur.kafka.records",
    "EventId": "sequitur.kafka.records",
    "Failure": "._outcome",
    "FatalError": "sequitur.errors",
    "IdempotentProducer": "._client",
    "JournalError": "sequitur.errors",
    "KafkaSettings": "sequitur.kafka.settings",
    "MalformedEventIdError": "sequitur.errors",
    "NotAllPersistedError": "sequitur.errors",
    "NotPersisted": "._outcome",
    "NotPersistedError": "sequitur.errors",
    "Outcome": "._outcome",
    "OutcomeUnknownError": "sequitur.errors",
    "Partitioner": "._record",
    "Persisted": "._outcome",
    "Position": ".journal.frames",
    "PossiblyPersisted": "._outcome",
    "PossiblyPersistedError": "sequitur.errors",
    "ProduceSettings": ".daemon.daemon",
    "ProducerClosedError": "sequitur.errors",
    "ProducerError": "sequitur.errors",
    "ProducerSettings": "._settings",
    "ProducerStatistics": "._running",
    "Record": "._record",
    "RetriableError": "sequitur.errors",
    "SendManyError": "sequitur.errors",
    "Serializer": "._record",
    "SettingsError": "sequitur.errors",
    "TakenOverError": "sequitur.errors",
    "Ticket": "._outcome",
    "TicketResult": "._outcome",
    "TokenProvider": "sequitur.kafka.settings",
    "WrongClusterError": "sequitur.errors",
    "check_producer_name": "sequitur.kafka.records",
    "encode_event_id": "sequitur.kafka.records",
    "parse_event_id": "sequitur.kafka.records",
    "run_daemon": ".daemon.daemon",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LOADED_WHEN_USED[name], __name__), name)
    return value
